"""A chain of maps in one stage, sized so that micro-batches last as long as one likes.

Its operators sleep: a sleeping worker needs no core, so that 40 of them fit on two, and what is
left of a delay is what Fries adds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fries import Flow
from fries_lab.experiments.queries import (
    PATIENCE,
    alone,
    batch_seconds,
    last_batch,
    last_seconds,
    settle,
    until,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fries import Reconfiguration


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
    """A change, how long its caller was kept by asking for it, and when."""

    change: Reconfiguration
    asking: float
    during: int
    """Number of the micro-batch in which it was requested."""


def delays(
    chain: Chain, spark: SparkSession, place: Path, soon: int, late: int = 0
) -> dict[str, Any]:
    """What so many changes of a running chain take, by Fries and at a boundary; and the audit.

    Both take turns, each change in a micro-batch of its own.
    """
    flow = Flow("chain", audit=place / "audit")
    frame = chain.build(flow, spark)
    writer = frame.writeStream.format("noop").outputMode("append")
    flow.start(writer.option("checkpointLocation", str(place / "checkpoint")))
    try:
        until(lambda: len(batch_seconds(flow)) > 2, flow)
        chance = random.Random(chain.operators)
        wanted = ["fries"] * soon + ["mini_batch"] * late
        chance.shuffle(wanted)
        made = [
            _changed(chain, flow, scheduler, number, chance)
            for number, scheduler in enumerate(wanted, 1)
        ]
        workers, batches = len(flow.workers), batch_seconds(flow)
        settle(flow)
    finally:
        flow.stop()
    verdict = flow.audit()
    by = {
        name: [one for one, scheduler in zip(made, wanted, strict=True) if scheduler == name]
        for name in ("fries", "mini_batch")
    }
    return {
        **{name: _milliseconds(some, lambda one: one.change.delay) for name, some in by.items()},
        "asking": _milliseconds(by["fries"], lambda one: one.asking),
        "switching": _milliseconds(by["fries"], lambda one: one.change.switch_delay),
        "during": [one.during for one in made],
        "batch_seconds": round(statistics.median(batches), 3),
        "processes": workers,
        "longest_path": by["fries"][0].change.plan.longest_path,
        "transactions": verdict.transactions,
        "mixed": verdict.mixed,
    }


def _changed(chain: Chain, flow: Flow, scheduler: str, number: int, chance: random.Random) -> Timed:
    """A change at a random moment of a micro-batch, once it is done."""
    time.sleep(chance.random() * last_seconds(flow))
    during = last_batch(flow) + 1
    began = time.perf_counter()
    change = flow.reconfigure(chain.update(number), scheduler, PATIENCE)
    made = Timed(change, time.perf_counter() - began, during)
    alone(flow, change, during)
    return made


def _milliseconds(made: Sequence[Timed], seconds: Callable[[Timed], float | None]) -> list[float]:
    found = [seconds(one) for one in made]
    return [round(1e3 * one, 3) for one in found if one is not None]
