"""Keyed stages at work: epochs in order, states migrated on the way, key groups cut rightly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Leaving, Stage
from fries.runtime.state import KeyGroup
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import Notes, Script, pickled
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
    return pickled(Shipped(operators, migrations, frozenset(entries)))


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
    bench.configuration.costs.clear()  # chunks begin with one row again
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
    shipped = pickled(Shipped({"F": process(1)}, {"F": failing}))
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


def test_a_result_function_that_runs_is_known_with_its_change() -> None:
    noted: list[tuple[str, int] | None] = []

    class Watching(Script):
        def returned(self) -> None:
            noted.append(self.call)
            super().returned()

    configuration = Configuration([aggregate()])
    configuration.load(1, BIT, change(1, aggregate(1)))
    spec = StageSpec(1, (aggregate(),), (TO_A, FROM_A))
    chunk = rows([(1, 1), (2, 5)], [8, 0])
    stage = Stage(spec, configuration, Watching())
    list(stage.run_group(spec.operators[0], TO_A, chunk, KeyGroup("A", None), hashes(chunk)))
    assert noted[:-1] == [("A", 0), ("A", 1)] * 2, "the rows of each version, then its results"
    assert noted[-1] == ("A", 1), "and then states are pickled"


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
    made = rows([(k, k) for k in keys], epochs)
    return Chunk(made.batch, made.epochs, np.array(keys, dtype=np.int64))


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
    configuration.load(1, BIT, pickled(Shipped({"E": replace(E, function=partial(note, 1))})))
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
    configuration.load(1, BIT, pickled(new))
    configuration.switch(1)
    leaving, _ = joined(configuration, left([1]), right([1]))
    assert [(row["seen"], int(one.epochs[0])) for _, one in leaving for row in listed(leaving)] == [
        (" M1", 8)
    ]


@pytest.mark.parametrize("wrong", [ValueError("no"), None], ids=["it raises", "a wrong type"])
def test_rows_behind_a_fold_go_the_strict_way_again_and_states_do_not(
    wrong: ValueError | None,
) -> None:
    """The fold sees each row once, and whoever fails behind it is to blame."""
    bench, folded, fails = Bench(), list[int](), True

    def follows(row: Row) -> Row:
        if fails and row["n"] == 50 and wrong is not None:
            raise wrong
        return {**row, "seen": 5} if fails and row["n"] == 50 else row

    def counted(state: int | None, row: Row) -> tuple[int, Row]:
        folded.append(row["n"])
        return (state or 0) + 1, row

    fold = replace(process(), function=counted)
    behind = tuple(OperatorSpec(name, Kind.MAP, ROWS, follows) for name in "MN")
    edges = (TO_F, TO_M, EdgeSpec(3, "M", "N"), EdgeSpec(4, "N", "output"))
    script = Script()
    stage = Stage(StageSpec(1, (fold, *behind), edges), Configuration((fold, *behind)), script)
    chunk = rows([(1, n) for n in range(100)])
    with pytest.raises(OperatorError, match="'M' failed on"):
        list(stage.run_group(fold, TO_F, chunk, KeyGroup("F", bench.store), hashes(chunk)))
    assert folded == list(range(max(folded) + 1))
    assert [error.operator for _, error in script.failures] == ["M"]
    fails = False
    group = KeyGroup("F", bench.store)
    made = listed(list(stage.run_group(fold, TO_F, chunk, group, hashes(chunk))))
    assert [row["n"] for row in made] == list(range(100))
    assert bench.states() == {1: (0, 100)}
