"""Values on their way through Spark's exchanges, exactly.

Between a shuffle and a keyed Python stage, Spark hands rows over as pandas frames, which turn
integers with nulls into floats, cannot tell a null from a NaN, and shift timestamps by time
zones. So a column travels in a form that pandas leaves alone: numbers without nulls (those
are noted in a bit mask beside them), moments as integers, nested values as bytes.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from fries.runtime.arrow import Array

Convert: TypeAlias = "Callable[[Array], Array]"


class Codec(NamedTuple):
    """How the values of one type travel."""

    type: pa.DataType
    """What Spark sees."""
    encode: Convert
    decode: Convert
    filled: bool
    """Whether nulls are filled, and noted in the bit mask."""


def codec_of(kind: pa.DataType) -> Codec:
    """How values of a type travel."""
    for is_one, physical in _NUMBERS:
        if is_one(kind):
            return _number(kind, physical)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        return Codec(kind, _same, _same, filled=False)
    return Codec(pa.binary(), _pickled, lambda array: _unpickled(array, kind), filled=False)


def _number(kind: pa.DataType, physical: pa.DataType) -> Codec:
    wide = pa.int32() if pa.types.is_date32(kind) or pa.types.is_time32(kind) else physical

    nothing = pa.scalar(0).cast(physical)

    def encode(array: Array) -> Array:
        numbers: Array = array.cast(wide).cast(physical)
        return numbers.fill_null(nothing)

    def decode(array: Array) -> Array:
        if array.null_count:  # what was filled comes without nulls: pandas has taken a NaN for one
            array = array.fill_null(math.nan)
        return array.cast(wide).cast(kind)

    return Codec(physical, encode, decode, filled=True)


def _same(array: Array) -> Array:
    return array


def _pickled(array: Array) -> Array:
    values = [None if value is None else pickle.dumps(value) for value in array.to_pylist()]
    return pa.array(values, type=pa.binary())


def _unpickled(array: Array, kind: pa.DataType) -> Array:
    values = [None if value is None else pickle.loads(value) for value in array.to_pylist()]
    return pa.array(values, type=kind)


_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_date32, pa.int64()),
    (pa.types.is_timestamp, pa.int64()),
    (pa.types.is_duration, pa.int64()),
)
