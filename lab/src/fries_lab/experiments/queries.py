"""Running queries that are changed at random moments: how long a change takes, and the audit."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fries import Flow
from fries.graph import Graph
from fries.reconfiguration import IN_PLACE, Reconfiguration
from fries.runtime import audit
from fries_lab.errors import ExperimentError
from fries_lab.experiments.workflows import Workflow
from fries_lab.workloads.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Targets: TypeAlias = tuple[str, ...]
RESTART: Final = "restart"
PATIENCE: Final = 300.0
"""Seconds after which a change that does not end is an error, not a hang."""
LOOK: Final = 0.05
"""Seconds between two looks at a change that is under way."""
WARM: Final = 2
"""Micro-batches before anything is measured: in the first ones workers import and load."""


@dataclass(frozen=True)
class Kind:
    """A change that is made several times: which operators, by which scheduler."""

    scheduler: str
    targets: Targets
    count: int


@dataclass(frozen=True)
class Trial:
    """Changes of a running query, of several kinds in turns: all meet the same query."""

    workflow: Workflow
    layout: Layout
    kinds: Sequence[Kind]
    seed: int = 0

    def order(self) -> list[Kind]:
        """Every change of every kind, in a random order; restarts come last."""
        every = [replace(kind, count=1) for kind in self.kinds for _ in range(kind.count)]
        random.Random(self.seed).shuffle(every)
        return sorted(every, key=lambda kind: kind.scheduler == RESTART)


@dataclass(frozen=True)
class Fired:
    """A change that was made."""

    kind: Kind
    batch: float
    """Seconds that the micro-batch before it took."""
    during: int
    """Number of the micro-batch in which it was requested."""
    requested: float
    change: Reconfiguration
    versions: dict[str, int]
    """By target, the number of its new version."""

    @property
    def delay(self) -> float:
        """From the request until no target used its old version, once it is done."""
        assert self.change.delay is not None, "it is done"
        return self.change.delay


def trial(what: Trial, place: Path) -> dict[str, Any]:
    """Delays in milliseconds by scheduler and targets, and what the audit says of each scheduler.

    Each request comes at a random moment of a micro-batch of its own, and when the one before is
    done, so that no two meet the same rows, tasks and moments of the machine. A restart throws the
    work of a micro-batch away, so that its old version ends at once: what counts there is when
    every target has processed a row by the new one.
    """
    flow = Flow(type(what.workflow).__name__, audit=place / "audit")
    frame = what.workflow.build(flow, place, what.layout)
    with running(flow, frame, place):
        fired = list(_fire(what, flow))
        settle(flow)
    verdict = flow.audit()
    uses = audit.uses(str(place / "audit"))
    delays: dict[str, dict[str, list[float]]] = {}
    mixed: dict[str, int] = {}
    for one, tally in zip(fired, verdict.tallies, strict=True):
        name = one.kind.scheduler
        delay = _until_used(one, uses) if name == RESTART else one.delay
        of = delays.setdefault(name, {}).setdefault(",".join(one.kind.targets), [])
        of.append(round(1e3 * delay, 3))
        mixed[name] = mixed.get(name, 0) + tally.mixed
    return {
        "delays_ms": delays,
        "mixed": mixed,
        "during": [one.during for one in fired],
        "transactions": verdict.transactions,
        "batch_seconds": round(statistics.median(one.batch for one in fired), 3),
        "edges_ms": _choke_points(flow.graph, fired, uses),
        "stages": flow.stages,
    }


@contextmanager
def running(flow: Flow, frame: DataFrame, place: Path) -> Iterator[None]:
    """The flow at work, after its first micro-batches."""
    writer = frame.writeStream.format("noop").outputMode("append")
    flow.start(writer.option("checkpointLocation", str(place / "checkpoint")))
    try:
        until(lambda: len(batch_seconds(flow)) > WARM, flow)
        yield
    finally:
        flow.stop()


def settle(flow: Flow) -> None:
    """Let one more micro-batch end, so that everything that happened is on record."""
    before = last_batch(flow)
    until(lambda: last_batch(flow) > before, flow)


def alone(flow: Flow, change: Reconfiguration, during: int) -> None:
    """Wait until a change is done, and the micro-batch in which it was requested has ended."""
    until(lambda: change.state in IN_PLACE, flow)
    until(lambda: last_batch(flow) >= during, flow)


def batch_seconds(flow: Flow) -> list[float]:
    """How long each finished micro-batch with rows took."""
    progress = [] if flow.query is None else flow.query.recentProgress
    return [one["durationMs"]["triggerExecution"] / 1e3 for one in progress if one["numInputRows"]]


def last_batch(flow: Flow) -> int:
    """Number of the last micro-batch that has ended; one record is read, as reading takes time."""
    progress = None if flow.query is None else flow.query.lastProgress
    if progress is None:
        return -1
    ran = "addBatch" in progress["durationMs"]  # Spark reports idle time under the next number
    return int(progress["batchId"]) - (0 if ran else 1)


def until(condition: Callable[[], object], flow: Flow) -> None:
    """Wait for something that a running query brings about; if it fails, say why."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if flow.query is not None and (error := flow.query.exception()):
            raise error
        if time.monotonic() > deadline:
            raise ExperimentError(flow.name, f"nothing has come of it in {PATIENCE:.0f} seconds")
        time.sleep(LOOK)


def _fire(what: Trial, flow: Flow) -> Iterator[Fired]:
    chances: dict[tuple[str, Targets], random.Random] = {}
    for number, kind in enumerate(what.order(), 1):
        # for all schedulers the same moments: they matter more than anything else
        chance = random.Random(f"{what.seed} {kind.targets}")
        chance = chances.setdefault((kind.scheduler, kind.targets), chance)
        batch = last_seconds(flow)
        time.sleep(batch * chance.random())
        one = _change(what.workflow, flow, kind, batch, number)
        alone(flow, one.change, one.during)
        if kind.scheduler == RESTART:
            settle(flow)  # the next one would throw away the first rows of this one
        yield one


def last_seconds(flow: Flow) -> float:
    """How long the last micro-batch took."""
    assert flow.query is not None, "it runs"
    progress = flow.query.lastProgress
    assert progress is not None, "its first micro-batches have ended"
    return float(progress["durationMs"]["triggerExecution"] / 1e3)


def _change(workflow: Workflow, flow: Flow, kind: Kind, batch: float, number: int) -> Fired:
    """A change that all workers have."""
    updates = {name: workflow.update(name, number) for name in kind.targets}
    during = last_batch(flow) + 1
    requested = time.time()
    change = flow.reconfigure(updates, kind.scheduler, PATIENCE)
    until(lambda: change.wait(LOOK), flow)
    versions = {name: flow.versions[name] for name in kind.targets}
    return Fired(kind, batch, during, requested, change, versions)


def _until_used(one: Fired, uses: dict[tuple[str, int], audit.Use]) -> float:
    """Until every target had begun to use its new version."""
    return max(uses[place].first for place in one.versions.items()) - one.requested


def _choke_points(
    graph: Graph, fired: Sequence[Fired], uses: dict[tuple[str, int], audit.Use]
) -> dict[str, list[float]]:
    """By edge between two targets, by how many ms the second one gave up its old version later.

    Operators without a version (a union, a join) are seen through.
    """
    found: dict[str, list[float]] = {}
    for one in fired:
        left = {
            name: uses[name, version - 1].last
            for name, version in one.versions.items()
            if (name, version - 1) in uses
        }
        for target in left:
            for source in nearest(graph, target, left.keys()):
                later = 1e3 * (left[target] - left[source])
                found.setdefault(f"{source} -> {target}", []).append(round(later, 3))
    return found


def nearest(graph: Graph, operator: str, among: Collection[str]) -> list[str]:
    """The closest of some operators upstream of one, on every path."""
    found: list[str] = []
    for edge in graph.inputs(operator):
        near = edge.source in among
        found += [edge.source] if near else nearest(graph, edge.source, among)
    return list(dict.fromkeys(found))
