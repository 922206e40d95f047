"""A stream of payments that follows the clock: rows are due at scheduled rates.

Every row says when it was due, so that how long it took to get anywhere can be told. The clock
is part of the offset: a query that is started again goes on with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from fries.spark.local import use_own_python
from fries.spark.schemas import arrow_schema
from fries_lab.errors import ExperimentError
from fries_lab.experiments.schedule import BEGIN, Offset, Pace, Schedule, Slice

ATTRIBUTES: Final = ("user", "amount", "use_chip", "errors")
"""What rows have of payments."""
COLUMNS: Final = (
    "id long, user long, amount double, use_chip string, errors string, due double, born double"
)
"""A row: its number, attributes of a payment, and when it was due: in seconds of the schedule,
and since 1970. Rows that warm up have no such moment."""
CHUNK: Final = 10_000
"""Rows that are handed to Spark together: its own size of an Arrow batch."""


def paced(session: SparkSession, payments: Path, pace: Pace) -> DataFrame:
    """A stream of rows with the attributes of the payments of dataset 1."""
    use_own_python(session.sparkContext)
    session.dataSource.register(Paced)
    reader = session.readStream.format(Paced.name()).option("pace", json.dumps(asdict(pace)))
    return reader.load(str(payments))


class Paced(DataSource):
    """Spark's way to it: ``format("fries-paced")``, with a folder of payments."""

    @classmethod
    def name(cls) -> str:
        """What Spark calls it."""
        return "fries-paced"

    def schema(self) -> str:
        """Its columns."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a query."""
        settings = json.loads(self.options["pace"])
        schedule = Schedule(tuple(map(tuple, settings.pop("schedule")["rates"])))
        return _Reader(self.options["path"], Pace(schedule, **settings), arrow_schema(schema))


@dataclass
class _Rows(InputPartition):
    rows: Slice


class _Reader(DataSourceStreamReader):
    def __init__(self, folder: str, pace: Pace, schema: pa.Schema) -> None:
        self._folder, self._pace, self._schema = folder, pace, schema

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return BEGIN

    def latestOffset(self, start: Offset, limit: object) -> Offset:  # noqa: ARG002, N802
        return self._pace.taken(start, time.time())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [_Rows(rows) for rows in self._pace.slices(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        rows = partition.rows
        for first in range(0, rows.size, CHUNK):
            yield self._made(rows, first, min(CHUNK, rows.size - first))

    def _made(self, rows: Slice, first: int, count: int) -> pa.RecordBatch:
        """Some rows of a slice."""
        payments = _first_payments(self._folder, self._pace.payments)
        numbers = np.arange(rows.row + first, rows.row + first + count, dtype=np.int64)
        chosen = payments.take(numbers % len(payments))
        attributes = [chosen[name].combine_chunks() for name in ATTRIBUTES]
        columns: list[Any] = [pa.array(numbers), *attributes]
        if rows.clock is None:
            columns += [pa.nulls(count, pa.float64())] * 2
        else:
            due = self._pace.schedule.moments(rows.due + first, count)
            columns += [pa.array(due), pa.array(rows.clock + due)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def commit(self, end: Offset) -> None:
        """Nothing is to be given up: any row can be made again."""


@lru_cache(maxsize=2)
def _first_payments(folder: str, count: int) -> pa.Table:
    """The first payments of dataset 1; a worker process reads them once."""
    files = sorted(Path(folder).glob("*.parquet"))
    tables: list[pa.Table] = []
    for file in files:
        if sum(map(len, tables)) < count:
            tables.append(pq.read_table(file, columns=list(ATTRIBUTES)))
    if sum(map(len, tables)) < count:
        raise ExperimentError(folder, f"it has fewer than {count:,} payments")
    return pa.concat_tables(tables).slice(0, count).combine_chunks()
