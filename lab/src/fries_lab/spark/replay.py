"""A stream that never ends: every micro-batch has the same rows.

Spark numbers the rows of each micro-batch, and a join with a table in memory makes of each number
a row. All of that runs inside Spark: a source in Python would start processes of its own for every
micro-batch, and cost more than the flow that it feeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

from fries.spark.schemas import column
from fries_lab.errors import DatasetError

NUMBER: Final = "__row"
"""Which row of the table it is."""


def endless(rows: DataFrame, folder: Path, partitions: int, times: int = 1) -> DataFrame:
    """A stream whose every micro-batch has these rows, each so many times, in so many tasks.

    A folder keeps them.
    """
    table = rows.toArrow()
    if not table.num_rows:
        raise DatasetError(str(folder), "it has no rows to repeat")
    folder.mkdir(parents=True, exist_ok=True)
    numbered = table.append_column(NUMBER, pa.array(range(table.num_rows), pa.int64()))
    pq.write_table(numbered, folder / "rows.parquet")
    session = rows.sparkSession
    static = session.read.parquet(str(folder))
    ticks = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", times * table.num_rows)
        .option("numPartitions", partitions)
        .load()
        .select((F.col("value") % table.num_rows).alias(NUMBER))
    )
    joined = ticks.join(F.broadcast(static), NUMBER)
    columns = [column(field.name).cast(field.dataType).alias(field.name) for field in rows.schema]
    return joined.select(*columns)
