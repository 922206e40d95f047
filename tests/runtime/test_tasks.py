"""Whole tasks of keyed stages: what they announce, keep and report, and how groups are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.messages import Ended, Go
from fries.runtime.arrow import Array, concat_batches
from fries.runtime.audit import Audit, read
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.layout import GROUP, HASH, OPERATOR, Layout, Result
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec
from fries.runtime.task import Execution, Task, groups
from fries.stages import PhysicalFlow, physical
from tests.runtime.test_columns import schema
from tests.runtime.test_keyed_stage import (
    BIT,
    FROM_B,
    FROM_C,
    JOINED,
    OUT,
    PAIR,
    RIGHT,
    ROWS,
    SJ,
    SOME,
    TO_E,
    TO_F,
    TO_M,
    E,
    Oracle,
    Row,
    aggregate,
    change,
    hashes,
    left,
    mark,
    note,
    process,
    right,
    rows,
)
from tests.runtime.test_stage import Script
from tests.runtime.test_state import MemoryStore


class Line(Script):
    """A scripted channel for whole tasks."""

    def __init__(
        self, base: tuple[int, ...] = (), steps: dict[int, Callable[[], None]] | None = None
    ) -> None:
        super().__init__(steps)
        self.base = base
        self.begun: list[tuple[int, int, int]] = []
        self.reports: list[Ended] = []

    def begin(self, batch: int, stage: int, partition: int, execution: int) -> Go:  # noqa: ARG002
        """Let a task begin."""
        self.begun.append((batch, stage, partition))
        return Go(self.base, ())

    def ended(self, report: Ended) -> None:
        """Keep a report."""
        self.reports.append(report)


SOURCE = OperatorSpec("S", Kind.PASS, ROWS)
EDGES = [
    EdgeSpec(0, "", "S"),
    TO_F,
    TO_M,
    OUT,
    EdgeSpec(4, "S", "A"),
    EdgeSpec(5, "A", "totals"),
    EdgeSpec(6, "S", "copy"),
]
OPERATORS = (SOURCE, process(), mark(), aggregate())
"""S -> F -> M -> output, S -> A -> totals, and S -> copy, which passes the keyed stage."""


class Job:
    """The keyed stage of a whole flow, as Spark would run it."""

    def __init__(self, line: Line | None = None, audit: Audit | None = None) -> None:
        self.flow: PhysicalFlow = physical(OPERATORS, EDGES)
        schemas = self.flow.schemas
        leaving = self.flow.stages[0].leaving
        self.takes = Layout({e.number: schemas[e.number] for e in leaving}, audit is not None)
        self.gives = Result({e.number: (e.target, schemas[e.number]) for e in self.flow.outputs})
        self.configuration = Configuration(OPERATORS)
        self.line = line or Line()
        self.store = MemoryStore()
        where = Execution(batch=3, partition=2)
        self.task = Task(
            self.flow.stages[1], self.gives, where, self.configuration, self.line, audit
        )

    def flat(self, edge: int, chunk: Chunk, operator: str = "", group: int = 0) -> pa.RecordBatch:
        """Rows of an edge as they come out of an exchange."""
        size = len(chunk)
        encoded = self.takes.encode(edge, chunk)
        added: dict[str, Array] = {
            HASH: pa.array(hashes(chunk)),
            OPERATOR: pa.array([operator] * size),
            GROUP: pa.array([group] * size, pa.int64()),
        }
        arrays = [*encoded.columns, *added.values()]
        return pa.RecordBatch.from_arrays(arrays, names=[*encoded.schema.names, *added])

    def group(self, operator: str, edge: int, chunk: Chunk) -> list[Row]:
        """Rows of the output that a key group gives."""
        flat = self.flat(edge, chunk, operator)
        made = self.task.group(operator, flat, self.takes, self.store)
        return [row for batch in made for row in batch.to_pylist()]


def test_a_task_announces_itself_and_reports() -> None:
    job = Job()
    job.configuration.load(1, BIT, change(1, process(1)))
    job.group("F", 1, rows([(1, 1)]))
    job.task.report(complete=True)
    assert job.line.begun == [(3, 1, 2)]
    (report,) = job.line.reports
    assert (report.batch, report.stage, report.partition) == (3, 1, 2)
    assert set(report.last_old) == {1}


def test_a_task_begins_with_the_base_of_its_batch() -> None:
    job = Job()
    job.configuration.load(1, BIT, change(1, process(1), mark(1)))
    Task(job.flow.stages[1], job.gives, Execution(4, 0), job.configuration, Line(base=(1,)))
    assert job.configuration.bits_of("F") == 0
    (found,) = job.group("F", 1, rows([(1, 1)]))
    assert found["seen"] == "F1:1 M1"


def test_a_task_keeps_the_states_of_a_process_in_the_store() -> None:
    job, oracle = Job(), Oracle()
    for _ in range(2):
        found = job.group("F", 1, rows(SOME))
        assert [row["seen"] for row in found] == [oracle.see(k, n, 0) for k, n in SOME]
        assert {row["_output"] for row in found} == {"output"}
    assert set(job.store.buckets[0]) == {0, 1, 2}


def test_a_task_keeps_nothing_of_an_aggregate() -> None:
    job = Job()
    for _ in range(2):
        (found,) = job.group("A", 4, rows([(1, 1), (1, 2)]))
        assert (found["k"], found["total"], found["_output"]) == (1, 5, "totals")
    assert job.store.values == {}


def test_rows_without_a_key_pass_through_a_keyed_stage() -> None:
    job = Job()
    found = job.group("", 6, rows(SOME, [n % 2 for n in range(60)]))
    assert [(row["k"], row["n"]) for row in found] == SOME
    assert {row["_output"] for row in found} == {"copy"}


def test_a_task_joins_what_both_branches_have_kept() -> None:
    specs = [SOURCE, OperatorSpec("B", Kind.MAP, ROWS, partial(note, 0))]
    specs += [OperatorSpec("C", Kind.MAP, RIGHT, partial(note, 0)), SJ, E]
    edges = [EdgeSpec(0, "", "S"), EdgeSpec(1, "S", "B"), EdgeSpec(2, "S", "C")]
    flow = physical(specs, [*edges, FROM_B, FROM_C, TO_E, JOINED])
    takes = Layout({4: ROWS, 5: RIGHT}, audit=False)
    task = Task(
        flow.stages[1],
        Result({7: ("output", PAIR)}),
        Execution(0, 0),
        Configuration(specs),
        Line(),
    )
    halves = [takes.encode(4, left([1, 2])), takes.encode(5, right([2, 3]))]
    (made,) = task.group("SJ", concat_batches(halves), takes, None)
    assert made.to_pylist() == [{"k": 2, "n": 2, "seen": " M0", "b": "b2"}]
    assert list(task.group("SJ", halves[0], takes, None)) == []
    assert list(task.group("SJ", halves[1], takes, None)) == []


def test_transactions_that_begin_in_a_task_have_numbers_of_their_own(tmp_path: Path) -> None:
    audit = Audit(["S", "F", "M", "A"])
    job = Job(audit=audit)
    first, second = job.task.fresh(rows(SOME).batch), job.task.fresh(rows(SOME).batch)
    assert first.txns is not None
    assert second.txns is not None
    assert not set(first.txns.tolist()) & set(second.txns.tolist())
    job.group("F", 1, first)
    job.group("A", 4, second)
    job.task.keep_audit(str(tmp_path))
    trace = read(str(tmp_path), ("S", "F", "M", "A"), [])
    recorded = set(zip(trace.transaction.tolist(), trace.operator.tolist(), strict=True))
    assert recorded == {
        *((txn, name) for txn in first.txns.tolist() for name in (1, 2)),
        *((txn, 3) for txn in second.txns.tolist()),
    }


def test_coalescing_keeps_every_row_once_and_in_order() -> None:
    job, count = Job(), 100_000
    numbers = np.arange(count)
    values: dict[str, Any] = {"k": numbers % 5, "n": numbers, "seen": [""] * count}
    batch = pa.RecordBatch.from_pydict(values, schema=ROWS)
    made = list(job.task.rows([(6, Chunk.fresh(batch))]))
    assert len(made) >= 2, "not all at once, if they are many"
    assert np.array_equal(np.concatenate([one.column("n").to_numpy() for one in made]), numbers)


SORTED = st.lists(st.tuples(st.sampled_from(["", "A", "F"]), st.integers(0, 4)), max_size=40).map(
    sorted
)


@given(SORTED, st.lists(st.integers(0, 40), max_size=6))
@settings(deadline=None)
def test_sorted_rows_are_cut_into_key_groups(
    places: list[tuple[str, int]], cuts: list[int]
) -> None:
    columns = schema(op=pa.string(), group=pa.int64(), n=pa.int64())
    listed_rows = [{"op": op, "group": g, "n": n} for n, (op, g) in enumerate(places)]
    whole = pa.RecordBatch.from_pylist(listed_rows, schema=columns)
    bounds = [0, *sorted(min(cut, len(places)) for cut in cuts), len(places)]

    def batches() -> Iterator[pa.RecordBatch]:
        for start, end in itertools.pairwise(bounds):
            yield whole.slice(start, end - start)

    found = [(op, batch.to_pylist()) for op, batch in groups(batches(), "op", "group")]
    by_place = itertools.groupby(listed_rows, key=lambda row: (row["op"], row["group"]))
    assert found == [(op, list(members)) for (op, _), members in by_place]


def test_no_batches_have_no_groups() -> None:
    assert list(groups([], "op", "group")) == []
