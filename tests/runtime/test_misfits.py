"""Who is to blame in a run: rows go on as they are, so one fault may be met by others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fries.errors import OperatorError
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Function, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Stage
from tests.runtime.test_chains import FRAME as FLAT
from tests.runtime.test_chains import chunk, same, spec, stage
from tests.runtime.test_runs import MANY_ROWS, WAY_IN, run_rows
from tests.runtime.test_stage import Script, Steady, pickled

Row = dict[str, Any]


def blamed(*functions: Function) -> OperatorError:
    """The error of a run A -> B -> ..., told once."""
    names = "ABCDE"[: len(functions)]
    made, script = stage(*(spec(n, f, FLAT) for n, f in zip(names, functions, strict=True)))
    with pytest.raises(OperatorError):
        run_rows(made, MANY_ROWS)
    ((_, error),) = script.failures
    return error


def on(number: int, change: Callable[[Row], Any]) -> Function:
    """A function that does something to one row."""
    return lambda row: change(row) if row["n"] == number else row


def breaks(row: Row) -> Row:
    return {**row, "x": 1 / 0}


def wrong(row: Row) -> Row:
    return {**row, "x": "text"}


def more(row: Row) -> Row:
    return {**row, "more": 1}


def less(row: Row) -> Row:
    return {name: row[name] for name in FLAT.names}


def test_a_fault_in_another_row_is_not_that_of_a_row_that_fails() -> None:
    repairs = on(3, lambda row: {**row, "x": 0.0})
    error = blamed(on(3, wrong), on(5, breaks), repairs)
    assert error.operator == "B"
    assert "'n': 5," in error.row
    assert "ZeroDivision" in error.problem
    error = blamed(on(3, wrong), on(3, breaks), same)
    assert (error.operator, "'n': 3," in error.row) == ("A", True)
    assert "it returned 'text' for the column 'x'" in error.problem


def test_columns_for_the_next_function_are_no_fault() -> None:
    for between in (same, on(7, more)):
        error = blamed(more, between, on(5, breaks), less)
        assert error.operator == "C"
        assert "ZeroDivision" in error.problem
    error = blamed(more, on(5, lambda row: wrong(less(row))), less)
    assert (error.operator, "'text'" in error.problem) == ("B", True)


def test_columns_that_nobody_takes_are_the_fault_of_who_made_them() -> None:
    error = blamed(same, on(5, more), same, same)
    assert (error.operator, "it returned the columns" in error.problem) == ("B", True)
    error = blamed(more, less, on(5, lambda row: {**row, "other": 1}), same)
    assert (error.operator, "'other'" in error.problem) == ("C", True)


def test_a_fault_that_was_repaired_is_over() -> None:
    repairs = on(5, lambda row: {**row, "x": 0.0})
    assert blamed(on(5, wrong), repairs, on(5, breaks)).operator == "C"


def test_no_row_at_all_is_told_of_its_own_row() -> None:
    error = blamed(more, on(5, lambda row: None), less)
    assert (error.operator, "'n': 5," in error.row) == ("B", True)
    assert "must return rows as dicts" in error.problem


def failing(bad: str, function: Function, *, b: Function, row: int) -> tuple[int, str]:
    """Who is blamed in A -> B -> C if rows with an odd number get another version of one."""
    operators = (
        spec("A", wrong if bad == "B" else same, FLAT),
        *(spec("B", b, FLAT), spec("C", less, FLAT)),
    )
    edges = (WAY_IN, *(EdgeSpec(n, *pair) for n, pair in enumerate(("AB", "BC"), 1)))
    configuration = Configuration(operators)
    configuration.load(7, 0, pickled(Shipped({bad: spec(bad, function, FLAT)})))
    script = Script()
    made = Stage(StageSpec(0, operators, edges), configuration, script)
    made._pacer = Steady()  # all rows are in one chunk, however long rows take
    rows = Chunk(chunk(20, FLAT).batch, np.arange(20) % 2)
    with pytest.raises(OperatorError, match=rf"'n': {row}, "):
        list(made.run(WAY_IN, rows))
    ((change, error),) = script.failures
    return change, error.operator


def test_the_change_is_blamed_that_brought_the_version_of_the_row_that_fails() -> None:
    """Odd rows come wrong from the new version of A; others do not."""
    assert failing("A", wrong, b=on(3, breaks), row=3) == (7, "A")
    assert failing("A", wrong, b=on(4, breaks), row=4) == (0, "B")


def test_a_new_version_is_blamed_that_cannot_do_with_what_the_one_before_took() -> None:
    """What A gives is wrong, and was repaired."""
    for new in (breaks, same):
        assert failing("B", new, b=lambda row: {**row, "x": 0.0}, row=1) == (7, "B")


def run_of(*operators: OperatorSpec) -> OperatorError:
    made, script = stage(*operators)
    with pytest.raises(OperatorError):
        run_rows(made, MANY_ROWS)
    ((_, error),) = script.failures
    return error


@pytest.mark.parametrize("late", [5, MANY_ROWS - 5])
def test_filters_flat_maps_and_splits_are_not_blamed_for_rows_that_came_wrong(late: int) -> None:
    """Whether they fail on them, or let them pass to where a run ends."""
    bad = spec("A", on(late, wrong), FLAT)
    picky = spec("F", lambda row: row["x"] + 1, FLAT, kind=Kind.FILTER)
    passing = spec("F", same, FLAT, kind=Kind.FILTER)
    doubts = spec("F", lambda row: np.array([1, 2][: 1 + (row["x"] == "text")]), FLAT)
    copies = spec("T", lambda row: [row, row], FLAT, kind=Kind.FLAT_MAP)
    split = spec("S", lambda _: 0, FLAT, kind=Kind.SPLIT)
    for behind in (
        *((picky,), (passing,), (replace(doubts, kind=Kind.FILTER),), (copies,), (split,)),
        *((passing, copies), (copies, passing), (copies, split), (passing, picky)),
    ):
        error = run_of(bad, *behind)
        assert (error.operator, f"'n': {late}," in error.row) == ("A", True)
        assert "it returned 'text' for the column 'x'" in error.problem


def test_a_row_that_a_filter_dropped_is_no_fault() -> None:
    drops = spec("F", lambda row: row["x"] != "text", FLAT, kind=Kind.FILTER)
    made, script = stage(spec("A", on(7, wrong), FLAT), drops)
    assert len(run_rows(made, MANY_ROWS)) == MANY_ROWS - 1
    assert script.failures == []


def test_a_filter_fails_by_itself() -> None:
    for place, kind in enumerate((Kind.FILTER, Kind.SPLIT, Kind.FLAT_MAP)):
        fails = spec("F", on(MANY_ROWS - 9, breaks), FLAT, kind=kind)
        behind = (spec("B", same, FLAT),) if place == 0 else ()
        error = run_of(spec("A", more, FLAT), spec("L", less, FLAT), fails, *behind)
        assert error.operator == "F"


def test_a_new_filter_is_blamed_that_passes_on_what_the_one_before_dropped() -> None:
    operators = (
        spec("A", on(3, wrong), FLAT),
        spec("F", lambda row: row["x"] != "text", FLAT, kind=Kind.FILTER),
        spec("C", less, FLAT),
    )
    edges = (WAY_IN, *(EdgeSpec(n, *pair) for n, pair in enumerate(("AF", "FC"), 1)))
    for last in (len(operators), len(operators) - 1):  # it is the last one of its run, or not
        configuration = Configuration(operators)
        configuration.load(7, 0, pickled(Shipped({"F": replace(operators[1], function=same)})))
        script = Script()
        spec_of = StageSpec(0, operators[:last], edges[: last + 1])
        made = Stage(spec_of, configuration, script)
        made._pacer = Steady()
        rows = Chunk(chunk(20, FLAT).batch, np.arange(20) % 2)
        with pytest.raises(OperatorError, match="it passed on what 'A' gave: it returned 'text'"):
            list(made.run(WAY_IN, rows))
        assert [(change, error.operator) for change, error in script.failures] == [(7, "F")]
