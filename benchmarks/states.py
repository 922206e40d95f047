"""How the time of a batch grows with the state: it should follow the keys that are touched."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.spark import batch_seconds, folder, stream_of
from fries.flow import Flow

TOTALS: Final = (10_000, 100_000, 1_000_000)
TOUCHED: Final = 10_000
BATCHES: Final = 12


@dataclass(frozen=True)
class Size:
    """Batches that touch some keys of a larger state."""

    keys: int
    touched: int
    batch_seconds: float
    """Median of the second half of the batches that touch keys: Spark is warm then."""


def recent(state: list[float], row: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """Keeps the five most recent values of a key."""
    state = [*state, row["x"]][-5:]
    return state, {"id": row["id"], "k": row["k"], "n": len(state)}


def state_size(spark: SparkSession, keys: int) -> Size:
    """Fill a state, then touch 10,000 of its keys, all different, in each batch."""
    with folder() as where:
        rows = spark.range(0, keys, 1, 2).selectExpr("id", "id AS k", "rand() AS x")
        stream = stream_of(rows, where / "in")
        for batch in range(BATCHES):
            time.sleep(0.1)  # files are read in the order of their times
            touched = spark.range(0, TOUCHED, 1, 2).selectExpr(
                "id", f"(id * {keys // TOUCHED} + {batch}) % {keys} AS k", "rand() AS x"
            )
            touched.write.mode("append").parquet(str(where / "in"))
        flow = Flow(f"state-{keys}")
        made = flow.source("rows", stream).process(
            "recent", recent, key="k", initial=[], schema="id long, k long, n long"
        )
        writer = flow.output(made).writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(where / "checkpoint")).start()
        seconds = batch_seconds(query)
        flow.stop()
    return Size(keys, TOUCHED, statistics.median(seconds[1 + BATCHES // 2 :]))
