"""What a function returned, as it is now: it may use the same objects again for its next row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fries.runtime.spec import OperatorSpec

MUTABLE: Final = (bytearray, memoryview, np.ndarray, list, dict, set)
"""Types of values that a function could fill anew for each row."""


def mutable(values: Iterable[Any]) -> bool:
    """Whether one of some values may change while it waits."""
    return any(issubclass(kind, MUTABLE) for kind in set(map(type, values)))


def keeper(spec: OperatorSpec) -> Callable[[Any], Any]:
    """Makes a copy of a returned row.

    Of a nested column it copies everything. A value that is for the next function of a run only,
    and in no column, may be anything, however large: of that it copies the outermost object.
    """
    nested = [field.name for field in spec.schema if pa.types.is_nested(field.type)]

    def keep(row: Any) -> Any:  # noqa: ANN401
        if not isinstance(row, dict):
            return row
        kept = dict(row)
        for name in nested:
            if name in kept:
                kept[name] = copy.deepcopy(kept[name])
        if mutable(kept.values()):
            for name, value in kept.items():
                if name not in nested:
                    kept[name] = _kept(value)
        return kept

    return keep


def _kept(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, memoryview):
        return memoryview(bytes(value))
    return copy.copy(value) if isinstance(value, MUTABLE) else value
