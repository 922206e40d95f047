"""A driver that is started on the checkpoint of another one: run by a test, in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from fries.flow import Flow
from tests.spark.streams import PATIENCE, until
from tests.spark.test_deployment import GIVEN, SCHEMA, count, stamp


def main(folder: Path) -> None:
    """Take over, make a change, process what comes until the test hangs up."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    flow = Flow("program", groups=2)
    rows = flow.source("rows", spark.readStream.schema(SCHEMA).parquet(str(folder / "in")))
    counted = rows.process("count", count, key="user", initial=0, schema=GIVEN)
    frame = flow.output(counted.map("rules", stamp(1)))
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    flow.start(writer.option("checkpointLocation", str(folder / "checkpoint")))
    print("started", flush=True)
    assert flow.reconfigure({"rules": stamp(2)}).wait(PATIENCE)
    print("changed", flush=True)
    until(lambda: len(spark.read.parquet(str(folder / "out")).head(9)) == 9)
    print("processed", flush=True)
    sys.stdin.read()
    flow.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
