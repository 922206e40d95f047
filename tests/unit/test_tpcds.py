"""TPC-DS tables from DuckDB: whole, resumable, with answers."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fries_lab.errors import DatasetError
from fries_lab.workloads import tpcds

QUIET = Console(quiet=True)


def test_tables_and_answers_are_kept_and_lost_ones_made_again(tmp_path: Path) -> None:
    tpcds.write_tpcds(tmp_path / "data", 0.01, QUIET)
    made = {path.name: path.read_bytes() for path in (tmp_path / "data").glob("*.parquet")}
    assert len(made) == len(tpcds.TABLES) + len(tpcds.QUERIES)
    assert tpcds.table(tmp_path / "data", "catalog_sales").num_rows > 10_000
    assert tpcds.table(tmp_path / "data", "item", ["i_item_sk"]).num_columns == 1
    forty = tpcds.answer(tmp_path / "data", 40)
    assert forty.column_names == ["w_state", "i_item_id", "sales_before", "sales_after"]
    assert forty.num_rows > 0
    assert tpcds.answer(tmp_path / "data", 71).num_rows > 0

    before = (tmp_path / "data" / "item.parquet").stat().st_mtime_ns
    (tmp_path / "data" / "warehouse.parquet").unlink()
    (tmp_path / "data" / "_COMPLETE").unlink()
    with pytest.raises(DatasetError, match="not complete"):
        tpcds.table(tmp_path / "data", "item")
    tpcds.write_tpcds(tmp_path / "data", 0.01, QUIET)
    assert (tmp_path / "data" / "item.parquet").stat().st_mtime_ns == before
    again = (tmp_path / "data" / "warehouse.parquet").read_bytes()
    assert again == made["warehouse.parquet"]
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".")]


def test_the_queries_are_those_of_the_paper() -> None:
    assert "catalog_returns" in tpcds.query(40)
    assert "t_meal_time" in tpcds.query(71)
    with pytest.raises(ValueError, match="no query 100"):
        tpcds.query(100)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_factors_are_above_zero(tmp_path: Path, scale: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        tpcds.write_tpcds(tmp_path, scale)


def test_another_scale_factor_needs_another_folder(tmp_path: Path) -> None:
    (tmp_path / "_recipe.json").write_text('{"kind": "tpcds", "scale": 1.0}')
    with pytest.raises(DatasetError, match="made as"):
        tpcds.write_tpcds(tmp_path, 0.01, QUIET)
    assert not pq.ParquetDataset(tmp_path).fragments


@pytest.mark.parametrize(
    ("file", "problem"),
    [("/dev/full", "the disk is full"), ("/nowhere/t.parquet", "it cannot be written")],
)
def test_what_duckdb_cannot_write_is_said(file: str, problem: str) -> None:
    statement = f"COPY (FROM range(100_000)) TO '{file}' (FORMAT parquet)"
    with duckdb.connect() as connection, pytest.raises(DatasetError, match=problem):
        tpcds._run(connection, statement, Path("table"))
