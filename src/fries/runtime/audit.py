"""Audit mode: every data operation of a real run, on disk, for the serializability checker.

A task writes one Arrow file when it ends well, under the name of its batch, stage and
partition; a task that is executed again replaces the file of its first attempt. The file also
says when the task used each version of its operators first and last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fries.errors import ArgumentError
from fries.runtime.arrow import Integers
from fries.trace import Trace

ROW_BITS = 28
PARTITION_BITS = 12
STAGE_BITS = 5
"""A transaction's number: batch, stage, partition and row of its first tuple, from the top down."""


def refuse_used(folder: str) -> None:
    """Refuse a folder with the files of another run: they would be read as part of this one."""
    if any(Path(folder).glob("*.arrow")):
        raise ArgumentError(
            f"audit folder {folder!r}", "it has files of another run; give a new one"
        )


def transactions(batch: int, stage: int, partition: int, first: int, count: int) -> Integers:
    """Numbers for tuples that begin transactions, the same whenever the task is executed again."""
    for what, value, bits in (
        ("stages", stage, STAGE_BITS),
        ("partitions", partition, PARTITION_BITS),
        ("rows in a partition", first + count - 1, ROW_BITS),
    ):
        if value >= 1 << bits:
            raise ArgumentError("audit", f"it can tell {1 << bits:,} {what} apart, and no more")
    start = ((batch << STAGE_BITS | stage) << PARTITION_BITS | partition) << ROW_BITS | first
    return np.arange(start, start + count, dtype=np.int64)


class Use(NamedTuple):
    """When a version of an operator was used, in seconds since 1970: when chunks of rows began."""

    first: float
    last: float

    def joined(self, other: Use) -> Use:
        """Both uses as one."""
        return Use(min(self.first, other.first), max(self.last, other.last))


class Audit:
    """Collects the data operations of one task."""

    def __init__(self, operators: Iterable[str]) -> None:
        self._index = {name: number for number, name in enumerate(operators)}
        self._columns: tuple[list[Integers], list[Integers], list[Integers]] = ([], [], [])
        self._uses: dict[tuple[str, int], Use] = {}

    def record(self, operator: str, version: int, txns: Integers | None, moment: float) -> None:
        """An operator has processed rows of transactions at some version, from some moment on."""
        assert txns is not None, "in audit mode every row has a transaction"
        size = len(txns)
        values = txns, self._index[operator], version
        for column, value in zip(self._columns, values, strict=True):
            column.append(np.broadcast_to(np.asarray(value, dtype=np.int64), (size,)))
        use = self._uses.get((operator, version))
        self._uses[operator, version] = Use(moment if use is None else use.first, moment)

    def write(self, folder: str, task: str) -> None:
        """Keep what was recorded, whole or not at all."""
        arrays = [pa.array(np.concatenate([_NONE, *column])) for column in self._columns]
        uses = [[operator, version, *use] for (operator, version), use in self._uses.items()]
        table = pa.table(arrays, names=list(_NAMES), metadata={_USES: json.dumps(uses)})
        path = Path(folder, f"{task}.arrow")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with (
            pa.OSFile(str(partial), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=_PACKED) as writer,
        ):
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


def uses(folder: str) -> dict[tuple[str, int], Use]:
    """By operator and version, when any task has used it."""
    found: dict[tuple[str, int], Use] = {}
    for path in Path(folder).glob("*.arrow"):
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata
        for operator, version, first, last in json.loads(metadata[_USES.encode()]):
            use = Use(first, last)
            known = found.get((operator, version))
            found[operator, version] = use if known is None else known.joined(use)
    return found


_USES = "uses"
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
"""Operators and versions hardly change from row to row."""
_NAMES = ("transaction", "operator", "version")
_NONE: Integers = np.empty(0, dtype=np.int64)
