"""Audit files: written whole, read back as one trace."""

from __future__ import annotations

from pathlib import Path

from fries.runtime.arrow import Integers
from fries.runtime.audit import Audit, read, transactions, uses
from fries.serializability import check_trace

UPDATES = [{"A": 1, "B": 1}]


def rows(batch: int, partition: int, first: int, count: int) -> Integers:
    return transactions(batch, 0, partition, first, count)


def test_what_tasks_write_is_one_trace(tmp_path: Path) -> None:
    for partition in (0, 1):
        audit = Audit(["A", "B"])
        for operator in ("A", "B"):
            audit.record(operator, 0, rows(7, partition, 0, 5), 1.0)
            audit.record(operator, 1, rows(7, partition, 5, 3), 1.0)
        audit.write(str(tmp_path), f"7-0-{partition}")
    verdict = check_trace(read(str(tmp_path), ("A", "B"), UPDATES))
    assert verdict.serializable
    assert (verdict.transactions, verdict.operations) == (16, 32)
    assert (verdict.tallies[0].old, verdict.tallies[0].new) == (10, 6)


def test_a_mixed_transaction_is_found(tmp_path: Path) -> None:
    audit = Audit(["A", "B"])
    audit.record("A", 0, rows(0, 0, 0, 1), 1.0)
    audit.record("B", 1, rows(0, 0, 0, 1), 1.0)
    audit.write(str(tmp_path), "0-0-0")
    verdict = check_trace(read(str(tmp_path), ("A", "B"), UPDATES))
    assert not verdict.atomic
    assert "used A old and B new" in str(verdict)


def test_a_task_that_is_executed_again_replaces_its_first_attempt(tmp_path: Path) -> None:
    for version in (0, 1):
        audit = Audit(["A", "B"])
        audit.record("A", version, rows(0, 0, 0, 4), 1.0)
        audit.record("B", version, rows(0, 0, 0, 4), 1.0)
        audit.write(str(tmp_path), "0-0-0")
    verdict = check_trace(read(str(tmp_path), ("A", "B"), UPDATES))
    assert (verdict.operations, verdict.tallies[0].new) == (8, 4)
    assert [path.suffix for path in tmp_path.iterdir()] == [".arrow"]


def test_a_task_without_rows_and_a_folder_without_files(tmp_path: Path) -> None:
    assert len(read(str(tmp_path / "missing"), ("A",), [])) == 0
    Audit(["A"]).write(str(tmp_path), "0-0-0")
    assert len(read(str(tmp_path), ("A",), [])) == 0


def test_transactions_of_different_tasks_never_collide() -> None:
    numbers = [
        int(number)
        for batch in (0, 1, 2)
        for stage in (0, 31)
        for partition in (0, 1, 4095)
        for first in (0, 10)
        for number in transactions(batch, stage, partition, first, 10)
    ]
    assert len(set(numbers)) == len(numbers)


def test_the_files_say_when_versions_were_used(tmp_path: Path) -> None:
    for partition in (0, 1):
        audit = Audit(["A", "B"])
        audit.record("A", 0, rows(0, partition, 0, 1), 10.0 + partition)
        audit.record("A", 1, rows(0, partition, 1, 1), 20.0 + partition)
        audit.record("A", 1, rows(0, partition, 2, 1), 30.0 + partition)
        audit.write(str(tmp_path), f"0-0-{partition}")
    found = uses(str(tmp_path))
    assert found == {("A", 0): (10.0, 11.0), ("A", 1): (20.0, 31.0)}
