"""Experiments on running queries: every kind of change ends, and its delay is known."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from fries.bench.live import Trial, TwoModels, delays
from fries.workloads.payments import DDL, Payments, payments


def test_delays_of_w5_are_measured_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    batch = payments(0, 300, Payments(seed=3, users=20, merchants=64))
    rows = spark.createDataFrame(batch.to_pandas(), DDL)
    targets = [("F4",), ("FD3", "FD4")]
    trial = Trial(TwoModels(rows), "fused", "fries", targets, requests=1)
    advanced: list[None] = []
    found = delays(trial, tmp_path, lambda: advanced.append(None))
    assert [len(found[kind]) for kind in targets] == [1, 1]
    assert all(0 < one < 60 for kind in targets for one in found[kind])
    assert len(advanced) == 2
