"""Sessions for experiments: as many partitions as workers, and no noise on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from fries.spark.local import stderr_to
from fries.spark.plan import CHANGELOG, PROVIDER, ROCKSDB

PARTITIONS: Final = "spark.sql.shuffle.partitions"


def experiment_session(master: str, partitions: int, log: Path) -> SparkSession:
    """A session with so many partitions behind every exchange; Spark's own words go to a log."""
    builder = SparkSession.builder.master(master).appName("fries-lab bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        PARTITIONS: str(partitions),
        PROVIDER: ROCKSDB,
        CHANGELOG: "true",
        "spark.sql.adaptive.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    with stderr_to(log):
        return builder.getOrCreate()


def workers(spark: SparkSession) -> int:
    """How many tasks a stage behind an exchange has, and so Python workers."""
    return int(spark.conf.get(PARTITIONS) or 1)
