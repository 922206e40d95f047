"""Small simulations to try things on, and what tests want to know about them.

What lies inside the engine (queues, blocked channels) is looked at here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from fries.change.model import Phase
from fries.graph import Graph
from fries.plan import Plan
from fries.serializability import Verdict, check_trace
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.engine import Simulation
from fries_lab.sim.metrics import Probe
from fries_lab.sim.setup import Cost, Rate, Setup, Spread

OVER = (Phase.DONE, Phase.ABORTED)
LATEST = 60.0
"""Simulated seconds after which a run that should have ended counts as stuck."""

CONSISTENT = ("fries", "fries_unpruned", "epoch", "multi_version")
"""Schedulers that keep every transaction whole while tuples flow."""


def varied(
    graph: Graph,
    *,
    rate: float = 200.0,
    cost: float = 0.003,
    spread: Spread = Spread.EXPONENTIAL,
    costs: Mapping[str, tuple[Cost, ...]] | None = None,
    behaviours: Mapping[str, Behaviour] | None = None,
    tuples: int | None = 12,
    **options: Any,  # noqa: ANN401 - whatever else Setup takes
) -> Setup:
    """A setup with one rate for all sources, one cost for all others, and a trace.

    Unique operators join as many tuples as they have inputs, unless told otherwise.
    """
    usual = {op.name: (Cost(cost, spread),) for op in graph if not op.source}
    return Setup(
        graph,
        {name: (Rate(rate),) for name in graph.sources},
        costs={**usual, **(costs or {})},
        behaviours=_usual_joins(graph) if behaviours is None else behaviours,
        most_tuples=tuples,
        trace=True,
        **options,
    )


def simulation(
    setup: Setup, *changes: tuple[float, Plan], probe: Probe | None = None
) -> Simulation:
    """A simulation that will be reconfigured at some moments; nothing has run yet."""
    sim = Simulation(setup, probe)
    for time, plan in changes:
        sim.request(time, plan)
    return sim


def settled(sim: Simulation, changes: int = 0) -> bool:
    """Whether all tuples came and went, and so many changes came and are over."""
    over = [record.phase in OVER for record in sim.metrics.changes]
    return (
        not sim.inflight
        and not sim.recovery.replaying
        and len(over) >= changes
        and all(over)
        and all(worker.emitted == sim.setup.most_tuples for worker in sim.sources.workers)
    )


def settle(sim: Simulation, changes: int = 0) -> int:
    """Run until nothing is left to do but checkpoints; how many steps that took."""
    steps = 0
    while not settled(sim, changes):
        if not sim.step(LATEST):
            pytest.fail(f"stuck with {sim.inflight} tuples in flight: {sim.metrics.changes}")
        steps += 1
    sim.run(sim.now + 10 * sim.setup.control_latency)  # the last messages arrive
    return steps


def verdict(sim: Simulation) -> Verdict:
    """What the checker says of a run so far."""
    return check_trace(sim.trace())


def operations(sim: Simulation) -> dict[str, list[tuple[int, int]]]:
    """By worker, the (transaction, version) of all that it did, in its order."""
    return {
        worker.name: list(zip(worker.txns, worker.versions, strict=True)) for worker in sim.workers
    }


def transactions(sim: Simulation, operator: str) -> list[int]:
    """The transactions of all tuples that an operator processed, sorted."""
    return sorted(
        txn
        for name, done in operations(sim).items()
        for txn, _ in done
        if name.rsplit("#", 1)[0] == operator
    )


def outputs(sim: Simulation) -> dict[str, list[int]]:
    """By sink, the transactions of all tuples that reached it, sorted."""
    return {name: transactions(sim, name) for name in sim.setup.graph.sinks}


def queues(sim: Simulation) -> dict[tuple[str, str], int]:
    """By sending and receiving worker, the tuples in the channel between them."""
    names = [worker.name for worker in sim.topology.workers]
    return {
        (names[channel.source], names[channel.target]): sim.queued[channel.number]
        for channel in sim.topology.channels
    }


def blocked(sim: Simulation) -> set[tuple[str, str]]:
    """The channels, by sending and receiving worker, from which nothing is taken now."""
    names = [worker.name for worker in sim.topology.workers]
    return {
        (names[sim.topology.channels[number].source], worker.name)
        for worker in sim.workers
        for number in worker.blocked
    }


class Crashed:
    """A run up to some step, then a crash, and whatever happens after it."""

    def __init__(self, sim: Simulation, step: int) -> None:
        for _ in range(step):
            sim.step()
        self.sim = sim
        self.step = step
        self.phases = [record.phase for record in sim.metrics.changes]
        self.checkpoints = sim.metrics.checkpoints
        self.done = operations(sim)
        sim.recovery.crash()

    def check(self, expected: dict[str, list[int]], changes: int = 1) -> None:
        """Let it settle; nothing may be lost, doubled, mixed or half changed."""
        sim = self.sim
        settle(sim, changes)
        assert sim.recovery.consistent(), (self.step, sim.recovery.configuration())
        found = verdict(sim)
        assert found.serializable, (self.step, str(found))
        assert outputs(sim) == expected, self.step
        assert sim.inflight == 0
        self._check_phases()
        if sim.setup.logging:
            self._check_repeated()

    def _check_phases(self) -> None:
        """What was committed is done; by a log, what was under way is done too."""
        records = self.sim.metrics.changes
        for before, record in zip(self.phases, records, strict=False):
            submitted = record.number > 0
            decided = before in (Phase.COMMITTED, Phase.DONE)
            survives = decided or (self.sim.setup.logging and submitted)
            assert record.phase is (Phase.DONE if survives else Phase.ABORTED), self.step
        assert all(record.phase is Phase.DONE for record in records[len(self.phases) :]), self.step

    def _check_repeated(self) -> None:
        """By a log, each worker did again what it had done before, in the same order."""
        for name, rows in operations(self.sim).items():
            assert rows[: len(self.done[name])] == self.done[name], (self.step, name)


def crashes_everywhere(
    make: Callable[[], Simulation], changes: int = 1
) -> Iterator[tuple[Crashed, dict[str, list[int]]]]:
    """A run for every event, with a crash there; and the output of a run without one."""
    whole = make()
    steps = settle(whole, changes)
    expected = outputs(whole)
    for step in range(steps + 1):
        yield Crashed(make(), step), expected


def _usual_joins(graph: Graph) -> dict[str, Behaviour]:
    inputs = {op.name: len(graph.inputs(op.name)) for op in graph if op.unique}
    return {name: Behaviour(joins=max(1, count)) for name, count in inputs.items()}
