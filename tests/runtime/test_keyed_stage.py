"""Keyed stages at work: epochs in order, states migrated on the way, key groups cut rightly."""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.messages import Ended, Go
from fries.errors import OperatorError
from fries.runtime.arrow import Array, concat_batches
from fries.runtime.audit import Audit, read
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration, Shipped
from fries.runtime.layout import GROUP, HASH, OPERATOR, Layout, Result
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Leaving, Stage
from fries.runtime.state import KeyGroup
from fries.runtime.task import Execution, Task, groups
from fries.stages import PhysicalFlow, physical
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import Notes, Script
from tests.runtime.test_state import MemoryStore, spread

Row = dict[str, Any]
State = tuple[int, int]
"""The version of the function that made a state, and a number that shows all that came before."""
ROWS = schema(k=pa.int64(), n=pa.int64(), seen=pa.string())
TOTALS = schema(k=pa.int64(), total=pa.int64(), by=pa.string())
TO_F, TO_M, OUT = EdgeSpec(1, "S", "F"), EdgeSpec(2, "F", "M"), EdgeSpec(3, "M", "output")
BIT, UNDO = 3, 5
"""Bits of change 1 and change 2 in the masks of rows."""


def remembered(version: int, state: State | None, n: int) -> State:
    """The state after one more row; only states of the function's own version will do."""
    wrote, total = state or (version, 0)
    assert wrote == version, "a state of another version"
    return version, total * 3 + n


def step(version: int, state: State | None, row: Row) -> tuple[State, Row]:
    state = remembered(version, state, row["n"])
    return state, {**row, "seen": f"F{version}:{state[1]}"}


def migrate(version: int, state: State) -> State:
    wrote, total = state
    assert wrote == version - 1, "a migration has been left out, or done twice"
    return version, total + 1000


def note(version: int, row: Row) -> Row:
    return {**row, "seen": f"{row['seen']} M{version}"}


def add(version: int, state: State | None, row: Row) -> State:
    return remembered(version, state, row["n"])


def total(version: int, state: State) -> Row:
    return {"total": state[1], "by": f"A{version}"}


def process(version: int = 0, order_by: tuple[str, ...] = ()) -> OperatorSpec:
    keying = Keying(("k",), order_by)
    return OperatorSpec("F", Kind.PROCESS, ROWS, partial(step, version), keying=keying)


def mark(version: int = 0) -> OperatorSpec:
    return OperatorSpec("M", Kind.MAP, ROWS, partial(note, version))


def aggregate(version: int = 0) -> OperatorSpec:
    made = partial(total, version)
    keying = Keying(("k",))
    return OperatorSpec(
        "A", Kind.AGGREGATE, TOTALS, partial(add, version), keying=keying, result=made
    )


def change(version: int, *specs: OperatorSpec, entries: Sequence[int] = ()) -> bytes:
    operators = {spec.name: spec for spec in specs}
    migrations = {name: partial(migrate, version) for name in operators if name in ("F", "A")}
    return pickle.dumps(Shipped(operators, migrations, frozenset(entries)))


def rows(pairs: Sequence[tuple[int, int]], epochs: Sequence[int] | None = None) -> Chunk:
    """Rows of (key, number); transactions are numbered like rows."""
    made = [{"k": k, "n": n, "seen": ""} for k, n in pairs]
    masks = np.zeros(len(pairs), dtype=np.int64) if epochs is None else np.array(epochs)
    batch = pa.RecordBatch.from_pylist(made, schema=ROWS)
    return Chunk(batch, masks.astype(np.int64), np.arange(len(pairs)))


def hashes(chunk: Chunk) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    keys: list[Any] = chunk.batch.column("k").to_pylist()
    return np.array([spread(key) for key in keys], dtype=np.int64)


class Bench:
    """A keyed stage F -> M with its store, one batch after the other."""

    def __init__(self, spec: OperatorSpec | None = None) -> None:
        self.spec = spec or process()
        self.stage_spec = StageSpec(1, (self.spec, mark()), (TO_F, TO_M, OUT))
        self.configuration = Configuration(self.stage_spec.operators)
        self.store = MemoryStore()
        self.notes = Notes()

    def run(self, chunk: Chunk, steps: dict[int, Callable[[], None]] | None = None) -> list[Row]:
        """Push a key group through the stage; the rows that leave it, in order."""
        stage = Stage(self.stage_spec, self.configuration, Script(steps), self.notes)
        group = KeyGroup(self.spec.name, self.store)
        leaving = list(stage.run_group(self.spec, TO_F, chunk, group, hashes(chunk)))
        assert {edge for edge, _ in leaving} <= {OUT}
        return listed(leaving)

    def switch(self, number: int) -> Callable[[], None]:
        """A step of a script: the worker switches to a change."""
        return lambda: self.configuration.switch(number)

    def states(self) -> dict[int, tuple[int, Any]]:
        """By key, the version in the store and the state."""
        buckets = self.store.buckets.values()
        return {key: entry[1:] for bucket in buckets for key, entry in bucket.items()}


def listed(leaving: list[Leaving]) -> list[Row]:
    return [row for _, chunk in leaving for row in chunk.batch.to_pylist()]


class Oracle:
    """One state per key, one row after the other, migrated when the version goes up."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}

    def see(self, key: int, n: int, version: int) -> str:
        """What the flow must make of a row of some version."""
        state = self.states.get(key)
        while state is not None and state[0] < version:
            state = migrate(state[0] + 1, state)
        self.states[key] = remembered(version, state, n)
        return f"F{version}:{self.states[key][1]} M{version}"


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40)
SOME = [(n % 3, n) for n in range(60)]


def test_without_changes_every_key_is_folded_in_order() -> None:
    bench, oracle = Bench(), Oracle()
    for _ in range(2):
        assert [row["seen"] for row in bench.run(rows(SOME))] == [
            oracle.see(k, n, 0) for k, n in SOME
        ]
    assert bench.states() == {key: (0, state) for key, state in oracle.states.items()}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), max_size=40))
@settings(deadline=None)
def test_rows_of_the_old_epoch_come_first_and_then_states_are_migrated(
    arriving: list[tuple[int, int, bool]],
) -> None:
    """The entry is in an earlier stage: here rows of both epochs arrive mixed."""
    bench, oracle = Bench(), Oracle()
    before = [(k, 1) for k in range(5)]
    bench.run(rows(before))
    for k, n in before:
        oracle.see(k, n, 0)
    bench.configuration.load(1, BIT, change(1, process(1), mark(1)))
    bench.configuration.switch(1)
    chunk = rows([(k, n) for k, n, _ in arriving], [new << BIT for *_, new in arriving])
    expected = [
        {"k": k, "n": n, "seen": oracle.see(k, n, int(new))}
        for k, n, new in sorted(arriving, key=lambda row: row[2])
    ]
    assert bench.run(chunk) == expected
    assert bench.states() == {key: (state[0], state) for key, state in oracle.states.items()}


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_a_switch_in_the_middle_of_a_group_cuts_it_in_two(moment: int) -> None:
    """The group's own edge is the entry."""
    bench, oracle = Bench(), Oracle()
    bench.run(rows(SOME))
    for k, n in SOME:
        oracle.see(k, n, 0)
    bench.configuration.load(1, BIT, change(1, process(1), mark(1), entries=[1]))
    found = bench.run(rows(SOME), {moment: bench.switch(1)})
    versions = [int(row["seen"][1]) for row in found]
    assert versions == sorted(versions), "all old before the cut, all new after it"
    old = versions.count(0)
    assert old == {0: 0, 1: 0, 2: 1}.get(moment, old), "the first chunk is one row"
    assert old < 60
    assert old > 1 or moment < 3
    assert [row["seen"] for row in found] == [
        oracle.see(k, n, version) for (k, n), version in zip(SOME, versions, strict=True)
    ]


def test_a_change_and_its_undo_in_transition_at_once() -> None:
    bench, oracle = Bench(), Oracle()
    bench.run(rows(SOME))
    for k, n in SOME:
        oracle.see(k, n, 0)
    for number, bit in ((1, BIT), (2, UNDO)):
        bench.configuration.load(number, bit, change(number, process(number), mark(number)))
        bench.configuration.switch(number)
    masks = [0, 1 << BIT, 1 << BIT | 1 << UNDO]
    versions = [n % 7 % 3 for n in range(60)]
    found = bench.run(rows(SOME, [masks[version] for version in versions]))
    ordered = sorted(zip(versions, SOME, strict=True), key=lambda one: one[0])
    assert [row["seen"] for row in found] == [oracle.see(k, n, v) for v, (k, n) in ordered]
    assert {state[0] for state in oracle.states.values()} == {2}


@given(
    st.lists(PAIRS, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_over_batches_and_changes_every_key_is_all_old_and_then_all_new(
    batches: list[list[tuple[int, int]]], moments: list[tuple[int, int]]
) -> None:
    """A change is loaded and switched to in some batch, and in the base of the next one."""
    bench, oracle = Bench(), Oracle()
    changes = dict(enumerate(sorted(moments), 1))
    for number, pairs in enumerate(batches):
        bench.configuration.begin([c for c, (batch, _) in changes.items() if batch < number])
        switches: dict[int, list[int]] = defaultdict(list)
        for c, (batch, moment) in changes.items():
            if batch == number:
                payload = change(c, process(c), mark(c), entries=[1])
                bench.configuration.load(c, c, payload)
                switches[moment].append(c)

        def switch(numbers: list[int]) -> None:
            for one in numbers:
                bench.configuration.switch(one)

        steps: dict[int, Callable[[], None]] = {
            moment: partial(switch, numbers) for moment, numbers in switches.items()
        }
        bench.notes = Notes()
        found = bench.run(rows(pairs), steps)
        assert [(row["k"], row["n"]) for row in found] == pairs, "no row lost, none twice"
        versions = [int(row["seen"].rpartition("M")[2]) for row in found]
        assert versions == sorted(versions)
        assert [row["seen"] for row in found] == [
            oracle.see(k, n, version) for (k, n), version in zip(pairs, versions, strict=True)
        ]
        assert all(met["F"] == met["M"] for met in bench.notes.met.values())
    assert bench.states() == {key: (state[0], state) for key, state in oracle.states.items()}


def test_order_by_sorts_the_rows_of_each_epoch() -> None:
    bench = Bench(process(order_by=("n",)))
    shuffled = [(n % 2, n * 7 % 20) for n in range(20)]
    assert [row["n"] for row in bench.run(rows(shuffled))] == list(range(20))
    bench.configuration.load(1, BIT, change(1, process(1, order_by=("n",)), mark(1)))
    masks = [(n % 3 == 0) << BIT for _, n in shuffled]
    found = [row["n"] for row in bench.run(rows(shuffled, masks))]
    assert found == sorted(range(20), key=lambda n: (n % 3 == 0, n))


def test_order_by_several_columns_keeps_the_order_of_equal_rows() -> None:
    bench = Bench(process(order_by=("k", "n")))
    pairs = [(1, 2), (0, 2), (1, 1), (0, 2), (1, 2)]
    stage = Stage(bench.stage_spec, bench.configuration, Script())
    chunk = rows(pairs)
    leaving = list(
        stage.run_group(bench.spec, TO_F, chunk, KeyGroup("F", bench.store), hashes(chunk))
    )
    txns = [txn for _, one in leaving for txn in (() if one.txns is None else one.txns.tolist())]
    assert txns == [1, 3, 2, 0, 4]


def test_order_by_a_column_that_is_called_like_one_of_the_system() -> None:
    columns = schema(k=pa.int64(), _age=pa.int64())
    keying = Keying(("k",), ("_age",))
    spec = OperatorSpec("F", Kind.PROCESS, columns, lambda state, row: (1, row), keying=keying)
    stage_spec = StageSpec(1, (spec,), (TO_F, EdgeSpec(2, "F", "output")))
    stage = Stage(stage_spec, Configuration([spec]), Script())
    made = [{"k": n % 2, "_age": n * 7 % 20} for n in range(20)]
    chunk = Chunk.fresh(pa.RecordBatch.from_pylist(made, schema=columns))
    leaving = list(stage.run_group(spec, TO_F, chunk, KeyGroup("F", None), hashes(chunk)))
    assert [row["_age"] for row in listed(leaving)] == list(range(20))


def test_children_keep_epoch_and_transaction_when_rows_are_reordered() -> None:
    bench = Bench()
    bench.configuration.load(1, BIT, change(1, process(1), mark(1)))
    chunk = rows([(0, n) for n in range(6)], [8, 0, 8, 0, 0, 8])
    stage = Stage(bench.stage_spec, bench.configuration, Script(), bench.notes)
    leaving = list(
        stage.run_group(bench.spec, TO_F, chunk, KeyGroup("F", bench.store), hashes(chunk))
    )
    found = {
        row["n"]: (int(txn), int(mask))
        for _, one in leaving
        for row, txn, mask in zip(
            one.batch.to_pylist(),
            one.txns if one.txns is not None else (),
            one.epochs,
            strict=True,
        )
    }
    assert found == {n: (n, 8 if n in (0, 2, 5) else 0) for n in range(6)}
    assert {txn: met["F"] for txn, met in bench.notes.met.items()} == {
        n: {int(n in (0, 2, 5))} for n in range(6)
    }


def test_a_state_written_by_a_newer_version_than_the_rows_is_an_error() -> None:
    bench = Bench()
    bench.configuration.load(1, BIT, change(1, process(1), mark(1)))
    bench.run(rows([(7, 1)], [8]))
    assert bench.states() == {7: (1, (1, 1))}
    problem = "'F' failed: a state was written by its version 1, but rows of version 0 need it"
    with pytest.raises(OperatorError, match=problem):
        bench.run(rows([(7, 1)]))
    assert bench.states() == {7: (1, (1, 1))}, "and nothing is changed"


def test_a_flow_that_is_built_again_brings_old_states_up() -> None:
    """Its first version is the second one of the states in the checkpoint."""
    old, again = Bench(), Bench()
    old.run(rows([(7, 5)]))
    keying = Keying(("k",), migrations=(partial(migrate, 1),))
    again = Bench(replace(process(1), keying=keying))
    again.store = old.store
    (found,) = again.run(rows([(7, 2)]))
    assert found["seen"] == f"F1:{1005 * 3 + 2} M0"
    assert again.states()[7][0] == 1


def failing(state: State) -> State:
    if state[1] == 4:
        raise ValueError("no four")
    return state


@pytest.mark.parametrize("bad", [True, False])
def test_a_migration_is_tried_on_live_states_before_anything_changes(bad: bool) -> None:
    bench = Bench()
    bench.run(rows([(k, k * 2 if bad else k * 4 + 1) for k in range(5)]))
    shipped = pickle.dumps(Shipped({"F": process(1)}, {"F": failing}))
    if bad:
        with pytest.raises(OperatorError, match="its migration fails on the live state of key 2"):
            bench.configuration.load(1, BIT, shipped)
    else:
        bench.configuration.load(1, BIT, shipped)
    assert bench.configuration.bits_of("F") == (0 if bad else 1 << BIT)


def test_a_migration_is_tried_behind_those_that_are_in_transition() -> None:
    bench = Bench()
    bench.run(rows([(1, 1)]))
    bench.configuration.load(1, BIT, change(1, process(1)))
    bench.configuration.load(2, UNDO, change(2, process(2)))
    with pytest.raises(OperatorError, match=r"on the live state of key 1: .*left out"):
        bench.configuration.load(3, 6, change(4, process(4)))
    bench.configuration.begin([1])
    bench.run(rows([(1, 1)], [1 << UNDO]))
    bench.configuration.load(3, 6, change(3, process(3)))
    assert bench.configuration.state_version("F", 1 << UNDO | 1 << 6) == 3


def test_a_state_goes_through_as_many_versions_as_needed() -> None:
    bench, oracle = Bench(), Oracle()
    bench.run(rows([(1, 1), (2, 2)]))
    for k, n in ((1, 1), (2, 2)):
        oracle.see(k, n, 0)
    for number in (1, 2, 3):
        bench.configuration.load(number, number, change(number, process(number), mark(number)))
        bench.configuration.begin([number])
        (found,) = bench.run(rows([(1, 5)]))
        assert found["seen"] == oracle.see(1, 5, number)
    (found,) = bench.run(rows([(2, 5)]))
    assert found["seen"] == oracle.see(2, 5, 3)


def test_what_is_recorded_counts_the_updates_of_the_base_and_those_in_transition() -> None:
    bench = Bench()
    for number, bit in ((1, BIT), (2, UNDO)):
        payload = change(number, process(number), mark(number))
        bench.configuration.load(number, bit, payload)
    bench.configuration.begin([1])
    bench.run(rows([(1, 1), (1, 2)], [0, 1 << UNDO]))
    assert bench.notes.met == {0: {"F": {1}, "M": {1}}, 1: {"F": {2}, "M": {2}}}


TO_A, FROM_A = EdgeSpec(1, "S", "A"), EdgeSpec(2, "A", "output")


def aggregated(
    configuration: Configuration, chunk: Chunk, steps: dict[int, Callable[[], None]] | None = None
) -> tuple[list[Row], Stage]:
    spec = StageSpec(1, (aggregate(),), (TO_A, FROM_A))
    stage = Stage(spec, configuration, Script(steps))
    group = KeyGroup("A", None)
    leaving = list(stage.run_group(spec.operators[0], TO_A, chunk, group, hashes(chunk)))
    assert all(not one.epochs.any() for _, one in leaving), "results begin transactions"
    return listed(leaving), stage


def test_an_aggregate_gives_one_row_per_key_of_the_batch() -> None:
    configuration = Configuration([aggregate()])
    for _ in range(2):
        found, _ = aggregated(configuration, rows([(1, 1), (2, 5), (1, 2)]))
        assert found == [{"k": 1, "total": 5, "by": "A0"}, {"k": 2, "total": 5, "by": "A0"}]


def test_each_key_of_an_aggregate_has_the_result_of_the_version_that_it_came_to() -> None:
    configuration = Configuration([aggregate()])
    configuration.load(1, BIT, change(1, aggregate(1)))
    chunk = rows([(1, 1), (1, 1), (2, 5), (3, 7), (3, 9)], [8, 0, 0, 8, 8])
    found, stage = aggregated(configuration, chunk)
    assert sorted(found, key=lambda row: row["k"]) == [
        {"k": 1, "total": (1 + 1000) * 3 + 1, "by": "A1"},
        {"k": 2, "total": 5, "by": "A0"},
        {"k": 3, "total": 7 * 3 + 9, "by": "A1"},
    ]
    assert set(stage.last_old) == {1}


def test_a_switch_in_the_middle_of_an_aggregate() -> None:
    """After one row: the first chunk."""
    configuration = Configuration([aggregate()])
    configuration.load(1, BIT, change(1, aggregate(1), entries=[1]))
    pairs = [*((n % 2, n) for n in range(50)), (9, 1)]
    found, _ = aggregated(configuration, rows(pairs), {2: lambda: configuration.switch(1)})
    oracle = Oracle()
    for number, (k, n) in enumerate(pairs):
        oracle.see(k, n, int(number > 0))
    assert found == [{"k": k, "total": state[1], "by": "A1"} for k, state in oracle.states.items()]


IDS = schema(k=pa.int64(), n=pa.int64(), seen=pa.string())
PAIR = pa.schema([*IDS, pa.field("b", pa.string())])
RIGHT = schema(k=pa.int64(), b=pa.string())
SJ = OperatorSpec("SJ", Kind.JOIN, PAIR, keying=Keying(("k",)))
E = OperatorSpec("E", Kind.MAP, PAIR, partial(note, 0))
FROM_B, FROM_C = EdgeSpec(4, "B", "SJ"), EdgeSpec(5, "C", "SJ")
TO_E, JOINED = EdgeSpec(6, "SJ", "E"), EdgeSpec(7, "E", "output")


def left(keys: Sequence[int], epochs: Sequence[int] | None = None) -> Chunk:
    """One half of pairs; the transaction of a half is its key."""
    return replace(rows([(k, k) for k in keys], epochs), txns=np.array(keys, dtype=np.int64))


def right(keys: Sequence[int], epochs: Sequence[int] | None = None) -> Chunk:
    batch = pa.RecordBatch.from_pylist([{"k": k, "b": f"b{k}"} for k in keys], schema=RIGHT)
    masks = np.zeros(len(keys)) if epochs is None else np.array(epochs)
    return Chunk(batch, masks.astype(np.int64), np.array(keys, dtype=np.int64))


def joined(configuration: Configuration, one: Chunk, other: Chunk) -> tuple[list[Leaving], Script]:
    spec = StageSpec(1, (SJ, E), (FROM_B, FROM_C, TO_E, JOINED))
    script = Script()
    stage = Stage(spec, configuration, script, Notes())
    return list(stage.run_join(SJ, (FROM_B, one), (FROM_C, other))), script


def test_pairs_go_on_through_the_stage() -> None:
    leaving, script = joined(Configuration([SJ, E]), left([1, 2, 3]), right([3, 1, 4]))
    assert listed(leaving) == [{"k": k, "n": k, "seen": " M0", "b": f"b{k}"} for k in (1, 3)]
    assert script.counts["SJ"] == [6, 2]
    assert script.counts["E"] == [2, 2]


def test_a_pair_obeys_the_stamps_of_both_halves() -> None:
    configuration = Configuration([SJ, E])
    configuration.load(1, BIT, pickle.dumps(Shipped({"E": replace(E, function=partial(note, 1))})))
    one, other = left(range(4), [0, 8, 0, 8]), right(range(4), [0, 0, 8, 8])
    leaving, _ = joined(configuration, one, other)
    assert {row["k"]: row["seen"] for row in listed(leaving)} == {
        0: " M0",
        1: " M1",
        2: " M1",
        3: " M1",
    }


def test_a_join_may_be_an_entry() -> None:
    configuration = Configuration([SJ, E])
    new = Shipped({"E": replace(E, function=partial(note, 1))}, entries=frozenset({4, 5}))
    configuration.load(1, BIT, pickle.dumps(new))
    configuration.switch(1)
    leaving, _ = joined(configuration, left([1]), right([1]))
    assert [(row["seen"], int(one.epochs[0])) for _, one in leaving for row in listed(leaving)] == [
        (" M1", 8)
    ]


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
