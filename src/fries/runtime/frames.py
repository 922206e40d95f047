"""Pandas frames that functions return, as they would be after a conversion to Arrow and back.

A frame stays one if its columns have the types that Arrow would give: then the conversion would
change nothing. Columns of text are looked at value by value, unless they are the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa

from fries.runtime.arrow import Integers
from fries.runtime.blocks import numbered, taken_over, types_of, values_of
from fries.runtime.data import Data
from fries.runtime.spec import OperatorSpec
from fries.runtime.texts import Texts

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
    def _texts(self) -> dict[str, int]:
        """By column of text, its place."""
        fields = enumerate(self._schema)
        return {field.name: n for n, field in fields if pa.types.is_string(field.type)}

    @cached_property
    def _possible(self) -> bool:
        """Whether no two columns have one name, and none has objects that could be changed."""
        names = self._schema.names
        texts = [field.name in self._texts for field in self._schema]
        objects = map(pd.api.types.is_object_dtype, self._dtypes)
        return len(set(names)) == len(names) and list(objects) == texts

    def before(self, data: Data, frame: pd.DataFrame) -> dict[str, Texts]:
        """The texts that a function gets in a frame of some data: it may leave them alone."""
        return {
            field.name: data.texts.get(field.name) or Texts.of(values_of(frame, place))
            for place, field in enumerate(data.schema)
            if field.name in self._texts and pa.types.is_string(field.type)
        }

    def settled(
        self, held: list[Any], before: Mapping[str, Texts], parents: Integers | None = None
    ) -> Data | None:
        """A frame that a function has just returned; ``None`` if it must be converted.

        It is in a list that has the only reference to it on this side. Its rows come from those
        parents of what was before.
        """
        if type(held[0]) is not pd.DataFrame or not self._possible:
            return None
        frame, alone = taken_over(held)
        held.append(frame)  # it must be converted if it does not fit
        if list(frame.columns) != self._schema.names:
            found = self._selected(frame, alone)
            if found is None:
                return None
            frame, alone = found
        if types_of(frame) != self._dtypes:
            return None
        if parents is not None:
            before = {name: texts.take(parents) for name, texts in before.items()}
        if (texts := self._texts_in(frame, before)) is None:
            return None
        if not _is_plain(frame.index):
            frame = numbered(frame)
        data = Data(self._schema, len(frame), frame=frame)
        data.borrowed, data.texts = not alone, texts
        return data

    def _selected(self, frame: pd.DataFrame, alone: bool) -> tuple[pd.DataFrame, bool] | None:
        """The declared columns, in their order, and whether nobody else has their memory."""
        names = self._schema.names
        if not frame.columns.is_unique or not set(names) <= set(frame.columns):
            return None
        if not alone or list(frame.columns[: len(names)]) != names:
            return frame[names], False
        for name in frame.columns[len(names) :]:
            del frame[name]
        return frame, True

    def _texts_in(
        self, frame: pd.DataFrame, before: Mapping[str, Texts]
    ) -> Mapping[str, Texts] | None:
        """Those columns of text that are as they were; ``None`` if one has anything but text."""
        found = {}
        for name, place in self._texts.items():
            values = values_of(frame, place)
            if name in before and before[name].are(values):
                found[name] = before[name]
            elif not TEXT.issuperset(map(type, values)):
                return None
        return found


def _is_plain(index: pd.Index[Any]) -> bool:
    """Whether rows are numbered from 0."""
    plain = isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
    return plain and index.name is None
