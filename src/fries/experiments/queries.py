"""Running queries that are changed at random moments: how long a change takes, and the audit."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from fries import Flow
from fries.errors import ExperimentError
from fries.experiments.workflows import Workflow
from fries.graph import Graph
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries.workloads.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Targets: TypeAlias = tuple[str, ...]
Asked = TypeVar("Asked")
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
    together: int = 1
    """How many of them come in the time of one micro-batch."""

    def rounds(self) -> list[Kind]:
        """The same changes, in portions of those that come together."""
        whole, rest = divmod(self.count, self.together)
        sizes = [self.together] * whole + [rest] * (rest > 0)
        return [replace(self, count=size) for size in sizes]


@dataclass(frozen=True)
class Trial:
    """Changes of a running query, of several kinds in turns: all meet the same query."""

    workflow: Workflow
    layout: Layout
    kinds: Sequence[Kind]
    seed: int = 0

    def order(self) -> list[Kind]:
        """All rounds of all kinds, in a random order; restarts come last."""
        every = [some for kind in self.kinds for some in kind.rounds()]
        random.Random(self.seed).shuffle(every)
        return sorted(every, key=lambda kind: kind.scheduler == RESTART)


@dataclass(frozen=True)
class Fired:
    """A change that was made."""

    kind: Kind
    batch: float
    """Seconds that the micro-batch before it took."""
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

    Requests come at random moments of the micro-batches. Each waits until all workers have the one
    before, so that none queues, and each round waits until the one before is done. A restart
    throws the work of a micro-batch away, so that its old version ends at once: what counts there
    is when every target has processed a row by the new one.
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
    before = _last_batch(flow)
    until(lambda: _last_batch(flow) > before, flow)


def batch_seconds(flow: Flow) -> list[float]:
    """How long each finished micro-batch with rows took."""
    progress = [] if flow.query is None else flow.query.recentProgress
    return [one["durationMs"]["triggerExecution"] / 1e3 for one in progress if one["numInputRows"]]


def _last_batch(flow: Flow) -> int:
    """Number of the last micro-batch that has ended."""
    progress = [] if flow.query is None else flow.query.recentProgress
    return max((one["batchId"] for one in progress if one["numInputRows"]), default=-1)


def until(condition: Callable[[], object], flow: Flow) -> None:
    """Wait for something that a running query brings about; if it fails, say why."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if flow.query is not None and (error := flow.query.exception()):
            raise error
        if time.monotonic() > deadline:
            raise ExperimentError(flow.name, f"nothing has come of it in {PATIENCE:.0f} seconds")
        time.sleep(LOOK)


def spread(moments: Iterable[float], seconds: float, ask: Callable[[], Asked]) -> list[Asked]:
    """Ask for changes at some moments, which are shares of so many seconds from now on."""
    begun, made = time.monotonic(), list[Asked]()
    for moment in moments:
        time.sleep(max(0.0, begun + seconds * moment - time.monotonic()))
        made.append(ask())
    return made


def one_in_each(chance: random.Random, parts: int) -> list[float]:
    """A random moment of each of some equal parts of a micro-batch, as shares of it."""
    return [(part + chance.random()) / parts for part in range(parts)]


def _fire(what: Trial, flow: Flow) -> Iterator[Fired]:
    chances: dict[tuple[str, Targets], random.Random] = {}
    numbers = count(1)
    for kind in what.order():
        # for all schedulers the same moments: they matter more than anything else
        chance = random.Random(f"{what.seed} {kind.targets}")
        chance = chances.setdefault((kind.scheduler, kind.targets), chance)
        batch = batch_seconds(flow)[-1]
        ask = partial(_change, what.workflow, flow, kind, batch, numbers)
        made = spread(one_in_each(chance, kind.count), batch, ask)
        until(lambda: all(one.change.state == "done" for one in made), flow)  # noqa: B023
        if kind.scheduler == RESTART:
            settle(flow)  # the next one would throw away the first rows of this one
        yield from made


def _change(
    workflow: Workflow, flow: Flow, kind: Kind, batch: float, numbers: Iterator[int]
) -> Fired:
    """A change that all workers have."""
    number = next(numbers)
    updates = {name: workflow.update(name, number) for name in kind.targets}
    requested = time.time()
    change = flow.reconfigure(updates, kind.scheduler, PATIENCE)
    until(lambda: change.wait(LOOK), flow)
    versions = {name: flow.versions[name] for name in kind.targets}
    return Fired(kind, batch, requested, change, versions)


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
