"""A stream that never ends: every micro-batch has the rows of the same Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from fries.spark.local import use_own_python
from fries.spark.schemas import arrow_schema

BATCH = "batch"
"""The offset: how many micro-batches there were."""


def endless(rows: DataFrame, folder: Path, partitions: int) -> DataFrame:
    """A stream whose every micro-batch has these rows; a folder keeps them, in so many files."""
    session = rows.sparkSession
    use_own_python(session.sparkContext)
    rows.repartition(partitions).write.parquet(str(folder))
    session.dataSource.register(Replay)
    return session.readStream.format(Replay.name()).schema(rows.schema).load(str(folder))


class Replay(DataSource):
    """Spark's way to it: ``format("fries-replay")``, with a schema and a folder."""

    @classmethod
    def name(cls) -> str:
        """What Spark calls it."""
        return "fries-replay"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a query."""
        return _Reader(Path(self.options["path"]), arrow_schema(schema))


@dataclass
class _File(InputPartition):
    path: str


class _Reader(DataSourceStreamReader):
    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {BATCH: 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: ARG002, N802
        return {BATCH: start[BATCH] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        return [_File(str(path)) for path in sorted(self._folder.glob("part-*"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        for batch in pq.ParquetFile(partition.path).iter_batches():
            yield batch.cast(self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be given up: the files stay."""
