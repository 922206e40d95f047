"""Crashes at every event, and both ways to recover (section 7.3)."""

from __future__ import annotations

import random
from typing import Final

import pytest

from fries.change.model import Phase
from fries.graph import Graph
from fries.schedulers import epoch, fries, multi_version, restart, scheduler
from fries_lab.sim.engine import Simulation
from fries_lab.workloads.graphs import join_split_example, running_example, scope_figure, w5
from tests.sim.simulations import (
    Crashed,
    crashes_everywhere,
    operations,
    outputs,
    settle,
    simulation,
    varied,
    verdict,
)

GRAPHS: Final[dict[str, tuple[Graph, tuple[str, ...]]]] = {
    "running example": (running_example(), ("FM", "MC")),
    "scope figure": (scope_figure(), ("C", "F", "G")),
    "join and split": (join_split_example(), ("FMX",)),
}
WAYS: Final[dict[str, tuple[bool, float | None]]] = {
    "from a checkpoint": (False, 0.007),
    "from the beginning": (False, None),
    "by a log after a checkpoint": (True, 0.007),
    "by a log alone": (True, None),
}
in_all_ways = pytest.mark.parametrize(("logging", "interval"), WAYS.values(), ids=WAYS.keys())
in_all_graphs = pytest.mark.parametrize(("graph", "targets"), GRAPHS.values(), ids=GRAPHS.keys())


# One crash


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version"])
@in_all_ways
@in_all_graphs
def test_a_crash_at_every_event(
    graph: Graph, targets: tuple[str, ...], logging: bool, interval: float | None, name: str
) -> None:
    plan = scheduler(name)(graph, targets)
    setup = varied(
        graph,
        cost=0.002,
        tuples=6,
        control_latency=0.0005,
        logging=logging,
        checkpoint_interval=interval,
    )
    checkpoints: dict[Phase, int] = {}
    for run, expected in crashes_everywhere(lambda: simulation(setup, (0.02, plan))):
        run.check(expected)
        assert run.sim.metrics.crashes == 1
        if run.phases:
            checkpoints[run.phases[0]] = run.checkpoints
    assert checkpoints.keys() == {Phase.PREPARING, Phase.COMMITTED, Phase.DONE}
    if interval is not None:  # from one without the change, and from one with it
        assert 0 < checkpoints[Phase.PREPARING] < checkpoints[Phase.DONE]


@in_all_ways
def test_a_crash_while_several_changes_are_under_way(logging: bool, interval: float | None) -> None:
    """Two in transition together, one in the queue behind them."""
    graph = running_example()
    plan, other = fries(graph, ["FC", "MC"]), epoch(graph, ["FM", "MC"])
    setup = varied(graph, tuples=7, logging=logging, checkpoint_interval=interval)
    together: set[tuple[Phase, ...]] = set()
    changes = ((0.008, plan), (0.0085, plan), (0.009, other))
    for run, expected in crashes_everywhere(lambda: simulation(setup, *changes), changes=3):
        run.check(expected, changes=3)
        together.add(tuple(run.phases))
    assert (Phase.COMMITTED, Phase.COMMITTED, Phase.QUEUED) in together


@in_all_ways
def test_a_crash_while_tagged_changes_are_under_way(logging: bool, interval: float | None) -> None:
    graph = running_example()
    plan = multi_version(graph, ["FM", "MC"])
    setup = varied(graph, tuples=7, logging=logging, checkpoint_interval=interval)
    changes = ((0.008, plan), (0.012, plan))
    for run, expected in crashes_everywhere(lambda: simulation(setup, *changes), changes=2):
        run.check(expected, changes=2)


@in_all_ways
def test_a_crash_while_workers_load(logging: bool, interval: float | None) -> None:
    """Also if a checkpoint was taken in the middle of loading."""
    graph = running_example()
    setup = varied(graph, tuples=7, logging=logging, checkpoint_interval=interval, load_time=0.01)
    plan = fries(graph, ["FM", "MC"])
    for run, expected in crashes_everywhere(lambda: simulation(setup, (0.008, plan))):
        run.check(expected)


@in_all_ways
def test_a_crash_at_every_event_of_a_restart(logging: bool, interval: float | None) -> None:
    """A change that waits for its restart is given up, and the sources are open again."""
    graph = running_example()
    plan = restart(graph, ["FM", "MC"])
    setup = varied(
        graph, tuples=7, logging=logging, checkpoint_interval=interval, restart_time=0.02
    )
    phases: set[Phase] = set()
    for run, expected in crashes_everywhere(lambda: simulation(setup, (0.012, plan))):
        run.check(expected)
        phases.update(run.phases)
    assert Phase.QUEUED in phases


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version"])
@pytest.mark.parametrize("logging", [False, True])
def test_crashes_of_a_parallel_run_with_full_buffers(name: str, logging: bool) -> None:
    """Replay under back-pressure: no deadlock, and the sources make no tuple too many."""
    graph = w5(2)
    plan = scheduler(name)(graph, ["FD3", "FD4"])
    setup = varied(
        graph, rate=2000, tuples=6, capacity=1, logging=logging, checkpoint_interval=0.02
    )
    whole = simulation(setup, (0.01, plan))
    steps = settle(whole, changes=1)
    for step in range(0, steps, 9):
        Crashed(simulation(setup, (0.01, plan)), step).check(outputs(whole))


def test_a_crash_before_anything_and_after_everything() -> None:
    setup = varied(running_example(), tuples=5, logging=True, checkpoint_interval=0.011)
    sim = Simulation(setup)
    sim.recovery.crash()
    settle(sim)
    assert outputs(sim) == {"sink": list(range(5))}
    sim.run(1.0)
    done = operations(sim)
    sim.recovery.crash()
    assert operations(sim) == done  # all in the checkpoint
    sim.run(2.0)
    assert operations(sim) == done
    assert sim.metrics.crashes == 2


def test_a_change_after_a_crash() -> None:
    graph = running_example(2)
    plan = fries(graph, ["FM", "MC"])
    for logging in (False, True):
        setup = varied(graph, tuples=20, logging=logging, checkpoint_interval=0.02)
        sim = simulation(setup, (0.03, plan), (0.06, plan), (0.09, plan))
        sim.at(0.05, sim.recovery.crash)
        sim.at(0.08, sim.recovery.crash)
        settle(sim, changes=3)
        assert sim.metrics.crashes == 2
        assert [record.phase for record in sim.metrics.changes] == [Phase.DONE] * 3
        assert sim.recovery.configuration()["FM"] == {3}
        assert verdict(sim).serializable
        assert outputs(sim) == {"sink": list(range(40))}


# More than one crash


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version"])
@pytest.mark.parametrize("interval", [0.011, None])
def test_a_second_crash_at_every_event_after_the_first(name: str, interval: float | None) -> None:
    """Most of them while the log is being repeated, which full buffers draw out."""
    graph = running_example()
    plan = scheduler(name)(graph, ["FM", "MC"])
    setup = varied(graph, tuples=7, capacity=2, logging=True, checkpoint_interval=interval)

    def make(first: int) -> Simulation:
        return Crashed(simulation(setup, (0.012, plan)), first).sim

    whole = simulation(setup, (0.012, plan))
    steps = settle(whole, changes=1)
    replaying = 0
    for first in range(steps // 3, steps, steps // 4):
        done = operations(make(first))
        rest = settle(make(first), changes=1)
        for second in range(0, rest, 2):
            sim = make(first)
            for _ in range(second):
                sim.step()
            replaying += sim.recovery.replaying
            run = Crashed(sim, 0)
            run.check(outputs(whole))
            assert all(
                rows[: len(done[name])] == done[name] for name, rows in operations(sim).items()
            )
    assert replaying > 10


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version", "restart"])
@in_all_ways
def test_two_crashes_at_random_moments(name: str, logging: bool, interval: float | None) -> None:
    graph = scope_figure(2)
    plan = scheduler(name)(graph, ["C", "F", "G"])
    for seed in range(12):
        setup = varied(
            graph,
            tuples=6,
            capacity=1 + seed % 3,
            load_time=0.002 * (seed % 2),
            restart_time=0.01,
            logging=logging,
            checkpoint_interval=interval,
            seed=seed,
        )
        whole = simulation(setup, (0.012, plan))
        steps = settle(whole, changes=1)
        chance = random.Random(seed)
        sim = Crashed(simulation(setup, (0.012, plan)), chance.randrange(steps)).sim
        run = Crashed(sim, chance.randrange(steps))
        run.check(outputs(whole))
        assert sim.metrics.crashes == 2


def test_many_crashes_in_a_row() -> None:
    """A crash every few events: slow progress, since checkpoints complete now and then."""
    graph = running_example(2)
    setup = varied(graph, tuples=10, logging=True, checkpoint_interval=0.005)
    sim = simulation(setup, (0.012, multi_version(graph, ["FC", "MC"])))
    for _ in range(40):
        for _ in range(25):
            sim.step()
        sim.recovery.crash()
    settle(sim, changes=1)
    assert sim.metrics.crashes == 40
    assert sim.metrics.changes[0].phase is Phase.DONE
    assert sim.recovery.consistent()
    assert verdict(sim).serializable
    assert outputs(sim) == {"sink": list(range(20))}
