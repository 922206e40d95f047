"""The join of a stream with a static table, against a nested loop, and what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fries.errors import UsageError
from fries.runtime.lookup import Lookup

How = Literal["inner", "left"]
Rows = list[tuple[Any, ...]]
HOWS: tuple[How, ...] = ("inner", "left")
KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.none() | st.sampled_from([-1, 0, 1, 2**53, 2**53 + 1, -(2**63)]),
    pa.int8(): st.none() | st.integers(-2, 2),
    pa.string(): st.none() | st.sampled_from(["", "a", "b", "a\0", "ü"]),
}


def nested_loop(stream: Rows, table: Rows, keys: int, how: How) -> tuple[Rows, list[int]]:
    """The join as it is defined; the keys are the first columns on both sides."""
    joined: Rows = []
    parents: list[int] = []
    for number, row in enumerate(stream):
        key = row[:keys]
        found = [other[keys:] for other in table if None not in key and other[:keys] == key]
        if not found and how == "left":
            found = [(None,)]
        joined.extend(row + other for other in found)
        parents.extend([number] * len(found))
    return joined, parents


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def columns(rows: Rows, schema: pa.Schema) -> list[pa.Array[Any]]:
    return [
        pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)
    ]


def numbered(keys: Rows) -> Rows:
    """Keys as rows that can be told apart."""
    return [(*key, number) for number, key in enumerate(keys)]


def lookup(how: How = "inner", **table: list[Any]) -> Lookup:
    return Lookup(pa.table(table), ("k",), how)


def batch_of(**stream: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(stream)


@st.composite
def joins(draw: st.DrawFn) -> tuple[list[pa.DataType], Rows, Rows, How]:
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2))
    rows = st.lists(st.tuples(*(KEYS[kind] for kind in kinds)), max_size=8)
    return kinds, numbered(draw(rows)), numbered(draw(rows)), draw(st.sampled_from(HOWS))


@given(joins(), st.integers(0, 8), st.integers(0, 8))
def test_it_is_the_nested_loop(
    case: tuple[list[pa.DataType], Rows, Rows, How], cut: int, skipped: int
) -> None:
    kinds, stream, table, how = case
    names = [f"k{place}" for place in range(len(kinds))]
    fields = list(zip(names, kinds, strict=True))
    ours = pa.schema([*fields, ("n", pa.int64())])
    theirs = pa.schema([*fields, ("v", pa.int64())])
    whole = pa.Table.from_arrays(columns(table, theirs), schema=theirs)
    # Pieces and offsets are as real tables and batches have them.
    pieces = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    batch = pa.RecordBatch.from_arrays(columns(stream, ours), schema=ours).slice(skipped)

    join = Lookup(pieces, tuple(names), how)
    joined, parents = join(batch)

    expected, expected_parents = nested_loop(stream[skipped:], table, len(kinds), how)
    joined.validate(full=True)
    assert joined.schema == join.schema(ours)
    assert rows_of(joined) == expected
    if expected_parents == list(range(batch.num_rows)):
        assert parents is None
    else:
        assert parents is not None
        assert parents.dtype == np.int64
        assert parents.tolist() == expected_parents
    keys = [row[:-1] for row in table if None not in row[:-1]]
    assert join.unique == (len(set(keys)) == len(keys))


def test_matches_are_in_the_order_of_the_stream_and_then_of_the_table() -> None:
    join = lookup(k=[2, 1, 2, 1, 2], v=["a", "b", "c", "d", "e"])
    joined, parents = join(batch_of(k=[1, 3, 2, 1]))
    assert joined.to_pydict() == {"k": [1, 1, 2, 2, 2, 1, 1], "v": list("bdacebd")}
    assert parents is not None
    assert parents.tolist() == [0, 0, 2, 2, 2, 3, 3]


def test_as_many_rows_out_as_in_are_not_one_for_one() -> None:
    joined, parents = lookup(k=[1, 1], v=["a", "b"])(batch_of(k=[1, 2]))
    assert joined.to_pydict() == {"k": [1, 1], "v": ["a", "b"]}
    assert parents is not None
    assert parents.tolist() == [0, 0]


def test_a_left_join_keeps_rows_without_a_match_once() -> None:
    joined, parents = lookup("left", k=[1, None], v=["a", "b"])(batch_of(k=[None, 1, 5]))
    assert joined.to_pydict() == {"k": [None, 1, 5], "v": [None, "a", None]}
    assert parents is None


def test_large_integers_are_exact_beside_nulls() -> None:
    large = 2**53
    join = lookup(k=[large, None, large + 1, 2**63 - 1], v=["a", "b", "c", "d"])
    joined, _ = join(batch_of(k=[large + 1, None, large, large + 2, 2**63 - 1]))
    assert joined.to_pydict() == {"k": [large + 1, large, 2**63 - 1], "v": ["c", "a", "d"]}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((kind, [0, 1, 100]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((kind, [0, 1, 200]) for kind in (pa.uint8(), pa.uint16(), pa.uint32())),
        (pa.uint64(), [0, 2**64 - 1, 2**63]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
        (pa.timestamp("us"), [dt.datetime(1960, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(y, 1, 1, tzinfo=dt.UTC) for y in (1960, 2024)]),
        (pa.duration("us"), [dt.timedelta(0), dt.timedelta(microseconds=1)]),
        (pa.decimal128(38, 2), [Decimal("0.10"), Decimal(2**64) / 100, Decimal("-0.10")]),
        (pa.decimal128(38, 0), [Decimal(1), Decimal(2**64 + 1), Decimal(2**65)]),
        (pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
        (pa.large_binary(), [b"", b"a"]),
        (pa.binary(2), [b"ab", b"\0\0"]),
        (pa.string(), ["a", "a\0", "", "a\0b", "ä", "A"]),
        (pa.large_string(), ["a", "a\0", "", "A"]),
    ],
    ids=str,
)
def test_types_of_keys(kind: pa.DataType, values: list[Any]) -> None:
    *known, unknown = values
    table = pa.table({"k": pa.array([*known, None], kind), "v": range(len(values))})
    stream = [None, unknown, *reversed(known)]
    batch = pa.record_batch([pa.array([None, *stream], kind)], names=["k"]).slice(1)
    joined, parents = Lookup(table, ("k",))(batch)
    assert joined.to_pydict() == {"k": stream[2:], "v": [*range(len(known))][::-1]}
    assert parents is not None
    assert parents.tolist() == [*range(2, len(stream))]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.string(), pa.decimal128(20, 0)])
def test_nothing_to_join(how: How, kind: pa.DataType) -> None:
    theirs, ours = pa.schema([("k", kind), ("v", pa.string())]), pa.schema([("k", kind)])
    join = Lookup(theirs.empty_table(), ("k",), how)
    assert join.unique
    empty, parents = join(pa.RecordBatch.from_pylist([], schema=ours))
    assert (empty.num_rows, parents) == (0, None)
    assert empty.schema == join.schema(ours)
    unmatched, _ = join(pa.RecordBatch.from_pylist([{"k": None}], schema=ours))
    assert unmatched.to_pylist() == ([{"k": None, "v": None}] if how == "left" else [])


def test_keys_may_have_other_names_in_the_table() -> None:
    table = pa.table({"v": ["x", "y"], "id": [1, 2], "day": ["mon", "mon"]})
    join = Lookup(table, ("d", "user"), to=("day", "id"))
    joined, _ = join(batch_of(user=[2, 1, 2], d=["mon", "mon", "tue"]))
    assert joined.to_pydict() == {"user": [2, 1], "d": ["mon", "mon"], "v": ["y", "x"]}


@pytest.mark.parametrize("key", [(2, "z"), (2, "y"), (0, "y"), (0, "z")])
def test_a_key_that_is_not_in_the_table_is_no_other_key(key: tuple[int, str]) -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    joined, _ = Lookup(table, ("a", "b"))(batch_of(a=[key[0]], b=[key[1]]))
    assert joined.num_rows == 0


def test_a_table_of_keys_only_is_a_filter() -> None:
    joined, _ = lookup(k=[1, 3])(batch_of(k=[1, 2, 3], x=["a", "b", "c"]))
    assert joined.to_pydict() == {"k": [1, 3], "x": ["a", "c"]}


def test_appended_columns_are_nullable() -> None:
    never = pa.field("v", pa.int64(), nullable=False)
    key = pa.field("k", pa.int64(), nullable=False)
    table = pa.table({"k": [1], "v": [2]}, schema=pa.schema([key, never]))
    stream = pa.schema([key])
    assert Lookup(table, ("k",)).schema(stream) == pa.schema([key, never.with_nullable(True)])


def test_the_index_is_built_once_and_does_not_travel() -> None:
    join = Lookup(pa.table({"id": [1, 2], "v": ["a", "b"]}), ("k",), "left", ("id",))
    batch = batch_of(k=[2, 3])
    assert "_index" not in vars(join)
    expected, _ = join(batch)
    built = vars(join)["_index"]
    join(batch)
    assert vars(join)["_index"] is built

    copy = pickle.loads(pickle.dumps(join))
    assert "_index" not in vars(copy)
    assert copy(batch)[0].equals(expected)


def test_batches_with_other_columns_one_after_the_other() -> None:
    join = lookup(k=[1], v=["a"])
    assert join(batch_of(k=[1]))[0].to_pydict() == {"k": [1], "v": ["a"]}
    assert join(batch_of(x=[0], k=[1]))[0].to_pydict() == {"x": [0], "k": [1], "v": ["a"]}


@pytest.mark.parametrize(
    ("on", "to", "problem"),
    [
        ((), None, "lookup: it has no key; name at least one column"),
        (("k",), ("k", "v"), "matches 1 columns of the stream with 2 of the table"),
        (("x",), None, "the table has no columns named 'x'; name one of its columns: k, v"),
        (("k",), ("x",), "lookup on k: the table has no columns named 'x'"),
    ],
)
def test_keys_that_are_refused(
    on: tuple[str, ...], to: tuple[str, ...] | None, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        Lookup(pa.table({"k": [1], "v": [2]}), on, to=to)


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.float32(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
    ],
    ids=str,
)
def test_types_that_cannot_be_matched_exactly(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match=r"key 'k' is .*, which cannot be matched exactly; use"):
        Lookup(pa.schema([("k", kind)]).empty_table(), ("k",))


def test_an_unknown_join() -> None:
    with pytest.raises(UsageError, match="there is no join 'outer'; choose 'inner' or 'left'"):
        Lookup(pa.table({"k": [1]}), ("k",), "outer")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        ({"x": [1]}, "the stream has no columns named 'k'"),
        ({"k": ["1"]}, "key 'k' of the stream is string, and key 'k' of the table is int64; cast"),
        ({"k": [1], "v": [1]}, "two columns named 'v'; rename or drop it in the table"),
    ],
)
def test_streams_that_are_refused(stream: dict[str, list[Any]], problem: str) -> None:
    join = lookup(k=[1], v=["a"])
    batch = batch_of(**stream)
    with pytest.raises(UsageError, match=problem):
        join.schema(batch.schema)
    with pytest.raises(UsageError, match=problem):
        join(batch)
