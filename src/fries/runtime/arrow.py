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


def batch_of(frame: Any, schema: pa.Schema) -> pa.RecordBatch:  # noqa: ANN401
    """A pandas frame. Of text that is missing everywhere, Arrow may make a column of pieces."""
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False, nthreads=1)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def take(batch: pa.RecordBatch, rows: Integers) -> pa.RecordBatch:
    """Some rows, in a given order."""
    taken: pa.RecordBatch = batch.take(rows)
    return taken


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """As dicts: what ``to_pylist`` gives, in about half the time, for it is filled by column."""
    names = batch.schema.names
    if not names or len(set(names)) < len(names):
        return batch.to_pylist()
    first, *others = names
    rows: list[dict[str, Any]] = [{first: value} for value in batch.column(0).to_pylist()]
    for number, name in enumerate(others, 1):
        for row, value in zip(rows, batch.column(number).to_pylist(), strict=True):
            row[name] = value
    return rows


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
