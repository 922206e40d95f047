"""A flow on rows in memory, batch after batch, changed at any row of any stage."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from fries.control.messages import Cut
from fries.errors import ArgumentError
from fries.plan import CommitPoint, Plan
from fries.runtime.audit import Audit, read
from fries.runtime.configuration import Configuration
from fries.runtime.layout import Layout
from fries.runtime.shipped import Shipped
from fries.runtime.spec import Function, Kind
from fries.runtime.task import Execution, Task
from fries.schedulers import scheduler as scheduler_of
from fries.serializability import Verdict, check_trace
from fries.stages import Exchange as Way
from fries.stages import PhysicalStage
from fries.stream import Stream
from fries.testing.channel import Script
from fries.testing.exchange import Exchange, MemoryStore
from fries.testing.inputs import FromExchange, FromSources, Input, Stores
from fries.trace import updates_of
from fries.updates import Update, check_columns, revised

Row: TypeAlias = "dict[str, Any]"
WHERE: Final = "a trial"


class Place(NamedTuple):
    """A row among those that a stage takes in a batch, over all its partitions."""

    stage: int
    row: int


@dataclass(frozen=True)
class Pending:
    """A change that comes in the next batch."""

    number: int
    place: Place


class Trial:
    """Runs a flow, or the outputs of one, on rows that a test gives.

    Each partition stands for a Python worker of its own. Partitions of a stage are processed one
    after the other, and each stage when the one before it is done: so what happens at a row happens
    in every run.
    """

    def __init__(
        self, stream: Stream | None = None, /, *, partitions: int = 2, **streams: Stream
    ) -> None:
        """The stream is the only output, or streams are outputs by their names."""
        from fries.spark.shipping import pickled_all

        every = [*streams.values(), *([] if stream is None else [stream])]
        if not every:
            raise ArgumentError(WHERE, "it needs a stream: the output of the flow that it runs")
        self._user = every[0].flow
        self._flow = self._user._defined(stream, streams)
        self._physical = self._flow.stages()
        self._crossing = self._flow.crossing(self._physical)
        self._built = {spec.name: spec for spec in self._flow.operators}
        self._current = dict(self._built)
        definition = pickled_all(self._flow.operators)
        self._workers = [Configuration() for _ in range(partitions)]
        for worker in self._workers:
            worker.define(definition, {})
        self._stores: Stores = {}
        self._targets: list[tuple[str, ...]] = []
        self._pending: list[Pending] = []
        self._failures: list[Place] = []
        self._batches = 0
        self._folder = tempfile.mkdtemp(prefix="fries-trial-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def change(
        self,
        updates: Mapping[str, Function | Update | Any],
        at_row: int = 0,
        stage: int | None = None,
        scheduler: str = "fries",
    ) -> Plan:
        """Change operators in the next batch, when a stage is about to take its row ``at_row``.

        Without a stage: the first in which rows enter what is changed. What cannot work raises, as
        it does for a running flow.
        """
        from fries.spark.shipping import packed

        plan = scheduler_of(scheduler)(self._flow.graph(self._current), tuple(updates))
        made = {name: self._user._revision(name, one) for name, one in updates.items()}
        new = {name: revised(self._current[name], one) for name, one in made.items()}
        new = check_columns(tuple(self._current.values()), self._flow.edges, new, self._crossing)
        entries = self._flow.entries(plan.components)
        place = self._placed(plan, entries, stage, at_row)
        migrations = {name: one.migrate for name, one in made.items()}
        inverses = {name: one.inverse for name, one in made.items()}
        package = packed(Shipped(new, migrations, entries, inverses), self._built)
        number = len(self._targets) + 1
        for worker in self._workers:
            worker.load(number, len(self._pending), package.payload, package.buffers)
        self._targets.append(plan.targets)
        self._pending.append(Pending(number, place))
        self._current.update(new)
        return plan

    def fail(self, at_row: int, stage: int = 0) -> None:
        """Let a task of the next batch fail when it is about to process a row of its stage.

        What it has done is lost, and it is executed again, as Spark does it.
        """
        self._failures.append(self._checked(Place(stage, at_row)))

    def batch(self, **rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Row]]:
        """Process rows of the sources, by their names; gives those of each output.

        An output without a name is called ``output``. Changes are in place afterwards.
        """
        inputs = self._read(rows)
        found: dict[str, list[Row]] = {name: [] for name in self._flow.outputs}
        for stage in self._physical.stages:
            schemas = {edge.number: self._physical.schemas[edge.number] for edge in stage.leaving}
            gives = Layout(schemas, True)
            made = [
                batch
                for partition, given in enumerate(inputs)
                for batch in self._task(stage, gives, partition, inputs, given)
            ]
            if stage is not self._physical.stages[-1]:
                inputs = self._dealt(self._physical.stages[stage.number + 1], gives, made)
        targets = {edge.number: edge.target for edge in self._physical.outputs}
        for batch in made:
            for edge, chunk, _ in gives.decode(batch):
                found[targets[edge]] += chunk.batch.to_pylist()
        self._pending, self._failures = [], []
        self._batches += 1
        return found

    def verdict(self) -> Verdict:
        """Which changes were all or nothing for every row of the sources."""
        names = tuple(self._built)
        return check_trace(read(self._folder, names, updates_of(self._targets)))

    def assert_all_old_or_all_new(self) -> None:
        """Raise an ``AssertionError`` that names a row which met half of a change, if one did."""
        verdict = self.verdict()
        if not verdict.atomic:
            raise AssertionError(str(verdict))

    def _placed(self, plan: Plan, entries: frozenset[int], stage: int | None, at_row: int) -> Place:
        if plan.commit is not CommitPoint.NOW:
            return Place(0, 0)  # at the boundary before the batch
        if stage is None:
            stages = self._flow.stage_of_edges(self._physical)
            stage = min(stages[edge] for edge in entries)
        return self._checked(Place(stage, at_row))

    def _checked(self, place: Place) -> Place:
        stages = self._physical.stages
        if not 0 <= place.stage < len(stages) or place.row < 0:
            raise ArgumentError(
                WHERE,
                f"there is no row {place.row} of stage {place.stage}; the flow has "
                f"{len(stages)} stages, from 0 on",
            )
        joins = any(one.kind is Kind.JOIN for one in stages[place.stage].spec.operators)
        if joins and place.row:
            raise ArgumentError(
                WHERE,
                f"stage {place.stage} pairs rows, so nothing can happen between two of "
                "them; choose its row 0, or another stage",
            )
        return place

    def _read(self, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Input]:
        """The rows of the sources, a part of each for every partition."""
        if unknown := rows.keys() - self._flow.sources.keys():
            known = ", ".join(self._flow.sources)
            raise ArgumentError(WHERE, f"there is no source {min(unknown)!r}; there are {known}")
        parts: list[list[tuple[int, pa.RecordBatch]]] = [[] for _ in self._workers]
        for edge in self._physical.stages[0].incoming:
            listed = [dict(row) for row in rows.get(edge.target, ())]
            schema = self._physical.schemas[edge.number]
            size = -(-len(listed) // len(parts))
            for number, part in enumerate(parts):
                mine = listed[number * size : (number + 1) * size]
                part.append((edge.number, pa.RecordBatch.from_pylist(mine, schema=schema)))
        return [FromSources(part) for part in parts]

    def _dealt(
        self, stage: PhysicalStage, takes: Layout, made: list[pa.RecordBatch]
    ) -> list[Input]:
        exchange = Exchange(stage, takes, len(self._workers), self._flow.groups)
        in_groups = stage.exchange is Way.GROUPED
        return [FromExchange(table, takes, in_groups) for table in exchange.dealt(made)]

    def _task(
        self,
        stage: PhysicalStage,
        gives: Layout,
        partition: int,
        inputs: list[Input],
        given: Input,
    ) -> list[pa.RecordBatch]:
        """One task, and again if it fails: then with all that was committed meanwhile."""
        before = sum(one.rows for one in inputs[:partition])
        script = self._script(stage.number, before, given.rows)
        for place in self._failures:
            row = place.row - before
            if place.stage == stage.number and 0 <= row < given.rows:
                copies: Stores = {
                    where: MemoryStore(store.values) for where, store in self._stores.items()
                }
                self._run(stage, gives, partition, given.first(row), script, copies)
                script = _later(script, row)
        return self._run(stage, gives, partition, given, script, self._stores, keep=True)

    def _script(self, stage: int, before: int, rows: int) -> Script:
        """With which changes a task begins, and where it switches to others."""
        begins_with, cuts = [], []
        for change in self._pending:
            row = change.place.row - before
            if change.place.stage < stage or (change.place.stage == stage and row <= 0):
                begins_with.append(change.number)
            elif change.place.stage == stage and row < rows:
                cuts.append(Cut(row, change.number))
        base = tuple(range(1, len(self._targets) - len(self._pending) + 1))
        return Script(base, tuple(begins_with), tuple(sorted(cuts, key=lambda cut: cut.rows)))

    def _run(
        self,
        stage: PhysicalStage,
        gives: Layout,
        partition: int,
        given: Input,
        script: Script,
        stores: Stores,
        keep: bool = False,
    ) -> list[pa.RecordBatch]:
        audit = Audit(tuple(self._built))
        where = Execution(self._batches, partition)
        worker = self._workers[partition]
        task = Task(stage, gives, where, worker, script, audit, ordered=True)
        made = list(given.through(task, stores))
        if keep:
            task.keep_audit(self._folder)
        return made


def _later(script: Script, row: int) -> Script:
    """What a task is told that is executed again after it has failed at a row."""
    seen = tuple(cut.change for cut in script.cuts if cut.rows <= row)
    cuts = tuple(cut for cut in script.cuts if cut.rows > row)
    return Script(script.base, (*script.begins_with, *seen), cuts)
