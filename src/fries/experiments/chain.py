"""A chain of maps in one stage, sized so that micro-batches last as long as one likes.

Its operators sleep: a sleeping worker needs no core, so that 40 of them fit on two, and what is
left of a delay is what Fries adds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fries import Flow
from fries.experiments.queries import PATIENCE, batch_seconds, settle, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fries import Reconfiguration

GAP: Final = 0.3
"""Seconds between two changes by Fries, at most: many happen in one micro-batch."""
CHEAP: Final = 15
"""Changes by Fries, at least: each takes milliseconds."""


class Paced:
    """Gives rows on as they are, after a sleep for each."""

    def __init__(self, cost: float, version: int = 0) -> None:
        self.cost = cost
        """Seconds per row."""
        self.version = version

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, later."""
        if self.cost:
            time.sleep(self.cost * rows.num_rows)
        return rows


@dataclass(frozen=True)
class Chain:
    """How many rows go through how many maps in how many workers, and for how long."""

    rows: int
    """Of a micro-batch."""
    seconds: float
    """How long a micro-batch takes, beside what Spark does between two of them."""
    operators: int = 1
    workers: int = 2

    @property
    def cost(self) -> float:
        """Seconds per row, so that a micro-batch lasts as it should."""
        return self.seconds * self.workers / self.rows

    @property
    def targets(self) -> tuple[str, ...]:
        """The first map and the last one: what is between belongs to their component, too."""
        return tuple(dict.fromkeys(("m1", f"m{self.operators}")))

    def build(self, flow: Flow, spark: SparkSession) -> DataFrame:
        """Its output, on a stream that never ends."""
        stream = flow.source("source", steady(spark, self.rows, self.workers))
        for number in range(1, self.operators + 1):
            stream = stream.map(f"m{number}", self._function(f"m{number}", 0), batch="arrow")
        return flow.output(stream)

    def update(self, version: int) -> dict[str, Any]:
        """The targets as another version, which does the same."""
        return {name: self._function(name, version) for name in self.targets}

    def _function(self, name: str, version: int) -> Paced:
        """The first map takes all the time: many short sleeps would take longer than one."""
        return Paced(self.cost if name == "m1" else 0.0, version)


def steady(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """A stream of micro-batches with so many numbers each; Spark makes it without Python."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return reader.option("numPartitions", partitions).load().select("value")


@dataclass(frozen=True)
class Timed:
    """A change and how long its caller was kept by asking for it."""

    change: Reconfiguration
    asking: float


def delays(chain: Chain, spark: SparkSession, place: Path, apart: int) -> dict[str, Any]:
    """What changes of a running chain take by both schedulers, and what the audit says.

    Changes at a boundary come first: one that overlaps with a change that Fries has made in the
    same micro-batch would wait for the boundary after the next.
    """
    flow = Flow("chain", audit=place / "audit")
    frame = chain.build(flow, spark)
    writer = frame.writeStream.format("noop").outputMode("append")
    flow.start(writer.option("checkpointLocation", str(place / "checkpoint")))
    try:
        until(lambda: len(batch_seconds(flow)) > 1, flow)
        moments = random.Random(chain.operators)
        batch = batch_seconds(flow)[-1]
        late = _fire(chain, flow, "mini_batch", [moments.uniform(0, batch) for _ in range(apart)])
        many = max(CHEAP, apart)
        soon = _fire(
            chain, flow, "fries", [moments.uniform(0, GAP) for _ in range(many)], len(late)
        )
        workers = len(flow.workers)
        settle(flow)
    finally:
        flow.stop()
    verdict = flow.audit()
    return {
        "fries": _milliseconds(soon, lambda one: one.change.delay),
        "mini_batch": _milliseconds(late, lambda one: one.change.delay),
        "asking": _milliseconds(soon, lambda one: one.asking),
        "switching": _milliseconds(soon, lambda one: one.change.switch_delay),
        "batch_seconds": round(batch, 3),
        "processes": workers,
        "longest_path": soon[0].change.plan.longest_path,
        "transactions": verdict.transactions,
        "mixed": verdict.mixed,
    }


def _fire(
    chain: Chain, flow: Flow, scheduler: str, pauses: Sequence[float], before: int = 0
) -> list[Timed]:
    """Changes one after the other, each after a pause."""
    made = []
    for number, pause in enumerate(pauses, before + 1):
        time.sleep(pause)
        began = time.perf_counter()
        change = flow.reconfigure(chain.update(number), scheduler, PATIENCE)
        made.append(Timed(change, time.perf_counter() - began))
        until(lambda: change.delay is not None, flow)  # noqa: B023 - used at once
    return made


def _milliseconds(made: Sequence[Timed], seconds: Callable[[Timed], float | None]) -> list[float]:
    found = [seconds(one) for one in made]
    return [round(1e3 * one, 3) for one in found if one is not None]
