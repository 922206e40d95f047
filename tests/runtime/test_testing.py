"""``fries.testing``: flows on rows in memory, changed at any row, as users would test theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import SparkContext

import fries
from fries import testing
from fries.errors import (
    EmptyUpdateError,
    OperatorError,
    StateError,
    UnknownOperatorError,
    UpdateRefusedError,
    UsageError,
)
from tests.runtime.test_columns import schema

Row = dict[str, Any]
ROWS = schema(id=pa.int64(), user=pa.int64(), n=pa.int64())
SEEN = schema(id=pa.int64(), user=pa.int64(), n=pa.int64(), a=pa.int64(), b=pa.int64())


def rows(count: int, first: int = 0) -> list[Row]:
    return [{"id": n, "user": n % 5, "n": n} for n in range(first, first + count)]


def marked(name: str, version: int) -> Callable[[Row], Row]:
    return lambda row: {"a": -1, "b": -1, **row, name: version}


def chain(name: str = "chain") -> fries.Stream:
    """Two maps with an exchange between them."""
    source = fries.Flow(name, groups=3).source("rows", testing.stream(ROWS))
    return source.map("A", marked("a", 0), SEEN).map("B", marked("b", 0), shuffle="user")


def counted(version: int) -> Callable[[tuple[int, int], Row], tuple[tuple[int, int], Row]]:
    """Counts, and sees that states are of its own version."""

    def count(state: tuple[int, int], row: Row) -> tuple[tuple[int, int], Row]:
        assert state[0] == version, "a state of another version"
        return (version, state[1] + 1), {**row, "n": state[1] + 1}

    return count


def test_rows_go_through_a_flow() -> None:
    found = testing.Trial(chain()).batch(rows=rows(20))["output"]
    assert sorted(row["id"] for row in found) == list(range(20))
    assert {(row["a"], row["b"]) for row in found} == {(0, 0)}


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("at_row", [0, 1, 7, 10, 19, 20, 99])
def test_a_change_comes_at_the_row_that_was_named(at_row: int, partitions: int) -> None:
    trial = testing.Trial(chain(), partitions=partitions)
    plan = trial.change({"A": marked("a", 1), "B": marked("b", 1)}, at_row=at_row)
    assert plan.heads == ("A",)
    found = trial.batch(rows=rows(20))["output"]
    for row in found:
        assert row["a"] == row["b"] == int(row["id"] >= at_row)
    assert {row["a"] for row in trial.batch(rows=rows(3))["output"]} == {1}
    trial.assert_all_old_or_all_new()


def test_a_change_comes_in_any_stage() -> None:
    trial = testing.Trial(chain())
    trial.change({"B": marked("b", 1)}, at_row=5)
    found = trial.batch(rows=rows(20))["output"]
    assert sum(row["b"] for row in found) == 15, "5 rows came to stage 1 before"
    trial = testing.Trial(chain())
    trial.change({"A": marked("a", 1)}, at_row=5, stage=1)
    assert {row["a"] for row in trial.batch(rows=rows(20))["output"]} == {0}, "they had passed"
    assert {row["a"] for row in trial.batch(rows=rows(20))["output"]} == {1}
    trial.assert_all_old_or_all_new()


def test_half_of_a_change_is_found() -> None:
    trial = testing.Trial(chain())
    trial.change({"A": marked("a", 1), "B": marked("b", 1)}, at_row=5, scheduler="naive")
    found = trial.batch(rows=rows(20))["output"]
    assert {(row["a"], row["b"]) for row in found} == {(0, 1), (1, 1)}
    with pytest.raises(AssertionError, match="used A old and B new"):
        trial.assert_all_old_or_all_new()
    assert not trial.verdict().atomic


@pytest.mark.parametrize("scheduler", ["fries", "epoch", "multi_version", "mini_batch"])
@pytest.mark.parametrize("at_row", [0, 8, 31])
def test_states_are_migrated_once_and_in_order(scheduler: str, at_row: int) -> None:
    source = fries.Flow("states", groups=3).source("rows", testing.stream(ROWS))
    trial = testing.Trial(source.process("C", counted(0), "user", initial=(0, 0), order_by="id"))
    trial.batch(rows=rows(20))
    for version in (1, 2):
        update = fries.Update(counted(version), migrate=lambda old: (old[0] + 1, old[1]))
        trial.change({"C": update}, at_row=at_row, scheduler=scheduler)
        found = trial.batch(rows=rows(20, 20 * version))["output"]
        assert len(found) == 20
    assert max(row["n"] for row in found) == 12, "no state was lost, or used twice"
    trial.assert_all_old_or_all_new()


@given(
    st.integers(0, 30), st.integers(0, 1), st.integers(0, 30), st.integers(0, 1), st.integers(1, 3)
)
@settings(deadline=None, max_examples=100)
def test_a_task_that_fails_is_executed_again_and_nothing_is_lost_or_done_twice(
    fails_at: int, fails_in: int, at_row: int, stage: int, partitions: int
) -> None:
    source = fries.Flow("again", groups=3).source("rows", testing.stream(ROWS))
    mapped = source.map("A", lambda row: row)
    trial = testing.Trial(
        mapped.process("C", counted(0), "user", initial=(0, 0)), partitions=partitions
    )
    trial.batch(rows=rows(20))
    update = fries.Update(counted(1), migrate=lambda old: (1, old[1]))
    trial.change({"A": lambda row: row, "C": update}, at_row=at_row, stage=stage)
    trial.fail(at_row=fails_at, stage=fails_in)
    found = trial.batch(rows=rows(20, 20))["output"]
    assert sorted(row["id"] for row in found) == list(range(20, 40))
    assert sorted(row["n"] for row in found) == sorted([5, 6, 7, 8] * 5)
    trial.assert_all_old_or_all_new()


def test_outputs_lookups_joins_and_batches() -> None:
    flow = fries.Flow("all", groups=2)
    both = flow.source("rows", testing.stream(ROWS)).replicate("RE")
    table = pa.Table.from_pylist([{"user": n, "name": f"u{n}"} for n in range(5)])
    named = both.lookup("L", table, on="user")
    frames = both.map("P", lambda frame: frame.assign(n=frame["n"] * 2), batch="pandas")
    trial = testing.Trial(pairs=named.join("J", frames, on="id"), named=named)
    with pytest.raises(UsageError, match="stage 1 pairs rows"):
        trial.change({"P": lambda frame: frame}, at_row=3, stage=1)
    trial.change({"P": lambda frame: frame.assign(n=pd.Series(frame["n"] * 3))}, at_row=4)
    found = trial.batch(rows=rows(10))
    assert [row["name"] for row in sorted(found["named"], key=lambda row: row["id"])] == [
        f"u{n % 5}" for n in range(10)
    ]
    assert len(found["pairs"]) == 10
    trial.assert_all_old_or_all_new()


def test_rows_of_several_sources() -> None:
    flow = fries.Flow("two")
    one, two = (flow.source(name, testing.stream(ROWS)) for name in ("one", "two"))
    trial = testing.Trial(one.union("U", two))
    assert len(trial.batch(one=rows(3), two=rows(4))["output"]) == 7
    assert len(trial.batch(two=rows(4))["output"]) == 4
    assert trial.batch()["output"] == []
    with pytest.raises(UsageError, match="there is no source 'three'; there are one, two"):
        trial.batch(three=rows(1))


def test_what_cannot_work_is_refused_and_changes_nothing() -> None:
    trial = testing.Trial(chain())
    with pytest.raises(UnknownOperatorError):
        trial.change({"X": marked("a", 1)})
    with pytest.raises(EmptyUpdateError):
        trial.change({})
    with pytest.raises(UpdateRefusedError, match="no state to migrate"):
        trial.change({"A": fries.Update(marked("a", 1), migrate=dict)})
    with pytest.raises(UsageError, match="there is no row 0 of stage 2; the flow has 2 stages"):
        trial.change({"A": marked("a", 1)}, stage=2)
    with pytest.raises(UsageError, match="there is no row -1 of stage 0"):
        trial.fail(at_row=-1)
    with pytest.raises(UsageError, match="it needs a stream"):
        testing.Trial()
    assert {row["a"] for row in trial.batch(rows=rows(3))["output"]} == {0}


def test_a_version_that_fails_says_on_which_row() -> None:
    trial = testing.Trial(chain())
    trial.change({"A": lambda row: {**row, "a": 1 // (row["n"] - 4), "b": 0}})
    with pytest.raises(OperatorError, match=r"operator 'A' failed on \{'id': 4, .*ZeroDivision"):
        trial.batch(rows=rows(9))


def test_a_flow_on_streams_of_tests_has_no_output() -> None:
    stream = chain()
    with pytest.raises(UsageError, match=r"give what you would put out to fries\.testing\.Trial"):
        stream.flow.output(stream)


def test_columns_may_be_named_as_spark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    found = testing.stream("id long, name string").schema
    assert found == schema(id=pa.int64(), name=pa.string())
    with pytest.raises(UsageError, match="cannot be read without a Spark session"):
        testing.stream("id nonsense")


def test_migrations_of_samples() -> None:
    update = fries.Update(counted(1), migrate=lambda old: [*old, 0], inverse=lambda new: new[:-1])
    states = {"ann": [1], "bob": [2, 3]}
    assert testing.migrated(update, states) == {"ann": [1, 0], "bob": [2, 3, 0]}
    assert states == {"ann": [1], "bob": [2, 3]}
    with pytest.raises(UpdateRefusedError, match="it has no migrate="):
        testing.migrated(fries.Update(counted(1)), states)


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (fries.Update(len, migrate=lambda old: old[5]), "migrate= fails.*IndexError"),
        (fries.Update(len, migrate=lambda old: (n for n in old)), "migrate= .* cannot be kept"),
        (fries.Update(len, migrate=list, inverse=lambda old: 1 // 0), "inverse= fails.*Zero"),
    ],
)
def test_a_migration_that_fails_names_the_key(update: fries.Update, problem: str) -> None:
    with pytest.raises(StateError, match=problem) as caught:
        testing.migrated(update, {"ann": [1]})
    assert caught.value.keys == ("ann",)
