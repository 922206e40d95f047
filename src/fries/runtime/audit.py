"""Audit mode: every data operation of a real run, on disk, for the serializability checker.

A task writes one Arrow file when it ends well, under the name of its batch, stage and
partition; a task that is executed again replaces the file of its first attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from fries.errors import TraitError
from fries.runtime.arrow import Integers
from fries.runtime.chunks import Chunk
from fries.trace import Trace

ROW_BITS = 28
PARTITION_BITS = 12
STAGE_BITS = 5
"""A transaction's number: batch, stage, partition and row of its first tuple, from the top down."""


def refuse_used(folder: str) -> None:
    """Refuse a folder with the files of another run: they would be read as part of this one."""
    if any(Path(folder).glob("*.arrow")):
        raise TraitError(f"audit folder {folder!r}", "it has files of another run; give a new one")


def transactions(batch: int, stage: int, partition: int, first: int, count: int) -> Integers:
    """Numbers for tuples that begin transactions, the same whenever the task is executed again."""
    for what, value, bits in (
        ("stages", stage, STAGE_BITS),
        ("partitions", partition, PARTITION_BITS),
        ("rows in a partition", first + count - 1, ROW_BITS),
    ):
        if value >= 1 << bits:
            raise TraitError("audit", f"it can tell {1 << bits:,} {what} apart, and no more")
    start = ((batch << STAGE_BITS | stage) << PARTITION_BITS | partition) << ROW_BITS | first
    return np.arange(start, start + count, dtype=np.int64)


class Audit:
    """Collects the data operations of one task."""

    def __init__(self, operators: Iterable[str]) -> None:
        self._index = {name: number for number, name in enumerate(operators)}
        self._columns: tuple[list[Integers], list[Integers], list[Integers]] = ([], [], [])

    def record(self, operator: str, version: int, chunk: Chunk) -> None:
        """An operator processes a chunk at some version."""
        assert chunk.txns is not None, "in audit mode every row has a transaction"
        size = len(chunk)
        values = chunk.txns, self._index[operator], version
        for column, value in zip(self._columns, values, strict=True):
            column.append(np.broadcast_to(np.asarray(value, dtype=np.int64), (size,)))

    def write(self, folder: str, task: str) -> None:
        """Keep what was recorded, whole or not at all."""
        arrays = [pa.array(np.concatenate([_NONE, *column])) for column in self._columns]
        table = pa.table(arrays, names=list(_NAMES))
        path = Path(folder, f"{task}.arrow")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        partial.replace(path)


def read(folder: str, operators: tuple[str, ...], updates: Iterable[Mapping[str, int]]) -> Trace:
    """All that tasks have written, as one trace."""
    tables = []
    for path in sorted(Path(folder).glob("*.arrow")):
        with pa.memory_map(str(path)) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    columns = [
        np.concatenate([_NONE, *(table[name].to_numpy() for table in tables)]) for name in _NAMES
    ]
    return Trace(columns[0], columns[1], columns[2], operators, tuple(updates))


_NAMES = ("transaction", "operator", "version")
_NONE: Integers = np.empty(0, dtype=np.int64)
