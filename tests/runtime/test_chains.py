"""Rows on their way through several operators: seldom converted, and always as if they were."""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fries.errors import OperatorError
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.spec import EdgeSpec, Function, Kind, OperatorSpec, StageSpec, Style
from fries.runtime.stage import Stage
from tests.runtime.test_stage import Script

TYPES: dict[str, pa.DataType] = {
    "n": pa.int64(),
    "x": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "small": pa.int8(),
    "half": pa.float32(),
    "money": pa.decimal128(9, 2),
    "at": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "raw": pa.binary(),
}
SCHEMA = pa.schema(TYPES)
MANY = pa.schema({**TYPES, "many": pa.list_(pa.int64())})
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=ZoneInfo("UTC"))
Row = dict[str, Any]


def row(number: int) -> Row:
    return {
        "n": number,
        "x": number / 2,
        "s": f"é{number}",
        "b": number % 2 == 0,
        "small": number % 100,
        "half": 0.5,
        "money": Decimal("1.50"),
        "at": AT,
        "day": AT.date(),
        "raw": b"\xff",
    }


def chunk(count: int, schema: pa.Schema = SCHEMA) -> Chunk:
    rows = [{**row(n), "many": [n]} for n in range(count)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    return Chunk(batch, np.zeros(count, dtype=np.int64), np.arange(count))


def spec(name: str, function: Function, schema: pa.Schema = SCHEMA, **more: Any) -> OperatorSpec:  # noqa: ANN401
    return OperatorSpec(name, more.pop("kind", Kind.MAP), schema, function, **more)


def stage(*operators: OperatorSpec, edges: tuple[EdgeSpec, ...] = ()) -> tuple[Stage, Script]:
    names = ["", *(one.name for one in operators), "out"]
    line = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(names)))
    script = Script()
    whole = StageSpec(0, operators, edges or line)
    return Stage(whole, Configuration(operators), script), script


def through(*operators: OperatorSpec, rows: int = 40, schema: pa.Schema = SCHEMA) -> list[Row]:
    """What leaves a chain."""
    made, _ = stage(*operators)
    leaving = made.run(EdgeSpec(0, "", operators[0].name), chunk(rows, schema))
    return [row for _, one in leaving for row in one.batch.to_pylist()]


def same(row: Row) -> Row:
    return row


class Seen:
    """Notes what the second operator of a chain gets."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, row: Row) -> Row:
        """A row, as it comes."""
        self.rows.append(dict(row))
        return row


@pytest.mark.parametrize(
    ("name", "returned", "seen"),
    [
        ("x", 3, 3.0),
        ("x", np.float64(2.5), 2.5),
        ("n", 2.0, 2),
        ("n", np.int64(7), 7),
        ("n", None, None),
        ("half", 0.1, float(np.float32(0.1))),
        ("money", Decimal("2.5"), Decimal("2.50")),
        ("money", 2, Decimal("2.00")),
        ("at", AT.replace(tzinfo=None), AT),
        ("at", AT.astimezone(datetime.timezone(datetime.timedelta(hours=3))), AT),
        ("day", AT, AT.date()),
        ("raw", "ab", b"ab"),
        ("raw", bytearray(b"x"), b"x"),
        ("b", np.bool_(True), True),
    ],
)
def test_what_leaves_a_run_is_what_arrow_would_give(
    name: str, returned: object, seen: object
) -> None:
    """In some rows: the others are of the right type, and a worker has got used to that."""
    noted = Seen()
    through(
        spec("A", lambda row: {**row, name: returned} if row["n"] == 33 else row),
        OperatorSpec("P", Kind.PASS, SCHEMA),
        spec("B", noted),
    )
    for got in noted.rows:
        expected = {**row(got["n"] or 33), name: seen} if got["n"] in (33, seen) else None
        if expected is not None and (got["n"] != seen or name == "n"):
            assert repr(got[name]) == repr(seen)
            assert type(got[name]) is type(seen)
    assert len(noted.rows) >= 40


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("x", Decimal(1)),
        ("x", "1.5"),
        ("n", 1.5),
        ("n", 1 << 63),
        ("small", 128),
        ("s", 5),
        ("s", "\ud800"),
        ("b", 1),
        ("day", "today"),
    ],
)
def test_a_wrong_value_is_blamed_on_the_operator_that_returned_it(name: str, wrong: object) -> None:
    """Also if the one behind it cannot take it."""

    def breaks(row: Row) -> Row:
        assert type(row[name]) is not type(wrong) or row[name] != wrong
        return row

    made, script = stage(
        spec("A", lambda row: {**row, name: wrong} if row["n"] == 33 else row), spec("B", breaks)
    )
    with pytest.raises(OperatorError, match="'A' failed"):
        list(made.run(EdgeSpec(0, "", "A"), chunk(40)))
    assert [error.operator for _, error in script.failures] == ["A"], "told once"


@pytest.mark.parametrize(
    "wrong",
    [lambda row: {"n": 1}, lambda row: {**row, "more": 1}, lambda row: 7, lambda row: None],
)
def test_wrong_columns_are_refused(wrong: Callable[[Row], Any]) -> None:
    """And the row that they came of is named."""
    problem = r"'A' failed on \{'n': 0, .*\}: it (returned the columns|must return)"
    with pytest.raises(OperatorError, match=problem):
        through(spec("A", wrong), spec("B", same))


def test_what_a_function_keeps_or_uses_again_is_not_changed_by_others() -> None:
    reused: Row = {}
    table = {0: row(0), 1: row(1)}

    def reuse(row: Row) -> Row:
        reused.update(row)
        return reused

    def looked_up(given: Row) -> Row:
        return table[given["n"] % 2]

    def spoils(row: Row) -> Row:
        row["n"] += 100
        return row

    made = through(spec("A", reuse), spec("B", spoils))
    assert [one["n"] for one in made] == list(range(100, 140))
    made = through(spec("A", looked_up), spec("B", spoils))
    assert [one["n"] for one in made] == [100, 101] * 20
    assert table == {0: row(0), 1: row(1)}


def test_a_filter_or_a_split_cannot_change_rows() -> None:
    def spoils(row: Row) -> bool:
        row["n"] = -1
        row.pop("s")
        return True

    filters = spec("F", spoils, kind=Kind.FILTER), spec("G", spoils, kind=Kind.FILTER)
    for count in (40, 4_000):  # of those the last ones go through all functions one by one
        made = through(
            spec("A", same),
            *filters,
            spec("B", same),
            spec("S", lambda row: 1 - spoils(row), kind=Kind.SPLIT),
            rows=count,
        )
        assert made == [row(n) for n in range(count)]


def test_copies_of_rows_are_of_their_own() -> None:
    def spoils(row: Row) -> Row:
        row["n"] = -1
        return row

    operators = (
        spec("A", same),
        OperatorSpec("RE", Kind.PASS, SCHEMA),
        spec("B", spoils),
        spec("C", same),
    )
    pairs = ("", "A"), ("A", "RE"), ("RE", "B"), ("RE", "C"), ("B", "o1"), ("C", "o2")
    edges = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(pairs))
    made, _ = stage(*operators, edges=edges)
    found: dict[str, list[int]] = defaultdict(list)
    for edge, one in made.run(edges[0], chunk(20)):
        found[edge.target] += [row["n"] for row in one.batch.to_pylist()]
    assert found == {"o1": [-1] * 20, "o2": list(range(20))}


def test_a_branch_that_goes_two_ways_is_copied_for_each() -> None:
    def spoils(row: Row) -> Row:
        row["n"] = -1
        return row

    operators = (
        spec("A", same),
        spec("S", lambda row: row["n"] % 2, kind=Kind.SPLIT, branches=2),
        spec("B", spoils),
        spec("C", same),
    )
    ways = EdgeSpec(2, "S", "B", 1), EdgeSpec(3, "S", "C", 1), EdgeSpec(4, "S", "even", 0)
    out = EdgeSpec(5, "B", "spoilt"), EdgeSpec(6, "C", "odd")
    edges = (EdgeSpec(0, "", "A"), EdgeSpec(1, "A", "S"), *ways, *out)
    made, _ = stage(*operators, edges=edges)
    found: dict[str, list[int]] = defaultdict(list)
    for edge, one in made.run(edges[0], chunk(20)):
        found[edge.target] += [row["n"] for row in one.batch.to_pylist()]
    assert found == {
        "spoilt": [-1] * 10,
        "odd": list(range(1, 20, 2)),
        "even": list(range(0, 20, 2)),
    }


@pytest.mark.parametrize("style", [Style.ROW, Style.ARROW])
def test_behind_a_union_the_rows_of_a_chunk_go_on_together(
    style: Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of a function over batches takes them all: a chain of splits cuts nothing up."""
    sizes: list[int] = []

    def notes(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(len(batch))
        return batch

    function = {
        Style.ROW: lambda row: row["n"] % 2,
        Style.ARROW: lambda batch: [n % 2 for n in batch["n"].to_pylist()],
    }[style]
    operators = (
        spec("S", function, kind=Kind.SPLIT, branches=2, style=style),
        OperatorSpec("U", Kind.PASS, SCHEMA),
        spec("A", notes, style=Style.ARROW),
    )
    ways = EdgeSpec(1, "S", "U", 0), EdgeSpec(2, "S", "U", 1)
    edges = (EdgeSpec(0, "", "S"), *ways, EdgeSpec(3, "U", "A"), EdgeSpec(4, "A", "out"))
    made, script = stage(*operators, edges=edges)
    monkeypatch.setattr(made, "_size", lambda left: min(left, 20))
    leaving = list(made.run(edges[0], chunk(40)))
    assert sizes == [20, 20]
    numbers = [row["n"] for _, one in leaving for row in one.batch.to_pylist()]
    assert numbers == [n + rest for n in (0, 20) for rest in (*range(0, 20, 2), *range(1, 20, 2))]
    assert [n for _, one in leaving if one.txns is not None for n in one.txns] == numbers
    assert script.counts == {name: [40, 40] for name in "SUA"}


def test_nested_values_are_of_their_own() -> None:
    grown: list[int] = []

    def keeps(row: Row) -> Row:
        grown.append(row["n"])
        return {**row, "many": grown}

    def spoils(row: Row) -> Row:
        row["many"].append(-1)
        return row

    made = through(spec("A", keeps, MANY), spec("B", spoils, MANY), rows=5, schema=MANY)
    assert [one["many"] for one in made] == [[*range(n + 1), -1] for n in range(5)]


def test_a_stop_iteration_is_a_failure_and_no_end_of_rows() -> None:
    def stops(row: Row) -> Row:
        if row["n"] == 7:
            raise StopIteration
        return row

    with pytest.raises(OperatorError, match=r"'A' failed on .*StopIteration"):
        through(spec("A", stops), spec("B", same))


def test_flat_maps_filters_and_splits_in_a_chain() -> None:
    def twice(row: Row) -> Iterator[Row]:
        for copy in (0, 1):
            yield {**row, "n": row["n"] * 2 + copy}

    made = through(
        spec("A", same),
        spec("F", lambda row: row["n"] % 2 == 0, kind=Kind.FILTER),
        spec("T", twice, kind=Kind.FLAT_MAP),
        spec("S", lambda row: 0, kind=Kind.SPLIT, branches=1),
        spec("B", lambda row: {**row, "x": None}),
    )
    assert [one["n"] for one in made] == [m for n in range(0, 40, 2) for m in (2 * n, 2 * n + 1)]
    assert {one["x"] for one in made} == {None}


FRAME = pa.schema([SCHEMA.field(name) for name in ("n", "x", "s")])


@pytest.mark.parametrize(
    ("change", "name", "seen"),
    [
        (lambda frame: frame.assign(n=frame["n"].astype("int32")), "n", np.dtype("int64")),
        (lambda frame: frame.assign(n=frame["n"].astype("float64")), "n", np.dtype("int64")),
        (lambda frame: frame[frame.columns[::-1]].assign(more=1), "x", np.dtype("float64")),
        (lambda frame: frame.set_index(frame.index + 5), "x", np.dtype("float64")),
        (lambda frame: frame.assign(s=None), "s", np.dtype("object")),
    ],
)
def test_the_next_function_gets_the_frame_that_arrow_would_give(
    change: Callable[[pd.DataFrame], pd.DataFrame], name: str, seen: object
) -> None:
    found: list[pd.DataFrame] = []

    def notes(frame: pd.DataFrame) -> pd.DataFrame:
        found.append(frame.copy())
        return frame

    through(
        spec("A", change, FRAME, style=Style.PANDAS),
        spec("B", notes, FRAME, style=Style.PANDAS),
        schema=FRAME,
    )
    for frame in found:
        assert list(frame.columns) == FRAME.names
        assert list(frame.index) == list(range(len(frame)))
        assert frame[name].dtype == seen
        assert all(type(value) in (str, type(None)) for value in frame["s"])


def test_a_frame_that_a_function_keeps_is_not_changed_by_others() -> None:
    kept: list[pd.DataFrame] = []

    def keeps(frame: pd.DataFrame) -> pd.DataFrame:
        kept.append(frame)
        return frame

    def spoils(frame: pd.DataFrame) -> pd.DataFrame:
        frame["n"] += 100
        frame.loc[:, "s"] = "spoiled"
        return frame

    made = through(
        spec("A", keeps, FRAME, style=Style.PANDAS),
        spec("B", spoils, FRAME, style=Style.PANDAS),
        schema=FRAME,
    )
    assert [one["n"] for one in made] == list(range(100, 140))
    assert [n for frame in kept for n in frame["n"]] == list(range(40))
    assert {one["s"] for one in made} == {"spoiled"}


def test_rows_batches_and_frames_in_turns() -> None:
    made = through(
        spec("A", lambda row: {**row, "x": 1.0}, FRAME),
        spec("P", lambda frame: frame.assign(n=frame["n"] + 1), FRAME, style=Style.PANDAS),
        spec("F", lambda frame: frame["n"] > 10, FRAME, style=Style.PANDAS, kind=Kind.FILTER),
        spec("B", lambda batch: batch, FRAME, style=Style.ARROW),
        spec("G", lambda row: row["n"] % 2, FRAME, kind=Kind.FILTER),
        spec("C", lambda row: {**row, "s": row["s"].upper()}, FRAME),
        schema=FRAME,
    )
    assert [one["n"] for one in made] == [n for n in range(11, 41) if n % 2]
    assert [one["s"] for one in made] == [f"É{n - 1}" for n in range(11, 41) if n % 2]
