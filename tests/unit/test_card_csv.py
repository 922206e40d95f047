"""The real card payments as dataset 1: a file of their form, and files that are refused."""

from __future__ import annotations

import csv
import gzip
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fries_lab.cli import app
from fries_lab.errors import DatasetError
from fries_lab.workloads import card_csv, folders
from fries_lab.workloads.features import vector
from fries_lab.workloads.payments import SCHEMA, per_user

HEADER = [
    "User", "Card", "Year", "Month", "Day", "Time", "Amount", "Use Chip", "Merchant Name",
    "Merchant City", "Merchant State", "Zip", "MCC", "Errors?", "Is Fraud?",
]  # fmt: skip
FIRST = (
    "0", "1", "2002", "9", "1", "06:21", "$134.09", "Swipe Transaction", "3527213246127876953",
    "La Verne", "CA", "91750.0", "5300", "", "No",
)  # fmt: skip
QUIET = Console(quiet=True)


def changed(**values: str) -> tuple[str, ...]:
    """The first payment with other values; names are those of the header, without spaces."""
    places = {name.replace(" ", "").strip("?"): place for place, name in enumerate(HEADER)}
    row = list(FIRST)
    for name, value in values.items():
        row[places[name]] = value
    return tuple(row)


def written(place: Path, *rows: tuple[str, ...], header: list[str] = HEADER) -> Path:
    path = place / "card_transaction.v1.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return path


def made(place: Path, *rows: tuple[str, ...], file_rows: int = 1_000) -> list[dict[str, object]]:
    source = written(place, *rows)
    count = card_csv.write_csv(source, place / "out", file_rows, QUIET)
    assert folders.require(place / "out", "payments")["rows"] == count == len(rows)
    table = pq.read_table(place / "out")
    assert table.schema.equals(SCHEMA)
    return list(table.to_pylist())


def test_a_payment_has_the_papers_attributes(tmp_path: Path) -> None:
    assert made(tmp_path, FIRST) == [
        {
            "id": 0,
            "user": 0,
            "card": 1,
            "time": datetime(2002, 9, 1, 6, 21, tzinfo=UTC),
            "amount": 134.09,
            "use_chip": "Swipe Transaction",
            "merchant": 3527213246127876953,
            "city": "La Verne",
            "state": "CA",
            "category": 5300,
            "errors": None,
            "is_fraud": False,
        }
    ]


def test_quotes_refunds_online_shops_and_errors_are_understood(tmp_path: Path) -> None:
    rows = made(
        tmp_path,
        changed(Amount="$-12.50", Time="06:00"),
        changed(Amount="$1,234.50", MerchantCity='Town, "Old" one', Time="06:01"),
        changed(UseChip="Online Transaction", MerchantCity="ONLINE", MerchantState="", Zip=""),
        changed(Errors="Bad PIN,Insufficient Balance,", IsFraud="Yes", Time="6:22"),
        changed(MerchantName="-727612092139916043", Amount="-$3", Time="23:59"),
    )
    assert [row["amount"] for row in rows] == [-12.5, 1234.5, 134.09, 134.09, -3.0]
    assert rows[1]["city"] == 'Town, "Old" one'
    assert (rows[2]["city"], rows[2]["state"]) == ("ONLINE", None)
    assert (rows[3]["errors"], rows[3]["is_fraud"]) == ("Bad PIN,Insufficient Balance", True)
    assert rows[4]["merchant"] == -727612092139916043


def test_payments_come_in_the_order_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_csv, "BLOCK", 2_000)  # many blocks, each with many years
    chance = random.Random(7)
    rows = [
        changed(
            User=str(number),
            Year=str(chance.randint(1991, 1994)),
            Month=str(chance.randint(1, 12)),
            Day=str(chance.randint(1, 28)),
            Time=f"{chance.randint(0, 1):02}:{chance.randint(0, 2):02}",
        )
        for number in range(500)
    ]
    found = made(tmp_path, *rows, file_rows=64)
    assert [row["id"] for row in found] == list(range(500))
    assert len(list((tmp_path / "out").glob("payments-*.parquet"))) == 8

    def moment(row: tuple[str, ...]) -> datetime:
        hour, minute = map(int, row[5].split(":"))
        return datetime(int(row[2]), int(row[3]), int(row[4]), hour, minute, tzinfo=UTC)

    expected = sorted(rows, key=moment)  # those of the same minute stay as they are
    assert [str(row["user"]) for row in found] == [row[0] for row in expected]
    assert [row["time"] for row in found] == [moment(row) for row in expected]


def test_dataset_2_can_be_made_of_it(tmp_path: Path) -> None:
    made(tmp_path, changed(User="7"), changed(User="3", MerchantState=""), changed(User="7"))
    users = per_user(pq.read_table(tmp_path / "out"))
    assert {row["user"]: len(row["payments"]) for row in users.to_pylist()} == {3: 1, 7: 2}


def test_only_lost_files_are_made_again(tmp_path: Path) -> None:
    rows = [changed(User=str(number), Day=str(1 + number % 28)) for number in range(300)]
    before = made(tmp_path, *rows, file_rows=100)
    kept = (tmp_path / "out/payments-00000.parquet").stat().st_ino
    (tmp_path / "out/payments-00001.parquet").unlink()
    (tmp_path / "out" / folders.COMPLETE).unlink()
    assert made(tmp_path, *rows, file_rows=100) == before
    assert (tmp_path / "out/payments-00000.parquet").stat().st_ino == kept
    assert not list((tmp_path / "out").glob(f"{folders.UNFINISHED}*"))


def test_another_file_is_not_put_into_the_same_folder(tmp_path: Path) -> None:
    made(tmp_path, FIRST)
    with pytest.raises(DatasetError, match="choose another folder, or delete it"):
        made(tmp_path, FIRST, FIRST)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (changed(Amount=""), "row 2: Amount: it is missing"),
        (changed(Amount="twelve"), r"row 2: Amount \('twelve'\): no amount like \$-12.50"),
        (changed(Amount="$1.2.3"), "no amount like"),
        (changed(User=""), "row 2: User: it is missing"),
        (changed(User="1.5"), r"row 2: User \('1.5'\): no whole number"),
        (changed(MerchantName="9" * 19), "a number is too large"),
        (changed(Card="3000000000"), "a number is too large"),
        (changed(Month="13"), r"row 2: Month \('13'\): no such month"),
        (changed(Month="2", Day="30"), r"row 2: Day \('30'\): no such day"),
        (changed(Year="20022"), "no such year"),
        (changed(Time="24:00"), "no time like 06:21"),
        (changed(UseChip="Cheque"), "none of Chip Transaction, Swipe Transaction, Online"),
        (changed(IsFraud="maybe"), r"row 2: Is Fraud\? \('maybe'\): it is none of No, Yes"),
        (FIRST[:-1], "Expected 15 columns, got 14"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_row(
    tmp_path: Path, row: tuple[str, ...], problem: str
) -> None:
    source = written(tmp_path, FIRST, row)
    with pytest.raises(DatasetError, match=problem):
        card_csv.write_csv(source, tmp_path / "out", console=QUIET)
    assert not (tmp_path / "out" / folders.COMPLETE).exists()


def without(*names: str) -> Callable[[Path], Path]:
    header = [name for name in HEADER if name not in names]
    return lambda place: written(place, header=header)


def empty(place: Path) -> Path:
    path = place / "empty.csv"
    path.touch()
    return path


def binary(place: Path) -> Path:
    path = place / "transactions.tgz"
    path.write_bytes(gzip.compress(b"not a table, and packed", mtime=0))
    return path


def lines_of_no_text(place: Path) -> Path:
    path = place / "lines.bin"
    path.write_bytes(b"\x1f\x8b\n\x8b\n")
    return path


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (without("Use Chip", "MCC"), "it lacks the columns MCC, Use Chip; its header is User, "),
        (without(), "it has a header and no payments"),
        (empty, "it is empty"),
        (binary, "it is no such CSV; is it packed"),
        (lines_of_no_text, "it is no such CSV; is it packed"),
        (lambda place: place / "none.csv", "it cannot be read"),
    ],
)
def test_another_kind_of_file_is_refused_before_anything_is_made(
    tmp_path: Path, make: Callable[[Path], Path], problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        card_csv.write_csv(make(tmp_path), tmp_path / "out", console=QUIET)
    assert not (tmp_path / "out").exists()


def test_the_command_takes_a_file_or_makes_payments_up(tmp_path: Path) -> None:
    source = written(tmp_path, FIRST, FIRST)
    arguments = ["data", "payments", str(tmp_path / "out"), "--csv", str(source)]
    both = CliRunner().invoke(app, [*arguments, "--rows", "7"])
    assert both.exit_code == 2
    assert "--csv takes all payments of the file" in both.output
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "2 payments of card_transaction.v1.csv are in" in done.output
    refused = CliRunner().invoke(app, [*arguments[:3], "--csv", str(tmp_path / "none.csv")])
    assert refused.exit_code == 2
    assert "it cannot be read" in refused.output


BARE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pandas", "duckdb"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from fries_lab.cli import app
app()
"""


def test_spark_is_not_needed(tmp_path: Path) -> None:
    source = written(tmp_path, FIRST)
    command = [sys.executable, "-c", BARE, "data", "payments", str(tmp_path / "out")]
    done = subprocess.run([*command, "--csv", str(source)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 payments of" in done.stdout


def test_a_model_sees_refunds_and_amounts_of_nothing() -> None:
    payment = {"use_chip": "Chip Transaction", "errors": None}
    refund, paid = (vector({**payment, "amount": amount}) for amount in (-40.0, 40.0))
    assert refund == paid
    assert vector({**payment, "amount": 0.0})[0] < -8
