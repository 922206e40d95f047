"""Dataset 3: tables of TPC-DS as Parquet, with the answers to queries 40 and 71.

DuckDB's TPC-DS extension, which comes as a Python package, makes the tables of any scale
factor without a download. Its own answers to the queries are kept beside them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from fries_lab.workloads import folders
from fries_lab.workloads.folders import bars

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KIND: Final = "tpcds"
"""What the folder of this dataset holds."""
QUERIES: Final = (40, 71)
"""The queries that W2 and W3 compute."""
TABLES: Final = (
    "catalog_sales", "catalog_returns", "store_sales", "web_sales",
    "date_dim", "item", "time_dim", "warehouse",
)  # fmt: skip
"""The tables that these queries read."""


def write_tpcds(folder: Path, scale: float, console: Console | None = None) -> None:
    """Make the tables at a scale factor, such as 0.01 or 100, and the answers."""
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"a scale factor is a number above 0, not {scale}")
    folders.begin(folder, {"kind": KIND, "scale": scale})
    steps = {
        **{f"{table}.parquet": f"FROM {table}" for table in TABLES},
        **{f"{_answer(number)}.parquet": query(number) for number in QUERIES},
    }
    wanted = folders.missing(folder, steps)
    if wanted:
        with _generated(folder, scale, console or Console(stderr=True)) as (connection, progress):
            for name in progress.track(wanted, description="tables and answers"):
                with folders.whole_file(folder / name) as path:
                    _run(connection, f"COPY ({steps[name]}) TO '{path}' (FORMAT parquet)", path)
    folders.end(folder)


def query(number: int) -> str:
    """The text of a query, as TPC-DS has it with its default parameters."""
    with _connected(":memory:") as connection:
        found = connection.execute(
            "SELECT query FROM tpcds_queries() WHERE query_nr = ?", [number]
        ).fetchone()
    if found is None:
        raise ValueError(f"TPC-DS has no query {number}")
    return str(found[0]).strip().removesuffix(";")


def answer(folder: Path, number: int) -> pa.Table:
    """What DuckDB answers to a query."""
    return table(folder, _answer(number))


def table(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """Columns of a table, in memory."""
    return pq.read_table(path(folder, name), columns=columns)


def renewed(table: pa.Table, version: int) -> pa.Table:
    """The same table as another version: an update of a lookup that changes no answer."""
    return table.replace_schema_metadata({"version": str(version)})


def path(folder: Path, name: str) -> str:
    """Where a table is."""
    folders.require(folder, KIND)
    return str(folder / f"{name}.parquet")


@contextmanager
def _generated(
    folder: Path, scale: float, console: Console
) -> Iterator[tuple[DuckDBPyConnection, Progress]]:
    """A database with the tables, on disk: at a large scale factor memory has no room for it."""
    with (
        folders.scratch(folder) as place,
        bars(console) as progress,
        _connected(str(place / "tables.duckdb")) as connection,
    ):
        bar = progress.add_task(f"TPC-DS at scale factor {scale:g}", total=None)
        _run(connection, f"CALL dsdgen(sf={scale})", folder)
        progress.remove_task(bar)
        yield connection, progress


@contextmanager
def _connected(database: str) -> Iterator[DuckDBPyConnection]:
    import duckdb
    import duckdb_extension_tpcds

    kept = files(duckdb_extension_tpcds) / "extensions" / f"v{duckdb.__version__}"
    with duckdb.connect(database) as connection:
        connection.execute(f"LOAD '{kept / 'tpcds.duckdb_extension'}'")
        yield connection


def _run(connection: DuckDBPyConnection, statement: str, path: Path) -> None:
    """Run a statement that writes files; say so if it cannot."""
    import duckdb

    try:
        connection.execute(statement)
    except duckdb.Error as error:
        full = os.strerror(errno.ENOSPC) in str(error)
        if not full and not isinstance(error, duckdb.IOException):
            raise
        code = errno.ENOSPC if full else errno.EIO
        raise folders.unwritable(path, OSError(code, str(error))) from error


def _answer(number: int) -> str:
    return f"answer_{number}"
