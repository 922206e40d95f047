"""Numbers with a fraction where a column has integers: Arrow would cut it off without a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa


def fractions(kind: pa.DataType, values: Iterable[Any]) -> Iterator[Any]:
    """The values that are no integers and would become some, also inside of lists and structs."""
    if pa.types.is_integer(kind):
        for value in values:
            if type(value) is not int and value is not None and _has_fraction(value):
                yield value
    elif pa.types.is_nested(kind) and _has_integers(kind):
        for value in values:
            if value is not None:
                yield from _inside(kind, value)


def _has_fraction(value: object) -> bool:
    if isinstance(value, float | np.floating):
        return not float(value).is_integer()
    return isinstance(value, Decimal) and value != value.to_integral_value()


def _has_integers(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_integers(kind.field(n).type) for n in range(kind.num_fields))
    return pa.types.is_integer(kind)


def _inside(kind: pa.DataType, value: Any) -> Iterator[Any]:  # noqa: ANN401
    """The same in one value of a nested type; what has another shape Arrow refuses by itself."""
    if pa.types.is_map(kind):
        pairs = list(value.items() if isinstance(value, Mapping) else value)
        yield from fractions(kind.key_type, (key for key, _ in pairs))
        yield from fractions(kind.item_type, (item for _, item in pairs))
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            field = kind.field(number)
            if isinstance(value, Mapping):
                yield from fractions(field.type, [value.get(field.name)])
    elif isinstance(value, Iterable):
        yield from fractions(kind.field(0).type, value)
