"""Payments as Spark jobs: the same rows however many tasks there are, and nothing half made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from fries_lab.errors import DatasetError
from fries_lab.workloads import folders, generate
from fries_lab.workloads.payments import Payments, payments, per_user

SMALL = Payments(seed=3, users=50, merchants=200, fraud_share=0.2)
ROWS = 2_300
QUIET = Console(quiet=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset 1, small, in three files."""
    folder = tmp_path_factory.mktemp("datasets") / "payments"
    generate.write_payments(spark, folder, ROWS, SMALL, 1_000, QUIET)
    return folder


def test_payments_are_those_of_the_generator(spark: SparkSession, made: Path) -> None:
    assert list(files(made)) == [f"payments-0000{n}.parquet" for n in range(3)]
    written = pq.read_table(made).combine_chunks()
    assert written == pa.Table.from_batches([payments(0, ROWS, SMALL)])
    found = generate.read_payments(spark, made)
    assert found.count() == ROWS
    assert found.where("is_fraud").count() == written["is_fraud"].to_numpy().sum()


def test_only_lost_files_are_made_again(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    (folder / "payments-00001.parquet").unlink()
    (folder / folders.COMPLETE).unlink()
    kept = (folder / "payments-00000.parquet").stat().st_ino
    with pytest.raises(DatasetError, match="not complete"):
        generate.read_payments(spark, folder)
    generate.write_payments(spark, folder, ROWS, SMALL, 1_000, QUIET)
    assert files(folder) == files(made)
    assert (folder / "payments-00000.parquet").stat().st_ino == kept


def test_users_have_all_their_payments(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    generate.write_users(spark, made, tmp_path / "users", QUIET)
    written = pq.read_table(tmp_path / "users")
    assert len(files(tmp_path / "users")) == 3
    expected = per_user(pq.read_table(made))
    assert written.sort_by("user").to_pylist() == expected.to_pylist()
    lost, kept = (tmp_path / "users" / f"users-0000{number}.parquet" for number in (0, 1))
    before = files(tmp_path / "users"), kept.stat().st_ino
    lost.unlink()
    generate.write_users(spark, made, tmp_path / "users", QUIET)
    assert (files(tmp_path / "users"), kept.stat().st_ino) == before
    rows = generate.read_users(spark, tmp_path / "users")
    assert rows.selectExpr("sum(size(payments))").first() == (ROWS,)


def test_what_cannot_be_written_or_read_is_said(spark: SparkSession, tmp_path: Path) -> None:
    task = generate._PaymentsTask(tmp_path / "nowhere", ROWS, SMALL, 1_000)
    ((path, problem),) = task(2)
    assert path.endswith("nowhere/payments-00002.parquet")
    assert "No such file" in problem
    with pytest.raises(DatasetError, match="there is no dataset"):
        generate.write_users(spark, tmp_path / "nowhere", tmp_path / "users", QUIET)


def test_impossible_sizes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one at least"):
        generate.write_payments(spark, tmp_path, 0)
