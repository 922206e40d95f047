"""Datasets 1 and 2 as Spark jobs: payments, and payments grouped per user, in Parquet.

Each task writes whole files of its own into a folder that driver and workers share. A file's
rows depend on the recipe and on the number of the file alone: not on how many tasks or cores
there are. Files that are there already are not made again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from fries_lab.errors import DatasetError
from fries_lab.workloads import folders
from fries_lab.workloads.payments import DDL, DEFAULT, SCHEMA, Payments, payments, per_user

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYMENTS: Final = "payments"
"""Dataset 1: the kind that its folder holds."""
USERS: Final = "users"
"""Dataset 2."""
USERS_DDL: Final = "user long, payments array<struct<{}>>".format(
    ", ".join(column.replace(" ", ": ") for column in DDL.split(", ") if column != "user long")
)
"""Columns of dataset 2."""
FILE_ROWS: Final = 500_000
"""Payments in a file: about 15 MB, a second of work, and a task's memory of 200 MB."""
GROUP_ROWS: Final = 100_000
"""Payments in a row group of a file."""


def write_payments(
    spark: SparkSession,
    folder: Path,
    rows: int,
    config: Payments = DEFAULT,
    file_rows: int = FILE_ROWS,
    console: Console | None = None,
) -> None:
    """Dataset 1: the first so many payments, so many in a file."""
    from fries.spark.local import use_own_python

    if rows < 1 or file_rows < 1:
        raise ValueError(f"no {rows} rows in files of {file_rows}: it takes one at least")
    recipe = {"kind": PAYMENTS, "rows": rows, "file_rows": file_rows, **asdict(config)}
    folders.begin(folder, recipe)
    numbers = {file_name(PAYMENTS, number): number for number in range(_files(recipe))}
    wanted = [numbers[name] for name in folders.missing(folder, numbers)]
    if wanted:
        use_own_python(spark.sparkContext)
        parts = spark.sparkContext.parallelize(wanted, len(wanted))
        task = _PaymentsTask(folder, rows, config, file_rows)
        _run(spark, PAYMENTS, parts.flatMap(task).collect, folder, console)
    folders.end(folder)


def write_users(
    spark: SparkSession, source: Path, folder: Path, console: Console | None = None
) -> None:
    """Dataset 2: the payments of a dataset 1, as one row per user."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

    from fries.spark.local import use_own_python

    recipe = folders.require(source, PAYMENTS)
    folders.begin(folder, {**recipe, "kind": USERS})
    count = _files(recipe)
    if folders.missing(folder, [file_name(USERS, number) for number in range(count)]):
        use_own_python(spark.sparkContext)
        spread = read_payments(spark, source).repartition(count, F.xxhash64("user"))
        problems = spread.mapInArrow(_UsersTask(folder), "path string, problem string")
        _run(spark, USERS, problems.collect, folder, console)
    folders.end(folder)


def read_payments(spark: SparkSession, folder: Path) -> DataFrame:
    """Dataset 1 as a DataFrame."""
    folders.require(folder, PAYMENTS)
    return spark.read.schema(DDL).parquet(str(folder))


def read_users(spark: SparkSession, folder: Path) -> DataFrame:
    """Dataset 2 as a DataFrame."""
    folders.require(folder, USERS)
    return spark.read.schema(USERS_DDL).parquet(str(folder))


class _PaymentsTask:
    """Makes one file of payments; gives what went wrong, as paths and problems."""

    def __init__(self, folder: Path, rows: int, config: Payments, size: int) -> None:
        self._folder, self._rows, self._config, self._size = folder, rows, config, size

    def __call__(self, number: int) -> list[tuple[str, str]]:
        first = number * self._size
        end = min(first + self._size, self._rows)
        try:
            with (
                folders.whole_file(self._folder / file_name(PAYMENTS, number)) as path,
                pq.ParquetWriter(path, SCHEMA) as file,
            ):
                for begin in range(first, end, GROUP_ROWS):
                    file.write(payments(begin, min(GROUP_ROWS, end - begin), self._config))
        except DatasetError as error:
            return [(error.path, error.problem)]
        return []


class _UsersTask:
    """Makes one file of users from all their payments; gives what went wrong."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        file = self._folder / file_name(USERS, context.partitionId())
        if file.exists():
            return
        rows = pa.Table.from_batches((batch.cast(SCHEMA) for batch in batches), SCHEMA)
        try:
            with folders.whole_file(file) as path:
                pq.write_table(per_user(rows), path)
        except DatasetError as error:
            yield pa.record_batch({"path": [error.path], "problem": [error.problem]})


def _run(
    spark: SparkSession,
    what: str,
    job: Callable[[], list[Any]],
    folder: Path,
    console: Console | None,
) -> None:
    """Run a job whose tasks write files; finished files are kept whatever happens."""
    from fries_lab.spark.progress import watched

    try:
        problems = watched(spark.sparkContext, what, job, console or Console(stderr=True))
    except Exception as error:
        if os.strerror(errno.ENOSPC) in str(error):  # of Spark's own files
            raise folders.unwritable(folder, OSError(errno.ENOSPC, "")) from error
        raise
    if problems:
        raise DatasetError(*problems[0])


def _files(recipe: Mapping[str, Any]) -> int:
    """How many files the rows take."""
    return -(-int(recipe["rows"]) // int(recipe["file_rows"]))


def file_name(kind: str, number: int) -> str:
    """What a file of a dataset is called."""
    return f"{kind}-{number:05}.parquet"
