"""The rows of a chunk, as an Arrow batch, Python dicts or a pandas frame, whichever was made last.

Rows stay dicts between functions of a row, batches or frames between functions of a batch: they
are converted when somebody asks for another form.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fries.runtime.arrow import Booleans, Integers, copied, take
from fries.runtime.misfits import Misfit, Misfits

Row: TypeAlias = "dict[str, Any]"


class Data:
    """Rows of one schema. Nobody changes them; dicts that are given away are not kept."""

    __slots__ = (
        "_batch",
        "_frame",
        "_rows",
        "_size",
        "borrowed",
        "misfits",
        "raw",
        "schema",
        "shared",
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
        self._size, self._batch, self._rows, self._frame = size, batch, rows, frame

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
    def batch(self) -> pa.RecordBatch:
        """As an Arrow batch."""
        if self._batch is None and self._frame is not None:
            self._batch = pa.RecordBatch.from_pandas(
                self._frame, schema=self.schema, preserve_index=False
            )
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

    def copied(self) -> list[Row]:
        """As dicts for functions that may change them, while these go on as they are."""
        if self._rows is None:
            return self.batch.to_pylist()
        return list(map(dict.copy, self._rows))

    def lent(self) -> list[Row]:
        """As dicts for functions that may change them, and again for whoever comes next."""
        if self._rows is None and not any(pa.types.is_nested(field.type) for field in self.schema):
            self._rows = self.batch.to_pylist()
        return self.copied()

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
            return Data(self.schema, self._size, frame=self._frame.copy())
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
        if self._frame is not None:
            made._frame = self._frame.take(rows).reset_index(drop=True)
        return made

    def where(self, kept: Booleans) -> Data:
        """Some of the rows."""
        if self._rows is not None or self._frame is not None:
            return self.take(np.flatnonzero(kept))
        batch = None if self._batch is None else self._batch.filter(pa.array(kept))
        return self._part(int(np.count_nonzero(kept)), batch, None)

    def _part(self, size: int, batch: pa.RecordBatch | None, rows: list[Row] | None) -> Data:
        return Data(self.schema, size, batch, rows, self.shared, raw=self.raw)
