"""How values of every type travel: exactly, also through the pandas frames that Spark makes."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.runtime.columns import codec_of

Values = st.SearchStrategy[Any]


def whole(bits: int) -> Values:
    """Integers of some width, often at its ends and where a float would round."""
    most = 2 ** (bits - 1) - 1
    edges = [n for n in (-most - 1, most, 2**53 + 1, -(2**53) - 1) if -most - 1 <= n <= most]
    return st.sampled_from(edges) | st.integers(-most - 1, most)


def decimals(digits: int, scale: int) -> Values:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale, _WIDE))


_WIDE = Context(prec=50)
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
TEXTS = st.text(max_size=5) | st.sampled_from(["", "a\0b", "NaN", "ü"])
STRUCT = pa.struct([("n", pa.int64()), ("t", pa.string())])
STRUCTS = st.fixed_dictionaries({"n": st.none() | whole(64), "t": st.none() | TEXTS})
KINDS: dict[pa.DataType, Values] = {
    pa.bool_(): st.booleans(),
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([float("nan"), -0.0]),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("s"): MOMENTS.map(lambda moment: moment.replace(microsecond=0)),
    pa.duration("us"): st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6)),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.decimal128(5, 0): decimals(5, 0),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): st.binary(max_size=5),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats(), max_size=3),
    pa.list_(pa.list_(pa.int64())): st.lists(st.lists(whole(64), max_size=2), max_size=2),
    STRUCT: STRUCTS,
    pa.list_(STRUCT): st.lists(st.none() | STRUCTS, max_size=2),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(TEXTS, st.none() | whole(64)), max_size=3, unique_by=lambda pair: pair[0]
    ),
}
"""Every type that can travel, with values of it."""
EASY = (pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary())
"""Types that pandas leaves alone, if there are no nulls where it has no place for them."""


def schema(**types: pa.DataType) -> pa.Schema:
    """Columns by name; Arrow's own stubs know no columns of different types."""
    return pa.schema(types)


def columns_of(kind: pa.DataType, max_size: int = 8) -> st.SearchStrategy[pa.Array[Any]]:
    """Columns of a type, with nulls."""
    values = st.lists(st.none() | KINDS[kind], max_size=max_size)
    return values.map(lambda listed: pa.array(listed, type=kind))


def exact(column: pa.Array[Any]) -> tuple[pa.DataType, list[str]]:
    """A column so that equal means equal: NaN as itself, minus zero unlike zero."""
    return column.type, [repr(value) for value in column.to_pylist()]


def through_pandas(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What Spark does to rows between a shuffle and a stateful Python worker."""
    tuples = list(rows.to_pandas().itertuples(index=False, name=None))
    frame = pd.DataFrame(tuples, columns=rows.schema.names)
    return pa.RecordBatch.from_pandas(frame, schema=rows.schema, preserve_index=False)


KIND = pytest.mark.parametrize("kind", KINDS, ids=str)


@KIND
def test_a_type_travels_as_one_that_pandas_leaves_alone(kind: pa.DataType) -> None:
    codec = codec_of(kind)
    assert codec.type in EASY or (pa.types.is_decimal(kind) and codec.type == kind)
    assert codec.filled == (codec.type in (pa.bool_(), pa.int64(), pa.float64()))


@KIND
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_is_encoded_has_its_type_and_no_null_where_those_are_filled(
    kind: pa.DataType, data: st.DataObject
) -> None:
    codec, column = codec_of(kind), data.draw(columns_of(kind))
    encoded = codec.encode(column)
    assert encoded.type == codec.type
    assert len(encoded) == len(column)
    assert encoded.null_count == (0 if codec.filled else column.null_count)


@KIND
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_values_come_back_as_they_were(kind: pa.DataType, data: st.DataObject) -> None:
    codec, column = codec_of(kind), data.draw(columns_of(kind))
    kept = column.drop_null() if codec.filled else column
    assert exact(codec.decode(codec.encode(kept))) == exact(kept)


@KIND
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_values_come_back_through_pandas(kind: pa.DataType, data: st.DataObject) -> None:
    codec, column = codec_of(kind), data.draw(columns_of(kind))
    kept = column.drop_null() if codec.filled else column
    rows = pa.RecordBatch.from_arrays([codec.encode(kept)], names=["column"])
    assert exact(codec.decode(through_pandas(rows).column(0))) == exact(kept)


@KIND
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_part_of_a_column_travels_like_a_whole_one(
    kind: pa.DataType, data: st.DataObject
) -> None:
    codec, column = codec_of(kind), data.draw(columns_of(kind))
    part = column.slice(len(column) // 3, len(column) // 2)
    kept = part.filter(part.is_valid()) if codec.filled else part
    assert exact(codec.decode(codec.encode(kept))) == exact(kept)


def test_moments_that_no_date_of_python_can_hold_travel_too() -> None:
    far = pa.array([-(2**63) + 1, 2**63 - 1, 0]).cast(pa.timestamp("us", "UTC"))
    codec = codec_of(far.type)
    rows = pa.RecordBatch.from_arrays([codec.encode(far)], names=["column"])
    back = codec.decode(through_pandas(rows).column(0))
    assert back.type == far.type
    assert np.array_equal(back.cast(pa.int64()).to_numpy(), far.cast(pa.int64()).to_numpy())
