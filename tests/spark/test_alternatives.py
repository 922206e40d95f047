"""The experiments beyond the paper on Spark: what users do instead, and answers under changes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from fries_lab.experiments.answers import Run, answered, digest
from fries_lab.experiments.watched import Watched
from fries_lab.spark.polled import PolledFunction
from fries_lab.workloads import tpcds
from tests.spark.streams import Plain, until


def test_a_polled_broadcast_switches_between_two_micro_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """However often the file is written in a micro-batch, its rows get one version."""
    wish = tmp_path / "wish"
    wish.write_text("0")
    found: list[set[int]] = []

    def write(frame: DataFrame) -> None:
        wish.write_text(str(len(found) + 1))  # too late for this micro-batch
        found.append({row.version for row in frame.collect()})

    function = PolledFunction(
        spark,
        wish,
        lambda version: Watched(tmp_path, version, 0.0),
        "value long, version long",
        write,
    )
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20)
    writer = reader.load().select("value").writeStream.foreachBatch(function)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        until(lambda: len(found) >= 3, Plain(query))
    finally:
        query.stop()
    assert found[:3] == [{0}, {1}, {2}]


def test_w3_answers_exactly_while_it_is_changed(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "tpcds"
    tpcds.write_tpcds(data, 0.01, Console(quiet=True))
    found = answered(Run("W3", "fused", changed=True), data, spark, tmp_path, files=2)
    expected = [tuple(row.values()) for row in tpcds.answer(data, 71).to_pylist()]
    assert found["digest"] == digest(expected)
    assert found["rows"] == len(expected)
    assert found["changes"] >= 1
    assert found["mixed"] == 0
