"""Chunks: the rows between two looks at the control channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from fries.runtime.arrow import Booleans, Integers, concat_batches
from fries.runtime.data import Data
from fries.runtime.functions import Output


class Chunk:
    """Rows of one edge with the epoch mask and, in audit mode, the transaction of each."""

    __slots__ = ("data", "epochs", "txns")

    def __init__(
        self, rows: pa.RecordBatch | Data, epochs: Integers, txns: Integers | None = None
    ) -> None:
        self.data = Data.of(rows)
        self.epochs = epochs
        self.txns = txns

    @classmethod
    def fresh(cls, batch: pa.RecordBatch, txns: Integers | None = None) -> Chunk:
        """Rows that have entered nothing yet."""
        return cls(batch, np.zeros(batch.num_rows, dtype=np.int64), txns)

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as an Arrow batch."""
        return self.data.batch

    def __len__(self) -> int:
        return len(self.data)

    def anew(self) -> Chunk:
        """The same rows for one more attempt, which sees nothing of what others have changed."""
        return Chunk(self.data.anew(), self.epochs, self.txns)

    def owned(self) -> Chunk:
        """The same rows, to wait while functions are called again."""
        return Chunk(self.data.owned(), self.epochs, self.txns) if self.data.borrowed else self

    def stamped(self, bits: int) -> Chunk:
        """The same rows with some bits set."""
        return Chunk(self.data, self.epochs | bits, self.txns) if bits else self

    def slice(self, start: int, rows: int) -> Chunk:
        """Some rows in a row; nothing is copied."""
        end = start + rows
        txns = None if self.txns is None else self.txns[start:end]
        return Chunk(self.data.slice(start, rows), self.epochs[start:end], txns)

    def take(self, rows: Integers) -> Chunk:
        """Some of the rows, in a given order."""
        txns = None if self.txns is None else self.txns[rows]
        return Chunk(self.data.take(rows), self.epochs[rows], txns)

    def where(self, kept: Booleans) -> Chunk:
        """Some of the rows."""
        txns = None if self.txns is None else self.txns[kept]
        return Chunk(self.data.where(kept), self.epochs[kept], txns)

    @property
    def alike(self) -> bool:
        """Whether it makes no difference of which of these rows another one is a child."""
        return self.txns is None and bool((self.epochs == self.epochs[:1]).all())

    def children(self, output: Output) -> Chunk:
        """What an operator made of these rows: children inherit epoch and transaction."""
        if output.parents is not None:
            txns = None if self.txns is None else self.txns[output.parents]
            return Chunk(output.data, self.epochs[output.parents], txns)
        if len(output.data) == len(self):
            return Chunk(output.data, self.epochs, self.txns)
        return Chunk(output.data, np.full(len(output.data), self.epochs[0]))


def concat(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks of the same columns as one."""
    if len(chunks) == 1:
        return chunks[0]
    return _together(chunks, concat_batches([chunk.batch for chunk in chunks]))


def _together(chunks: Sequence[Chunk], rows: pa.RecordBatch | Data) -> Chunk:
    txns = [chunk.txns for chunk in chunks if chunk.txns is not None]
    return Chunk(
        rows,
        np.concatenate([chunk.epochs for chunk in chunks]),
        np.concatenate(txns) if txns else None,
    )


def gathered(chunks: list[Chunk]) -> list[Chunk]:
    """Chunks that came over several edges as one, unless that would need a conversion."""
    if len(chunks) < 2 or (data := Data.joined([chunk.data for chunk in chunks])) is None:
        return chunks
    return [_together(chunks, data)]


def by_mask(chunk: Chunk, bits: int) -> Iterator[tuple[int, Chunk]]:
    """Rows that get the same version, those of older versions first."""
    if not bits:
        yield 0, chunk
        return
    masks = chunk.epochs & bits
    for mask in sorted(map(int, np.unique(masks)), key=int.bit_count):
        kept = masks == mask
        yield mask, chunk if kept.all() else chunk.where(kept)
