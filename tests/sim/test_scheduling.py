"""The schedulers in simulated time: consistency, delays, alignment, several changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from fries.change.model import Phase
from fries.graph import Graph, paths
from fries.graph import Operator as Op
from fries.plan import Plan
from fries.schedulers import epoch, fries, fries_unpruned, multi_version, naive, scheduler
from fries_lab.sim.engine import Simulation
from fries_lab.sim.setup import Cost
from fries_lab.workloads.graphs import (
    join_split_example,
    running_example,
    scope_figure,
    w2,
    w3,
    w4,
    w5,
)
from tests.sim.simulations import (
    CONSISTENT,
    blocked,
    operations,
    outputs,
    queues,
    settle,
    simulation,
    varied,
    verdict,
)

CASES: Final = {
    "running example": (running_example(1), ("FM", "MC")),
    "running example, 3 workers": (running_example(3), ("FC", "MC")),
    "scope figure": (scope_figure(2), ("C", "F", "G")),
    "join and split": (join_split_example(2), ("FMX",)),
    "join and split, two targets": (join_split_example(1), ("FC", "FMY")),
    "W2": (w2(3), ("J1", "J4")),
    "W3": (w3(2), ("J7", "J8", "J9")),
    "W4": (w4(2), ("FD1", "F2")),
    "W5, two branches": (w5(2), ("FD3", "FD4")),
    "W5, behind the join": (w5(2), ("E1", "F3")),
}
in_all_cases = pytest.mark.parametrize(("graph", "targets"), CASES.values(), ids=CASES.keys())


def loaded(
    graph: Graph, *changes: tuple[float, Plan], seed: int = 0, tuples: int = 60
) -> Simulation:
    """A run with more input than it can handle, settled."""
    setup = varied(
        graph,
        rate=400,
        cost=0.004,
        tuples=tuples,
        capacity=10,
        restart_time=0.5,
        seed=seed,
    )
    sim = simulation(setup, *changes)
    settle(sim, len(changes))
    return sim


def delay(sim: Simulation, change: int = 0) -> float:
    """The delay of a change that is over."""
    found = sim.metrics.changes[change].delay
    assert found is not None
    return found


# Consistency


@pytest.mark.parametrize("name", [*CONSISTENT, "restart"])
@in_all_cases
def test_consistent_schedulers_keep_transactions_whole(
    graph: Graph, targets: tuple[str, ...], name: str
) -> None:
    plan = scheduler(name)(graph, targets)
    undisturbed = outputs(loaded(graph))
    for seed in range(3):
        sim = loaded(graph, (0.02 + 0.03 * seed, plan), seed=seed)
        found = verdict(sim)
        assert found.serializable, str(found)
        assert found.tallies[0].old > 0
        assert found.tallies[0].new > 0
        assert sim.metrics.changes[0].phase is Phase.DONE
        assert sim.recovery.consistent()
        assert outputs(sim) == undisturbed


@pytest.mark.parametrize(
    ("graph", "targets"),
    [
        (running_example(1), ("FC", "MC")),
        (running_example(3), ("FC", "MC")),
        (w2(2), ("J1", "J4")),
        (w4(2), ("FD1",)),
        (w5(2), ("FD3", "FD4")),
    ],
    ids=["running example", "3 workers", "W2", "one-to-many", "replicate"],
)
def test_the_naive_scheduler_is_caught(graph: Graph, targets: tuple[str, ...]) -> None:
    for seed in range(3):
        sim = loaded(graph, (0.1, naive(graph, targets)), seed=seed)
        found = verdict(sim)
        assert not found.atomic
        assert found.mixed > 0
        assert sim.metrics.changes[0].phase is Phase.DONE
        assert sim.recovery.consistent()  # everyone has the new version; too late for some


def test_naive_is_enough_for_a_single_one_to_one_target() -> None:
    graph = running_example(2)
    sim = loaded(graph, (0.1, naive(graph, ["FM"])))
    assert verdict(sim).serializable
    assert delay(sim) == pytest.approx(delay(loaded(graph, (0.1, fries(graph, ["FM"])))))


@pytest.mark.parametrize("name", CONSISTENT)
def test_any_moment_will_do(name: str) -> None:
    """A change at every half millisecond of a run, also before and after all data."""
    graph = running_example(2)
    plan = scheduler(name)(graph, ["FC", "MC"])
    for moment in range(0, 120, 3):
        sim = simulation(varied(graph, tuples=8), (moment / 2000, plan))
        settle(sim, changes=1)
        assert verdict(sim).serializable
        assert sim.recovery.consistent()
        assert outputs(sim) == {"sink": list(range(16))}


def test_loading_takes_time_but_stops_nothing() -> None:
    graph = running_example(2)
    plan = fries(graph, ["FM", "MC"])
    setup = varied(graph, tuples=80, load_time=0.1)
    sim = simulation(setup, (0.05, plan))
    sim.run(0.05 + 0.1)
    done = len(operations(sim)["sink#0"])
    assert done > 5
    assert sim.metrics.changes[0].phase is Phase.PREPARING
    settle(sim, changes=1)
    quick = simulation(varied(graph, tuples=80), (0.15, plan))
    settle(quick, changes=1)
    assert delay(sim) == pytest.approx(0.1 + delay(quick))
    assert verdict(sim).serializable


# Delays


@in_all_cases
def test_fries_is_fastest_among_the_consistent_ones(graph: Graph, targets: tuple[str, ...]) -> None:
    delays = {
        name: delay(loaded(graph, (0.12, scheduler(name)(graph, targets)), tuples=100))
        for name in (*CONSISTENT, "naive", "restart")
    }
    assert delays["naive"] <= delays["fries"] <= delays["fries_unpruned"]
    assert delays["fries_unpruned"] <= delays["epoch"] < delays["restart"]
    assert delays["epoch"] / 2 <= delays["multi_version"] <= delays["epoch"] * 2


def test_fries_does_not_wait_for_what_is_ahead_of_its_heads() -> None:
    """The paper's W2: far less than epochs for {J3, J4}, and more the further markers go."""
    graph = w2(3)
    fast, far, whole = (
        delay(loaded(graph, (0.12, plan), tuples=100))
        for plan in (
            fries(graph, ["J3", "J4"]),
            fries(graph, ["J1", "J4"]),
            epoch(graph, ["J3", "J4"]),
        )
    )
    assert 2 * fast < far < whole


def test_tags_take_as_long_as_markers_along_a_chain() -> None:
    graph = running_example()
    by_marker = delay(loaded(graph, (0.12, epoch(graph, ["FM", "MC"]))))
    by_tag = delay(loaded(graph, (0.12, multi_version(graph, ["FM", "MC"]))))
    assert by_tag == pytest.approx(by_marker, abs=0.002)


@pytest.mark.parametrize("target", ["FD4", "F3", "E1"])
def test_pruning_shortens_the_delay(target: str) -> None:
    graph = w5(2)
    pruned = delay(loaded(graph, (0.12, fries(graph, [target])), tuples=100))
    unpruned = delay(loaded(graph, (0.12, fries_unpruned(graph, [target])), tuples=100))
    assert 3 * pruned < unpruned


def test_a_change_of_an_idle_dataflow_takes_three_messages() -> None:
    """Prepare, prepared and commit; markers travel in no time if nothing is in their way."""
    graph = w2(2)
    for name in CONSISTENT:
        setup = varied(graph, tuples=1, control_latency=0.01)
        sim = simulation(setup, (1.0, scheduler(name)(graph, ["J1", "J4"])))
        settle(sim, changes=1)
        assert delay(sim) == pytest.approx(0.03)


def test_a_longer_queue_means_a_longer_epoch_and_nothing_to_fries() -> None:
    graph = running_example()
    found = {}
    for capacity in (5, 50):
        for plan in (fries(graph, ["FM"]), epoch(graph, ["FM"])):
            setup = varied(
                graph,
                rate=1000,
                cost=0.001,
                costs={"FC": (Cost(0.01),)},
                tuples=200,
                capacity=capacity,
            )
            sim = simulation(setup, (0.5, plan))
            settle(sim, changes=1)
            found[plan.scheduler, capacity] = delay(sim)
    assert found["fries", 50] == pytest.approx(found["fries", 5], abs=0.005)
    assert found["epoch", 5] == pytest.approx(0.01 * 6, abs=0.015)
    assert found["epoch", 50] == pytest.approx(0.01 * 51, abs=0.015)


# Alignment


def two_branches() -> Graph:
    """A slow and a fast branch that meet in U."""
    operators = [Op("A", source=True), Op("B", source=True), Op("S"), Op("F"), Op("U"), Op("Z")]
    return Graph(operators, paths("A -> S -> U -> Z", "B -> F -> U"))


def watch(plan_of: Callable[[Graph, list[str]], Plan]) -> tuple[Simulation, set[tuple[str, str]]]:
    """Change U and Z while S lags behind; the run, and every channel that was ever blocked."""
    graph = two_branches()
    costs = {"S": (Cost(0.02),), "F": (Cost(0.001),), "U": (Cost(0.001),), "Z": (Cost(0.0),)}
    setup = varied(graph, rate=200, costs=costs, tuples=100, capacity=10)
    sim = simulation(setup, (0.2, plan_of(graph, ["U", "Z"])))
    ever: set[tuple[str, str]] = set()
    while sim.step(0.35):
        ever |= blocked(sim)
    return sim, ever


def test_alignment_blocks_the_channel_whose_marker_came_first() -> None:
    """Head of line: the fast branch waits for the slow one, up to its source."""
    sim, ever = watch(epoch)
    assert ever == {("F#0", "U#0")}
    assert blocked(sim) == {("F#0", "U#0")}
    assert queues(sim)["F#0", "U#0"] == 10
    assert queues(sim)["B#0", "F#0"] == 10
    assert queues(sim)["S#0", "U#0"] == 0
    at_u = [txn for txn, _ in operations(sim)["U#0"]]
    assert all(txn % 2 == 0 for txn in at_u[-5:])  # those of A, by way of S
    assert len(operations(sim)["B#0"]) < 0.35 * 200
    settle(sim, changes=1)
    assert not blocked(sim)
    assert verdict(sim).serializable
    assert outputs(sim) == {"Z": list(range(200))}


def test_fries_blocks_nothing_outside_its_component() -> None:
    sim, ever = watch(fries)
    assert not ever
    assert sim.metrics.changes[0].phase is Phase.DONE
    assert delay(sim) < 0.01
    assert len(operations(sim)["B#0"]) == pytest.approx(0.35 * 200, abs=2)


def test_tags_block_nothing_either() -> None:
    sim, ever = watch(multi_version)
    assert not ever
    assert len(operations(sim)["B#0"]) == pytest.approx(0.35 * 200, abs=2)
    settle(sim, changes=1)
    versions = [version for _, version in operations(sim)["U#0"]]
    assert versions != sorted(versions)  # both versions are resident
    assert verdict(sim).serializable


# Several changes


def phases(sim: Simulation) -> list[tuple[Phase, ...]]:
    """Run to the end; the distinct phases that the changes were in together, in order."""
    seen: list[tuple[Phase, ...]] = []
    while sim.step():
        now = tuple(record.phase for record in sim.metrics.changes)
        if not seen or seen[-1] != now:
            seen.append(now)
    return seen


@pytest.mark.parametrize("name", CONSISTENT)
def test_changes_of_the_same_components_follow_each_other_closely(name: str) -> None:
    graph = running_example(2)
    plan = scheduler(name)(graph, ["FC", "MC"])
    moments = (0.1, 0.105, 0.11, 0.3)
    sim = simulation(
        varied(graph, rate=400, cost=0.004, tuples=100), *((moment, plan) for moment in moments)
    )
    together = phases(sim)
    assert (Phase.COMMITTED,) * 2 in (seen[:2] for seen in together)
    found = verdict(sim)
    assert found.serializable, str(found)
    assert [tally.mixed for tally in found.tallies] == [0] * 4
    assert sim.recovery.configuration()["MC"] == {4}
    assert sim.recovery.consistent()
    head = plan.heads[0]
    for worker in (f"{head}#0", f"{head}#1"):
        times = [record.switched[worker] for record in sim.metrics.changes]
        assert times == sorted(times)


@pytest.mark.parametrize("name", CONSISTENT)
def test_overlapping_changes_queue(name: str) -> None:
    graph = w5(2)
    first = fries(graph, ["FD3", "FD4"])
    second = scheduler(name)(graph, ["FD3", "F3", "E1"])
    setup = varied(graph, rate=400, cost=0.004, tuples=100)
    sim = simulation(setup, (0.1, first), (0.101, second), (0.102, first))
    seen = phases(sim)
    before, after, last = sim.metrics.changes
    assert before.done is not None
    assert after.done is not None
    assert before.done <= min(after.switched.values())
    assert after.done <= min(last.switched.values())
    assert (Phase.COMMITTED, Phase.QUEUED, Phase.QUEUED) in seen
    assert not any(now.count(Phase.COMMITTED) > 1 for now in seen)
    assert verdict(sim).serializable
    assert sim.recovery.configuration()["FD3"] == {3}
    assert sim.recovery.consistent()


def test_changes_of_disjoint_components_do_not_wait_for_each_other() -> None:
    graph = w3(2)
    setup = varied(graph, rate=200, cost=0.004, tuples=60)
    sim = simulation(
        setup,
        (0.1, fries(graph, ["J8", "J9"])),
        (0.1, fries(graph, ["J5"])),
    )
    assert (Phase.COMMITTED, Phase.COMMITTED) in phases(sim)
    assert delay(sim, 1) < delay(sim, 0)
    assert verdict(sim).atomic
    assert sim.recovery.consistent()


def test_a_stream_of_changes() -> None:
    """Thirty changes of three kinds, faster than they can be carried out."""
    graph = running_example(2)
    kinds = [fries(graph, ["FM", "MC"]), epoch(graph, ["FC", "MC"]), multi_version(graph, ["FM"])]
    changes = [(0.05 + 0.005 * n, kinds[n // 2 % 3]) for n in range(30)]
    sim = loaded(graph, *changes, tuples=150)
    assert all(record.phase is Phase.DONE for record in sim.metrics.changes)
    assert verdict(sim).serializable
    assert sim.recovery.configuration() == {
        "source": {0},
        "FC": {10},
        "FM": {20},
        "MC": {20},
        "sink": {0},
    }
