"""Runs: functions of rows in a line hand their rows on as they are, however they are called."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError
from fries.runtime.configuration import Configuration
from fries.runtime.runs import ENOUGH, MOST_FLAT_MAPS, SURVEY_EVERY, runs_of
from fries.runtime.shipped import Shipped
from fries.runtime.spec import DeadLetters, EdgeSpec, Kind, OperatorSpec, StageSpec, Style
from fries.runtime.stage import Stage
from tests.runtime.test_chains import FRAME as FLAT
from tests.runtime.test_chains import Seen, chunk, row, same, spec, stage
from tests.runtime.test_stage import Script, pickled

Row = dict[str, Any]
MANY_ROWS: Final = 4_000
"""So many that a worker has timed each operator, and calls them as one."""
WAY_IN: Final = EdgeSpec(0, "", "A")


class _Watch:
    """Notes whether a run is called as one, from the names of what is at work."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        monkeypatch.setattr(script, "calling", lambda name, _: self.calls.append(name))

    @property
    def as_one(self) -> int:
        """How often it was."""
        return sum(" or " in name for name in self.calls)


def run_rows(made: Stage, rows: int, schema: pa.Schema = FLAT) -> list[Row]:
    return [
        one
        for _, leaving in made.run(WAY_IN, chunk(rows, schema))
        for one in leaving.batch.to_pylist()
    ]


def runs_in(operators: tuple[OperatorSpec, ...], *pairs: tuple[str, str]) -> list[tuple[str, ...]]:
    outputs: dict[str, list[EdgeSpec]] = {}
    for number, (source, target) in enumerate(pairs):
        outputs.setdefault(source, []).append(EdgeSpec(number, source, target))
    return runs_of(operators, outputs)


def test_runs_are_functions_of_rows_that_follow_each_other() -> None:
    operators = (
        spec("A", same),
        spec("B", same),
        spec("F", same, kind=Kind.FILTER),
        spec("C", same),
        spec("D", same, style=Style.PANDAS),
        spec("E", same),
        spec("L", same, on_error=DeadLetters("drop")),
        spec("G", same),
        OperatorSpec("RE", Kind.PASS, FLAT),
        spec("H", same),
        spec("I", same),
        spec("J", same, kind=Kind.FLAT_MAP),
        spec("K", same),
    )
    pairs = (
        *(("A", "B"), ("B", "F"), ("F", "C"), ("C", "D"), ("D", "E"), ("E", "L"), ("L", "G")),
        *(("G", "RE"), ("RE", "H"), ("RE", "I"), ("H", "J"), ("J", "K"), ("I", "out")),
        ("K", "elsewhere"),
    )
    assert runs_in(operators, *pairs) == [("A", "B", "F", "C"), ("H", "J", "K")]


def test_a_run_ends_with_a_split_and_has_something_to_hand_on() -> None:
    """Filters and splits alone leave a batch that is there as it is."""
    operators = (
        *(spec("A", same), spec("S", same, kind=Kind.SPLIT), spec("B", same), spec("C", same)),
        *(spec("F", same, kind=Kind.FILTER), spec("T", same, kind=Kind.SPLIT)),
    )
    pairs = ("A", "S"), ("S", "B"), ("S", "F"), ("B", "C"), ("F", "T"), ("T", "x"), ("T", "y")
    assert runs_in(operators, *pairs) == [("A", "S"), ("B", "C")]


def test_a_run_has_no_more_loops_than_python_allows() -> None:
    """Each flat_map is one in the other."""
    names = [f"F{n:02}" for n in range(30)]
    operators = tuple(spec(name, one_of, FLAT, kind=Kind.FLAT_MAP) for name in names)
    runs = runs_in(operators, *itertools.pairwise(names))
    assert [name for run in runs for name in run] == names
    assert {len(run) for run in runs} == {MOST_FLAT_MAPS, 30 % MOST_FLAT_MAPS}
    line = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(["", *names, "o"])))
    script = Script()
    made = Stage(StageSpec(0, operators, line), Configuration(operators), script)
    leaving = list(made.run(line[0], chunk(MANY_ROWS, FLAT)))
    assert [n for _, one in leaving for n in one.batch.column("n").to_pylist()] == [
        *range(MANY_ROWS)
    ]
    assert script.counts == {name: [MANY_ROWS, MANY_ROWS] for name in names}


def one_of(row: Row) -> list[Row]:
    return [row]


def test_a_run_is_called_as_one_when_its_operators_were_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, script = stage(*(spec(name, same, FLAT) for name in "ABC"))
    watch = _Watch(script, monkeypatch)
    assert len(run_rows(made, MANY_ROWS)) == MANY_ROWS
    assert watch.calls[:3] == ["A", "B", "C"], "one row says nothing"
    assert watch.as_one > 0
    assert script.counts == {name: [MANY_ROWS, MANY_ROWS] for name in "ABC"}
    before = watch.as_one
    made.on_probation = True
    run_rows(made, MANY_ROWS)
    assert watch.as_one == before, "it must be known which version is at work"


def test_a_change_that_is_done_is_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions are those of all rows from then on, and counted as its own."""
    operators = tuple(spec(name, same, FLAT) for name in "AB")
    configuration = Configuration(operators)
    line = tuple(EdgeSpec(n, *pair) for n, pair in enumerate((("", "A"), ("A", "B"), ("B", "o"))))
    script = Script()
    watch = _Watch(script, monkeypatch)
    made = Stage(StageSpec(0, operators, line), configuration, script)
    monkeypatch.setattr(made, "_size", lambda left: min(left, ENOUGH))
    assert {row["x"] for row in run_rows(made, 3 * ENOUGH)} != {-1.0}
    calls = [*"AB", "A or B", "A or B"]
    assert watch.calls == calls
    configuration.load(7, 0, pickled(Shipped({"B": spec("B", marked, FLAT)})))
    configuration.adopt(7)
    assert {row["x"] for row in run_rows(made, 3 * ENOUGH)} == {-1.0}
    assert watch.calls == calls * 2, "they are timed anew"
    assert script.taken["B", 7] == [3 * ENOUGH, 0]


def test_operators_of_a_run_are_timed_again_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, script = stage(*(spec(name, same, FLAT) for name in "AB"))
    watch = _Watch(script, monkeypatch)
    monkeypatch.setattr(made, "_size", lambda left: min(left, ENOUGH))
    run_rows(made, ENOUGH * (SURVEY_EVERY + 2))
    assert watch.calls == [*"AB", *["A or B"] * SURVEY_EVERY, *"AB"]


def test_rows_are_handed_on_as_they_are_and_leave_as_declared() -> None:
    """The same rows get the same values, in whatever way the functions are called."""
    noted = Seen()
    made, _ = stage(
        spec("A", lambda row: {**row, "x": row["n"], "more": 1}, FLAT),
        spec("B", noted, FLAT),
        spec("C", lambda row: {**row, "x": row["x"] + row.pop("more")}, FLAT),
        spec("D", lambda row: {name: row[name] for name in FLAT.names}, FLAT),
    )
    rows = run_rows(made, MANY_ROWS)
    assert [(one["n"], one["x"]) for one in rows] == [(n, n + 1.0) for n in range(MANY_ROWS)]
    assert {type(one["x"]) for one in rows} == {float}
    assert {(type(one["x"]), one["more"]) for one in noted.rows} == {(int, 1)}
    assert len(noted.rows) == MANY_ROWS


def test_what_a_function_keeps_is_not_changed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {n: {name: row(n)[name] for name in FLAT.names} for n in range(2)}
    reused: Row = {}

    def reuse(given: Row) -> Row:
        reused.update(given)
        return reused

    def spoils(given: Row) -> Row:
        given["n"] += 100
        return given

    made, script = stage(
        spec("A", reuse, FLAT),
        spec("B", spoils, FLAT),
        spec("C", lambda given: table[given["n"] % 2], FLAT),
        spec("D", spoils, FLAT),
    )
    watch = _Watch(script, monkeypatch)
    rows = run_rows(made, MANY_ROWS)
    assert [one["n"] for one in rows] == [100, 101] * (MANY_ROWS // 2)
    assert table == {n: {name: row(n)[name] for name in FLAT.names} for n in range(2)}
    assert watch.as_one > 0


@pytest.mark.parametrize("late", [0, MANY_ROWS - 5])
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda row: {**row, "x": "text"}, "it returned 'text' for the column 'x'"),
        (lambda row: {"n": row["n"]}, r"it returned the columns \['n'\]"),
        (lambda row: {**row, "more": 1}, "it returned the columns"),
        (lambda row: None, "it must return rows as dicts"),
    ],
)
def test_who_first_made_rows_that_do_not_fit_is_to_blame(
    wrong: Callable[[Row], Any], problem: str, late: int
) -> None:
    """Whether a later function of the run breaks on them, or they get to its end."""
    for last in (same, lambda row: {**row, "x": row["x"] * 2.0 + len(row["s"])}):
        made, script = stage(
            spec("A", same, FLAT),
            spec("B", lambda row: wrong(row) if row["n"] == late else row, FLAT),
            spec("C", same, FLAT),
            spec("D", last, FLAT),
        )
        with pytest.raises(OperatorError, match=rf"'B' failed on \{{'n': {late}, .*{problem}"):
            run_rows(made, MANY_ROWS)
        assert [error.operator for _, error in script.failures] == ["B"]


@pytest.mark.parametrize("late", [0, MANY_ROWS - 5])
def test_who_fails_by_itself_is_to_blame(late: int) -> None:
    made, script = stage(
        spec("A", lambda row: {**row, "x": row["n"]}, FLAT),
        spec("B", lambda row: {**row, "x": 1 / (row["n"] - late)}, FLAT),
        spec("C", same, FLAT),
    )
    with pytest.raises(OperatorError, match=rf"'B' failed on \{{'n': {late}, .*ZeroDivision"):
        run_rows(made, MANY_ROWS)
    assert [error.operator for _, error in script.failures] == ["B"]


@given(st.lists(st.sampled_from("mpsick"), min_size=2, max_size=5), st.integers(1, 700))
@settings(deadline=None, max_examples=60)
def test_a_run_gives_what_its_functions_give_one_after_the_other(
    kinds: list[str], rows: int
) -> None:
    functions: dict[str, Callable[[Row], Row]] = {
        "m": lambda row: {**row, "x": row["x"] * 2 + 1},
        "p": lambda row: {"s": row["s"] + "!", "x": row["n"], "n": row["n"] + 1},
        "s": same,
        "i": _in_place,
        "c": lambda row: {**row, "s": None if row["n"] % 3 else str(row["s"])},
        "k": _Keeper(),
    }
    chosen = [functions[kind] for kind in kinds]
    if "c" in kinds:
        chosen = [one for kind, one in zip(kinds, chosen, strict=True) if kind != "p"]
    made, _ = stage(*(spec(f"{'AB'[bool(n)]}{n or ''}", f, FLAT) for n, f in enumerate(chosen)))
    expected = []
    for number in range(rows):
        one = {name: row(number)[name] for name in FLAT.names}
        for function in chosen:
            one = dict(function(one))
        expected.append({**one, "x": float(one["x"])})
    if chosen:
        assert run_rows(made, rows) == expected


def _in_place(row: Row) -> Row:
    row["n"] += 3
    return row


class _Keeper:
    """Returns a dict that it keeps, and changes with the next row."""

    def __init__(self) -> None:
        self._kept: Row = {}

    def __call__(self, row: Row) -> Row:
        self._kept.clear()
        self._kept.update(row)
        return self._kept


def marked(row: Row) -> Row:
    return {**row, "x": -1.0}


def leave(error: type[BaseException], late: int, given: Row) -> Row:
    if given["n"] == late:
        raise error
    return given


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration]
)
@pytest.mark.parametrize("late", [0, MANY_ROWS - 5])
def test_whatever_a_function_of_a_run_raises_is_told_and_blamed(
    error: type[BaseException], late: int
) -> None:
    operators = [spec(name, same, FLAT) for name in "ABC"]
    configuration = Configuration(operators)
    bad = spec("B", partial(leave, error, late), FLAT)
    configuration.load(7, 0, pickled(Shipped({"B": bad})))
    configuration.begin([7])
    names = ["", *"ABC", "out"]
    line = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(names)))
    script = Script()
    made = Stage(StageSpec(0, tuple(operators), line), configuration, script)
    with pytest.raises(OperatorError, match=rf"'B' failed on \{{'n': {late}, .*{error.__name__}"):
        run_rows(made, MANY_ROWS)
    assert [(change, one.operator) for change, one in script.failures] == [(7, "B")]


def test_a_task_that_nobody_reads_on_ends_quietly() -> None:
    """Spark closes it where rows leave: that is no failure of a function."""
    made, script = stage(*(spec(name, same, FLAT) for name in "AB"))
    leaving = made.run(WAY_IN, chunk(MANY_ROWS, FLAT))
    next(leaving)
    assert isinstance(leaving, Generator)
    leaving.close()
    assert script.failures == []


def twice(row: Row) -> list[Row]:
    return [row, {**row, "x": -1.0}]


def test_filters_flat_maps_and_a_split_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row in its order, of its transaction and epoch; each operator with what it did."""
    operators = (
        *(spec("A", same, FLAT), spec("F", lambda row: row["n"] % 4, FLAT, kind=Kind.FILTER)),
        *(spec("T", twice, FLAT, kind=Kind.FLAT_MAP), spec("B", same, FLAT)),
        *(spec("G", lambda row: row["x"] < 0 or row["n"] % 2, FLAT, kind=Kind.FILTER),),
        spec("S", lambda row: row["n"] % 2, FLAT, kind=Kind.SPLIT, branches=2),
    )
    line = [EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(["", *"AFTBGS"]))]
    ways = EdgeSpec(10, "S", "even", 0), EdgeSpec(11, "S", "odd", 1)
    script = Script()
    watch = _Watch(script, monkeypatch)
    made = Stage(StageSpec(0, operators, (*line, *ways)), Configuration(operators), script)
    rows = chunk(MANY_ROWS, FLAT)
    rows.epochs = np.arange(MANY_ROWS) // 7
    passed = [n for n in range(MANY_ROWS) if n % 4]
    for txns in (rows.txns, None):
        rows.txns = txns
        found: dict[str, list[tuple[Any, Any]]] = {"even": [], "odd": []}
        for edge, one in made.run(WAY_IN, rows):
            numbers: list[Any] = one.batch.column("n").to_pylist()
            found[edge.target] += zip(numbers, one.batch.column("x").to_pylist(), strict=True)
            assert one.epochs.tolist() == [n // 7 for n in numbers]
            assert (None if one.txns is None else one.txns.tolist()) == (
                None if txns is None else numbers
            )
        assert found["even"] == [(n, -1.0) for n in passed if n % 2 == 0]
        assert found["odd"] == [(n, x) for n in passed if n % 2 for x in (n / 2, -1.0)]
    assert watch.as_one > 0
    three, six = 3 * MANY_ROWS // 4, 6 * MANY_ROWS // 4
    counts = {"A": [MANY_ROWS] * 2, "F": [MANY_ROWS, three], "T": [three, six], "B": [six, six]}
    counts |= {"G": [six, five := 5 * MANY_ROWS // 4], "S": [five, five]}
    assert script.counts == {name: [2 * n for n in both] for name, both in counts.items()}


def test_an_operator_that_gets_no_rows_has_done_nothing() -> None:
    none = spec("F", lambda row: row["n"] < 0, FLAT, kind=Kind.FILTER)
    made, script = stage(spec("A", same, FLAT), none, spec("B", same, FLAT))
    assert run_rows(made, MANY_ROWS) == []
    assert script.counts == {"A": [MANY_ROWS] * 2, "F": [MANY_ROWS, 0]}


def test_a_run_that_is_interrupted_has_taken_so_many_of_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, script = stage(
        spec("A", same, FLAT),
        spec("F", lambda row: row["n"] % 3, FLAT, kind=Kind.FILTER),
        spec("T", twice, FLAT, kind=Kind.FLAT_MAP),
    )
    watch = _Watch(script, monkeypatch)
    monkeypatch.setattr(made, "_size", lambda left: min(left, 500))
    looks = itertools.count(1)
    monkeypatch.setattr(Script, "pressed", property(lambda _: next(looks) % 50 == 0))
    found = [row["n"] for row in run_rows(made, MANY_ROWS)]
    assert found == [n for n in range(MANY_ROWS) if n % 3 for _ in range(2)]
    assert script.counts["A"] == [MANY_ROWS, MANY_ROWS]
    assert watch.as_one > MANY_ROWS // 500, "some chunks have ended early"


def keeps_list(kept: list[Row], row: Row) -> list[Row]:
    kept[:] = [row, dict(row)]
    return kept


def keeps_tuple(kept: list[Row], row: Row) -> tuple[Row, ...]:
    kept[:] = [row, dict(row)]
    return tuple(kept)


def one_dict_again(kept: list[Row], row: Row) -> Generator[Row]:
    one = dict(row)
    kept[:] = [one]
    for _ in range(2):
        yield one
    one["n"] = -1


def one_row_twice(kept: list[Row], row: Row) -> list[Row]:
    kept[:] = [dict(row)]
    return [row, row]


@pytest.mark.parametrize("gives", [keeps_list, keeps_tuple, one_dict_again, one_row_twice])
def test_what_a_flat_map_keeps_or_gives_twice_is_not_changed_by_the_next_one(
    gives: Callable[[list[Row], Row], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Row] = []
    by_filter: list[Row] = []
    seen: list[int] = []

    def spoils(row: Row) -> Row:
        row["n"] += 10_000
        return row

    def keeps(row: Row) -> bool:
        by_filter.append(row)
        return True

    def notes(row: Row) -> Any:  # noqa: ANN401
        seen.extend(one["n"] for one in kept)
        return gives(kept, row)

    made, script = stage(
        spec("T", notes, FLAT, kind=Kind.FLAT_MAP),
        spec("B", spoils, FLAT),
        spec("F", keeps, FLAT, kind=Kind.FILTER),
        spec("C", spoils, FLAT),
    )
    watch = _Watch(script, monkeypatch)
    found = [row["n"] for row in run_rows(made, MANY_ROWS)]
    assert found == [n + 20_000 for n in range(MANY_ROWS) for _ in range(2)]
    assert max(one["n"] for one in by_filter) < 20_000, "it has copies"
    assert max(seen) < 10_000
    assert watch.as_one > 0
