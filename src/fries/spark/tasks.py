"""Stages as Spark tasks: what ``mapInArrow`` runs in a Python worker.

A worker process keeps one connection to the controller for each flow, and with it the
configuration, for as long as Spark reuses the process. Every task announces itself first and
begins with the base of its batch; if the connection is gone, the next task makes a new one.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from fries.control.client import ControlClient
from fries.control.tls import Tls
from fries.errors import OperatorError, WireError
from fries.runtime.audit import Audit
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.layout import EDGE, GROUP, OPERATOR, Layout
from fries.runtime.spec import EdgeSpec
from fries.runtime.task import Encoder, Execution, Task, groups
from fries.spark import pickling
from fries.stages import PhysicalStage

SWITCH_INTERVAL: Final = 0.00002
"""Seconds after which a busy thread lets another one run. With Python's 5 ms, every step of a
preparation beside the data path (receive, load, answer) would wait that long. While nothing is
prepared no other thread wants to run, and it costs nothing."""
BATCH_ID: Final = "streaming.sql.batchId"
"""Local property in which Structured Streaming tells tasks the number of their micro-batch."""
EXECUTION_ID: Final = "spark.sql.execution.id"
"""Local property in which Spark tells the tasks of a batch job which job it is."""


@dataclass(frozen=True)
class Session:
    """How the workers of a flow find its controller and prove themselves; travels in closures."""

    flow: str
    address: tuple[str, int]
    secret: bytes = field(repr=False)
    operators: tuple[str, ...]
    """Their names; their functions come from the controller, once to each worker."""
    audit: str | None = None
    """Folder for the data operations of every task; ``None``: nothing is recorded."""
    tls: Tls | None = None


class Host:
    """What a worker process keeps for a flow between its tasks."""

    def __init__(self, session: Session) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        spare_modules()
        self.used = False
        """Whether a task has begun here: the connection was good once."""
        self.configuration = Configuration()
        self.client = ControlClient(
            session.address, session.secret, session.flow, self.configuration, session.tls
        )


def spare_modules() -> None:
    """Let Python's garbage collector leave alone what was imported so far.

    Spark collects garbage after every task. With pandas and Arrow imported that takes about
    100 ms, in which a change that comes between two micro-batches waits for the interpreter, and
    a core is kept from the next one. Functions of the flow come later: once replaced, they are
    found.
    """
    if not gc.get_freeze_count():  # once: later on there are functions
        gc.freeze()


_hosts: dict[tuple[bytes, int], Host] = {}
"""By the flow's secret (names may repeat) and process (a fork must not share a connection)."""


def host_of(session: Session) -> Host:
    """The host of a flow in this process, connected."""
    place = session.secret, os.getpid()
    host = _hosts.get(place)
    if host is None or host.client.broken:
        for gone in [key for key, kept in _hosts.items() if kept.client.broken]:
            _hosts.pop(gone).client.close()
        host = _hosts[place] = Host(session)
    return host


@dataclass(frozen=True)
class Work:
    """A stage of a flow, and what leaves it; travels in closures."""

    session: Session
    stage: PhysicalStage
    gives: Encoder
    ordered: bool = False
    """Whether a task that is executed again gets the same rows in the same order."""

    def task(self) -> Task:
        """Begin to work on the partition of the Spark task that this is called in."""
        context = TaskContext.get()
        assert context is not None, "a stage runs in a Spark task"
        action = int(context.getLocalProperty(EXECUTION_ID) or 0)
        execution = Execution(_batch(context, action), context.partitionId(), action)
        host = host_of(self.session)
        try:
            return self._begin(host, execution)
        except WireError:
            if not host.used:
                raise
        return self._begin(host_of(self.session), execution)  # it was lost between two tasks

    def _begin(self, host: Host, execution: Execution) -> Task:
        audit = Audit(self.session.operators) if self.session.audit else None
        where = self.stage, self.gives, execution, host.configuration, host.client
        task = Task(*where, audit, dumps, self.ordered)
        host.used = True
        return task

    def run(self, process: Callable[[Task], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """A whole task: what was recorded counts only if all went well, a report is due anyway."""
        task = self.task()
        try:
            yield from process(task)
            task.keep_audit(self.session.audit)
        except OperatorError as error:
            task.report(complete=False)
            raise error.with_traceback(None) from None  # it tells its story itself
        except Exception:
            task.report(complete=False)
            raise
        except GeneratorExit:  # Spark has enough rows, and uses those that it has, heard or not
            with suppress(WireError):
                task.report(complete=True)
            raise
        task.report(complete=True)


def _batch(context: TaskContext, action: int) -> int:
    """Number of the micro-batch; a batch job has a negative number of its own."""
    batch = context.getLocalProperty(BATCH_ID)
    if batch is not None:
        return int(batch)
    return -1 - action


def action_of(batch: int) -> int:
    """The number that Spark gave to the action that a batch job is."""
    return -1 - batch


@dataclass(frozen=True)
class SourceStage:
    """The first stage: rows of the sources, each over its own edge."""

    work: Work
    feed: tuple[tuple[EdgeSpec, pa.Schema], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a partition."""
        yield from self.work.run(
            lambda task: (made for rows in batches for made in task.rows(self._by_edge(task, rows)))
        )

    def _by_edge(self, task: Task, rows: pa.RecordBatch) -> Iterator[tuple[int, Chunk]]:
        """The rows of each source, with its own columns."""
        for edge, schema in self.feed:
            mine = rows
            if len(self.feed) > 1:
                mine = rows.filter(pc.equal(rows[EDGE], pa.scalar(edge.number, pa.int32())))
            arrays = [mine.column(source_column(edge, name, self.feed)) for name in schema.names]
            cast = [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, schema, strict=True)
            ]
            yield edge.number, task.fresh(pa.RecordBatch.from_arrays(cast, schema=schema))


def source_column(edge: EdgeSpec, name: str, feed: tuple[tuple[EdgeSpec, pa.Schema], ...]) -> str:
    """What a column of a source is called where several sources meet."""
    return name if len(feed) == 1 else f"{name}__{edge.number}"


@dataclass(frozen=True)
class ShuffledStage:
    """A stage behind an exchange that has no use for whole key groups."""

    work: Work
    takes: Layout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a partition."""
        parts = (
            ((edge, chunk) for edge, chunk, _ in self.takes.decode(batch)) for batch in batches
        )
        yield from self.work.run(lambda task: (made for part in parts for made in task.rows(part)))


@dataclass(frozen=True)
class SortedStage:
    """A keyed stage of a batch job: Spark has sorted its rows by key group.

    States live as long as their group: a batch job has no checkpoint to keep them in.
    """

    work: Work
    takes: Layout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the key groups of a partition."""
        found = groups(batches, OPERATOR, GROUP)
        yield from self.work.run(
            lambda task: (
                made
                for operator, rows in found
                for made in task.group(operator, rows, self.takes, None)
            )
        )


@dataclass(frozen=True)
class Unpacking:
    """From the flat rows that a stateful stage gives to the rows of the output."""

    takes: Layout
    gives: Encoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert the rows of a partition."""
        for batch in batches:
            for edge, chunk, _ in self.takes.decode(batch):
                yield self.gives.encode(edge, chunk)


def dumps(value: object) -> bytes:
    """Pickle a state; one whose class came with a closure needs the slower pickler."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return pickling.dumps_state(value)
