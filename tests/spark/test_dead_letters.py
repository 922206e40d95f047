"""Rows that fail go to an output of their own: batch jobs, streams, changes. On a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from fries.errors import UsageError
from fries.flow import Flow
from fries.runtime.spec import DeadLetters
from fries.spark.policy import Supervision
from tests.spark.streams import PATIENCE, FileStream, stop, until

AnyRow = dict[str, Any]


@pytest.fixture
def flow() -> Iterator[Flow]:
    made = Flow("letters", groups=4)
    yield made
    stop(made)


def invert(row: AnyRow) -> AnyRow:
    """Fails on every twentieth row."""
    return {**row, "a": 100 // (row["id"] % 20)}


def count(state: dict[str, int], row: AnyRow) -> tuple[dict[str, int], AnyRow]:
    """Fails on some rows after it has changed its state."""
    state["seen"] += 1
    if row["id"] % 20 == 7:
        raise LookupError(f"no {row['id']}")
    return state, {**row, "a": state["seen"]}


def lower(row: AnyRow) -> bool:
    return bool(row["id"] % 20 < 11 or 1 // 0)


def refuse(frame: pd.DataFrame) -> pd.DataFrame:
    if (frame["id"] % 20 == 9).any():
        raise ValueError("a nine")
    return frame


def test_a_batch_job_gives_its_failing_rows_apart(spark: SparkSession, flow: Flow) -> None:
    """From three stages, one of them keyed, and over two exchanges."""
    rows = spark.range(0, 400, 1, 2).selectExpr("id", "id % 7 AS k", "0L AS a")
    made = (
        flow.source("rows", rows)
        .map("M", invert, on_error="rejected")
        .process("P", count, key="k", initial={"seen": 0}, on_error="rejected")
        .map("B", refuse, batch="pandas", shuffle="k", on_error=DeadLetters("other", limit=1))
        .filter("F", lower, on_error=DeadLetters("drop", limit=1))
    )
    frame = flow.output(made).persist()
    assert "M (map, one-to-one, failing rows: rejected)" in flow.explain()
    kept = flow.select(frame, "output").collect()
    assert sorted(row["id"] for row in kept) == [
        n for n in range(400) if n % 20 not in (0, 7, 9) and n % 20 < 11
    ]
    letters = flow.select(frame, "rejected").collect()
    told = {json.loads(row["error_row"])["id"]: row for row in letters}
    assert sorted(told) == [n for n in range(400) if n % 20 in (0, 7)]
    assert [told[n]["error_operator"] for n in (20, 27)] == ["M", "P"]
    assert [told[n]["error_type"] for n in (20, 27)] == ["ZeroDivisionError", "LookupError"]
    assert told[27]["error_message"] == "no 27"
    nines = flow.select(frame, "other").collect()
    assert sorted(json.loads(row["error_row"])["id"] for row in nines) == list(range(9, 400, 20))
    failed = {name: counts.failed for name, counts in flow.counters.items()}
    assert failed == {"rows": 0, "M": 20, "P": 20, "B": 20, "F": 180}


def test_a_stream_goes_on_and_a_version_that_fails_too_often_is_rolled_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "in", "id long, k long, a long")
    flow = Flow("letters", groups=4, audit=tmp_path / "audit")
    made = flow.source("rows", stream.frame).process(
        "P", count, key="k", order_by="id", initial={"seen": 0}, on_error="rejected"
    )
    frame = flow.output(good=made.map("M", invert, on_error=DeadLetters("rejected", limit=0.2)))
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = flow.start(writer, Supervision(restarts=1, pause=0.0))

    def feed(first: int) -> None:
        stream.add([{"id": n, "k": n % 7, "a": 0} for n in range(first, first + 100)])
        until(lambda: stream.done(flow))

    try:
        feed(0)
        bad = flow.reconfigure({"M": lambda row: {**row, "a": "text"}})
        assert bad.wait(PATIENCE)
        feed(100)
        assert bad.state == "rolled back"
        assert bad.failure is not None
        assert "with a limit of 20%" in bad.failure.problem
        better = flow.reconfigure({"M": lambda row: {**row, "a": row["a"] + 1_000}})
        assert better.wait(PATIENCE)
        feed(200)
        assert query.isActive
        assert flow.audit().serializable
    finally:
        stop(flow)
    rows = spark.read.parquet(str(tmp_path / "out"))
    good = flow.select(rows, "good").collect()
    letters = flow.select(rows, "rejected").collect()
    failing = [n for n in range(300) if n % 20 == 7 or (n % 20 == 0 and n < 200)]
    assert sorted(json.loads(row["error_row"])["id"] for row in letters) == failing
    assert sorted(row["id"] for row in good) == [n for n in range(300) if n not in failing]
    assert {row["error_change"] for row in letters} == {0}
    seen = {row["id"]: row["a"] - 1_000 for row in good if row["id"] >= 200}
    assert seen == {n: len([m for m in range(n % 7, n + 1, 7) if m % 20 != 7]) for n in seen}, (
        "rows that failed have left no trace in states"
    )


@pytest.mark.parametrize(
    ("on_error", "problem"),
    [
        ("", "means nothing"),
        (3, "means nothing"),
        (DeadLetters("rejected", limit=2), "a share"),
        ("rows", "an output of their own"),
        ("output", "an output of their own"),
    ],
)
def test_what_means_nothing_is_refused(
    spark: SparkSession,
    flow: Flow,
    on_error: Any,  # noqa: ANN401
    problem: str,
) -> None:
    source = flow.source("rows", spark.range(3).selectExpr("id", "0L AS a"))
    with pytest.raises(UsageError, match=problem):
        flow.output(source.map("M", invert, on_error=on_error))


def test_columns_that_would_be_mistaken_for_those_of_failing_rows_are_refused(
    spark: SparkSession, flow: Flow
) -> None:
    source = flow.source("rows", spark.range(3).selectExpr("id", "0L AS error_type"))
    with pytest.raises(UsageError, match="one name has two types"):
        flow.output(source.map("M", invert, on_error="rejected"))
