"""A stage at work: versions by epoch, stamping at entries, branches, pacing."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError
from fries.runtime.arrow import Integers
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.pacer import Pacer
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Stage

TYPES: dict[str, pa.DataType] = {"n": pa.int64(), "seen": pa.string()}
SCHEMA = pa.schema(TYPES)
ARRIVING = EdgeSpec(3, "", "source")
SOURCE, INNER, OUT = EdgeSpec(0, "source", "A"), EdgeSpec(1, "A", "B"), EdgeSpec(2, "B", "sink")


def note(label: str, row: dict[str, Any]) -> dict[str, Any]:
    """Leave a trace of the version that processed a row."""
    return {**row, "seen": row["seen"] + label}


def operator(name: str, kind: Kind = Kind.MAP) -> OperatorSpec:
    function = partial(note, f"{name}0 ") if kind is Kind.MAP else None
    return OperatorSpec(name, kind, SCHEMA, function)


def change(number: int, *names: str, entries: tuple[int, ...] = (0,)) -> bytes:
    operators = {
        name: replace(operator(name), function=partial(note, f"{name}{number} ")) for name in names
    }
    return pickled(Shipped(operators, entries=frozenset(entries)))


def pickled(shipped: Shipped) -> bytes:
    """What travels of a change that leaves columns as they are."""
    return pickle.dumps(shipped.bare(shipped.operators))


def rows(count: int, epochs: list[int] | None = None) -> Chunk:
    batch = pa.RecordBatch.from_pydict(
        {"n": list(range(count)), "seen": [""] * count}, schema=SCHEMA
    )
    masks = np.zeros(count, dtype=np.int64) if epochs is None else np.array(epochs)
    return Chunk(batch, masks, np.arange(count))


class Script:
    """A control channel that does something at the n-th look at it."""

    def __init__(self, steps: dict[int, Callable[[], None]] | None = None) -> None:
        self.polls = 0
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.set_apart: dict[str, int] = defaultdict(int)
        self.taken: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        self._steps = steps or {}
        self.failures: list[tuple[int, OperatorError]] = []

    def poll(self) -> None:
        """Take the next step of the script."""
        self._steps.get(self.polls, lambda: None)()
        self.polls += 1

    @property
    def hurried(self) -> bool:
        """No commit is about to come."""
        return False

    @property
    def pressed(self) -> bool:
        """No change waits."""
        return False

    def count(self, operator: str, taken: int, given: int, seconds: float, failed: int = 0) -> None:
        """Add up rows."""
        assert seconds >= 0
        self.set_apart[operator] += failed
        self.counts[operator][0] += taken
        self.counts[operator][1] += given

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Add up rows by version, as each change sees it."""
        self.taken[operator, change][0] += rows
        for one in older:
            self.taken[operator, one][1] += rows

    def calling(self, operator: str, change: int) -> None:
        """Remember the call."""
        self.call: tuple[str, int] | None = (operator, change)

    def returned(self) -> None:
        """Forget the call."""
        self.call = None

    def failed(self, change: int, error: OperatorError) -> None:
        """Keep the failure."""
        self.failures.append((change, error))

    def hold(self, operator: str, change: int, stage: int) -> bool:  # noqa: ARG002
        """Nobody takes it back."""
        return False


class Notes:
    """An audit in memory: the versions that each transaction met, by operator."""

    def __init__(self) -> None:
        self._operations: list[tuple[int, str, int]] = []

    @property
    def met(self) -> dict[int, dict[str, set[int]]]:
        """By transaction and operator, the versions."""
        found: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for txn, name, version in self._operations:
            found[txn][name].add(version)
        return found

    def record(self, name: str, version: int, txns: Integers | None, moment: float) -> None:
        """Note a data operation."""
        assert moment > 0
        assert txns is not None
        self._operations += [(int(txn), name, version) for txn in txns]


def chain() -> tuple[Configuration, StageSpec]:
    spec = StageSpec(0, (operator("A"), operator("B")), (SOURCE, INNER, OUT))
    return Configuration(spec.operators), spec


def seen(leaving: list[tuple[EdgeSpec, Chunk]]) -> dict[int, str]:
    return {
        row["n"]: row["seen"].strip() for _, chunk in leaving for row in chunk.batch.to_pylist()
    }


def test_without_changes_rows_pass_through_in_order() -> None:
    configuration, spec = chain()
    leaving = list(Stage(spec, configuration, Script()).run(SOURCE, rows(20)))
    assert list(seen(leaving)) == list(range(20))
    assert set(seen(leaving).values()) == {"A0 B0"}
    assert {edge for edge, _ in leaving} == {OUT}


def test_a_switch_between_two_chunks_cuts_the_rows_in_two() -> None:
    configuration, spec = chain()
    configuration.load(1, 5, change(1, "A", "B"))
    script = Script({2: lambda: configuration.switch(1)})
    stage = Stage(spec, configuration, script)
    found = list(seen(list(stage.run(SOURCE, rows(200)))).values())
    cut = found.index("A1 B1")
    assert all(script.taken[name, 1] == [200 - cut, cut] for name in "AB")
    assert (script.taken["A", 0], script.taken["B", 0]) == ([cut, 0], [cut, 0])
    assert set(found[:cut]) == {"A0 B0"}
    assert set(found[cut:]) == {"A1 B1"}
    assert set(stage.last_old) == {1}


def test_rows_that_were_stamped_earlier_are_obeyed_and_others_are_not() -> None:
    """Behind an exchange rows of both epochs arrive mixed, and this stage is no entry."""
    configuration, spec = chain()
    configuration.load(1, 3, change(1, "B", entries=()))
    configuration.switch(1)
    arriving = rows(6, [0, 8, 0, 8, 8, 0])
    leaving = list(Stage(spec, configuration, Script()).run(SOURCE, arriving))
    assert {n for n, text in seen(leaving).items() if text == "A0 B1"} == {1, 3, 4}
    for _, chunk in leaving:
        assert {int(mask) for mask in chunk.epochs} <= {0, 8}


def test_changes_in_the_base_need_no_bit() -> None:
    configuration, spec = chain()
    configuration.load(1, 0, change(1, "A"))
    configuration.switch(1)
    configuration.begin([1])
    script = Script()
    leaving = list(Stage(spec, configuration, script).run(SOURCE, rows(3)))
    assert set(seen(leaving).values()) == {"A1 B0"}
    assert dict(script.taken) == {("A", 1): [3, 0]}, "nothing is said of what was never changed"
    assert {int(mask) for _, chunk in leaving for mask in chunk.epochs} == {0}


def test_an_aborted_change_leaves_nothing_behind() -> None:
    configuration, spec = chain()
    configuration.load(1, 0, change(1, "A", "B"))
    configuration.drop(1)
    assert configuration.bits_of("A") == 0
    leaving = list(Stage(spec, configuration, Script()).run(SOURCE, rows(3, [1, 1, 1])))
    assert set(seen(leaving).values()) == {"A0 B0"}


def test_replicate_and_split() -> None:
    ways = [EdgeSpec(1, "RE", "left"), EdgeSpec(2, "RE", "right")]
    spec = StageSpec(0, (operator("RE", Kind.PASS),), (EdgeSpec(0, "source", "RE"), *ways))
    copies = list(Stage(spec, Configuration(spec.operators), Script()).run(spec.edges[0], rows(5)))
    assert sorted(sum(len(c) for e, c in copies if e == way) for way in ways) == [5, 5]

    odd = OperatorSpec("SP", Kind.SPLIT, SCHEMA, lambda row: row["n"] % 2, branches=2)
    branches = (EdgeSpec(1, "SP", "even", 0), EdgeSpec(2, "SP", "odd", 1))
    spec = StageSpec(0, (odd,), (EdgeSpec(0, "source", "SP"), *branches))
    leaving = list(Stage(spec, Configuration(spec.operators), Script()).run(spec.edges[0], rows(5)))
    for branch in branches:
        mine = [row["n"] for e, c in leaving if e == branch for row in c.batch.to_pylist()]
        assert mine == [n for n in range(5) if n % 2 == branch.branch]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sets(st.sampled_from("AB"), min_size=1)), max_size=4),
    st.integers(1, 120),
)
@settings(deadline=None, max_examples=60)
def test_every_transaction_is_all_old_or_all_new_for_every_change(
    changes: list[tuple[int, set[str]]], count: int
) -> None:
    configuration, spec = chain()
    steps: dict[int, list[int]] = defaultdict(list)
    for number, (moment, names) in enumerate(sorted(changes, key=lambda one: one[0]), 1):
        entries = (0,) if "A" in names else (1,)
        configuration.load(number, number, change(number, *names, entries=entries))
        steps[moment].append(number)

    def switch(numbers: list[int]) -> None:
        for number in numbers:
            configuration.switch(number)

    script = Script({moment: partial(switch, numbers) for moment, numbers in steps.items()})
    notes = Notes()
    leaving = list(Stage(spec, configuration, script, notes).run(SOURCE, rows(count)))
    assert sorted(seen(leaving)) == list(range(count)), "no row lost, none twice"
    for met in notes.met.values():
        assert all(len(versions) == 1 for versions in met.values())
    applied = [(met["A"], met["B"]) for _, met in sorted(notes.met.items())]
    together = [names for _, names in sorted(changes, key=lambda one: one[0])]
    allowed = [
        ({sum("A" in n for n in together[:k])}, {sum("B" in n for n in together[:k])})
        for k in range(len(together) + 1)
    ]
    assert all(versions in allowed for versions in applied)


class Steady(Pacer):
    """Chunks of the same number of rows, however long they take; a fifth in a hurry."""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self._size = size

    def next(self, left: int, hurried: bool) -> int:
        """The same size."""
        return min(left, self._size // 5 if hurried else self._size)


class Hurried(Script):
    """A control channel that hears of a change at its third look, and again of none later."""

    @property
    def hurried(self) -> bool:
        """For four looks."""
        return 2 < self.polls <= 6


def test_a_stage_hurries_from_the_look_at_which_it_hears_of_a_change() -> None:
    configuration, spec = chain()
    stage = Stage(spec, configuration, Hurried())
    stage._pacer = Steady()
    leaving = list(stage.run(SOURCE, rows(400)))
    assert [len(chunk) for _, chunk in leaving] == [100, 100, 20, 20, 20, 20, 100, 20]


class Pressed(Script):
    """A control channel where a change comes in the middle of a chunk, and is used at a poll."""

    def __init__(self, switch: Callable[[], None], look: int) -> None:
        super().__init__()
        self._switch, self._look = switch, look
        self._looks = 0

    @property
    def pressed(self) -> bool:
        """From some look on, until it is polled."""
        self._looks += 1
        return self._looks == self._look

    def poll(self) -> None:
        """Switch if the change has come."""
        super().poll()
        if self._looks >= self._look:
            self._switch()


def chain_from_a_source() -> tuple[Configuration, StageSpec]:
    """The chain behind a source, which passes rows on."""
    passing = operator("source", Kind.PASS)
    spec = StageSpec(0, (passing, operator("A"), operator("B")), (ARRIVING, SOURCE, INNER, OUT))
    return Configuration(spec.operators), spec


@given(st.integers(1, 40), st.integers(1, 50))
@settings(deadline=None)
def test_a_chunk_ends_early_for_a_change_and_no_row_is_lost_or_mixed(look: int, size: int) -> None:
    count = 60
    configuration, spec = chain_from_a_source()
    configuration.load(1, 0, change(1, "A", "B"))
    control, notes = Pressed(partial(configuration.switch, 1), look), Notes()
    stage = Stage(spec, configuration, control, notes)
    stage._pacer = Steady(size)
    leaving = list(stage.run(ARRIVING, rows(count)))
    found = seen(leaving)
    assert list(found) == list(range(count))
    assert set(found.values()) <= {"A0 B0", "A1 B1"}
    assert control.counts == {name: [count, count] for name in ("source", "A", "B")}
    versions = [notes.met[n] for n in range(count)]
    expected = [int(met == "A1 B1") for met in found.values()]
    assert versions == [{"source": {0}, "A": {one}, "B": {one}} for one in expected]
    switched = [n for n, met in found.items() if met == "A1 B1"]
    assert [cut.rows for cut in stage.cuts] == switched[:1], "a repetition would switch there"


def test_a_chunk_ends_after_the_row_at_hand() -> None:
    configuration, spec = chain_from_a_source()
    configuration.load(1, 0, change(1, "A", "B"))
    control = Pressed(partial(configuration.switch, 1), look=3)
    stage = Stage(spec, configuration, control)
    stage._pacer = Steady(20)
    found = seen(list(stage.run(ARRIVING, rows(20))))
    assert [n for n, met in found.items() if met == "A0 B0"] == [0, 1, 2]


def test_rows_of_two_versions_are_not_interrupted() -> None:
    configuration, spec = chain()
    configuration.load(1, 0, change(1, "A", "B"))
    control = Pressed(lambda: None, look=1)
    stage = Stage(spec, configuration, control)
    stage._pacer = Steady(4)
    found = seen(list(stage.run(SOURCE, rows(4, [1, 0, 1, 0]))))
    assert found == {0: "A1 B1", 1: "A0 B0", 2: "A1 B1", 3: "A0 B0"}
    assert control.polls == 1
