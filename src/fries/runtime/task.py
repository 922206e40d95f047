"""One execution of a stage, from its announcement to its report. Knows no Spark.

A task that is executed again, because its output was lost, goes as it went before: it begins
with the same changes and switches after the same rows. That needs rows in a fixed order
(``ordered``); without, a task that had switched inside is refused, and so the batch fails.

Batches of flat rows go in and come out. Whoever feeds it (``mapInArrow``, a stateful
processor, a test) hands over whole batches, or in a keyed stage whole key groups.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from msgspec import structs

from fries.control.messages import Ended, Go
from fries.errors import ReplayError
from fries.runtime.arrow import Integers, concat_batches
from fries.runtime.audit import Audit, transactions
from fries.runtime.buckets import Dumps
from fries.runtime.chunks import Chunk, concat
from fries.runtime.configuration import Configuration
from fries.runtime.layout import Layout
from fries.runtime.ports import Control
from fries.runtime.spec import GROUPED, EdgeSpec, Kind, OperatorSpec
from fries.runtime.stage import Leaving, Stage
from fries.runtime.state import KeyGroup, Store
from fries.stages import PhysicalStage

FLUSH_ROWS: Final = 10_000
"""Rows that are collected before they leave: Spark's own size of an Arrow batch."""
FLUSH_SECONDS: Final = 0.1
"""Rows wait no longer than this for others to leave with."""


class Channel(Control, Protocol):
    """The control channel, as a task uses it."""

    def begin(self, batch: int, stage: int, partition: int, execution: int) -> Go:
        """Announce a task, and learn of every commit that was sent before it began."""

    def ended(self, report: Ended) -> None:
        """Tell how a task went; raises if that must be known and cannot be told."""


class Encoder(Protocol):
    """Makes what leaves a stage: flat rows of an exchange, or the rows of the output."""

    schema: pa.Schema

    def encode(self, edge: int, chunk: Chunk) -> pa.RecordBatch:
        """Rows of an edge."""


class Execution(NamedTuple):
    """Which task it is."""

    batch: int
    partition: int
    number: int = 0
    """Spark's number of the action that it belongs to."""


class Task:
    """A stage at work on one partition of one batch."""

    def __init__(
        self,
        stage: PhysicalStage,
        gives: Encoder,
        execution: Execution,
        configuration: Configuration,
        channel: Channel,
        audit: Audit | None = None,
        dumps: Dumps = pickle.dumps,
        ordered: bool = False,
    ) -> None:
        self._physical, self._gives, self._execution = stage, gives, execution
        self._channel, self._audit, self._dumps = channel, audit, dumps
        batch, partition, number = execution
        go = channel.begin(batch, stage.number, partition, number)
        configuration.begin(go.base, go.pinned)
        self._configuration = configuration
        self._operators = {spec.name: spec for spec in stage.spec.operators}
        self._edges = {edge.number: edge for edge in stage.incoming}
        self._began = 0
        """Transactions that began here."""
        self._stage = Stage(stage.spec, configuration, channel, audit, self.fresh)
        if any(cut.rows for cut in go.cuts) and not ordered:
            self.report(complete=False)
            raise ReplayError(stage.number, partition)
        self._stage.begin_with(go.committed if go.pinned is None else go.pinned)
        self._stage.repeat(go.cuts)
        self._stage.on_probation = go.on_probation

    def fresh(self, rows: pa.RecordBatch) -> Chunk:
        """Rows that begin transactions here."""
        if self._audit is None:
            return Chunk.fresh(rows)
        first, self._began = self._began, self._began + rows.num_rows
        where = self._execution.batch, self._physical.number, self._execution.partition
        return Chunk.fresh(rows, transactions(*where, first, rows.num_rows))

    def rows(self, parts: Iterable[tuple[int, Chunk]]) -> Iterator[pa.RecordBatch]:
        """Push rows through the stage, each part over its edge."""
        for edge, chunk in parts:
            yield from self._coalesced(self._stage.run(self._edges[edge], chunk))

    def group(
        self, operator: str, rows: pa.RecordBatch, layout: Layout, store: Store | None
    ) -> Iterator[pa.RecordBatch]:
        """Push a whole key group through the stage; rows that need no group come together, too."""
        parts = list(layout.decode(rows))
        spec = self._operators.get(operator)
        if spec is None or spec.kind not in GROUPED:
            yield from self.rows((edge, chunk) for edge, chunk, _ in parts)
            return
        if spec.kind is Kind.JOIN:
            leaving = self._join(spec, {edge: chunk for edge, chunk, _ in parts})
        else:
            ((edge, chunk, hashes),) = parts
            leaving = self._fold(spec, self._edges[edge], chunk, hashes, store)
        yield from self._coalesced(leaving)

    def keep_audit(self, folder: str | None) -> None:
        """All went well: what was recorded counts."""
        if self._audit is not None and folder is not None:
            batch, partition, _ = self._execution
            self._audit.write(folder, f"{batch}-{self._physical.number}-{partition}")

    def report(self, complete: bool) -> None:
        """Tell the controller that the task is over, and how it went.

        Raises if the task has switched inside and nobody hears of it: it must not complete.
        """
        batch, partition, number = self._execution
        stage = self._stage
        report = Ended(batch, self._physical.number, partition, stage.last_old, number, complete)
        self._channel.ended(structs.replace(report, cuts=tuple(stage.cuts)))

    def _fold(
        self,
        spec: OperatorSpec,
        edge: EdgeSpec,
        chunk: Chunk,
        hashes: Integers | None,
        store: Store | None,
    ) -> Iterator[Leaving]:
        assert hashes is not None, "rows of a key group come with the hashes of their keys"
        kept = store if spec.kind is Kind.PROCESS else None
        keying = self._configuration.built(spec.name).keying
        assert keying is not None
        first = len(keying.migrations)
        group = KeyGroup(spec.name, kept, self._dumps, keying.on_unreadable, first)
        return self._stage.run_group(spec, edge, chunk, group, hashes)

    def _join(self, spec: OperatorSpec, parts: dict[int, Chunk]) -> Iterator[Leaving]:
        edges = [edge for edge in self._edges.values() if edge.target == spec.name]
        if any(edge.number not in parts for edge in edges):
            return iter(())  # one branch dropped all its halves
        left, right = ((edge, parts[edge.number]) for edge in edges)
        return self._stage.run_join(spec, left, right)

    def _coalesced(self, leaving: Iterable[Leaving]) -> Iterator[pa.RecordBatch]:
        """What leaves the stage, in batches that are worth sending."""
        waiting: dict[int, list[Chunk]] = defaultdict(list)
        count, since = 0, time.perf_counter()
        for edge, chunk in leaving:
            waiting[edge.number].append(chunk)
            count += len(chunk)
            now = time.perf_counter()
            if count >= FLUSH_ROWS or now - since > FLUSH_SECONDS:
                yield from self._flush(waiting)
                count, since = 0, now
            else:
                waiting[edge.number][-1] = chunk.owned()
        yield from self._flush(waiting)

    def _flush(self, waiting: dict[int, list[Chunk]]) -> Iterator[pa.RecordBatch]:
        for edge, chunks in waiting.items():
            yield self._gives.encode(edge, concat(chunks))
        waiting.clear()


def groups(
    batches: Iterable[pa.RecordBatch], operator: str, group: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut sorted rows where the operator or the key group changes."""
    pending: list[pa.RecordBatch] = []
    last: tuple[str, int] | None = None
    for batch in batches:
        names, numbers = batch.column(operator), batch.column(group)
        codes = names.dictionary_encode().indices.to_numpy()
        values = numbers.to_numpy()
        cuts = np.flatnonzero((np.diff(codes) != 0) | (np.diff(values) != 0)) + 1
        bounds = [0, *cuts.tolist(), batch.num_rows]
        for start, end in itertools.pairwise(bounds):
            if start == end:
                continue
            here = names[start].as_py(), int(values[start])
            if last is not None and here != last:
                yield last[0], concat_batches(pending)
                pending = []
            pending.append(batch.slice(start, end - start))
            last = here
    if last is not None:
        yield last[0], concat_batches(pending)
