"""A stream joined with a static table, one chunk of rows after the other.

The table travels once to each worker. The index of its keys is built there, on first use,
and serves every chunk: a probe is then a few passes over arrays and no Python loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fries.errors import SchemaError
from fries.runtime.arrow import Integers

if TYPE_CHECKING:
    import pandas as pd

Words: TypeAlias = "list[npt.NDArray[Any]]"
"""Keys as arrays of int64 or of bytes, equal in all of them if and only if equal."""


class Lookup:
    """A join with a table by equal keys, as in SQL: a null is equal to nothing.

    A pickle holds the table and the parameters, never the index.
    """

    def __init__(
        self,
        table: pa.Table,
        on: tuple[str, ...],
        how: Literal["inner", "left"] = "inner",
        to: tuple[str, ...] | None = None,
    ) -> None:
        self._table = table
        self._on = on
        self._how = how
        self._to = on if to is None else to
        self._where = f"lookup on {', '.join(on)}" if on else "lookup"
        self._checked: tuple[pa.Schema, pa.Schema] | None = None
        if not on:
            raise SchemaError(self._where, "it has no key; name at least one column to match")
        if how not in ("inner", "left"):
            raise SchemaError(self._where, f"there is no join {how!r}; choose 'inner' or 'left'")
        if len(self._to) != len(on):
            raise SchemaError(
                self._where,
                f"it matches {len(on)} columns of the stream with {len(self._to)} of the table; "
                "name as many in the table, in the same order",
            )
        for key in self._to:
            self._check_exact(key, self._key_type(table.schema, key, "table"))
        self._appended = [field for field in table.schema if field.name not in self._to]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._table, self._on, self._how, self._to)

    def with_table(self, table: pa.Table) -> Lookup:
        """The same lookup in another table."""
        return Lookup(table, self._on, self._how, self._to)

    @property
    def unique(self) -> bool:
        """Whether no key occurs twice in the table; keys with a null do not count."""
        return self._index.unique

    def schema(self, stream: pa.Schema) -> pa.Schema:
        """The stream's columns and then the table's, without its keys."""
        for key, match in zip(self._on, self._to, strict=True):
            ours, theirs = self._key_type(stream, key, "stream"), self._table.schema.field(match)
            if ours != theirs.type:
                raise SchemaError(
                    self._where,
                    f"key {key!r} of the stream is {ours}, and key {match!r} of the table is "
                    f"{theirs.type}; cast one of them",
                )
        made = pa.schema([*stream, *(field.with_nullable(True) for field in self._appended)])
        for field in self._appended:
            if made.names.count(field.name) > 1:
                raise SchemaError(
                    self._where,
                    f"there would be two columns named {field.name!r}; "
                    "rename or drop it in the table",
                )
        return made

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Integers | None]:
        """Join a batch, in its order; also give for each output row its input row.

        Matches of one row are in the order of the table. ``None`` instead of the numbers
        of the input rows means one for one, in order.
        """
        if self._checked is None or self._checked[0] != batch.schema:
            self._checked = batch.schema, self.schema(batch.schema)
        rows, parents = self._index.probe([batch.column(key) for key in self._on])
        ours = batch if parents is None else batch.take(parents)
        # A row without a match has the row -1, only in a left join.
        taken = pa.array(rows, pa.int64(), mask=rows < 0 if self._how == "left" else None)
        theirs = [column.take(taken) for column in self._columns]
        return pa.record_batch([*ours.columns, *theirs], schema=self._checked[1]), parents

    @cached_property
    def _index(self) -> _Index:
        keys = [self._table.column(key).combine_chunks() for key in self._to]
        return _Index(keys, keep_unmatched=self._how == "left")

    @cached_property
    def _columns(self) -> list[pa.Array[Any]]:
        """The columns to append, each in one piece, from which rows are taken fastest."""
        return [self._table.column(field.name).combine_chunks() for field in self._appended]

    def _key_type(self, schema: pa.Schema, key: str, whose: str) -> pa.DataType:
        count = schema.names.count(key)
        if count != 1:
            raise SchemaError(
                self._where,
                f"the {whose} has {count or 'no'} columns named {key!r}; "
                f"name one of its columns: {', '.join(schema.names)}",
            )
        kind: pa.DataType = schema.field(key).type
        return kind

    def _check_exact(self, key: str, kind: pa.DataType) -> None:
        if not (_is_bits(kind) or _is_bytes(kind)):
            raise SchemaError(
                self._where,
                f"key {key!r} is {kind}, which cannot be matched exactly; use integers, "
                "decimals, strings, binary, booleans, dates or timestamps",
            )


class _Index:
    """The rows of a table by key."""

    def __init__(self, keys: list[pa.Array[Any]], *, keep_unmatched: bool) -> None:
        valid = _valid(keys)
        if valid is not None:
            keys = [key.filter(pa.array(valid)) for key in keys]
        self._codes, codes = _Codes.of(_words(keys))
        rows = np.arange(len(codes)) if valid is None else np.flatnonzero(valid)
        counts = np.bincount(codes)
        self.unique = len(counts) == len(codes)
        # Code -1, a key that is not in the table, finds the last entry of each of these.
        self._rows: Integers = np.append(rows[np.argsort(codes, kind="stable")], -1)
        self._counts: Integers = np.append(counts, int(keep_unmatched))
        self._starts: Integers = np.append(np.cumsum(counts) - counts, len(codes))

    def probe(self, keys: list[pa.Array[Any]]) -> tuple[Integers, Integers | None]:
        """For each match the row of the table (-1: none, but kept), and which probe it is of."""
        codes = self._codes.find(_words(keys))
        valid = _valid(keys)
        if valid is not None:
            codes[~valid] = -1
        counts, starts = self._counts[codes], self._starts[codes]
        if (counts == 1).all():
            return self._rows[starts], None
        probes = np.repeat(np.arange(len(codes)), counts)
        before = np.cumsum(counts) - counts
        return self._rows[np.arange(len(probes)) + (starts - before)[probes]], probes


class _Codes(NamedTuple):
    """The distinct keys of a table, numbered from 0.

    A further array of a key is numbered by itself. Then the pairs of both numbers are
    numbered, so that all numbers stay below the number of rows, and no pair overflows.
    """

    first: pd.Index[Any]
    further: list[tuple[pd.Index[Any], pd.Index[Any]]]

    @classmethod
    def of(cls, words: Words) -> tuple[_Codes, Integers]:
        """Number the keys of a table; also give the number of each row."""
        codes, first = _factorize(words[0])
        further = []
        for word in words[1:]:
            own, values = _factorize(word)
            codes, pairs = _factorize(_pair(codes, own, len(values)))
            further.append((values, pairs))
        return cls(first, further), codes

    def find(self, words: Words) -> Integers:
        """The number of each key, -1 for a key that is not in the table."""
        codes = _find(self.first, words[0])
        for word, (values, pairs) in zip(words[1:], self.further, strict=True):
            codes = _find(pairs, _pair(codes, _find(values, word), len(values)))
        return codes


def _pair(codes: Integers, own: Integers, size: int) -> Integers:
    """One number for two, where a -1 in either makes a number that no other pair has."""
    return codes * (size + 1) + (own + 1)


def _factorize(word: npt.NDArray[Any]) -> tuple[Integers, pd.Index[Any]]:
    import pandas as pd

    codes, values = pd.factorize(word)
    return codes, pd.Index(values, dtype=word.dtype)


def _find(values: pd.Index[Any], word: npt.NDArray[Any]) -> Integers:
    import pandas as pd

    # With its dtype given, pandas does not guess another one.
    return values.get_indexer(pd.Index(word, dtype=word.dtype))


def _valid(keys: Iterable[pa.Array[Any]]) -> npt.NDArray[np.bool_] | None:
    """Which keys have no null; ``None``: all."""
    valid = [pc.is_valid(key).to_numpy(zero_copy_only=False) for key in keys if key.null_count]
    return np.logical_and.reduce(valid) if valid else None


def _words(keys: Iterable[pa.Array[Any]]) -> Words:
    return [word for key in keys for word in _split(key)]


def _split(key: pa.Array[Any]) -> Words:
    """A column as its bits, which are exact whatever is null, or as objects of type bytes.

    Where a value is null, its bits are arbitrary. Strings are bytes too, because
    ``pd.factorize`` cuts them at a NUL character.
    """
    if pa.types.is_string(key.type) or pa.types.is_large_string(key.type):
        key = key.cast(pa.large_binary())
    if _is_bytes(key.type):
        return [key.to_numpy(zero_copy_only=False)]
    if pa.types.is_boolean(key.type):
        key = key.cast(pa.int8())
    width = key.type.bit_width // 8
    bits = np.dtype(f"i{min(width, 8)}")
    size = width // bits.itemsize
    buffer = key.buffers()[1]
    memory = b"" if buffer is None else memoryview(buffer)
    flat = np.frombuffer(memory, bits, (key.offset + len(key)) * size)[key.offset * size :]
    return list(flat.reshape(-1, size).T.astype(np.int64, order="C", copy=False))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_bits(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
    )
