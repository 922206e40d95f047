"""Workflows as running queries that are changed at random moments: how long a change takes.

A query gets the same rows in every micro-batch, from a source that never ends. Each change is
a dummy: the same tables and models as another version, so that the work stays the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from fries import Flow
from fries.errors import ExperimentError
from fries.workloads import tpcds, w2, w3, w5
from fries.workloads.layouts import Layout
from fries.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Targets: TypeAlias = tuple[str, ...]
FILES: Final = 2
"""Files, and so tasks, of a source: one for each core of a small machine."""
PATIENCE: Final = 300.0
"""Seconds after which a change that does not end is an error, not a hang."""
LOOK: Final = 0.01
"""Seconds between two looks at a change that is under way."""


class Workflow(Protocol):
    """A workflow that can be changed without a change of its results."""

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output, on streams that never end; they keep their files in a folder."""

    def update(self, target: str, version: int) -> Any:  # noqa: ANN401 - what reconfigure takes
        """One of its operators as another version."""


class Again:
    """A function as another version of itself."""

    def __init__(self, function: Callable[..., Any], version: int) -> None:
        self._function = function
        self.version = version

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        """Do the same."""
        return self._function(*arguments)


@dataclass(frozen=True)
class Query40:
    """W2."""

    sales: DataFrame
    tables: w2.Tables

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        return w2.build(flow, _endless(self.sales, place / "source"), self.tables, layout)

    def update(self, target: str, version: int) -> pa.Table:
        """The table of a join."""
        table = dict(zip(("J1", "J2", "J3", "J4"), self.tables, strict=True))[target]
        return tpcds.renewed(table, version)


@dataclass(frozen=True)
class Query71:
    """W3."""

    sales: w3.Sales
    tables: w3.Tables

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        streams = (
            _endless(rows, place / channel)
            for channel, rows in zip(w3.PREFIXES, self.sales, strict=True)
        )
        return w3.build(flow, w3.Sales(*streams), self.tables, layout)

    def update(self, target: str, version: int) -> pa.Table:
        """The table of a join."""
        dates = dict.fromkeys(("J5", "J6", "J7"), self.tables.date)
        table = {**dates, "J8": self.tables.item, "J9": self.tables.time}[target]
        return tpcds.renewed(table, version)


@dataclass(frozen=True)
class TwoModels:
    """W5."""

    payments: DataFrame

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        return w5.build(flow, _endless(self.payments, place / "source"), layout)

    def update(self, target: str, version: int) -> Again:
        """The function of an operator."""
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            "FD3": lambda: Inference(trained("user_lstm"), "p_user"),
            "FD4": lambda: Inference(trained("merchant_lstm"), "p_merchant"),
            "F3": lambda: w5.note(w5.SUSPICIOUS),
            "F4": lambda: w5.worth(w5.LEAST),
            "E1": lambda: w5.flag(w5.THRESHOLD),
        }
        return Again(makers[target](), version)


def _endless(rows: DataFrame, folder: Path) -> DataFrame:
    from fries.spark.replay import endless

    return endless(rows, folder, FILES)


@dataclass(frozen=True)
class Trial:
    """Changes of a running query, several of each kind."""

    workflow: Workflow
    layout: Layout
    scheduler: str
    targets: Sequence[Targets]
    requests: int
    """Changes of each kind."""
    seed: int = 0


def delays(trial: Trial, place: Path, advance: Callable[[], object]) -> dict[Targets, list[float]]:
    """Seconds that each change took, fired at random moments of the micro-batches.

    The next one waits until the one before is done, so that none queues.
    """
    moments = random.Random(trial.seed)
    found: dict[Targets, list[float]] = {targets: [] for targets in trial.targets}
    with _running(trial, place) as (flow, batch):
        for number in range(trial.requests):
            for kind, targets in enumerate(trial.targets):
                time.sleep(moments.uniform(0.0, batch))
                version = 1 + number * len(trial.targets) + kind
                updates = {name: trial.workflow.update(name, version) for name in targets}
                change = flow.reconfigure(updates, trial.scheduler, PATIENCE)
                _until(lambda: change.state == "done", flow)  # noqa: B023 - used at once
                assert change.delay is not None, "it is done"
                found[targets].append(change.delay)
                advance()
    return found


@contextmanager
def _running(trial: Trial, place: Path) -> Iterator[tuple[Flow, float]]:
    """The flow at work, after its first micro-batches, and how long one of them takes."""
    flow = Flow(f"{type(trial.workflow).__name__}-{trial.layout}-{trial.scheduler}")
    output = trial.workflow.build(flow, place, trial.layout)
    writer = output.writeStream.format("noop").outputMode("append")
    flow.start(writer.option("checkpointLocation", str(place / "checkpoint")))
    try:
        _until(lambda: len(_batch_seconds(flow)) > 1, flow)  # the first one is slow
        yield flow, _batch_seconds(flow)[-1]
    finally:
        if flow.query is not None:
            flow.query.stop()
        flow.stop()


def _batch_seconds(flow: Flow) -> list[float]:
    """How long each finished micro-batch took."""
    progress = [] if flow.query is None else flow.query.recentProgress
    return [one["durationMs"]["triggerExecution"] / 1e3 for one in progress if one["numInputRows"]]


def _until(condition: Callable[[], object], flow: Flow) -> None:
    """Wait for something that a running query brings about; if it fails, say why."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if flow.query is not None and (error := flow.query.exception()):
            raise error
        if time.monotonic() > deadline:
            raise ExperimentError(flow.name, f"nothing has come of it in {PATIENCE:.0f} seconds")
        time.sleep(LOOK)
