"""Checkpoints, and the paper's rule for them while a change is under way (section 7.3)."""

from __future__ import annotations

import pytest

from fries.graph import Graph
from fries.schedulers import epoch, fries, scheduler
from fries_lab.sim.engine import Simulation
from fries_lab.sim.setup import Cost, Setup
from fries_lab.workloads.graphs import running_example, scope_figure, w3, w5
from tests.sim.simulations import (
    CONSISTENT,
    Crashed,
    blocked,
    crashes_everywhere,
    outputs,
    settle,
    settled,
    simulation,
    varied,
    verdict,
)


def test_completed_checkpoints_are_counted() -> None:
    sim = Simulation(varied(running_example(2), cost=0.001, tuples=None, checkpoint_interval=0.1))
    sim.run(1.05)
    assert sim.metrics.checkpoints == 10
    without = Simulation(varied(running_example(2)))
    settle(without)
    assert without.metrics.checkpoints == 0


@pytest.mark.parametrize(
    "graph",
    [running_example(3), scope_figure(2), w5(2)],
    ids=["running example", "scope figure", "W5"],
)
def test_checkpoints_do_not_touch_tuples(graph: Graph) -> None:
    plain = Simulation(varied(graph, rate=400, tuples=60))
    settle(plain)
    sim = Simulation(varied(graph, rate=400, tuples=60, checkpoint_interval=0.01))
    settle(sim)
    assert sim.metrics.checkpoints > 3
    assert outputs(sim) == outputs(plain)
    assert not verdict(sim).tallies


def slow(checkpoint_interval: float) -> Setup:
    """A barrier takes about 0.2 s, as long as the queue in front of FC."""
    return varied(
        running_example(),
        cost=0.0,
        costs={"FC": (Cost(0.01),)},
        tuples=150,
        capacity=20,
        checkpoint_interval=checkpoint_interval,
    )


def test_one_checkpoint_at_a_time() -> None:
    sim = Simulation(slow(0.01))
    sim.run(1.4)
    assert 6 <= sim.metrics.checkpoints <= 9


def test_barriers_are_aligned() -> None:
    """In a diamond the faster branch waits for the barrier of the slower one."""
    costs = {"D": (Cost(0.02),), "E": (Cost(0.001),)}
    sim = Simulation(varied(scope_figure(), costs=costs, tuples=40, checkpoint_interval=0.1))
    ever: set[tuple[str, str]] = set()
    while not settled(sim):
        sim.step()
        ever |= blocked(sim)
    assert ("E#0", "F#0") in ever
    assert ("D#0", "F#0") not in ever
    assert outputs(sim) == {"H": list(range(80))}


@pytest.mark.parametrize("name", CONSISTENT)
def test_a_commit_cancels_the_checkpoint_and_another_follows(name: str) -> None:
    """It follows as soon as all heads have switched, though none is due before 1.2 s."""
    setup = slow(0.6)
    sim = simulation(setup, (0.65, scheduler(name)(setup.graph, ["FM", "MC"])))
    sim.run(0.65)
    assert sim.control.controller.checkpoint == 1
    assert sim.control.controller.unsaved  # under way
    while not sim.metrics.changes[0].committed:
        assert sim.control.controller.unsaved
        sim.step()
    assert not sim.control.controller.unsaved
    assert sim.control.controller.due
    assert sim.control.controller.holding
    while sim.control.controller.checkpoint == 1:
        sim.step()
    assert sim.now < 0.66
    record = sim.metrics.changes[0]
    assert {f"{head}#0" for head in record.plan.heads} <= record.switched.keys()
    assert sim.metrics.checkpoints == 0
    sim.run(1.15)
    assert sim.metrics.checkpoints == 1
    settle(sim, changes=1)
    assert not blocked(sim)
    assert outputs(sim) == {"sink": list(range(150))}
    assert verdict(sim).serializable


def test_without_a_change_that_checkpoint_completes() -> None:
    sim = Simulation(slow(0.6))
    sim.run(1.15)
    assert sim.metrics.checkpoints == 1
    assert sim.control.controller.checkpoint == 1


def test_a_recovery_starts_from_the_last_complete_checkpoint() -> None:
    """What came before it is not done again; what came after it is."""
    sim = Simulation(slow(0.6))
    while not sim.metrics.checkpoints:
        sim.step()
    saved = sim.now
    done: list[float] = []

    def look(now: float, operator: str, born: float, _: int) -> None:
        assert born <= now
        if operator == "FC":
            done.append(now)

    sim.probe = look
    sim.run(saved + 0.2)
    assert len(done) == pytest.approx(20, abs=1)
    sim.recovery.crash()
    settle(sim)
    again = sum(now > saved + 0.2 for now in done)
    assert 60 < again < 100
    assert outputs(sim) == {"sink": list(range(150))}


# The rule


def unequal(*, guard: bool, logging: bool) -> Simulation:
    """The paper's example: barriers are at G at once, and at C behind a queue."""
    graph = scope_figure()
    setup = varied(
        graph,
        cost=0.0,
        costs={"C": (Cost(0.008),), "G": (Cost(0.001),)},
        tuples=7,
        checkpoint_interval=0.02,
        guard=guard,
        logging=logging,
    )
    return simulation(setup, (0.03, fries(graph, ["C", "F", "G"])))


def half_changed(run: Crashed) -> bool:
    """Whether a crash ended in a configuration that no change leads to."""
    settle(run.sim, changes=1)
    return not run.sim.recovery.consistent()


def test_without_the_rule_a_checkpoint_can_hold_half_a_change() -> None:
    runs = crashes_everywhere(lambda: unequal(guard=False, logging=False))
    found = [run for run, _ in runs if half_changed(run)]
    assert found
    for run in found:
        versions = run.sim.recovery.configuration()
        assert versions["C"] == versions["F"] != versions["G"]


def test_with_the_rule_no_checkpoint_does() -> None:
    for run, expected in crashes_everywhere(lambda: unequal(guard=True, logging=False)):
        run.check(expected)


@pytest.mark.parametrize("guard", [False, True])
def test_a_log_needs_no_rule_here(guard: bool) -> None:
    """The message that G had not seen when the checkpoint was taken is in G's log."""
    for run, expected in crashes_everywhere(lambda: unequal(guard=guard, logging=True)):
        run.check(expected)


@pytest.mark.parametrize(
    ("graph", "targets"),
    [(running_example(2), ["FC", "FM"]), (w3(), ["J5", "J6", "J7", "J8"])],
    ids=["two workers", "three heads"],
)
def test_the_rule_also_prevents_a_deadlock(graph: Graph, targets: list[str]) -> None:
    """Not in the paper: without it a marker and a barrier may wait for each other.

    One head switches before the barrier and the other after it. Where their channels meet,
    one is blocked by the marker and the other by the barrier, each waiting for its twin.
    """

    def stuck(seed: int, *, guard: bool) -> bool:
        setup = varied(
            graph, cost=0.006, tuples=25, checkpoint_interval=0.02, guard=guard, seed=seed
        )
        sim = simulation(setup, (0.05, fries(graph, targets)))
        sim.run(2.0)
        return sim.inflight > 0

    assert not any(stuck(seed, guard=True) for seed in range(20))
    assert any(stuck(seed, guard=False) for seed in range(20))


def test_epochs_need_no_rule() -> None:
    """Markers and barriers start together at the sources, and in one order."""
    graph = w3(2)
    for seed in range(5):
        setup = varied(
            graph, cost=0.006, tuples=25, checkpoint_interval=0.02, guard=False, seed=seed
        )
        sim = simulation(setup, (0.05, epoch(graph, ["J5", "J8"])))
        settle(sim, changes=1)
        assert verdict(sim).serializable
