"""What the benchmarks on Spark share: a session, streams from files, percentiles."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fries.spark.plan import CHANGELOG, PROVIDER, ROCKSDB

PATIENCE: Final = 120.0
"""Seconds until a benchmark gives up: only a bug takes that long."""


def session() -> SparkSession:
    """A local Spark with as many partitions as cores."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config(PROVIDER, ROCKSDB)
        .config(CHANGELOG, "true")
        .getOrCreate()
    )


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    made = Path(tempfile.mkdtemp(prefix="fries-bench-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def stream_of(frame: DataFrame, where: Path, files: int = 2) -> DataFrame:
    """A stream of what a frame holds, some files in each micro-batch."""
    frame.write.mode("append").parquet(str(where))
    reader = frame.sparkSession.readStream.schema(frame.schema)
    return reader.option("maxFilesPerTrigger", files).parquet(str(where))


def batch_seconds(query: StreamingQuery) -> list[float]:
    """How long each micro-batch with rows took, when all are done."""
    query.awaitTermination()
    progress: list[Any] = query.recentProgress
    return [p["durationMs"]["triggerExecution"] / 1000 for p in progress if p["numInputRows"]]


def drain(frame: DataFrame) -> None:
    """Run a batch job and throw its rows away."""
    frame.write.format("noop").mode("overwrite").save()


def percentile(values: list[float], share: float) -> float:
    """A percentile of some values."""
    return float(np.percentile(values, share))


def wait_until(condition: Any) -> None:  # noqa: ANN401 - anything that can be true
    """Wait for something that a running job brings about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the job does not get there")
        time.sleep(0.02)
