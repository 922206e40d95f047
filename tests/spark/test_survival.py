"""Queries that survive: bad updates, restarts on a checkpoint, undo. On a real Spark."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from fries.errors import (
    LogMismatchError,
    NotRunningError,
    RolledBackError,
    UpdateRefusedError,
    UsageError,
)
from fries.flow import Flow
from fries.spark.policy import Supervision
from fries.spark.supervisor import SupervisedQuery
from fries.updates import Update
from tests.spark.streams import PATIENCE, FileStream, until

PAYMENTS = "id long, user long"
COUNTED = f"{PAYMENTS}, version long, seen long"
AnyRow = dict[str, Any]
QUICK = Supervision(restarts=1, pause=0.0)
IMPATIENT = Supervision(restarts=1, pause=0.0, patience=5.0)
"""Where a version is given up that does not return; no other one has to be quick."""
USERS = 7


def count_0(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    """The first version: how often a user was seen."""
    return state + 1, {**row, "version": 0, "seen": state + 1}


def count_1(state: dict[str, int], row: AnyRow) -> tuple[dict[str, int], AnyRow]:
    """The second version keeps a dict."""
    seen = state["seen"] + 1
    return {"seen": seen}, {**row, "version": 1, "seen": seen}


def wrapped(state: int) -> dict[str, int]:
    return {"seen": state}


def unwrapped(state: dict[str, int]) -> int:
    return state["seen"]


def numbered(version: int) -> Callable[[AnyRow], AnyRow]:
    """A version of the second operator."""
    return lambda row: {**row, "version": row["version"] * 10 + version}


class Job:
    """A flow of two operators on a checkpoint, which can be built and started anew."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.stream = FileStream(spark, folder / "in", PAYMENTS)
        self.added = 0
        self.flow, self.frame = self.build()

    def build(self, key: str = "user", audit: Path | None = None) -> tuple[Flow, DataFrame]:
        """The flow as its author wrote it."""
        flow = Flow("survivor", groups=4, audit=audit)
        rows = flow.source("payments", self.stream.frame)
        counted = rows.process("FM", count_0, key=key, initial=0, order_by="id", schema=COUNTED)
        return flow, flow.output(counted.map("MC", numbered(0)))

    def start(self, supervision: Supervision = QUICK, **how: bool) -> SupervisedQuery:
        """Start the query."""
        writer = self.frame.writeStream.format("parquet").option("path", str(self.folder / "out"))
        place = str(self.folder / "checkpoint")
        return self.flow.start(writer.option("checkpointLocation", place), supervision, **how)

    def die(self) -> None:
        """The driver ends, and another one builds the flow again."""
        self.flow.stop()
        self.flow, self.frame = self.build()

    def feed(self, count: int = 40) -> None:
        """Add rows, and wait until they were processed."""
        ids = range(self.added, self.added + count)
        self.added += count
        self.stream.add([{"id": n, "user": n % USERS} for n in ids])
        until(lambda: self.stream.done(self.flow))

    def rows(self) -> dict[int, AnyRow]:
        """The output, by id; no row is there twice, none is missing."""
        found = [
            row.asDict() for row in self.spark.read.parquet(str(self.folder / "out")).collect()
        ]
        by_id = {row["id"]: row for row in found}
        assert len(found) == len(by_id) == self.added
        return by_id

    def check(self, versions: Callable[[int], int]) -> None:
        """Every count is right, whatever has become of the state; versions are as given."""
        for number, row in self.rows().items():
            assert row["seen"] == number // USERS + 1
            assert row["version"] == versions(number)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    made = Job(spark, tmp_path)
    yield made
    made.flow.stop()


def test_a_new_driver_goes_on_with_the_changes_that_the_log_has(job: Job) -> None:
    job.start()
    job.feed()
    update = Update(count_1, migrate=wrapped, inverse=unwrapped)
    first = job.flow.reconfigure({"FM": update, "MC": numbered(1)}, note="counts in a dict")
    assert first.wait(PATIENCE)
    job.feed()
    job.die()
    job.start()
    assert job.flow.versions == {"payments": 0, "FM": 1, "MC": 1}
    (entry,) = job.flow.history()
    assert (entry.number, entry.state, entry.note) == (1, "done", "counts in a dict")
    assert entry.versions == {"FM": 1, "MC": 1}
    assert entry.delay == pytest.approx(first.delay)
    job.feed()
    again = job.flow.reconfigure({"MC": numbered(2)})
    assert again.number == 2
    assert again.wait(PATIENCE)
    job.feed()
    job.check(lambda n: 0 if n < 40 else 11 if n < 120 else 12)


def test_functions_that_moved_into_the_code_replace_logged_ones_and_states_follow(
    job: Job,
) -> None:
    job.start()
    job.feed()
    assert job.flow.reconfigure({"FM": Update(count_1, migrate=wrapped)}).wait(PATIENCE)
    job.feed()
    job.flow.stop()
    job.flow = Flow("survivor", groups=4)
    rows = job.flow.source("payments", job.stream.frame)
    counted = rows.process("FM", count_1, key="user", initial=0, order_by="id", schema=COUNTED)
    job.frame = job.flow.output(counted.map("MC", numbered(3)))
    job.start(replace_functions=True)
    job.feed()
    job.check(lambda n: 0 if n < 40 else 10 if n < 80 else 13)


def test_a_log_refuses_another_flow_before_anything_starts(job: Job) -> None:
    job.start()
    job.feed()
    job.flow.stop()
    job.flow, job.frame = job.build(key="id")
    with pytest.raises(LogMismatchError, match=r"operator 'FM': key was 'user', now 'id'"):
        job.start()
    assert job.flow.query is None


def raises(state: Any, row: AnyRow) -> Any:  # noqa: ANN401
    """Fails on one row."""
    if row["id"] % 40 == 33:
        raise ValueError(f"not {row['id']}")
    return count_0(state, row)


def wrong_columns(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    return state + 1, {"id": row["id"]}


def wrong_types(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    return state + 1, {**row, "version": "zero", "seen": state + 1}


def too_many(state: int, row: AnyRow) -> tuple[int, list[AnyRow]]:
    return state + 1, [row, row]


def keeps_a_generator(state: int, row: AnyRow) -> Any:  # noqa: ANN401
    """Makes a state that nobody can keep."""
    return (one for one in (state,)), {**row, "version": 0, "seen": 1}


class TwoArgumentsError(Exception):
    """Pickles, but as its one argument, and so cannot be unpickled."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


def keeps_an_error(state: Any, row: AnyRow) -> Any:  # noqa: ANN401
    """Makes a state that everybody can write, and nobody can read."""
    state, row = count_0(state, row)
    return TwoArgumentsError("row", row["id"]) if row["id"] % 40 == 33 else state, row


def never_returns(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    while row["id"] % 40 == 21:
        time.sleep(0.01)
    return count_0(state, row)


def migrates_most(state: int) -> int:
    """Fails on the state that a key begins with, which no sample of live states has."""
    assert state, "an unusual state"
    return state


Bad: TypeAlias = tuple[Any, str, str]
"""A version, a part of its problem, and the way in which it is rolled back."""
BAD: dict[str, Bad] = {
    "raises on one row": (raises, "ValueError('not ", "in place"),
    "wrong columns": (wrong_columns, "it returned the columns", "in place"),
    "wrong types": (wrong_types, "for the column 'version' of type int64", "in place"),
    "too many rows": (too_many, "must return rows as dicts", "in place"),
    "a state that cannot be kept": (keeps_a_generator, "it cannot be pickled", "replayed"),
    "a state that cannot be read": (keeps_an_error, "once pickled it cannot be read", "replayed"),
}
HANGS: Bad = (never_returns, "it has not returned for", "replayed")


@pytest.mark.parametrize(
    ("supervision", "versions"),
    [(QUICK, tuple(BAD.values())), (IMPATIENT, (HANGS,))],
    ids=["that fail", "that hang"],
)
def test_bad_updates_are_rolled_back_and_no_row_is_lost(
    job: Job, supervision: Supervision, versions: tuple[Bad, ...]
) -> None:
    query = job.start(supervision)
    job.feed()
    undone = 0
    for function, problem, way in versions:
        change = job.flow.reconfigure({"FM": function, "MC": numbered(9)})
        assert change.wait(PATIENCE)
        job.feed()
        assert query.isActive
        assert change.state == "rolled back"
        assert change.failure is not None
        assert change.failure.operator == "FM"
        assert problem in change.failure.problem
        with pytest.raises(RolledBackError, match=r"operator 'FM' failed"):
            change.wait(0)
        assert change.rollback == way
        undone += 2 * (way == "in place")  # by a change of its own; else it never happened
        assert job.flow.versions == {"payments": 0, "FM": undone, "MC": undone}
    bad = job.added
    good = job.flow.reconfigure({"MC": numbered(1)})
    assert good.wait(PATIENCE)
    job.feed()
    rows = job.rows()
    assert all(row["seen"] == n // USERS + 1 for n, row in rows.items())
    first = {n for n, row in rows.items() if row["version"] == 9}
    assert first <= set(range(40, 80)), "rows that a version had finished before it was taken back"
    assert all(rows[n]["version"] == (0 if n < bad else 1) for n in rows.keys() - first)


def test_a_migration_that_fails_on_one_key_is_rolled_back(job: Job) -> None:
    job.start()
    job.feed(5)  # of the users 0 to 4
    change = job.flow.reconfigure({"FM": Update(count_0, migrate=migrates_most)})
    assert change.wait(PATIENCE)
    job.feed(7)
    assert change.state == "rolled back"
    assert change.failure is not None
    assert "an unusual state" in change.failure.story
    job.check(lambda n: 0)


def test_a_failure_that_the_old_version_has_too_is_not_hidden(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path)

    def picky(row: AnyRow) -> AnyRow:
        if row["id"] == 50:
            raise LookupError("always 50")
        return row

    job.flow = Flow("picky", groups=4)
    job.frame = job.flow.output(job.flow.source("rows", job.stream.frame).map("M", picky))
    query = job.start()
    job.feed()
    change = job.flow.reconfigure({"M": lambda row: picky(dict(row))})
    assert change.wait(PATIENCE)
    job.stream.add([{"id": 50, "user": 1}])
    with pytest.raises(StreamingQueryException, match="always 50"):
        query.awaitTermination(PATIENCE)
    assert change.state == "rolled back"
    assert not query.isActive
    assert change.rollback == "in place"
    assert len(query.failures) == QUICK.restarts + 1, "without the change"
    job.flow.stop()


def test_without_rollback_a_failing_change_stops_the_query(job: Job) -> None:
    query = job.start(Supervision(rollback=False, restarts=0))
    job.feed()
    change = job.flow.reconfigure({"FM": raises})
    assert change.wait(PATIENCE)
    job.stream.add([{"id": 33, "user": 1}])
    with pytest.raises(StreamingQueryException, match="not 33"):
        query.awaitTermination(PATIENCE)
    assert change.state != "rolled back"
    with pytest.raises(UsageError, match="cannot be negative"):
        Supervision(restarts=-1)


def test_a_version_that_fails_after_its_batch_was_committed_is_undone(job: Job) -> None:
    job.start()
    update = Update(raises, migrate=lambda state: state * 2, inverse=lambda state: state // 2)
    job.feed(30)
    change = job.flow.reconfigure({"FM": update}, scheduler="epoch")  # stamped in the first stage
    assert change.wait(PATIENCE)
    job.added = 40
    job.feed(30)  # ids 40 to 69: the counts are doubled now
    until(lambda: change.state == "done")
    job.feed(7)  # with id 73
    assert (change.state, change.rollback) == ("rolled back", "replayed")
    first, back = job.flow.history()
    assert (first.state, back.state) == ("rolled back", "done")
    assert back.note.startswith("rollback of change 1: ValueError('not 73')")
    assert job.flow.versions["FM"] == 2
    with pytest.raises(RolledBackError, match="not 73"):
        change.wait(PATIENCE)
    with pytest.raises(UpdateRefusedError, match="change 1 was rolled back by change 2"):
        change.undo()
    job.die()
    job.start()
    known, _ = job.flow.history()
    assert (known.state, known.reason) == (first.state, first.reason)


def test_a_change_to_the_same_function_can_be_undone_while_the_query_runs(job: Job) -> None:
    query = job.start()
    job.feed()
    change = job.flow.reconfigure({"FM": count_0})
    assert change.wait(PATIENCE)
    assert change.undo().wait(PATIENCE)
    job.feed()
    query.stop()
    with pytest.raises(NotRunningError, match="start its query first"):
        job.flow.reconfigure({"MC": numbered(1)})
    job.check(lambda _: 0)


def test_an_undo_is_a_change_with_the_inverse_migration(job: Job) -> None:
    job.start()
    job.feed()
    update = Update(count_1, migrate=wrapped, inverse=unwrapped)
    change = job.flow.reconfigure({"FM": update, "MC": numbered(1)})
    assert change.wait(PATIENCE)
    job.feed()
    back = change.undo(note="it was better before")
    assert back.wait(PATIENCE)
    job.feed()
    job.check(lambda n: 11 if 40 <= n < 80 else 0)
    forward = back.undo()
    assert forward.wait(PATIENCE)
    with pytest.raises(UpdateRefusedError, match="came after change 1; undo that first"):
        change.undo()
    notes = [entry.note for entry in job.flow.history()]
    assert notes == ["", "it was better before", "undo of change 2"]
    assert re.search(r"v2 \(as built #[0-9a-f]{8}\): done", str(job.flow.history()[1]))


def test_an_undo_without_an_inverse_migration_is_refused(job: Job) -> None:
    job.start()
    job.feed()
    change = job.flow.reconfigure({"FM": Update(count_1, migrate=wrapped)})
    assert change.wait(PATIENCE)
    with pytest.raises(UpdateRefusedError, match="migrated its states and has no way back"):
        change.undo()
    with pytest.raises(UpdateRefusedError, match="give both"):
        job.flow.reconfigure({"FM": Update(count_0, inverse=unwrapped)})


def test_a_good_change_of_another_operator_stays_when_a_bad_one_is_rolled_back(job: Job) -> None:
    job.start()
    job.feed()
    bad = job.flow.reconfigure({"FM": raises})
    good = job.flow.reconfigure({"MC": numbered(1)})
    assert good.wait(PATIENCE)
    job.feed()
    assert (bad.state, good.state) == ("rolled back", "done")
    worse = job.flow.reconfigure({"FM": raises, "MC": numbered(2)})
    built_on_it = job.flow.reconfigure({"MC": numbered(3)})
    assert built_on_it.wait(PATIENCE)
    job.feed()
    assert (worse.state, built_on_it.state, good.state) == ("rolled back", "rolled back", "done")
    with pytest.raises(RolledBackError, match="made for operator 'MC' as of change 4"):
        built_on_it.wait(0)
    job.check(lambda n: 0 if n < 40 else 1)


def test_a_change_that_comes_while_the_sink_writes_belongs_to_the_next_batch(job: Job) -> None:
    """No batch with it is committed when every row fails, so it goes without an inverse."""
    writes, goes_on = threading.Event(), threading.Event()
    seen: list[AnyRow] = []

    def sink(frame: DataFrame, batch: int) -> None:
        seen.extend(row.asDict() for row in frame.collect())
        if batch == 0:
            writes.set()
            assert goes_on.wait(PATIENCE)

    writer = job.frame.writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(job.folder / "checkpoint"))
    query = job.flow.start(writer, QUICK)
    job.stream.add([{"id": n, "user": n % USERS} for n in range(40)])
    assert writes.wait(PATIENCE)
    change = job.flow.reconfigure({"FM": Update(fails_always, migrate=wrapped)})
    assert change.wait(PATIENCE)
    goes_on.set()
    job.stream.add([{"id": n, "user": n % USERS} for n in range(40, 80)])
    until(lambda: job.stream.done(job.flow))
    assert change.state == "rolled back"
    assert query.isActive
    assert sorted(row["id"] for row in seen) == list(range(80))
    assert all(row["seen"] == row["id"] // USERS + 1 for row in seen)


def fails_always(state: Any, row: AnyRow) -> Any:  # noqa: ANN401
    raise ValueError(f"every row: {state}, {row}")


def exits(state: Any, row: AnyRow) -> Any:  # noqa: ANN401
    """Ends its process on one row, and tells nobody."""
    if row["id"] == 110:
        os._exit(7)
    return count_0(state, row)


def test_versions_that_nobody_blames_are_taken_back_the_newest_first(job: Job) -> None:
    """They are some batches old, and the job would end."""
    job.start()
    job.feed()
    update = Update(exits, migrate=lambda state: state * 2, inverse=lambda state: state // 2)
    bad = job.flow.reconfigure({"FM": update})
    assert bad.wait(PATIENCE)
    job.feed()
    good = job.flow.reconfigure({"MC": numbered(1)})
    assert good.wait(PATIENCE)
    job.feed()  # with id 110
    assert (bad.state, good.state) == ("rolled back", "rolled back")
    for change in (bad, good):
        assert "taken back on suspicion" in change.reason
        assert "Python worker exited unexpectedly" in change.reason
    assert [entry.state for entry in job.flow.history()[:2]] == ["rolled back", "rolled back"]
    job.feed()
    seen = {n: row["seen"] for n, row in job.rows().items()}
    assert all(seen[n] == n // USERS + 1 for n in range(40))


def gives_null(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    """A legal value, which the operator behind it does not bear: some batches later."""
    state, row = count_0(state, row)
    return state, {**row, "version": None if row["id"] == 110 else 0}


def test_an_older_version_is_suspected_if_the_newest_one_was_not_the_cause(job: Job) -> None:
    """The operator that fails goes back to the version before it, which fails, too."""
    query = job.start()
    job.feed()
    culprit = job.flow.reconfigure({"FM": gives_null})
    assert culprit.wait(PATIENCE)
    job.feed()
    innocent = job.flow.reconfigure({"MC": numbered(0)})
    assert innocent.wait(PATIENCE)
    job.feed()  # with id 110
    assert (culprit.state, innocent.state) == ("rolled back", "rolled back")
    assert "taken back on suspicion" in culprit.reason
    assert "operator 'MC' failed on {'id': 110" in culprit.reason
    assert query.isActive
    job.check(lambda n: 0)


@pytest.mark.parametrize(
    "migrates",
    [
        pytest.param(False, id="functions", marks=pytest.mark.complete),
        pytest.param(True, id="states, too"),
    ],
)
def test_a_version_that_fails_where_its_rows_enter_is_taken_back_in_place(
    job: Job, migrates: bool
) -> None:
    """The query runs on: the rows that failed are processed again by the version before."""
    job.flow.stop()
    job.flow, job.frame = job.build(audit=job.folder / "audit")
    query = job.start()
    job.feed()
    running = query.query
    update = Update(raises, migrate=lambda state: state + 0, inverse=lambda state: state + 0)
    change = job.flow.reconfigure({"FM": update if migrates else raises, "MC": numbered(9)})
    assert change.wait(PATIENCE)
    job.feed()
    assert (change.state, change.rollback) == ("rolled back", "in place")
    assert change.failure is not None
    assert "not 73" in change.failure.problem
    assert query.query is running, "it was not started again"
    assert not list(query.failures)
    job.feed()
    found = job.rows()
    assert all(row["seen"] == n // USERS + 1 for n, row in found.items())
    assert {row["version"] for n, row in found.items() if n != 73} <= {0, 9}
    assert found[73]["version"] == 0
    verdict = job.flow.audit()
    assert verdict.serializable, verdict
    assert [tally.new > 0 for tally in verdict.tallies] == [True, True]
    with pytest.raises(RolledBackError, match="not 73"):
        change.wait(0)
