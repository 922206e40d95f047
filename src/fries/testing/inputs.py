"""What a task of a trial gets: rows of sources, or those that an exchange brings."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from fries.runtime.layout import Layout
from fries.runtime.task import Task
from fries.testing.exchange import MemoryStore, grouped

Stores: TypeAlias = "MutableMapping[tuple[str, int], MemoryStore]"
"""By operator and key group, its states."""


class Input(Protocol):
    """The rows of one task."""

    @property
    def rows(self) -> int:
        """How many they are."""

    def first(self, rows: int) -> Input:
        """Only the first of them: all that a task gets that fails then."""

    def through(self, task: Task, stores: Stores) -> Iterator[pa.RecordBatch]:
        """What the task makes of them."""


@dataclass(frozen=True)
class FromSources:
    """Rows of the sources, by edge."""

    parts: Sequence[tuple[int, pa.RecordBatch]]

    @property
    def rows(self) -> int:
        """How many they are."""
        return sum(batch.num_rows for _, batch in self.parts)

    def first(self, rows: int) -> FromSources:
        """Only the first of them."""
        parts = []
        for edge, batch in self.parts:
            parts.append((edge, batch.slice(0, rows)))
            rows = max(0, rows - batch.num_rows)
        return FromSources(parts)

    def through(self, task: Task, stores: Stores) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """What the task makes of them."""
        for edge, batch in self.parts:
            yield from task.rows([(edge, task.fresh(batch))])


@dataclass(frozen=True)
class FromExchange:
    """Rows behind an exchange, sorted by operator and key group."""

    table: pa.Table
    takes: Layout
    in_groups: bool

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.table.num_rows

    def first(self, rows: int) -> FromExchange:
        """Only the first of them."""
        return FromExchange(self.table.slice(0, rows), self.takes, self.in_groups)

    def through(self, task: Task, stores: Stores) -> Iterator[pa.RecordBatch]:
        """What the task makes of them."""
        if self.in_groups:
            for operator, group, rows in grouped(self.table):
                store = stores.setdefault((operator, group), MemoryStore())
                yield from task.group(operator, rows, self.takes, store)
            return
        for batch in self.table.to_batches():
            parts = [(edge, chunk) for edge, chunk, _ in self.takes.decode(batch)]
            yield from task.rows(parts)
