"""A stage as a Spark task: what ``mapInArrow`` runs in a Python worker.

A worker process keeps one connection to the controller for each flow, and with it the
configuration, for as long as Spark reuses the process. Every task announces itself first and
begins with the base of its batch; if the connection is gone, the next task makes a new one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from fries.control.client import ControlClient
from fries.control.messages import Ended
from fries.runtime.audit import Audit, transactions
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.spec import EdgeSpec, OperatorSpec, StageSpec
from fries.runtime.stage import Stage

SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a busy thread lets another one run. With Python's 5 ms, every step of a
preparation beside the data path (receive, load, answer) would wait that long."""
EDGE: Final = "_edge"
"""Column that tells which edge a row travels on, where several edges meet."""
BATCH_ID: Final = "streaming.sql.batchId"
"""Local property in which Structured Streaming tells tasks the number of their micro-batch."""


@dataclass(frozen=True)
class Session:
    """How the workers of a flow find its controller and prove themselves; travels in closures."""

    flow: str
    address: tuple[str, int]
    secret: bytes = field(repr=False)
    operators: tuple[OperatorSpec, ...]
    audit: str | None = None
    """Folder for the data operations of every task; ``None``: nothing is recorded."""


class Host:
    """What a worker process keeps for a flow between its tasks."""

    def __init__(self, session: Session) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.configuration = Configuration(session.operators)
        self.client = ControlClient(
            session.address, session.secret, session.flow, self.configuration
        )


_hosts: dict[tuple[bytes, int], Host] = {}
"""By the flow's secret (names may repeat) and process (a fork must not share a connection)."""


def host_of(session: Session) -> Host:
    """The host of a flow in this process, connected."""
    place = session.secret, os.getpid()
    host = _hosts.get(place)
    if host is None or host.client.broken:
        for gone in [key for key, kept in _hosts.items() if kept.client.broken]:
            del _hosts[gone]
        host = _hosts[place] = Host(session)
    return host


@dataclass(frozen=True)
class StageTask:
    """A stage without a key, left over one edge; ``feed`` are the edges that sources come over."""

    session: Session
    stage: StageSpec
    feed: tuple[EdgeSpec, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a partition."""
        context = TaskContext.get()
        assert context is not None, "a stage runs in a Spark task"
        task = _Task(self, int(context.getLocalProperty(BATCH_ID) or 0), context.partitionId())
        yield from task.run(batches)

    def by_edge(self, rows: pa.RecordBatch) -> Iterator[tuple[EdgeSpec, pa.RecordBatch]]:
        """The rows of each source, with its own columns."""
        if len(self.feed) == 1:
            yield self.feed[0], rows
            return
        schemas = {spec.name: spec.schema for spec in self.stage.operators}
        for edge in self.feed:
            mine = rows.filter(pc.equal(rows[EDGE], pa.scalar(edge.number, pa.int32())))
            schema = schemas[edge.target]
            yield edge, mine.select(schema.names).cast(schema)


class _Task:
    """One execution of a stage: from its announcement to its report."""

    def __init__(self, work: StageTask, batch: int, partition: int) -> None:
        self._work = work
        self._host = host_of(work.session)
        self._batch, self._partition, self._rows = batch, partition, 0
        go = self._host.client.begin(batch, work.stage.number, partition)
        self._host.configuration.begin(go.base)
        names = [spec.name for spec in work.session.operators]
        self._audit = Audit(names) if work.session.audit else None
        self._stage = Stage(work.stage, self._host.configuration, self._host.client, self._audit)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows in, rows out; the audit is kept only if all went well."""
        number = self._work.stage.number
        try:
            for rows in batches:
                for edge, part in self._work.by_edge(rows):
                    made = [chunk.batch for _, chunk in self._stage.run(edge, self._fresh(part))]
                    if made:
                        yield from pa.Table.from_batches(made).combine_chunks().to_batches()
            if self._audit is not None and self._work.session.audit:
                task = f"{self._batch}-{number}-{self._partition}"
                self._audit.write(self._work.session.audit, task)
        finally:
            last_old = self._stage.last_old
            self._host.client.ended(Ended(self._batch, number, self._partition, last_old))

    def _fresh(self, rows: pa.RecordBatch) -> Chunk:
        if self._audit is None:
            return Chunk.fresh(rows)
        first, self._rows = self._rows, self._rows + rows.num_rows
        return Chunk.fresh(rows, transactions(self._batch, self._partition, first, rows.num_rows))
