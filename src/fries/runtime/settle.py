"""Rows that functions return, as they would be after a conversion to Arrow and back.

Most rows need no conversion for that: their values have the very types that Arrow gives. That is
checked for all rows of a chunk at once, in C (msgspec). Values of other types are converted, by
column; what cannot be told cheaply is left to the strict way, which converts everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import is_, itemgetter
from sys import getrefcount
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from fries.runtime.arrow import Field
from fries.runtime.data import Data, Row
from fries.runtime.keeping import keeper, mutable
from fries.runtime.spec import OperatorSpec

MOST_SHAPES: Final = 8
"""Orders of columns in which a function may return its rows; with more of them, it is converted."""


class AgainError(Exception):
    """These rows must be processed again, the strict way."""


def _bounded(bits: int) -> Any:  # noqa: ANN401
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


_NO_INTEGER = Annotated[int, msgspec.Meta(ge=1, le=0)]
"""An integer in a column of floats becomes a float in Arrow, so it is none of the right type."""
_TYPES: Final[Mapping[pa.DataType, Any]] = {
    pa.int8(): _bounded(8) | None,
    pa.int16(): _bounded(16) | None,
    pa.int32(): _bounded(32) | None,
    pa.int64(): _bounded(64) | None,
    pa.float64(): _NO_INTEGER | float | None,
    pa.string(): str | None,
    pa.bool_(): bool | None,
}
"""Arrow types whose values are as they are in Python."""


def _alone() -> int:
    """References to a dict that nobody else has, as they are counted in a list of such dicts."""
    return sum(map(getrefcount, [{}]))


ALONE: Final = _alone()


@lru_cache
def column(kind: pa.DataType) -> Any:  # noqa: ANN401
    """What the values of a column must be like."""
    return GenericAlias(list, _TYPES[kind])


@lru_cache
def shape(fields: tuple[tuple[str, pa.DataType | None], ...]) -> Any:  # noqa: ANN401
    """What rows must be like, given the columns in their order; without a type: anything.

    Made once for all versions of all operators with these columns: a type is never quite gone.
    """
    row = msgspec.defstruct(
        "Row",
        [
            (f"f{number}", Any if kind is None else _TYPES[kind])
            for number, (_, kind) in enumerate(fields)
        ],
        rename={f"f{number}": name for number, (name, _) in enumerate(fields)},
        forbid_unknown_fields=True,
        gc=False,
    )
    return GenericAlias(list, row)


class Settler:
    """Settles what one version of an operator returns."""

    def __init__(self, spec: OperatorSpec) -> None:
        names = spec.schema.names
        self._spec = spec
        self.strict = len(set(names)) < len(names) or any_nested(spec.schema)
        """Whether everything must be converted: the values of nested types can be changed."""
        self.keep: Callable[[Any], Any] | None = None
        """Copies a returned row, if the function keeps what it returns."""
        self._keep_values = keeper(spec)
        self._converted = {field.name for field in spec.schema if field.type not in _TYPES}
        """Columns whose values are converted by Arrow."""
        self._shapes: dict[tuple[str, ...], Any] = {}
        """By order of their columns, what rows must be like."""

    def before(self, schema: pa.Schema, rows: Sequence[Row]) -> dict[str, list[Any]]:
        """Columns that are converted, as they are before the function: it may leave them alone."""
        return {
            name: list(map(itemgetter(name), rows))
            for name in self._converted
            if name in schema.names
            and schema.field(name).type == self._spec.schema.field(name).type
        }

    def settled(
        self,
        rows: list[Row],
        before: Mapping[str, list[Any]],
        converted: Callable[[Field, list[Any]], list[Any]],
    ) -> Data:
        """Rows that a function has just returned."""
        if rows:
            self._check(rows)
        for name in self._converted:
            values = list(map(itemgetter(name), rows))
            if name in before and all(map(is_, values, before[name])):
                continue
            self.check_values(values)
            field = self._spec.schema.field(name)
            for row, value in zip(rows, converted(field, values), strict=True):
                row[name] = value
        return Data.of_rows(self._spec.schema, rows)

    def handed_on(self, rows: list[Row]) -> Data:
        """Rows that a function has just returned, for the next function of a run."""
        self.check_alone(rows)
        self.check_values(chain.from_iterable(map(dict.values, rows)))
        return Data.of_rows(self._spec.schema, rows, raw=True)

    def check_alone(self, rows: list[Row]) -> None:
        """See that nobody else has these rows, the caller aside."""
        if not rows or self.keep is not None:
            return
        if type(rows[0]) is not dict or sum(map(getrefcount, rows)) > ALONE * len(rows):
            self.keep = dict.copy
            raise AgainError

    def check_values(self, values: Iterable[Any]) -> None:
        """See that no value can change while the function is called on other rows."""
        if self.keep is not self._keep_values and mutable(values):
            self.keep = self._keep_values
            raise AgainError

    def _check(self, rows: list[Row]) -> None:
        """See that rows are of the right types, and that nobody else has them."""
        self.check_alone(rows)
        for _ in range(2):
            try:
                msgspec.convert(rows, self._shape(rows[0]))
            except msgspec.ValidationError:
                self._learn(rows)
            else:
                return
        raise AgainError

    def _shape(self, row: Row) -> Any:  # noqa: ANN401
        order = tuple(row)
        if order not in self._shapes:
            if len(self._shapes) == MOST_SHAPES or set(order) != set(self._spec.schema.names):
                raise AgainError
            self._shapes[order] = shape(tuple((name, self._type(name)) for name in order))
        return self._shapes[order]

    def _type(self, name: str) -> pa.DataType | None:
        return None if name in self._converted else self._spec.schema.field(name).type

    def _learn(self, rows: list[Row]) -> None:
        """Have the columns converted whose values are of other types."""
        other = set()
        for name in set(self._spec.schema.names) - self._converted:
            try:
                msgspec.convert([row[name] for row in rows], column(self._type(name)))
            except (msgspec.ValidationError, KeyError):
                other.add(name)
        self._converted |= other
        self._shapes = {}


def any_nested(schema: pa.Schema) -> bool:
    """Whether rows of these columns may have values that can be changed."""
    return any(map(_is_nested, schema))


def _is_nested(field: Field) -> bool:
    return bool(pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type))
