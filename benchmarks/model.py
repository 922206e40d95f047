"""A 200 MB model swapped in under load: what tuples notice of it.

Rows come at a steady rate and cost a millisecond each. A row's latency is the time from its
creation at the source to the end of its processing; its gap is the time since the row before
it in the same worker. Both are compared before the swap and while the model is shipped,
loaded and switched to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from benchmarks.spark import folder, percentile, wait_until
from fries.flow import Flow

MEGABYTES: Final = 200
RATE: Final = 400
SECONDS: Final = 100.0
"""Of undisturbed running, before the swap: several times as long as it takes."""


@dataclass(frozen=True)
class Swap:
    """Latencies and gaps before and during a swap."""

    megabytes: int
    prepare_and_switch_ms: float
    latency_p50_ms: tuple[float, float]
    """Before and during."""
    latency_p99_ms: tuple[float, float]
    noise_p99_ms: tuple[float, float]
    """The lowest and the highest of windows before the swap that are as long as it took."""
    latency_max_ms: tuple[float, float]
    gap_max_ms: tuple[float, float]
    tuples: tuple[int, int]


def scorer(megabytes: int, version: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that carries a model and looks at it for a millisecond."""
    weights = np.full(megabytes * 125_000, float(version))

    def score(row: dict[str, Any]) -> dict[str, Any]:
        end = time.perf_counter() + 0.001
        place = row["value"] % len(weights)
        while time.perf_counter() < end:
            place = (place * 31 + 7) % len(weights)
        context = TaskContext.get()
        return {
            "created": row["timestamp"].timestamp(),
            "processed": time.time(),
            "partition": -1 if context is None else context.partitionId(),
            "version": int(weights[place]),
        }

    return score


def swap(spark: SparkSession) -> Swap:
    """Run at a steady rate, swap the model, and compare."""
    with folder() as where:
        source = spark.readStream.format("rate").options(rowsPerSecond=RATE, numPartitions=2)
        flow = Flow("model")
        made = flow.source("rows", source.load()).map(
            "score",
            scorer(1, 0),
            schema="created double, processed double, partition int, version long",
        )
        writer = flow.output(made).writeStream.format("parquet")
        writer = writer.option("path", str(where / "out"))
        query = flow.start(writer.option("checkpointLocation", str(where / "checkpoint")))
        wait_until(lambda: len(flow.workers) == 2 and flow.counters.get("score"))
        time.sleep(4.0)  # imports, and the rows that waited for them
        start = time.time()
        time.sleep(SECONDS)
        model = scorer(MEGABYTES, 1)
        requested = time.time()
        change = flow.reconfigure({"score": model})
        change.wait(60)
        time.sleep(2.0)
        end = time.time()
        query.stop()
        flow.stop()
        rows = spark.read.parquet(str(where / "out")).collect()
    before = [row for row in rows if start <= row["processed"] < requested]
    during = [row for row in rows if requested <= row["processed"] < end]
    windows = _windows(before, start, end - requested)
    return _compared(before, during, windows, (change.delay or 0.0) * 1000)


def _windows(rows: list[Row], start: float, seconds: float) -> list[list[Row]]:
    """Rows by the window in which they were processed; without a last one that is shorter."""
    found: list[list[Row]] = [[] for _ in range(int(SECONDS / seconds))]
    for row in rows:
        number = int((row["processed"] - start) / seconds)
        if number < len(found):
            found[number].append(row)
    return found


def _compared(
    before: list[Row], during: list[Row], windows: list[list[Row]], took_ms: float
) -> Swap:
    latencies = [_latencies(before), _latencies(during)]
    usual = [percentile(_latencies(rows), 99) for rows in windows]
    gaps = [_gaps(rows) for rows in (before, during)]
    return Swap(
        MEGABYTES,
        took_ms,
        _both(percentile(found, 50) for found in latencies),
        _both(percentile(found, 99) for found in latencies),
        (min(usual), max(usual)),
        _both(max(found) for found in latencies),
        _both(max(found) for found in gaps),
        (len(before), len(during)),
    )


def _latencies(rows: list[Row]) -> list[float]:
    return [(row["processed"] - row["created"]) * 1000 for row in rows]


def _gaps(rows: list[Row]) -> list[float]:
    """Times between one row and the next of the same partition, in milliseconds."""
    found: list[float] = []
    for partition in {row["partition"] for row in rows}:
        moments = sorted(row["processed"] for row in rows if row["partition"] == partition)
        found.extend(float(gap) * 1000 for gap in np.diff(moments))
    return found


def _both(values: Any) -> tuple[float, float]:  # noqa: ANN401
    first, second = values
    return first, second
