"""What a flow costs when nothing changes: stateless and keyed, against plain Spark.

Everything compared runs in turns in one session.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from benchmarks.spark import batch_seconds, drain, folder, stream_of
from fries.flow import Flow

ROWS: Final = 5_000_000
ROUNDS: Final = 24
"""Of the stateless flow and plain Spark, in turns; the best of each counts."""
REST_SECONDS: Final = 0.3
"""Between two of them: Spark collects garbage in its Python workers after each task, which takes
plain workers some 100 ms; that must not fall into the next run, which is always the other's."""
SIZES: Final = ((20_000, 4), (100_000, 2))
"""Rows in a batch, as many keys, and how many batches with a state per key."""
MORE: Final = 8
"""Times as many batches of a flow, so that all run for about half a minute: Java compiles what it
runs often, and the first batches of whatever runs are slow."""
GIVES: Final = "id long, k long, n long"


@dataclass(frozen=True)
class Rate:
    """Rows a second, and the ratio of the flow to it."""

    what: str
    rows_per_second: float
    flow_is_times: float


@contextmanager
def own_workers(spark: SparkSession) -> Iterator[None]:
    """Functions that are made here run in Python workers without a flow.

    A flow makes the garbage collection after each task cheaper for all functions that share its
    workers. Spark keeps workers apart whose environments differ.
    """
    environment = spark.sparkContext.environment
    environment["FRIES_BENCHMARK"] = "plain"
    try:
        yield
    finally:
        del environment["FRIES_BENCHMARK"]


def stateless(spark: SparkSession) -> list[Rate]:
    """The same vectorised function as a flow and in plain Spark, in turns."""
    rows = spark.range(0, ROWS, 1, 2).selectExpr("id", "cast(id AS double) AS x")
    flow = Flow("steady")
    hosted = flow.output(flow.source("rows", rows).map("double", _double, batch="arrow"))
    with own_workers(spark):
        plain = rows.mapInArrow(_plain, "id long, x double")
    times: dict[str, list[float]] = {"plain": [], "flow": []}
    for _ in range(ROUNDS):
        for name, frame in (("plain", plain), ("flow", hosted)):
            time.sleep(REST_SECONDS)
            start = time.perf_counter()
            drain(frame)
            times[name].append(time.perf_counter() - start)
    flow.stop()
    return _rates({"mapInArrow": min(times["plain"])}, min(times["flow"]), ROWS)


def keyed(spark: SparkSession, rows: int, batches: int) -> list[Rate]:
    """A count per key: as a flow, and with a state per key by hand, in two ways.

    The median of the second half of the batches.
    """
    size = rows, batches
    others = {
        "transformWithStateInPandas, a state per key": _with_state_per_key,
        "applyInPandasWithState, a state per key": _apply_with_state,
    }
    seconds = {name: _median_batch(spark, build, *size) for name, build in others.items()}
    flow = Flow("keyed")
    ours = _median_batch(spark, lambda frame: _keyed_flow(flow, frame), rows, MORE * batches)
    flow.stop()
    return _rates(seconds, ours, rows)


def _rates(others: dict[str, float], ours: float, rows: int) -> list[Rate]:
    found = [Rate(name, rows / seconds, seconds / ours) for name, seconds in others.items()]
    return [*found, Rate("flow", rows / ours, 1.0)]


def _median_batch(
    spark: SparkSession, build: Callable[[DataFrame], DataFrame], rows: int, batches: int
) -> float:
    with folder() as where:
        numbers = spark.range(0, batches * rows, 1, 2 * batches)
        keyed_rows = numbers.selectExpr("id", f"pmod(xxhash64(id), {rows}) AS k")
        writer = build(stream_of(keyed_rows, where / "in")).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(where / "checkpoint"))
        seconds = batch_seconds(writer.trigger(availableNow=True).start())
        return statistics.median(seconds[len(seconds) // 2 :])


def _keyed_flow(flow: Flow, rows: DataFrame) -> DataFrame:
    def count(state: int, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return state + 1, {**row, "n": state + 1}

    return flow.output(
        flow.source("rows", rows).process("count", count, key="k", initial=0, schema=GIVES)
    )


class _PerKey(StatefulProcessor):
    """The same count as Spark's documentation would write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for a state."""
        self._count: ValueState = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401, ARG002
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Count the rows of one key."""
        found = self._count.get()
        count = 0 if found is None else found[0]
        for frame in rows:
            made = frame.assign(n=range(count + 1, count + 1 + len(frame)))
            count += len(frame)
            yield made
        self._count.update((count,))

    def close(self) -> None:
        """Nothing is open."""


def _with_state_per_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithStateInPandas(
        statefulProcessor=_PerKey(), outputStructType=GIVES, outputMode="append", timeMode="none"
    )


def _apply_with_state(rows: DataFrame) -> DataFrame:
    def count(
        key: Any,  # noqa: ANN401, ARG001
        frames: Iterator[pd.DataFrame],
        state: GroupState,
    ) -> Iterator[pd.DataFrame]:
        (so_far,) = state.get if state.exists else (0,)
        for frame in frames:
            yield frame.assign(n=range(so_far + 1, so_far + 1 + len(frame)))
            so_far += len(frame)
        state.update((so_far,))

    return rows.groupBy("k").applyInPandasWithState(
        count, GIVES, "n long", "append", GroupStateTimeout.NoTimeout
    )


def _double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch["id"], pc.add(batch["x"], batch["x"])], names=["id", "x"]
    )


def _plain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return map(_double, batches)
