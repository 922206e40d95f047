"""The flat rows of an exchange: what goes in comes out, whatever shares the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.runtime.arrow import concat_batches
from fries.runtime.chunks import Chunk
from fries.runtime.layout import EDGE, EPOCH, HASH, OUTPUT_NAME, TRANSACTION, Layout, Result
from tests.runtime.test_columns import KINDS, exact, through_pandas

Way = Callable[[pa.RecordBatch], pa.RecordBatch]
Shown = tuple[list[str], list[tuple[pa.DataType, list[str]]], list[int], list[int] | None]
NAMES = ("n", "N", "n__2", "ü", "a b", "_edge", "_epoch", "_txn", "_nulls0", "_hash", "_group")
WAYS: tuple[Way, ...] = (lambda rows: rows, through_pandas)
WAY = pytest.mark.parametrize("way", WAYS, ids=["straight", "through pandas"])
MASKS = st.integers(0, 2**63 - 1)


def shown(chunk: Chunk) -> Shown:
    """All that must survive."""
    columns = [exact(column) for column in chunk.batch.columns]
    txns = None if chunk.txns is None else chunk.txns.tolist()
    return chunk.batch.schema.names, columns, chunk.epochs.tolist(), txns


def chunk_of(**columns: pa.Array[Any]) -> Chunk:
    return Chunk.fresh(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def layout_of(chunks: dict[int, Chunk], audit: bool = False) -> Layout:
    return Layout({edge: chunk.batch.schema for edge, chunk in chunks.items()}, audit)


def sent(chunks: dict[int, Chunk], way: Way, audit: bool = False) -> dict[int, Chunk]:
    """Rows of several edges over one exchange, all in one batch of flat rows."""
    layout = layout_of(chunks, audit)
    flat = concat_batches([layout.encode(edge, chunk) for edge, chunk in chunks.items()])
    assert flat.schema == layout.schema
    return {edge: chunk for edge, chunk, _ in layout.decode(way(flat))}


@st.composite
def exchanges(draw: st.DrawFn, audit: bool) -> dict[int, Chunk]:
    """Edges with columns of few names and all types, and some rows of each."""
    chunks: dict[int, Chunk] = {}
    for edge in draw(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)):
        names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
        kinds = [draw(st.sampled_from(list(KINDS))) for _ in names]
        size = draw(st.integers(1, 4))
        lists = [
            draw(st.lists(st.none() | KINDS[kind], min_size=size, max_size=size)) for kind in kinds
        ]
        arrays = [pa.array(values, type=kind) for values, kind in zip(lists, kinds, strict=True)]
        arrays.append(pa.array(range(size)))
        batch = pa.RecordBatch.from_arrays(arrays, names=[*names, "row"])
        epochs, txns = (
            np.array(draw(st.lists(MASKS, min_size=size, max_size=size)), dtype=np.int64)
            for _ in range(2)
        )
        chunks[edge] = Chunk(batch, epochs, txns if audit else None)
    return chunks


@WAY
@pytest.mark.parametrize("audit", [False, True])
@given(data=st.data())
@settings(deadline=None)
def test_rows_of_several_edges_come_back_as_they_were(
    way: Way, audit: bool, data: st.DataObject
) -> None:
    chunks = data.draw(exchanges(audit))
    found = sent(chunks, way, audit)
    assert {edge: shown(chunk) for edge, chunk in found.items()} == {
        edge: shown(chunk) for edge, chunk in chunks.items()
    }


@WAY
def test_null_and_nan_are_kept_apart(way: Way) -> None:
    chunk = chunk_of(x=pa.array([None, float("nan"), 0.0]), y=pa.array([float("nan")] * 3))
    assert shown(sent({0: chunk}, way)[0]) == shown(chunk)


@WAY
def test_nan_is_no_null_also_where_nothing_is_null(way: Way) -> None:
    chunk = chunk_of(x=pa.array([float("nan")]))
    assert shown(sent({0: chunk}, way)[0]) == shown(chunk)


@WAY
@pytest.mark.parametrize("values", [[True], [True, False], [None, True, False]])
def test_truth_values_with_and_without_nulls(way: Way, values: list[bool | None]) -> None:
    chunk = chunk_of(b=pa.array(values))
    assert sent({0: chunk}, way)[0].batch.to_pydict() == {"b": values}


@WAY
def test_columns_of_nothing_but_nulls(way: Way) -> None:
    chunk = chunk_of(**{f"c{n}": pa.array([None, None], kind) for n, kind in enumerate(KINDS)})
    assert shown(sent({0: chunk}, way)[0]) == shown(chunk)


@WAY
def test_edges_may_use_one_name_for_different_types(way: Way) -> None:
    chunks = {
        0: chunk_of(x=pa.array([1, None])),
        1: chunk_of(x=pa.array(["text", None])),
        2: chunk_of(x=pa.array([[1], None])),
        3: chunk_of(x=pa.array([0.5, None])),
    }
    assert {edge: chunk.batch.to_pydict()["x"] for edge, chunk in sent(chunks, way).items()} == {
        0: [1, None],
        1: ["text", None],
        2: [[1], None],
        3: [0.5, None],
    }


def test_columns_of_one_name_and_physical_type_are_shared() -> None:
    layout = layout_of(
        {
            0: chunk_of(x=pa.array([1]), t=pa.array(["a"])),
            1: chunk_of(t=pa.array(["b"]), x=pa.array([1], pa.int32())),
        }
    )
    assert layout.schema.names == [EDGE, EPOCH, "_nulls0", "x", "t"]
    assert layout.physical(0, "x") == layout.physical(1, "x") == "x"


def test_no_two_names_of_a_layout_differ_only_in_case() -> None:
    """Spark could not tell them apart."""
    layout = layout_of(
        {
            0: chunk_of(user=pa.array([1]), USER=pa.array([2]), User=pa.array([3])),
            1: chunk_of(User=pa.array([4]), _EDGE=pa.array([5])),
        }
    )
    names = [name.lower() for name in layout.schema.names]
    assert len(names) == len(set(names))


@WAY
def test_names_that_differ_only_in_case(way: Way) -> None:
    chunks = {
        0: chunk_of(user=pa.array([1]), USER=pa.array([2]), User=pa.array(["three"])),
        1: chunk_of(User=pa.array([4]), user=pa.array([None], pa.int64())),
    }
    found = sent(chunks, way)
    assert found[0].batch.to_pylist() == [{"user": 1, "USER": 2, "User": "three"}]
    assert found[1].batch.to_pylist() == [{"User": 4, "user": None}]


@WAY
def test_a_name_that_is_made_up_may_be_that_of_another_column(way: Way) -> None:
    """One of two names that differ only in case travels with a number, as ``a__2``."""
    chunks = {
        0: chunk_of(A=pa.array([1]), a=pa.array([2]), a__2=pa.array([3])),
        1: chunk_of(a__2=pa.array([4]), a=pa.array([5]), A=pa.array([6])),
    }
    found = sent(chunks, way)
    assert found[0].batch.to_pylist() == [{"A": 1, "a": 2, "a__2": 3}]
    assert found[1].batch.to_pylist() == [{"a__2": 4, "a": 5, "A": 6}]


@WAY
def test_columns_may_be_called_like_those_of_the_system(way: Way) -> None:
    names = [EDGE, EPOCH, TRANSACTION, "_nulls0", HASH, "_operator", "_group", "_EDGE"]
    chunk = chunk_of(**{name: pa.array([number, None]) for number, name in enumerate(names)})
    found = sent({7: chunk}, way)
    assert list(found) == [7]
    assert shown(found[7]) == shown(chunk)


@WAY
@pytest.mark.parametrize("count", [62, 63, 64, 126, 127, 200])
def test_any_number_of_columns_may_be_null(way: Way, count: int) -> None:
    values = {f"c{n}": pa.array([n, None if n % 3 else n, None]) for n in range(count)}
    chunk = chunk_of(**values)
    layout = layout_of({0: chunk})
    masks = [name for name in layout.schema.names if name.startswith("_nulls")]
    assert len(masks) == -(-count // 63)
    assert shown(sent({0: chunk}, way)[0]) == shown(chunk)


@WAY
def test_audit_mode_carries_transactions(way: Way) -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    chunk = Chunk(batch, np.array([5, 2**62]), np.array([2**53 + 1, 2**63 - 1]))
    (found,) = sent({0: chunk}, way, audit=True).values()
    assert found.txns is not None
    assert found.txns.tolist() == [2**53 + 1, 2**63 - 1]
    assert found.epochs.tolist() == [5, 2**62]
    assert TRANSACTION not in layout_of({0: chunk}).schema.names


def test_no_rows_make_no_chunk() -> None:
    chunk = chunk_of(n=pa.array([], pa.int64()), t=pa.array([], pa.string()))
    layout = layout_of({0: chunk, 1: chunk_of(x=pa.array([0.5]))})
    flat = layout.encode(0, chunk)
    assert flat.schema == layout.schema
    assert flat.num_rows == 0
    assert list(layout.decode(flat)) == []
    assert list(layout.decode(through_pandas(flat))) == []


def test_rows_of_an_edge_keep_their_order_among_those_of_others() -> None:
    layout = Layout({1: pa.schema([("n", pa.int64())]), 4: pa.schema([("n", pa.int64())])}, False)
    rows = [(n, 4 if n % 3 else 1) for n in range(20)]
    flat = concat_batches([layout.encode(e, chunk_of(n=pa.array([n]))) for n, e in rows])
    found = {edge: chunk.batch.to_pydict()["n"] for edge, chunk, _ in layout.decode(flat)}
    assert found == {edge: [n for n, e in rows if e == edge] for edge in (1, 4)}


def test_hashes_that_spark_has_added_stay_with_their_rows() -> None:
    layout = Layout({0: pa.schema([("n", pa.int64())]), 1: pa.schema([("n", pa.int64())])}, False)
    flat = concat_batches([layout.encode(n % 2, chunk_of(n=pa.array([n]))) for n in range(6)])
    assert [hashes for *_, hashes in layout.decode(flat)] == [None, None]
    hashed = flat.append_column(HASH, pa.array([n * -(2**60) for n in range(6)]))
    for edge, chunk, hashes in layout.decode(hashed):
        assert hashes is not None
        assert hashes.tolist() == [n * -(2**60) for n in range(edge, 6, 2)]
        assert chunk.batch.to_pydict()["n"] == list(range(edge, 6, 2))


def test_a_single_output_is_given_as_it_is() -> None:
    chunk = chunk_of(n=pa.array([1, None]), t=pa.array(["a", "b"]))
    result = Result({3: ("output", chunk.batch.schema)})
    assert result.schema == chunk.batch.schema
    assert result.encode(3, chunk).equals(chunk.batch)


def test_several_outputs_are_told_apart_by_their_name() -> None:
    good = chunk_of(n=pa.array([1, None]), t=pa.array(["a", "b"]))
    bad = chunk_of(why=pa.array(["late"]), n=pa.array([2]))
    result = Result({3: ("good", good.batch.schema), 8: ("bad", bad.batch.schema)})
    assert result.schema.names == [OUTPUT_NAME, "n", "t", "why"]
    batches = [result.encode(3, good), result.encode(8, bad)]
    assert [batch.schema for batch in batches] == [result.schema] * 2
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {OUTPUT_NAME: "good", "n": 1, "t": "a", "why": None},
        {OUTPUT_NAME: "good", "n": None, "t": "b", "why": None},
        {OUTPUT_NAME: "bad", "n": 2, "t": None, "why": "late"},
    ]


def test_an_output_may_give_no_rows() -> None:
    none = chunk_of(n=pa.array([], pa.int64()))
    result = Result({0: ("a", none.batch.schema), 1: ("b", pa.schema([("t", pa.string())]))})
    assert result.encode(0, none).num_rows == 0
    assert result.encode(0, none).schema == result.schema
