"""Experiments on running queries: every kind of change ends, its delay is known, none is mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fries.experiments.queries import Trial, trial
from fries.experiments.workflows import TwoModels
from fries.workloads.payments import DDL, Payments, payments


@pytest.mark.parametrize("scheduler", ["fries", "restart"])
def test_delays_of_w5_are_measured_in_a_stream(
    spark: SparkSession, tmp_path: Path, scheduler: str
) -> None:
    batch = payments(0, 300, Payments(seed=3, users=20, merchants=64))
    rows = spark.createDataFrame(batch.to_pandas(), DDL)
    targets = [("F4",), ("FD3", "FD4")]
    found = trial(Trial(TwoModels(rows), "fused", scheduler, targets, requests=1), tmp_path)
    assert set(found["delays_ms"]) == {"F4", "FD3,FD4"}
    assert all(0 < one < 60_000 for delays in found["delays_ms"].values() for one in delays)
    assert found["transactions"] >= 300 * 3
    assert found["mixed"] == 0
