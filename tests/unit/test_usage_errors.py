"""Which error says what: arguments, columns, and what a flow is built of."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fries
from fries import testing
from fries.errors import ArgumentError, FlowError, SchemaError, UsageError

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])
OTHER = pa.schema([pa.field("id", pa.int64())])


def rows(flow: str = "one", columns: pa.Schema = ROWS) -> fries.Stream:
    return fries.Flow(flow).source("rows", testing.stream(columns))


def wrong(value: object) -> Any:  # noqa: ANN401 - that is the point
    return value


@pytest.mark.parametrize(
    ("build", "kind", "where"),
    [
        (lambda: fries.Flow("x", groups=0), ArgumentError, "flow 'x'"),
        (lambda: fries.Flow(wrong(5)), ArgumentError, "flow"),
        (lambda: rows().map("A", wrong(5)), ArgumentError, "operator 'A'"),
        (lambda: rows().map("A", dict, batch=wrong("rows")), ArgumentError, "operator 'A'"),
        (lambda: rows().map("A", dict, switch_within=-1), ArgumentError, "operator 'A'"),
        (lambda: rows().filter("A", bool, shuffle="x"), SchemaError, "operator 'A'"),
        (lambda: rows().process("A", dict.get, "x"), SchemaError, "operator 'A'"),
        (lambda: rows().map("A", dict, wrong("id nonsense")), SchemaError, "schema"),
        (lambda: rows().union("U", rows("two")), FlowError, "operator 'U'"),
        (lambda: fries.Flow("x").output(), FlowError, "flow 'x'"),
        (lambda: rows().flow.plan(wrong("A")), ArgumentError, "the updates"),
    ],
)
def test_an_error_says_what_is_wrong(
    build: Callable[[], object], kind: type[UsageError], where: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert type(caught.value) is kind
    assert caught.value.where.startswith(where)
    assert str(caught.value) == f"{caught.value.where}: {caught.value.problem}"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (kind, str(caught.value))


def test_columns_of_a_union_must_be_the_same() -> None:
    stream = rows()
    narrow = stream.map("A", lambda row: {"id": row["id"]}, OTHER)
    with pytest.raises(SchemaError, match="make names, order and types equal"):
        stream.union("U", narrow)
