"""The flat rows of an exchange: several edges, one table.

A row is its edge, its epoch, in audit mode its transaction, and the columns of that edge,
among the columns of all edges that cross the same exchange. Columns of one name and one
physical type are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fries.runtime.arrow import Array, Field, Integers, booleans, integers, nulls
from fries.runtime.chunks import Chunk
from fries.runtime.columns import Codec, codec_of

EDGE: Final = "_edge"
EPOCH: Final = "_epoch"
TRANSACTION: Final = "_txn"
NULLS: Final = "_nulls"
"""Bit masks that say which filled columns of a row are null; a number follows."""
HASH: Final = "_hash"
"""Hash of a row's key; added by Spark at an exchange."""
OPERATOR: Final = "_operator"
GROUP: Final = "_group"
"""Added by Spark before a grouped exchange: the keyed operator and its key group."""
MASK_BITS: Final = 63
"""Columns in one bit mask: a Spark long is signed."""


class Column(NamedTuple):
    """A column of an edge, and how it travels."""

    logical: Field
    physical: str
    codec: Codec
    bit: int
    """Number of its null bit; -1: it travels with its nulls."""


class Layout:
    """The columns of one exchange."""

    def __init__(self, schemas: Mapping[int, pa.Schema], audit: bool) -> None:
        self._schemas = dict(schemas)
        self._audit = audit
        self._types: dict[str, pa.DataType] = {}
        self._bits: dict[str, int] = {}
        self._edges = {edge: self._columns(schema) for edge, schema in schemas.items()}
        self._masks = [f"{NULLS}{n}" for n in range(-(-len(self._bits) // MASK_BITS))]
        system = [pa.field(EDGE, pa.int32()), pa.field(EPOCH, pa.int64())]
        if audit:
            system.append(pa.field(TRANSACTION, pa.int64()))
        system += [pa.field(mask, pa.int64()) for mask in self._masks]
        data = [pa.field(name, kind) for name, kind in self._types.items()]
        self.schema = pa.schema(system + data)

    def physical(self, edge: int, column: str) -> str:
        """Under which name a column of an edge travels."""
        return self.column(edge, column).physical

    def column(self, edge: int, name: str) -> Column:
        """How a column of an edge travels."""
        return next(one for one in self._edges[edge] if one.logical.name == name)

    def null_bit(self, column: Column) -> tuple[str, int]:
        """Where it is noted that a value of a filled column is null: a mask and a bit of it."""
        mask, bit = divmod(column.bit, MASK_BITS)
        return self._masks[mask], bit

    def encode(self, edge: int, chunk: Chunk) -> pa.RecordBatch:
        """Rows of an edge as flat rows."""
        size = len(chunk)
        arrays: dict[str, Array] = {
            EDGE: pa.array(np.full(size, edge, dtype=np.int32)),
            EPOCH: pa.array(chunk.epochs),
        }
        if chunk.txns is not None:
            arrays[TRANSACTION] = pa.array(chunk.txns)
        masks = np.zeros((len(self._masks), size), dtype=np.int64)
        for column in self._edges[edge]:
            values = chunk.batch.column(column.logical.name)
            if column.bit >= 0 and values.null_count:
                mask, bit = divmod(column.bit, MASK_BITS)
                masks[mask] |= booleans(values.is_null()).astype(np.int64) << bit
            arrays[column.physical] = column.codec.encode(values)
        arrays.update(zip(self._masks, map(pa.array, masks), strict=True))
        for name, kind in self._types.items():
            if name not in arrays:
                arrays[name] = self._nothing(name, kind, size)
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self.schema.names], schema=self.schema
        )

    def decode(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Chunk, Integers | None]]:
        """The rows of each edge, in their order, with the hashes of their keys if Spark has any."""
        edges = batch.column(EDGE)
        for edge in np.unique(integers(edges)).tolist():
            mine = pc.equal(edges, pa.scalar(edge, pa.int32()))
            whole = pc.all(mine).as_py()
            yield self._decode(edge, batch if whole else batch.filter(mine))

    def _decode(self, edge: int, rows: pa.RecordBatch) -> tuple[int, Chunk, Integers | None]:
        arrays = [self._logical(column, rows) for column in self._edges[edge]]
        data = pa.RecordBatch.from_arrays(arrays, schema=self._schemas[edge])
        txns = integers(rows.column(TRANSACTION)) if self._audit else None
        hashes = integers(rows.column(HASH)) if HASH in rows.schema.names else None
        return edge, Chunk(data, integers(rows.column(EPOCH)), txns), hashes

    def _logical(self, column: Column, rows: pa.RecordBatch) -> Array:
        values = column.codec.decode(rows.column(column.physical))
        if column.bit < 0:
            return values
        mask, bit = self.null_bit(column)
        missing = integers(rows.column(mask)) >> bit & 1
        if not missing.any():
            return values
        masked: Array = pc.if_else(pa.array(missing.astype(bool)), None, values)
        return masked

    def _columns(self, schema: pa.Schema) -> list[Column]:
        columns: list[Column] = []
        for field in schema:
            columns.append(self._column(field, {column.physical for column in columns}))
        return columns

    def _column(self, field: Field, used: set[str]) -> Column:
        """Give a column a place; one of the same name and type on another edge shares it."""
        codec = codec_of(field.type)
        name, count = field.name, 1
        taken = {other.lower() for other in self._types} | _SYSTEM
        while name in used or (name.lower() in taken and self._types.get(name) != codec.type):
            count += 1
            name = f"{field.name}__{count}"
        self._types[name] = codec.type
        if codec.filled:
            self._bits.setdefault(name, len(self._bits))
        return Column(field, name, codec, self._bits[name] if codec.filled else -1)

    def _nothing(self, name: str, kind: pa.DataType, size: int) -> Array:
        """A column that an edge does not have."""
        if name in self._bits:
            return pa.array(np.zeros(size, dtype=kind.to_pandas_dtype()), type=kind)
        return nulls(size, kind)


class Result:
    """The rows that the flow gives: one output as it is, several with their name."""

    def __init__(self, outputs: Mapping[int, tuple[str, pa.Schema]]) -> None:
        self.outputs = dict(outputs)
        """By edge, the name of the output and its columns."""
        schemas = [schema for _, schema in outputs.values()]
        if len(schemas) == 1:
            self.schema: pa.Schema = schemas[0]
        else:
            merged = pa.unify_schemas(schemas)
            self.schema = merged.insert(0, pa.field(OUTPUT_NAME, pa.string()))

    def encode(self, edge: int, chunk: Chunk) -> pa.RecordBatch:
        """Rows of an output edge as the user gets them."""
        name, schema = self.outputs[edge]
        if len(self.outputs) == 1:
            return chunk.batch
        size = len(chunk)
        arrays = [
            chunk.batch.column(field.name)
            if field.name in schema.names
            else nulls(size, field.type)
            for field in self.schema
            if field.name != OUTPUT_NAME
        ]
        names = pa.array(np.full(size, name, dtype=object), type=pa.string())
        return pa.RecordBatch.from_arrays([names, *arrays], schema=self.schema)


OUTPUT_NAME: Final = "_output"
"""Column that tells the rows of several outputs apart."""
_SYSTEM: Final = {EDGE, EPOCH, TRANSACTION, HASH, OPERATOR, GROUP} | {
    f"{NULLS}{number}" for number in range(64)
}
