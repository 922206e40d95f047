"""A few of Arrow's functions with the types that they have; its stubs do not know them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = "pa.Array[Any]"
Field: TypeAlias = "pa.Field[Any]"
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of the same columns as one."""
    whole: pa.RecordBatch = pa.concat_batches(list(batches))  # type: ignore[attr-defined]
    return whole


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own."""
    return concat_batches([batch])  # Arrow copies here, even if there is just one


def take(batch: pa.RecordBatch, rows: Integers) -> pa.RecordBatch:
    """Some rows, in a given order."""
    taken: pa.RecordBatch = batch.take(rows)
    return taken


def nulls(size: int, kind: pa.DataType) -> Array:
    """A column without values."""
    made: Array = pa.nulls(size, kind)  # type: ignore[call-overload]
    return made


def integers(array: Array) -> Integers:
    """The values of a column of 64-bit integers without nulls."""
    values: Integers = array.to_numpy(zero_copy_only=False)
    return values


def booleans(array: Array) -> Booleans:
    """The values of a column of truth values without nulls."""
    values: Booleans = array.to_numpy(zero_copy_only=False)
    return values
