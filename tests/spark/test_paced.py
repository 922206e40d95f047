"""The source that follows the clock: every row once, over micro-batches and restarts."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fries_lab.experiments.schedule import Pace, Schedule
from fries_lab.spark.paced import paced
from fries_lab.workloads.payments import Payments, payments

KNOWN = 50


def test_every_row_comes_once_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    known = payments(0, KNOWN, Payments(seed=3, users=20, merchants=64))
    (tmp_path / "payments").mkdir()
    pq.write_table(pa.Table.from_batches([known]), tmp_path / "payments" / "one.parquet")
    pace = Pace(Schedule([(0, 200), (1, 400)]), KNOWN, partitions=2, warm=10, limit=1_000)

    def started() -> StreamingQuery:
        rows = paced(spark, tmp_path / "payments", pace)
        writer = rows.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.start(str(tmp_path / "out"))

    for end in (2, 4):
        query = started()
        while (query.lastProgress or {"batchId": -1})["batchId"] < end:
            assert query.exception() is None
            time.sleep(0.05)
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("id").collect()
    assert [row.id for row in found] == list(range(len(found)))
    assert len(found) > 100
    assert [row.user for row in found[:KNOWN]] == known["user"].to_pylist()
    assert found[KNOWN].amount == found[0].amount
    assert all(row.born is None for row in found[:10])
    clock = found[10].born - found[10].due
    assert all(row.born - row.due == pytest.approx(clock) for row in found[10:])
    assert [row.due for row in found[10:13]] == pytest.approx([0.005, 0.010, 0.015])
