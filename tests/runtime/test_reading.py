"""Functions that only look up columns of their row get it as it is; all others get a copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import pytest

from fries.runtime.reading import only_reads
from fries.runtime.spec import Kind
from fries.runtime.unrolled import Made, Step, through

Row = dict[str, Any]
TABLE = {"n": 1}
seen: list[Any] = []


def rules(row: Row) -> bool:
    least = TABLE["n"]
    if row["n"] < least and row["s"].startswith("x"):
        return True
    return any(one < row["n"] for one in range(3))


class Threshold:
    """A function with data."""

    def __call__(self, row: Row) -> bool:
        """Reads only, which nobody can tell."""
        return bool(row["n"] > 3)


def deletes(row: Row) -> bool:
    del row["s"]
    return True


def sets(row: Row) -> bool:
    row["n"] = row["n"] + 1
    return True


def keeps_all(row: Row) -> bool:
    seen.append(locals())
    return bool(row["n"])


def lends(row: Row) -> Callable[[], Any]:
    return lambda: row["n"]


@pytest.mark.parametrize(
    "function",
    [
        lambda row: row["n"] > 3,
        lambda row: row["n"] % 2 == 0 and row["s"] is not None,
        lambda row, least=3: row["n"] > least,
        lambda row: True,
    ],
)
def test_functions_that_look_up_columns(function: Callable[..., Any]) -> None:
    assert only_reads(function)


@pytest.mark.parametrize(
    "function",
    [
        *(rules, Threshold(), deletes, sets, keeps_all, lends, partial(max, 3), len),
        lambda row: len(row),
        lambda row: row.pop("s") is None,
        lambda row: row.get("s"),
        lambda row: seen.append(row),
        lambda row: {**row}["n"],
        lambda row: [other["n"] for other in [row]],
        lambda row: row[row["s"]],
        lambda row: row["n"] + row.setdefault("m", 1),
        lambda row: eval("row.clear()"),
        lambda *rows: rows[0]["n"],
        lambda: 3,
    ],
)
def test_whatever_else_a_function_may_do(function: Callable[..., Any]) -> None:
    """``rules`` has a row in a function of its own: that is not looked into."""
    assert not only_reads(function)


@pytest.mark.parametrize("kind", [Kind.FILTER, Kind.SPLIT])
def test_a_row_goes_as_it_is_to_who_only_reads_unless_it_is_of_another_class(kind: Kind) -> None:
    """Of which to look a column up may change it."""
    got: list[Row] = []

    def notes(row: Row) -> bool:
        got.append(row)
        return row["n"] is None

    for made, own in (({"n": None}, True), (defaultdict(lambda: None), False)):
        out = Made()
        through([Step(kind, notes, reads=True)], [made], out, False)(repeat(None, 1))
        assert (got.pop() is made, out.rows) == (own, [made])
        assert own or not made
