"""The rows of a chunk, as an Arrow batch, Python dicts or a pandas frame, whichever was made last.

Rows stay dicts between functions of a row, batches or frames between functions of a batch: they
are converted when somebody asks for another form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fries.runtime.arrow import Booleans, Integers, batch_of, concat_batches, copied, rows_of, take
from fries.runtime.misfits import Misfit, Misfits
from fries.runtime.texts import Texts

Row: TypeAlias = "dict[str, Any]"


class Picked(NamedTuple):
    """Some rows of a frame that nobody changes."""

    frame: Any
    rows: Integers


class Data:
    """Rows of one schema. Nobody changes them; dicts that are given away are not kept."""

    __slots__ = (
        "_batch",
        "_made",
        "_picked",
        "_picked_from",
        "_rows",
        "_size",
        "borrowed",
        "misfits",
        "raw",
        "schema",
        "shared",
        "texts",
    )

    def __init__(
        self,
        schema: pa.Schema,
        size: int,
        batch: pa.RecordBatch | None = None,
        rows: list[Row] | None = None,
        shared: bool = False,
        frame: Any = None,  # noqa: ANN401 - pandas is loaded by those who use it
        raw: bool = False,
    ) -> None:
        self.schema = schema
        self.shared = shared
        """Whether several operators get these dicts."""
        self.raw = raw
        """Whether these are dicts as a function has returned them, for the next one of its run."""
        self.borrowed = False
        """Whether a function may still have this memory, and write there in its next call."""
        self.misfits: Misfits | None = None
        """What is wrong with these dicts, if they are raw."""
        self.texts: Mapping[str, Texts] = {}
        """By column of a frame, its values, if they are known to be text."""
        self._size, self._batch, self._rows, self._made = size, batch, rows, frame
        self._picked: Picked | None = None
        """Instead of a frame, until somebody asks for it."""
        self._picked_from = False
        """Whether others may still need the frame."""

    @classmethod
    def of(cls, batch: pa.RecordBatch | Data) -> Data:
        """A batch, if it is not data already."""
        if isinstance(batch, Data):
            return batch
        return cls(batch.schema, batch.num_rows, batch)

    @classmethod
    def of_rows(cls, schema: pa.Schema, rows: list[Row], raw: bool = False) -> Data:
        """Dicts with exactly these columns, of the types that Arrow would give, unless raw."""
        return cls(schema, len(rows), None, rows, raw=raw)

    def __len__(self) -> int:
        return self._size

    @property
    def _frame(self) -> Any:  # noqa: ANN401
        """The frame, if there is one."""
        if self._picked is not None:
            from fries.runtime.blocks import taken

            self._made, self._picked = taken(*self._picked), None
        return self._made

    @property
    def _is_frame(self) -> bool:
        """Whether a frame is all that there is."""
        return self._batch is None and (self._made is not None or self._picked is not None)

    @property
    def batch(self) -> pa.RecordBatch:
        """As an Arrow batch."""
        if self._batch is None and self._frame is not None:
            self._batch = batch_of(self._frame, self.schema)
        if self._batch is None:
            assert self._rows is not None, "they were given away"
            self._batch = pa.RecordBatch.from_arrays(
                [
                    pa.array(list(map(itemgetter(field.name), self._rows)), type=field.type)
                    for field in self.schema
                ],
                schema=self.schema,
            )
        return self._batch

    @property
    def frame(self) -> Any:  # noqa: ANN401
        """As a pandas frame for a function that may change it."""
        return self.batch.to_pandas() if self._frame is None else self._frame.copy()

    def given_frame(self) -> Any:  # noqa: ANN401
        """As a pandas frame for a function that may change and keep it: these are needed no more.

        It is copied if somebody else may have its memory: another operator, the function that has
        returned it, or Arrow.
        """
        others = self._picked_from or self._batch is not None or self.shared or self.borrowed
        if self._frame is None or others:
            return self.frame
        frame, self._made = self._frame, None
        return frame

    def copied(self) -> list[Row]:
        """As dicts for functions that may change them, while these go on as they are."""
        if self._rows is None:
            return rows_of(self.batch)
        return list(map(dict.copy, self._rows))

    def lent(self) -> Iterator[Row]:
        """As dicts for a function that may change them, and again for whoever comes next.

        Each is copied when it is asked for: so the memory of one that is let go serves the next.
        """
        if self._rows is None and not any(pa.types.is_nested(field.type) for field in self.schema):
            self._rows = rows_of(self.batch)
        return iter(self.copied()) if self._rows is None else map(dict.copy, self._rows)

    def given(self) -> list[Row]:
        """As dicts for functions that may change and keep them: these are needed no more."""
        if self._rows is None or self.shared:
            return self.copied()
        rows, self._rows = self._rows, None
        return rows

    def anew(self) -> Data:
        """The same rows without dicts or frames, which functions may have changed already."""
        return Data.of(self.batch)

    def owned(self) -> Data:
        """The same rows, which the next call of a function leaves alone."""
        if not self.borrowed:
            return self
        if self._batch is None:
            made = Data(self.schema, self._size, frame=self._frame.copy())
            made.texts = self.texts
            return made
        return Data.of(copied(self._batch))

    def row(self, number: int) -> Row:
        """One of the rows, for a message."""
        (row,) = self.slice(number, 1).copied()
        return row

    def misfit(self, number: int) -> Misfit | None:
        """What is wrong with one of the rows."""
        return None if self.misfits is None else self.misfits.at(number)

    def slice(self, start: int, size: int) -> Data:
        """Some rows in a row."""
        size = min(size, self._size - start)
        if size == self._size:
            return self
        batch = None if self._batch is None else self._batch.slice(start, size)
        if self._frame is not None and self._batch is None:
            batch = self.batch.slice(start, size)
        made = self._part(size, batch, self._rows and self._rows[start : start + size])
        made.borrowed = self.borrowed
        if self.misfits is not None:
            made.misfits = self.misfits.take(range(start, start + size))
        return made

    def take(self, rows: Integers) -> Data:
        """Some of the rows, each once, in a given order."""
        batch = None if self._batch is None else take(self._batch, rows)
        dicts = self._rows and list(map(self._rows.__getitem__, rows.tolist()))
        made = self._part(len(rows), batch, dicts)
        if self.misfits is not None:
            made.misfits = self.misfits.take(rows.tolist())
        if (frame := self._frame) is not None:
            made._picked = Picked(frame, rows)
            self._picked_from = True
            if self.borrowed:  # the frame may be another one when somebody asks
                made._frame  # noqa: B018
            made.texts = {name: texts.take(rows) for name, texts in self.texts.items()}
        return made

    def where(self, kept: Booleans) -> Data:
        """Some of the rows."""
        if self._frame is not None or self.misfits is not None:
            return self.take(np.flatnonzero(kept))
        batch = None if self._batch is None else self._batch.filter(pa.array(kept))
        rows = self._rows and list(compress(self._rows, kept.tolist()))
        return self._part(int(np.count_nonzero(kept)), batch, rows)

    @classmethod
    def joined(cls, parts: Sequence[Data]) -> Data | None:
        """One part after the other; ``None`` if that would need a conversion."""
        first, size = parts[0], sum(map(len, parts))
        if any(part.misfits or part.schema != first.schema for part in parts):
            return None
        if all(part._is_frame for part in parts):
            return cls._joined_frames(parts, size)
        dicts = [part._rows for part in parts if part._rows is not None]
        rows = list(chain.from_iterable(dicts)) if len(dicts) == len(parts) else None
        batch = None
        if all(part._batch is not None or part._is_frame for part in parts):
            batch = concat_batches([part.batch for part in parts])
        elif rows is None:
            return None
        shared = any(part.shared for part in parts)
        return cls(first.schema, size, batch, rows, shared, raw=first.raw)

    @classmethod
    def _joined_frames(cls, parts: Sequence[Data], size: int) -> Data:
        made = cls(parts[0].schema, size, frame=_joined(parts))
        known = set.intersection(*(set(part.texts) for part in parts))
        made.texts = {name: Texts.joined([part.texts[name] for part in parts]) for name in known}
        return made

    def _part(self, size: int, batch: pa.RecordBatch | None, rows: list[Row] | None) -> Data:
        return Data(self.schema, size, batch, rows, self.shared, raw=self.raw)


def _joined(parts: Sequence[Data]) -> Any:  # noqa: ANN401
    """The frames of several; what was picked from one frame is picked together."""
    from fries.runtime.blocks import joined, taken

    picked = [part._picked for part in parts if part._picked is not None]
    if len(picked) == len(parts) and all(one.frame is picked[0].frame for one in picked):
        return taken(picked[0].frame, np.concatenate([one.rows for one in picked]))
    return joined([part._frame for part in parts])
