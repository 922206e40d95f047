"""Small versions of the consistency runs: ``make consistency`` has the large ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from benchmarks.consistency import leave, run
from pyspark.sql import SparkSession

from fries.flow import Flow
from tests.spark.streams import PATIENCE, until


@pytest.mark.parametrize(
    "scheduler",
    [
        "fries",
        pytest.param("fries_unpruned", marks=pytest.mark.complete),
        "epoch",
        pytest.param("multi_version", marks=pytest.mark.complete),
        "mini_batch",
        pytest.param("restart", marks=pytest.mark.complete),
    ],
)
def test_nothing_is_mixed_lost_or_doubled(
    spark: SparkSession, tmp_path: Path, scheduler: str
) -> None:
    pause = 4.0 if scheduler == "restart" else 0.2
    report = run(spark, scheduler, 2000, 3, tmp_path, seed=1, pause=pause)
    assert report.clean, report
    assert report.changes > 0


def test_without_synchronisation_tuples_are_mixed(spark: SparkSession, tmp_path: Path) -> None:
    """Behind an exchange: rows that the old A has processed meet the new B."""
    flow = Flow("naive", audit=tmp_path, groups=4)
    rows = spark.range(0, 4000, 1, 2).selectExpr("id")
    first = flow.source("rows", rows).map("A", slowly(0), schema="id long, a long")
    second = first.process(
        "B", lambda state, row: (state, {**row, "b": 0}), key="id", schema="id long, a long, b long"
    )
    found: list[Any] = []
    frame = flow.output(second)
    job = threading.Thread(target=lambda: found.extend(frame.collect()))
    job.start()
    until(lambda: flow.counters.get("A"))
    change = flow.reconfigure(
        {"A": slowly(1), "B": lambda state, row: (state, {**row, "b": 1})}, "naive"
    )
    assert change.wait(PATIENCE)
    job.join()
    verdict = flow.audit()
    flow.stop()
    mixed = sum(row["a"] != row["b"] for row in found)
    assert verdict.mixed == mixed > 0
    assert not verdict.serializable


def slowly(version: int) -> Any:  # noqa: ANN401 - a function
    """A map that takes a while, so that the change comes in the middle."""

    def function(row: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.001)
        return leave("a", version)(row)

    return function
