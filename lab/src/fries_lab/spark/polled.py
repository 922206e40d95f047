"""What Spark's users do without Fries: a row function in ``mapInArrow``, and how they change it.

Spark has no way to change a running function. Users stop the query and start another one, or
they look for a new version once per micro-batch and broadcast it anew. The second way is the
``BroadcastWrapper`` of https://blog.csdn.net/qq_19446965/article/details/109064624: unpersist the
old variable, broadcast a new one, and use that from then on. It needs a place that runs in the
driver once per micro-batch, which is ``foreachBatch``; the plan of a query keeps the variable
that it was built with (https://www.waitingforcode.com/apache-spark-structured-streaming/broadcasting-structured-streaming/read).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from fries.spark.local import use_own_python
from fries.spark.schemas import arrow_schema

RowFunction: TypeAlias = "Callable[[dict[str, Any]], dict[str, Any]]"


@dataclass(frozen=True)
class Mapped:
    """A row function over the batches of a partition."""

    function: RowFunction | Broadcast[RowFunction]
    schema: pa.Schema
    """Of the rows that it gives."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a partition."""
        held = self.function
        function = held.value if isinstance(held, Broadcast) else held
        for batch in batches:
            made = [function(row) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(made, schema=self.schema)


def mapped(rows: DataFrame, function: RowFunction | Broadcast[RowFunction], ddl: str) -> DataFrame:
    """The rows that a row function gives, in plain Spark."""
    use_own_python(rows.sparkSession.sparkContext)
    return rows.mapInArrow(Mapped(function, arrow_schema(ddl)), ddl)


class PolledFunction:
    """For ``foreachBatch``: looks once per micro-batch which version a file asks for."""

    def __init__(
        self,
        spark: SparkSession,
        wish: Path,
        versions: Callable[[int], RowFunction],
        ddl: str,
        write: Callable[[DataFrame], object],
    ) -> None:
        self._context = spark.sparkContext
        self._wish, self._versions, self._ddl, self._write = wish, versions, ddl, write
        self._version: int | None = None
        self._held: Broadcast[RowFunction] | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:  # noqa: ARG002 - as Spark calls it
        """Process a micro-batch by the version that is wanted now."""
        self._write(mapped(rows, self._current(), self._ddl))

    def _current(self) -> Broadcast[RowFunction]:
        wanted = int(self._wish.read_text("utf-8"))
        if self._held is None or wanted != self._version:
            if self._held is not None:
                self._held.unpersist()
            self._held, self._version = self._context.broadcast(self._versions(wanted)), wanted
        return self._held
