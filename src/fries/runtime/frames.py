"""Pandas frames that functions return, as they would be after a conversion to Arrow and back.

A frame stays one if its columns have the types that Arrow would give: then the conversion would
change nothing. Columns of text are looked at value by value, unless they are the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fries.runtime.data import Data
from fries.runtime.spec import OperatorSpec

Objects: TypeAlias = "npt.NDArray[Any]"
TEXT = {str, type(None)}


class Framer:
    """Settles the frames that one version of an operator returns."""

    def __init__(self, spec: OperatorSpec) -> None:
        self._schema = spec.schema

    @cached_property
    def _dtypes(self) -> list[Any]:
        """Of each column, the type that it has in pandas if nothing is missing."""
        empty = pa.RecordBatch.from_pylist([], schema=self._schema).to_pandas()
        return list(empty.dtypes)

    @cached_property
    def _texts(self) -> list[str]:
        return [field.name for field in self._schema if pa.types.is_string(field.type)]

    def before(self, schema: pa.Schema, frame: pd.DataFrame) -> dict[str, Objects]:
        """The texts that a function gets: it may leave them alone."""
        return {
            name: frame[name].to_numpy(copy=True)
            for name in self._texts
            if name in schema.names and pa.types.is_string(schema.field(name).type)
        }

    def settled(self, made: Any, before: Mapping[str, Objects]) -> Data | None:  # noqa: ANN401
        """A frame that a function has just returned; ``None`` if it must be converted."""
        names = self._schema.names
        if type(made) is not pd.DataFrame or not made.columns.is_unique:
            return None
        if list(made.columns) != names:
            if not set(names) <= set(made.columns):
                return None
            made = made[names]
        for field, dtype, expected in zip(self._schema, made.dtypes, self._dtypes, strict=True):
            if dtype != expected:
                return None
            if pd.api.types.is_object_dtype(dtype) and not self._is_text(field.name, made, before):
                return None
        if not _is_plain(made.index):
            made = made.reset_index(drop=True)
        return Data(self._schema, len(made), frame=made)

    def _is_text(self, name: str, made: pd.DataFrame, before: Mapping[str, Objects]) -> bool:
        if name not in self._texts:
            return False
        values = made[name].to_numpy()
        if name in before and values.tobytes() == before[name].tobytes():
            return True  # the same objects: what is compared are their addresses
        return TEXT.issuperset(map(type, values))


def _is_plain(index: pd.Index[Any]) -> bool:
    """Whether rows are numbered from 0."""
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
