"""Experiments on running queries: every kind of change ends, its delay is known, none is mixed."""

from __future__ import annotations

import math
from pathlib import Path

from pyspark.sql import SparkSession

from fries_lab.experiments.queries import Kind, Trial, trial
from fries_lab.experiments.workflows import TwoModels
from fries_lab.workloads.payments import DDL, Payments, payments


def test_delays_of_w5_are_measured_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    batch = payments(0, 300, Payments(seed=3, users=20, merchants=64))
    rows = spark.createDataFrame(batch.to_pandas(), DDL)
    kinds = [
        Kind("fries", ("F4",), 3),
        Kind("epoch", ("FD3", "FD4"), 1),
        Kind("restart", ("F4",), 1),
    ]
    found = trial(Trial(TwoModels(rows), "fused", kinds), tmp_path)
    assert {name: set(of) for name, of in found["delays_ms"].items()} == {
        "fries": {"F4"},
        "epoch": {"FD3,FD4"},
        "restart": {"F4"},
    }
    assert len(found["delays_ms"]["fries"]["F4"]) == 3
    during = found["during"]
    assert len(during) == len(set(during)) == 5, "each request has a micro-batch of its own"
    assert during == sorted(during)
    delays = [one for of in found["delays_ms"].values() for some in of.values() for one in some]
    assert all(0 < one < math.inf for one in delays)
    assert found["transactions"] >= 300 * 3
    assert found["mixed"] == {"fries": 0, "epoch": 0, "restart": 0}
