"""The schedulers that wait: at the boundary of a mini-batch, and by a stop and a restart."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from fries.change.model import Phase
from fries.plan import Plan
from fries.schedulers import epoch, fries, mini_batch, multi_version, restart
from fries_lab.sim.engine import Simulation
from fries_lab.sim.setup import Cost, Setup
from fries_lab.workloads.graphs import running_example, scope_figure, w5
from tests.sim.simulations import (
    operations,
    outputs,
    settle,
    simulation,
    transactions,
    varied,
    verdict,
)

GRAPH = running_example()
TARGETS = ["FM", "MC"]
LATENCY = 1 / 1024
"""Of a control message; like all times here exact in binary, so that nothing is approximate."""


def batched(*, cost: float = 1 / 128) -> Setup:
    """64 tuples a second in mini-batches of one second; a batch takes 64 times the cost of FC."""
    return varied(
        GRAPH,
        rate=64,
        cost=0,
        costs={"FC": (Cost(cost),)},
        capacity=8,
        tuples=256,
        batch_interval=1.0,
        control_latency=LATENCY,
        restart_time=0.25,
    )


class Watched:
    """A run that is observed: when each tuple was born and which versions it met."""

    def __init__(self, setup: Setup, *changes: tuple[float, Plan]) -> None:
        self.versions: dict[float, set[int]] = defaultdict(set)
        """By birth, the versions of the targets that a tuple met."""
        self.entered: list[float] = []
        """When each tuple entered the dataflow."""
        self.times: list[float] = []
        """When FC had done a tuple."""
        self.sim: Simulation = simulation(setup, *changes, probe=self._look)

    def _look(self, now: float, operator: str, born: float, version: int) -> None:
        if operator in TARGETS:
            self.versions[born].add(version)
        if operator == "source":
            self.entered.append(now)
        if operator == "FC":
            self.times.append(now)

    def first_new(self) -> float:
        """Check that no tuple was mixed; when the first tuple with the new version was born."""
        births = sorted(self.versions)
        assert all(len(self.versions[born]) == 1 for born in births)
        sides = [max(self.versions[born]) for born in births]
        assert sides == sorted(sides)
        return births[sides.index(1)]


# Mini-batches


def test_tuples_wait_for_their_batch() -> None:
    sim = Simulation(batched())
    sim.run(0.999)
    assert transactions(sim, "source") == []
    sim.run(1.499)
    assert len(transactions(sim, "source")) == 64
    sim.run(1.999)
    assert len(transactions(sim, "sink")) == 64
    settle(sim)
    assert outputs(sim) == {"sink": list(range(256))}
    assert sim.metrics.latencies.window(2, 1) == pytest.approx(0.5 + 0.25, abs=0.02)


def test_a_change_between_two_batches_takes_three_messages() -> None:
    run = Watched(batched(), (1.75, mini_batch(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    record = run.sim.metrics.changes[0]
    assert record.delay == 3 * LATENCY
    assert run.first_new() == 1.0  # the batch that was being collected is the first with it
    assert verdict(run.sim).serializable
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_a_change_while_a_batch_runs_waits_for_its_end() -> None:
    run = Watched(batched(), (1.125, mini_batch(GRAPH, TARGETS)))
    run.sim.run(1.25)
    record = run.sim.metrics.changes[0]
    assert record.phase is Phase.QUEUED
    assert record.number == 0
    assert record.delay is None
    settle(run.sim, changes=1)
    assert record.delay == 0.375 + 3 * LATENCY  # the batch runs from 1.0 to 1.5
    assert run.first_new() == 1.0
    assert verdict(run.sim).serializable


def test_a_batch_that_is_due_waits_for_the_change() -> None:
    """Requested between two batches, but so late that the next one has to wait."""
    moment = 2.0 - LATENCY
    run = Watched(batched(), (moment, mini_batch(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    record = run.sim.metrics.changes[0]
    assert record.done is not None
    assert record.done > 2.0
    started = next(now for now in run.times if now > 1.9)
    assert started == record.done + 1 / 128
    assert run.first_new() == 1.0
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_under_overload_the_delay_is_the_rest_of_the_batch() -> None:
    """Batches that take longer than their interval: 1.5 s each."""
    run = Watched(batched(cost=1.5 / 64), (1.25, mini_batch(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    assert run.sim.metrics.changes[0].delay == 1.25 + 3 * LATENCY
    assert run.first_new() == 1.0
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_several_changes_at_one_boundary() -> None:
    """The batch behind it is due, and waits for all of them."""
    changes = [(1.25 + n / 8, mini_batch(GRAPH, TARGETS)) for n in range(3)]
    run = Watched(batched(cost=1.5 / 64), *changes, (3.0, mini_batch(GRAPH, ["FC"])))
    settle(run.sim, changes=4)
    assert all(record.phase is Phase.DONE for record in run.sim.metrics.changes)
    assert all(len(versions) == 1 for versions in run.versions.values())
    assert [max(run.versions[born]) for born in (0.5, 1.5, 3.5)] == [0, 3, 3]
    finished = [record.done for record in run.sim.metrics.changes if record.done is not None]
    assert 2.5 < finished[0] < finished[1] < finished[2] < finished[3]
    assert min(now for now in run.entered if now > 2.5) == finished[2]
    assert run.sim.recovery.consistent()
    assert verdict(run.sim).serializable
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_a_second_change_while_the_first_is_under_way() -> None:
    changes = [(1.75 + n * LATENCY, mini_batch(GRAPH, TARGETS)) for n in range(5)]
    run = Watched(batched(), *changes)
    settle(run.sim, changes=5)
    assert set(map(frozenset, run.versions.values())) == {frozenset({0}), frozenset({5})}
    assert outputs(run.sim) == {"sink": list(range(256))}


@pytest.mark.parametrize("plan", [fries(GRAPH, TARGETS), epoch(GRAPH, TARGETS)])
@pytest.mark.parametrize("moment", [1.125, 1.75])
def test_other_schedulers_work_inside_a_batch(plan: Plan, moment: float) -> None:
    run = Watched(batched(), (moment, plan))
    settle(run.sim, changes=1)
    record = run.sim.metrics.changes[0]
    assert record.delay is not None
    assert record.delay <= 0.375  # the rest of the batch, without a stop at its end
    assert verdict(run.sim).serializable
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_fries_switches_in_the_middle_of_a_batch() -> None:
    run = Watched(batched(), (1.125, fries(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    assert 0.0 < run.first_new() < 0.5
    assert run.sim.metrics.changes[0].delay == 3 * LATENCY


@pytest.mark.parametrize(("moment", "drained"), [(1.125, 1.5), (1.75, 1.75)])
def test_a_restart_finishes_the_running_batch(moment: float, drained: float) -> None:
    run = Watched(batched(), (moment, restart(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    record = run.sim.metrics.changes[0]
    assert record.delay == drained - moment + 0.25 + 3 * LATENCY
    assert run.first_new() == 1.0
    assert outputs(run.sim) == {"sink": list(range(256))}


def test_batches_without_tuples() -> None:
    graph = scope_figure()
    setup = varied(graph, rate=1, cost=0, tuples=1, batch_interval=0.25)
    sim = simulation(setup, (2.1, mini_batch(graph, ["C", "G"])))
    sim.run(3.0)
    assert sim.metrics.changes[0].phase is Phase.DONE
    assert outputs(sim) == {"H": [0, 1]}


# Stop and restart


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
def test_the_delay_of_a_restart_includes_the_restart(seconds: float) -> None:
    setup = varied(GRAPH, tuples=1, restart_time=seconds, control_latency=LATENCY)
    sim = simulation(setup, (1.0, restart(GRAPH, TARGETS)))
    settle(sim, changes=1)
    assert sim.metrics.changes[0].delay == seconds + 3 * LATENCY


def test_a_restart_drains_and_then_nothing_moves() -> None:
    setup = varied(GRAPH, rate=200, tuples=100, restart_time=0.5)
    run = Watched(setup, (0.1, restart(GRAPH, TARGETS)))
    run.sim.run(0.2)
    assert run.sim.inflight == 0
    assert run.sim.metrics.changes[0].phase is Phase.QUEUED
    before = operations(run.sim)
    assert len(before["sink#0"]) == len(before["source#0"]) == pytest.approx(20, abs=2)
    settle(run.sim, changes=1)
    record = run.sim.metrics.changes[0]
    assert record.delay is not None
    assert record.delay > 0.5
    gaps = [(first, then) for first, then in pairwise(run.times) if then - first > 0.4]
    assert len(gaps) == 1
    assert gaps[0][0] + 0.5 < record.requested + record.delay < gaps[0][1]


def test_tuples_queue_at_the_source_during_a_restart_and_none_is_lost() -> None:
    setup = varied(GRAPH, rate=128, cost=1 / 1024, tuples=256, restart_time=1.0)
    run = Watched(setup, (0.5, restart(GRAPH, TARGETS)))
    settle(run.sim, changes=1)
    assert outputs(run.sim) == {"sink": list(range(256))}
    born_until_the_end = [born for born in sorted(run.versions) if born <= 1.5]
    assert born_until_the_end == [n / 128 for n in range(193)]  # as if nothing happened
    assert run.first_new() == pytest.approx(0.5, abs=1 / 128)
    assert verdict(run.sim).serializable


@pytest.mark.parametrize("moment", [1.0 + n * 0.004 for n in range(10)])
def test_they_also_queue_if_back_pressure_held_the_source_up(moment: float) -> None:
    setup = varied(
        GRAPH,
        rate=128,
        cost=0,
        costs={"FC": (Cost(0.02),)},
        capacity=2,
        tuples=None,
        restart_time=1.0,
    )
    run = Watched(setup, (moment, restart(GRAPH, TARGETS)))
    run.sim.run(5.0)
    born_meanwhile = [born for born in run.versions if 1.1 < born < 1.9]
    assert len(born_meanwhile) == pytest.approx(0.8 * 128, abs=2)


def test_two_restarts_at_once() -> None:
    for later in (0.1, 0.101, 0.105, 0.15, 0.6):
        setup = varied(GRAPH, tuples=100, restart_time=0.25)
        run = Watched(setup, (0.1, restart(GRAPH, TARGETS)), (later, restart(GRAPH, TARGETS)))
        settle(run.sim, changes=2)
        assert [record.phase for record in run.sim.metrics.changes] == [Phase.DONE] * 2
        assert run.sim.recovery.configuration()["FM"] == {2}
        assert verdict(run.sim).serializable
        assert outputs(run.sim) == {"sink": list(range(100))}


def test_a_change_during_a_restart() -> None:
    for other in (fries, epoch, multi_version):
        for moment in (0.101, 0.2, 0.35):
            setup = varied(w5(2), tuples=60, restart_time=0.25)
            plans = restart(setup.graph, ["FD3"]), other(setup.graph, ["FD3", "FD4"])
            sim = simulation(setup, (0.1, plans[0]), (moment, plans[1]))
            settle(sim, changes=2)
            assert verdict(sim).atomic
            assert sim.recovery.consistent()
            assert sim.recovery.configuration()["FD3"] == {2}
