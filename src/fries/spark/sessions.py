"""Sessions for experiments: as many partitions as workers, and no noise on the screen."""

from __future__ import annotations

from pyspark.sql import SparkSession

from fries.spark.plan import ROCKSDB


def experiment_session(master: str, partitions: int) -> SparkSession:
    """A session with so many partitions behind every exchange."""
    builder = SparkSession.builder.master(master).appName("fries bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.adaptive.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
