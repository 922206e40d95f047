"""The exchanges and the state store of Spark, played in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from fries.runtime.layout import EDGE, GROUP, HASH, OPERATOR, Layout
from fries.runtime.spec import OperatorSpec
from fries.runtime.task import groups
from fries.stages import PhysicalStage

WHERE: Final[list[tuple[str, Literal["ascending", "descending"]]]] = [
    (OPERATOR, "ascending"),
    (GROUP, "ascending"),
]


class MemoryStore:
    """Values of one key group, by number."""

    def __init__(self, values: Mapping[int, bytes] | None = None) -> None:
        self.values = dict(values or {})

    def get_many(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Some values; ``None`` where there is none."""
        return [self.values.get(number) for number in numbers]

    def put_many(self, values: Mapping[int, bytes | None]) -> None:
        """Replace some values; ``None`` removes one."""
        for number, value in values.items():
            if value is None:
                self.values.pop(number, None)
            else:
                self.values[number] = value


class Exchange:
    """Deals rows to the partitions of a stage: by key, and in key groups."""

    def __init__(
        self, stage: PhysicalStage, takes: Layout, partitions: int, key_groups: int
    ) -> None:
        self._takes, self._partitions, self._groups = takes, partitions, key_groups
        self._keyed = {edge.number: stage.keyed(edge) for edge in stage.incoming}

    def dealt(self, frames: Sequence[pa.RecordBatch]) -> list[pa.Table]:
        """The rows of each partition, sorted by operator and key group."""
        if not frames:
            return [pa.table({})] * self._partitions
        whole = pa.Table.from_batches([self._placed(frame) for frame in frames])
        where = np.asarray(whole[GROUP]) % self._partitions
        return [
            whole.filter(pa.array(where == number)).sort_by(WHERE)
            for number in range(self._partitions)
        ]

    def _placed(self, frame: pa.RecordBatch) -> pa.RecordBatch:
        """Say where each row must go, as Spark's plan does."""
        names, hashes = [], []
        for row in frame.to_pylist():
            spec = self._keyed[row[EDGE]]
            names.append("" if spec is None else spec.name)
            hashes.append(_hash(self._key(row, spec)))
        arrays = [
            *frame.columns,
            pa.array(hashes, pa.int64()),
            pa.array(names, pa.string()),
            pa.array([number % self._groups for number in hashes], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(
            arrays, names=[*frame.schema.names, HASH, OPERATOR, GROUP]
        )

    def _key(self, row: Mapping[str, Any], spec: OperatorSpec | None) -> tuple[Any, ...]:
        columns = spec.keying.columns if spec is not None and spec.keying is not None else ()
        return tuple(row[self._takes.physical(row[EDGE], column)] for column in columns)


def grouped(rows: pa.Table) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """One key group after the other: its operator, its number, its rows."""
    if not rows.num_rows:
        return
    for operator, batch in groups(rows.to_batches(), OPERATOR, GROUP):
        yield operator, int(batch.column(GROUP)[0].as_py()), batch


def _hash(key: tuple[Any, ...]) -> int:
    """As good as Spark's: all 64 bits depend on the key, and half are negative."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
