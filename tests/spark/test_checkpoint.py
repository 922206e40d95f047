"""Where a query's checkpoint is, how the log is kept there, and which sources have an order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

from fries.errors import LogError, UsageError
from fries.flow import Flow
from fries.log.files import LocalFiles
from fries.spark.checkpoint import DEFAULT, HadoopFiles, checkpoint_of, files_of, last_commit
from fries.spark.order import has_fixed_order
from fries.spark.policy import Supervision


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_the_checkpoint_is_found_however_it_was_given(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    given = stream.writeStream.option("CHECKPOINTlocation", "/some where")
    assert checkpoint_of(given) == "/some where"
    named = stream.writeStream.queryName("scores")
    assert checkpoint_of(named) is None
    spark.conf.set(DEFAULT, str(tmp_path))
    try:
        assert checkpoint_of(named) == f"{tmp_path}/scores"
        assert checkpoint_of(stream.writeStream) is None, "Spark invents a name"
    finally:
        spark.conf.unset(DEFAULT)


def test_files_on_any_file_system_of_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    """Through the same interfaces as on a cluster; only the disk is a local one."""
    files = HadoopFiles(spark, tmp_path.as_uri() + "/log")
    assert files.names() == []
    files.write("one", [b"a", memoryview(b"bc")])
    assert files.read("one") == b"abc"
    with pytest.raises(LogError, match="already exists"):
        files.write("one", [b"other"])
    files.write("one", [b"new"], replace=True)
    assert (files.names(), files.read("one")) == (["one"], b"new")
    assert (files.has("one"), files.has("two")) == (True, False)
    with pytest.raises(LogError, match="cannot be read"):
        files.read("two")
    for _ in range(2):  # once is enough
        files.remove("one")
        assert files.names() == []


def test_a_local_disk_is_written_without_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    for place in (str(tmp_path), tmp_path.as_uri()):
        files = files_of(spark, place)
        assert isinstance(files, LocalFiles)
        assert files.place == str(tmp_path)
    with pytest.raises(LogError, match="No FileSystem for scheme"):
        files_of(spark, "nowhere://machine/folder")


def test_the_newest_batch_that_spark_has_committed(spark: SparkSession, tmp_path: Path) -> None:
    assert last_commit(spark, str(tmp_path)) == -1
    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".10.crc", "metadata"):
        (tmp_path / "commits" / name).touch()
    assert last_commit(spark, str(tmp_path)) == 10


def test_rows_straight_from_a_source_have_an_order(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    rows = spark.range(10).withColumn("key", F.col("id") % 3)
    rows.write.parquet(str(tmp_path / "rows"))
    files = spark.read.parquet(str(tmp_path / "rows"))
    for frame in (rows, files, stream, files.where("id > 3").select("key"), files.union(files)):
        assert has_fixed_order(frame)
    for frame in (
        files.repartition(2),
        files.groupBy("key").count(),
        files.distinct(),
        files.join(files, "id"),
        files.withColumn("x", F.rand()),
        files.mapInArrow(lambda batches: batches, files.schema),
        spark.createDataFrame(files.rdd.repartition(2), files.schema),
    ):
        assert not has_fixed_order(frame)


def test_a_query_that_would_begin_anew_is_not_started_again(stream: DataFrame) -> None:
    flow = Flow("temporary")
    frame = flow.output(flow.source("rows", stream).filter("F", lambda row: True))
    writer = frame.writeStream.foreachBatch(lambda frame, batch: None)
    with pytest.raises(UsageError, match="begins anew when it is started again"):
        flow.start(writer, Supervision())
    flow.stop()


def test_speculative_execution_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SparkConf(loadDefaults=False).setAll(spark.sparkContext.getConf().getAll())
    settings.set("spark.speculation", "true")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: settings)
    flow = Flow("speculative")
    rows = flow.source("rows", spark.range(3))
    with pytest.raises(UsageError, match="turn it off"):
        flow.output(rows)
