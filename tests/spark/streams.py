"""What tests of streaming flows share: sources that are fed by hand, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.flow import Flow
from fries.spark.policy import Supervision
from tests import waiting

PATIENCE = waiting.PATIENCE


class Runs(Protocol):
    """A flow, or whatever else has a query."""

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's query."""


@dataclass(frozen=True)
class Plain:
    """A query that was started without the flow's help: it is neither logged nor supervised."""

    query: StreamingQuery


def until(condition: Callable[[], object], flow: Runs | None = None) -> None:
    """Wait for something that a running query brings about; if it fails, say why."""
    while not condition():
        if flow is not None and flow.query is not None and (error := flow.query.exception()):
            raise error
        time.sleep(0.01)


class FileStream:
    """A stream that gets one file, and so one micro-batch, whenever a test adds rows."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        folder.mkdir()
        self._spark, self._folder, self._schema = spark, folder, schema
        self.batches = 0

    @property
    def frame(self) -> DataFrame:
        """What a flow reads."""
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder))

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add a file."""
        frame = self._spark.createDataFrame([Row(**row) for row in rows], self._schema)
        frame.coalesce(1).write.mode("append").parquet(str(self._folder))
        self.batches += 1

    def done(self, flow: Runs) -> bool:
        """Whether the query has committed all that was added."""
        query = flow.query
        progress = None if query is None else query.lastProgress
        if progress is None:
            return False
        last = progress["batchId"] - (0 if progress["numInputRows"] else 1)
        return bool(last >= self.batches - 1)


def start(flow: Flow, frame: DataFrame, folder: Path) -> None:
    """Start a query that writes Parquet files; a failure ends it."""
    flow.start(_writer(frame, folder), Supervision(rollback=False, restarts=0))


def start_plainly(frame: DataFrame, folder: Path) -> Plain:
    """The same, without the flow's help."""
    return Plain(_writer(frame, folder).start())


def _writer(frame: DataFrame, folder: Path) -> DataStreamWriter:
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def stop(flow: Flow) -> None:
    """Stop the query and the flow."""
    if flow.query is not None:
        flow.query.stop()
    flow.stop()
