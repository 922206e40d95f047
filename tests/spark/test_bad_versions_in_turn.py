"""Several bad updates one after the other: each is taken back, down to a version that works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fries.reconfiguration import Reconfiguration
from fries.updates import Update
from tests.spark.streams import PATIENCE, until
from tests.spark.test_survival import (
    USERS,
    AnyRow,
    Job,
    count_0,
    count_1,
    numbered,
    unwrapped,
    wrapped,
)

POISON = 110
"""The row that bad versions do not bear."""


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    made = Job(spark, tmp_path)
    yield made
    made.flow.stop()


def flawed(fold: Callable[..., Any], number: int) -> Callable[[Any, AnyRow], Any]:
    """A version that fails on one row."""

    def fails(state: Any, row: AnyRow) -> Any:  # noqa: ANN401
        if row["id"] == POISON:
            raise ValueError(f"no such payment in version {number}")
        return fold(state, row)

    return fails


def null(number: int) -> Callable[[Any, AnyRow], Any]:
    """A version that gives, for one row, what the operator behind it does not bear."""

    def gives(state: int, row: AnyRow) -> tuple[int, AnyRow]:
        state, row = count_0(state, row)
        return state, {**row, "version": None if row["id"] == POISON else 0 * number}

    return gives


def change(job: Job, updates: Any) -> Reconfiguration:  # noqa: ANN401
    made = job.flow.reconfigure(updates)
    assert made.wait(PATIENCE)
    return made


@pytest.mark.parametrize("between", [0, 30], ids=["in one batch", "some batches old"])
def test_a_repair_that_does_not_repair_uncovers_a_version_that_fails_too(
    job: Job, between: int
) -> None:
    query = job.start()
    job.feed(100 - 2 * between)
    made = []
    for number in range(2):
        made.append(change(job, {"FM": flawed(count_0, number)}))
        if between:
            job.feed(between)
    job.feed(20)  # with the row
    assert [one.state for one in made] == ["rolled back"] * 2
    assert all("no such payment" in one.reason for one in made[1 - bool(between) :])
    assert query.isActive
    job.feed()
    job.check(lambda n: 0)


def wrapped_if_used(state: int) -> dict[str, int]:
    """Fails on the state that a key begins with."""
    if state == 0:
        raise LookupError("a key without a history")
    return wrapped(state)


@pytest.mark.parametrize(("scheduler", "way"), [("fries", "in place"), ("epoch", "replayed")])
def test_a_migration_that_fails_batches_later_is_taken_back(
    job: Job, scheduler: str, way: str
) -> None:
    """It migrated the states of other keys in batches that are committed, and they come back."""
    query = job.start()
    job.feed(5)
    update = Update(count_1, migrate=wrapped_if_used, inverse=unwrapped)
    made = job.flow.reconfigure({"FM": update}, scheduler=scheduler)
    assert made.wait(PATIENCE)
    job.stream.add([{"id": n, "user": n % USERS} for n in range(7, 12)])
    until(lambda: made.state == "done" and job.stream.done(job.flow))
    job.stream.add([{"id": n, "user": n % USERS} for n in (5, 6)])
    until(lambda: job.stream.done(job.flow))
    job.added = 12
    job.feed(20)
    assert (made.state, made.rollback) == ("rolled back", way)
    assert "a key without a history" in made.reason
    assert query.isActive
    job.check(lambda n: 10 if 7 <= n < 12 else 0)


def test_what_was_built_on_a_bad_change_goes_back_before_it(job: Job) -> None:
    """The batches of both are committed, so each is undone by another change."""
    query = job.start()
    job.feed()
    update = Update(flawed(count_1, 1), migrate=wrapped, inverse=unwrapped)
    bad = change(job, {"FM": update, "MC": numbered(1)})
    job.feed(30)
    good = change(job, {"MC": numbered(2)})
    job.feed(30)
    job.feed(20)  # with the row
    assert (bad.state, good.state) == ("rolled back", "rolled back")
    assert "no such payment" in bad.reason
    assert f"made for operator 'MC' as of change {bad.number}" in good.reason
    assert query.isActive
    job.check(lambda n: 0 if n < 40 else 11 if n < 70 else 12 if n < 100 else 0)


@pytest.mark.complete
def test_many_versions_in_a_row_are_suspected_down_to_the_first(job: Job) -> None:
    query = job.start()
    job.feed()
    made = []
    for number in range(1, 5):
        made.append(change(job, {"FM": null(number)}))
        job.feed(15)
    job.feed(20)  # with the row
    assert [one.state for one in made] == ["rolled back"] * 4
    assert all("taken back on suspicion" in one.reason for one in made)
    assert query.isActive
    job.check(lambda n: 0)


def test_another_driver_goes_back_to_the_right_version(job: Job) -> None:
    """Not to the code of the program: it cannot read the states that a good change migrated."""

    def renumbered(state: dict[str, int], row: AnyRow) -> tuple[dict[str, int], AnyRow]:
        state, row = count_1(state, row)
        return state, {**row, "version": 3}

    job.start()
    job.feed()
    change(job, {"FM": Update(count_1, migrate=wrapped, inverse=unwrapped)})
    job.feed(20)
    for fold in (flawed(count_1, 2), flawed(renumbered, 3)):
        change(job, {"FM": fold})
        job.feed(20)
    job.die()
    query = job.start()
    job.feed(20)  # with the row
    assert [one.state for one in job.flow.history()[:3]] == ["done", "rolled back", "rolled back"]
    assert "no such payment" in job.flow.history()[2].reason
    assert query.isActive
    found = job.rows()
    assert all(row["seen"] == n // USERS + 1 for n, row in found.items())
    assert {found[n]["version"] for n in range(60, 80)} == {10}
    assert {found[n]["version"] for n in range(80, 100)} == {30}
    assert found[POISON]["version"] == 10
