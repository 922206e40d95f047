"""Chunks: the rows between two looks at the control channel, and how many they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fries.runtime.arrow import Integers, concat_batches, take
from fries.runtime.functions import Output

TARGET_SECONDS: Final = 0.003
"""How long one chunk should take: the price of a switch, beside which polling costs little."""
HURRY: Final = 5
"""How much shorter chunks are while a commit is about to come: it is seen within a millisecond,
and at other times chunks can be long enough to cost nothing."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one edge with the epoch mask and, in audit mode, the transaction of each."""

    batch: pa.RecordBatch
    epochs: Integers
    txns: Integers | None = None

    @classmethod
    def fresh(cls, batch: pa.RecordBatch, txns: Integers | None = None) -> Chunk:
        """Rows that have entered nothing yet."""
        return cls(batch, np.zeros(batch.num_rows, dtype=np.int64), txns)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def stamped(self, bits: int) -> Chunk:
        """The same rows with some bits set."""
        return Chunk(self.batch, self.epochs | bits, self.txns) if bits else self

    def slice(self, start: int, rows: int) -> Chunk:
        """Some rows in a row; nothing is copied."""
        end = start + rows
        txns = None if self.txns is None else self.txns[start:end]
        return Chunk(self.batch.slice(start, rows), self.epochs[start:end], txns)

    def take(self, rows: Integers) -> Chunk:
        """Some of the rows, in a given order."""
        txns = None if self.txns is None else self.txns[rows]
        return Chunk(take(self.batch, rows), self.epochs[rows], txns)

    def where(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Chunk:
        """Some of the rows."""
        txns = None if self.txns is None else self.txns[kept]
        return Chunk(self.batch.filter(pa.array(kept)), self.epochs[kept], txns)

    def children(self, output: Output) -> Chunk:
        """What an operator made of these rows: children inherit epoch and transaction."""
        if output.parents is None:
            return Chunk(output.batch, self.epochs, self.txns)
        txns = None if self.txns is None else self.txns[output.parents]
        return Chunk(output.batch, self.epochs[output.parents], txns)


def concat(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks of the same columns as one."""
    if len(chunks) == 1:
        return chunks[0]
    txns = [chunk.txns for chunk in chunks if chunk.txns is not None]
    return Chunk(
        concat_batches([chunk.batch for chunk in chunks]),
        np.concatenate([chunk.epochs for chunk in chunks]),
        np.concatenate(txns) if txns else None,
    )


class Pacer:
    """Chooses the size of chunks so that one takes about :data:`TARGET_SECONDS`.

    It begins with one row, because the first function may take seconds for it, and grows at
    most eightfold at a time, because the first rows may have been cheap by chance.
    """

    def __init__(self) -> None:
        self.rows = 1

    def next(self, hurried: bool) -> int:
        """Rows of the next chunk; in a hurry it is short."""
        return max(1, self.rows // HURRY) if hurried else self.rows

    def restart(self) -> None:
        """A new version may be far slower: begin with one row again."""
        self.rows = 1

    def measured(self, rows: int, seconds: float) -> None:
        """Learn from a chunk."""
        if rows:
            wanted = int(rows * TARGET_SECONDS / max(seconds, 1e-6))
            self.rows = max(1, min(wanted, self.rows * 8))
