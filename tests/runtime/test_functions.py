"""User functions of every kind and style, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial, wraps
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fries.errors import OperatorError
from fries.runtime.functions import LOOKS, Output, accepts, make_call, never
from fries.runtime.spec import Function, Kind, OperatorSpec, Style
from tests.runtime.test_columns import schema

NUMBERS = pa.schema([("n", pa.int64())])
BATCH = pa.RecordBatch.from_pydict({"n": [1, 2, 3, 4]}, schema=NUMBERS)


def call(kind: Kind, style: Style, function: Function, schema: pa.Schema = NUMBERS) -> Output:
    return make_call(OperatorSpec("op", kind, schema, function, style, 3))(BATCH, never)


def double_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"] * 2}


def double_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pc.multiply(batch["n"], 2)})


def double_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame * 2


@pytest.mark.parametrize(
    ("style", "function"),
    [(Style.ROW, double_row), (Style.ARROW, double_arrow), (Style.PANDAS, double_pandas)],
)
def test_map(style: Style, function: Function) -> None:
    output = call(Kind.MAP, style, function)
    assert output.batch.to_pydict() == {"n": [2, 4, 6, 8]}
    assert output.parents is None


@pytest.mark.parametrize(
    ("style", "function"),
    [
        (Style.ROW, lambda row: row["n"] % 2 == 0),
        (Style.ARROW, lambda batch: np.asarray(batch["n"]) % 2 == 0),
        (Style.PANDAS, lambda frame: frame["n"] % 2 == 0),
    ],
)
def test_filter_says_which_rows_are_left(style: Style, function: Function) -> None:
    output = call(Kind.FILTER, style, function)
    assert output.batch.to_pydict() == {"n": [2, 4]}
    assert output.parents is not None
    assert output.parents.tolist() == [1, 3]


def test_flat_map_by_row_says_where_rows_come_from() -> None:
    def repeat(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return ({"n": row["n"]} for _ in range(row["n"] - 1))

    output = call(Kind.FLAT_MAP, Style.ROW, repeat)
    assert output.batch.to_pydict() == {"n": [2, 3, 3, 4, 4, 4]}
    assert output.parents is not None
    assert output.parents.tolist() == [1, 2, 2, 3, 3, 3]


def test_flat_map_by_batch_must_say_where_rows_come_from() -> None:
    def twice(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": frame["n"].repeat(2), "_row": np.arange(4).repeat(2)})

    output = call(Kind.FLAT_MAP, Style.PANDAS, twice)
    assert output.batch.to_pydict() == {"n": [1, 1, 2, 2, 3, 3, 4, 4]}
    assert output.parents is not None
    assert output.parents.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(OperatorError, match="must return a column '_row'"):
        call(Kind.FLAT_MAP, Style.ARROW, double_arrow)


def test_split_gives_branches() -> None:
    output = call(Kind.SPLIT, Style.ROW, lambda row: row["n"] % 3)
    assert output.branches is not None
    assert output.branches.tolist() == [1, 2, 0, 1]


def after(looks: int) -> Callable[[], bool]:
    """Interrupts at the n-th look."""
    told = iter([False] * (looks - 1))
    return lambda: next(told, True)


@pytest.mark.parametrize(
    ("kind", "function", "made", "parents", "branches"),
    [
        (Kind.MAP, double_row, [2, 4], None, None),
        (Kind.FILTER, lambda row: row["n"] % 2 == 0, [2], [1], None),
        (Kind.FILTER, lambda row: True, [1, 2], [0, 1], None),
        (Kind.FLAT_MAP, lambda row: [row] * row["n"], [1, 2, 2], [0, 1, 1], None),
        (Kind.SPLIT, lambda row: row["n"] % 3, [1, 2], None, [1, 2]),
    ],
)
def test_a_function_of_a_row_is_interrupted_between_two_rows(
    kind: Kind,
    function: Function,
    made: list[int],
    parents: list[int] | None,
    branches: list[int] | None,
) -> None:
    calls: list[int] = []

    def noted(row: dict[str, Any]) -> Any:  # noqa: ANN401
        calls.append(row["n"])
        return function(row)

    interruptible = make_call(OperatorSpec("op", kind, NUMBERS, noted, Style.ROW, 3))
    output = interruptible(BATCH, after(2))
    assert (output.taken, calls) == (2, [1, 2]), "the other rows are not touched"
    assert output.batch.to_pydict() == {"n": made}
    assert (None if output.parents is None else output.parents.tolist()) == parents
    assert (None if output.branches is None else output.branches.tolist()) == branches


def test_a_function_of_a_batch_is_not_interrupted() -> None:
    whole = make_call(OperatorSpec("op", Kind.MAP, NUMBERS, double_arrow, Style.ARROW))
    assert whole(BATCH, lambda: True).batch.num_rows == 4


def test_looking_whether_to_stop_costs_little_however_many_rows_there_are() -> None:
    looks: list[bool] = []
    many = pa.RecordBatch.from_pydict({"n": list(range(10_000))}, schema=NUMBERS)
    each = make_call(OperatorSpec("op", Kind.MAP, NUMBERS, double_row))

    def look() -> bool:
        looks.append(True)
        return False

    output = each(many, look)
    assert output.taken == 10_000
    assert len(looks) <= LOOKS


def test_types_are_cast_to_what_was_declared() -> None:
    schema = pa.schema([("n", pa.float64())])
    output = call(Kind.MAP, Style.ARROW, double_arrow, schema)
    assert output.batch.schema == schema


@pytest.mark.parametrize(
    ("kind", "style", "function", "problem"),
    [
        (Kind.MAP, Style.ROW, lambda row: {"m": 1}, r"returned the columns \['m'\], declared are"),
        (
            Kind.MAP,
            Style.ROW,
            lambda row: {"n": "text" if row["n"] == 3 else 1},
            "returned 'text' for the column 'n' of type int64",
        ),
        (Kind.MAP, Style.ROW, lambda row: 7, "must return rows as dicts, not 7"),
        (Kind.MAP, Style.ARROW, lambda batch: batch.slice(1), "returned 3 rows for 4"),
        (Kind.MAP, Style.ARROW, lambda batch: batch.rename_columns(["m"]), "lacks the columns"),
        (Kind.FILTER, Style.ARROW, lambda batch: [True], r"values of shape \(1,\) for 4 rows"),
        (Kind.FILTER, Style.ARROW, lambda batch: np.ones((4, 2)), r"values of shape \(4, 2\)"),
        (Kind.MAP, Style.ROW, lambda row: 1 / 0, "ZeroDivisionError"),
        (Kind.SPLIT, Style.ROW, lambda row: 5, "returned the branch 5; there are 0 to 2"),
        (Kind.SPLIT, Style.ROW, lambda row: row["n"] / 2, "returned the branch 0.5"),
        (Kind.SPLIT, Style.ROW, lambda row: np.nan, "returned the branch nan"),
        (Kind.MAP, Style.ROW, lambda row: {"n": row["n"] / 2}, "returned 0.5 for the column 'n'"),
        (Kind.MAP, Style.ROW, lambda row: {"n": np.float64(1.7)}, "returned 1.7 for the column"),
        (Kind.MAP, Style.ROW, lambda row: {"n": Decimal("1.7")}, "returned 1.7 for the column"),
        (
            Kind.FLAT_MAP,
            Style.PANDAS,
            lambda frame: frame.assign(_row=1.9),
            "number in '_row' 1.9; there are 0 to 3",
        ),
        (
            Kind.FLAT_MAP,
            Style.PANDAS,
            lambda frame: frame.assign(_row=-1),
            "number in '_row' -1; there are 0 to 3",
        ),
    ],
)
def test_what_a_function_does_wrong_names_its_operator(
    kind: Kind, style: Style, function: Function, problem: str
) -> None:
    with pytest.raises(OperatorError, match=f"(?s)^operator 'op' failed.*{problem}"):
        call(kind, style, function)


def test_whole_numbers_of_any_type_are_integers() -> None:
    values = {1: 1, 2: 2.0, 3: Decimal(3), 4: np.int16(4)}
    output = call(Kind.MAP, Style.ROW, lambda row: {"n": values[row["n"]]})
    assert output.batch.to_pydict() == {"n": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1, 1.5]),
        (pa.list_(pa.list_(pa.int8())), [None, [1.5]]),
        (pa.struct([("a", pa.string()), ("b", pa.int64())]), {"a": "x", "b": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": 1.5}),
        (pa.map_(pa.int64(), pa.float64()), [(1.5, 1.5)]),
    ],
)
def test_a_fraction_inside_of_a_value_is_not_cut_off(kind: pa.DataType, value: object) -> None:
    schema = pa.schema([("n", kind)])
    with pytest.raises(OperatorError, match=r"returned 1\.5 for the column 'n'"):
        call(Kind.MAP, Style.ROW, lambda row: {"n": value}, schema)


def test_a_value_of_another_shape_is_named_with_its_column() -> None:
    schema = pa.schema([("n", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(OperatorError, match=r"returned \[1, 2\] for the column 'n' of type map"):
        call(Kind.MAP, Style.ROW, lambda row: {"n": [1, 2]}, schema)


def test_a_filter_takes_whatever_is_true() -> None:
    tags = {1: [0, 0], 2: [], 3: "x", 4: None}
    output = call(Kind.FILTER, Style.ROW, lambda row: tags[row["n"]])
    assert output.batch.to_pydict() == {"n": [1, 3]}
    equal = call(Kind.FILTER, Style.ROW, lambda row: [0, 0])
    assert equal.batch.num_rows == 4, "a list with two elements is true"


def test_a_failure_names_the_row_and_shows_the_traceback() -> None:
    failing = make_call(
        OperatorSpec("op", Kind.MAP, NUMBERS, lambda row: {"n": 1 // (row["n"] - 3)})
    )
    with pytest.raises(OperatorError, match=r"failed on {'n': 3}: ZeroDivisionError") as caught:
        failing(BATCH, never)
    assert caught.value.row == "{'n': 3}"
    assert "ZeroDivisionError: integer division" in caught.value.story


def test_rows_that_a_function_changes_later_are_kept_as_they_were() -> None:
    reused: dict[str, Any] = {}
    grown: list[int] = []

    def reuse(row: dict[str, Any]) -> dict[str, Any]:
        grown.append(row["n"])
        reused.update(n=row["n"], all=grown)
        return reused

    def each_twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for copy in range(2):
            reused.update(n=row["n"] * 10 + copy)
            yield reused

    schema = pa.schema([("n", pa.int64()), ("all", pa.list_(pa.int64()))])
    made = call(Kind.MAP, Style.ROW, reuse, schema).batch.to_pylist()
    assert [row["n"] for row in made] == [1, 2, 3, 4]
    assert [row["all"] for row in made] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    many = call(Kind.FLAT_MAP, Style.ROW, each_twice, schema).batch.to_pylist()
    assert [row["n"] for row in many] == [10, 11, 20, 21, 30, 31, 40, 41]


class Caller:
    """Something that is no function, and can be called with one argument."""

    def __call__(self, row: object) -> object:
        """Give it back."""
        return row

    def method(self, row: object, more: object = None) -> object:
        """Give them back."""
        return row, more


@wraps(len)
def like_len(*args: object) -> object:
    return args


CALLED: tuple[Function, ...] = (
    lambda: None,
    lambda a: a,
    lambda a, b: (a, b),
    lambda a, b=1: (a, b),
    lambda a, *, b: (a, b),
    lambda a, *, b=1: (a, b),
    lambda a, *more: (a, more),
    lambda a, /, **named: (a, named),
    lambda a, b, c=1, d=2: (a, b, c, d),
    partial(lambda a, b: (a, b), 1),
    like_len,
    Caller(),
    Caller().method,
    len,
    int,
    print,
)


@pytest.mark.parametrize("count", range(5))
@pytest.mark.parametrize("function", CALLED)
def test_a_function_accepts_what_its_signature_says(function: Function, count: int) -> None:
    try:
        inspect.signature(function).bind(*range(count))
        expected = True
    except ValueError:
        expected = True
    except TypeError:
        expected = False
    assert accepts(function, count) is expected


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("column", [None, np.nan, pd.NA, "None and nan", "nan"])
def test_text_that_is_missing_in_all_rows_of_a_frame(column: Any, strict: bool) -> None:  # noqa: ANN401
    columns = schema(n=pa.int64(), s=pa.string())
    lists: dict[str, list[Any]] = {"None and nan": [None, np.nan], "nan": [np.nan, np.nan]}

    def misses(frame: pd.DataFrame) -> pd.DataFrame:
        values: Any = lists[column][: len(frame)] if isinstance(column, str) else column
        return frame.assign(s=values)

    made = make_call(OperatorSpec("op", Kind.MAP, columns, misses, Style.PANDAS, takes=columns))
    rows = pa.RecordBatch.from_pylist([{"n": 1, "s": "x"}, {"n": 2, "s": "y"}], schema=columns)
    found = made(rows, never, strict=strict).data.batch
    assert found.to_pylist() == [{"n": 1, "s": None}, {"n": 2, "s": None}]
    assert made(rows.slice(0, 0), never, strict=strict).data.batch.num_rows == 0
