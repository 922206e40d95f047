"""A version that fails is taken back in the middle of a task, and its rows go by the one before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.messages import Cut
from fries.errors import OperatorError
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Stage
from fries.runtime.state import KeyGroup
from tests.runtime.test_stage import Notes, Script, pickled
from tests.runtime.test_state import MemoryStore, spread

Row = dict[str, Any]
ROWS = pa.schema({"k": pa.int64(), "n": pa.int64(), "f": pa.int64(), "m": pa.int64()})
TO_F, TO_M, OUT = EdgeSpec(1, "S", "F"), EdgeSpec(2, "F", "M"), EdgeSpec(3, "M", "output")
BAD, UNDO = 1, 2


def old_f(state: list[int], row: Row) -> tuple[list[int], Row]:
    """Keeps all numbers of a key, in a list that it changes itself."""
    state.append(row["n"])
    return state, {**row, "f": 0}


def new_f(state: dict[str, list[int]], row: Row) -> tuple[dict[str, list[int]], Row]:
    state["all"].append(row["n"])
    return state, {**row, "f": 1}


def wrap(state: list[int]) -> dict[str, list[int]]:
    return {"all": state}


def wrap_most(state: list[int]) -> dict[str, list[int]]:
    if state[0] == 2:
        raise LookupError("an unusual state")
    return wrap(state)


def unwrap(state: dict[str, list[int]]) -> list[int]:
    return state["all"]


def fail_f(ns: frozenset[int], state: dict[str, list[int]], row: Row) -> Any:  # noqa: ANN401
    made = new_f(state, row)  # it has changed the state when it fails
    if row["n"] in ns:
        raise ValueError(f"not {row['n']}")
    return made


def mark(version: int, fails: frozenset[int], row: Row) -> Row:
    if row["n"] in fails:
        raise ValueError(f"not {row['n']}")
    return {**row, "m": version}


def marks(version: int, fails: frozenset[int] = frozenset()) -> Callable[[Row], Row]:
    return partial(mark, version, fails)


KEYING = Keying(("k",), initial=[])
F = OperatorSpec("F", Kind.PROCESS, ROWS, old_f, keying=KEYING)
M = OperatorSpec("M", Kind.MAP, ROWS, marks(0))


class Undoing(Script):
    """A control channel whose driver takes change 1 back as soon as a task waits for that."""

    def __init__(
        self, bench: Bench, steps: dict[int, Callable[[], None]], answers: bool = True
    ) -> None:
        super().__init__(steps)
        self._bench, self._answers = bench, answers
        self.held: list[tuple[str, int, int]] = []

    def hold(self, operator: str, change: int, stage: int) -> bool:
        """Switch to the undo, if there is one; it cannot help twice."""
        self.held.append((operator, change, stage))
        if not self._answers or len(self.held) > 1:
            return False
        self._bench.undo()
        return True


class Bench:
    """A keyed stage F -> M with a store."""

    def __init__(self, entry: int = TO_F.number) -> None:
        self.spec = StageSpec(1, (F, M), (TO_F, TO_M, OUT))
        self.configuration = Configuration(self.spec.operators)
        self.store, self.notes, self.entry = MemoryStore(), Notes(), entry
        self.on_probation = True
        self.stage: Stage | None = None
        self.script: Undoing | None = None

    def load_bad(
        self,
        in_f: frozenset[int],
        in_m: frozenset[int] = frozenset(),
        migrate: Callable[[Any], Any] = wrap,
    ) -> None:
        """Make change 1 ready: it fails on some rows."""
        new = {
            "F": OperatorSpec("F", Kind.PROCESS, ROWS, partial(fail_f, in_f), keying=KEYING),
            "M": OperatorSpec("M", Kind.MAP, ROWS, marks(1, in_m)),
        }
        shipped = Shipped(new, {"F": migrate, "M": None}, frozenset({self.entry}))
        self.configuration.load(BAD, 0, pickled(shipped))

    def undo(self) -> None:
        """Take change 1 back by change 2."""
        back = {"F": unwrap, "M": None}
        shipped = Shipped({"F": F, "M": M}, back, frozenset({self.entry}), undoes=BAD)
        self.configuration.load(UNDO, 1, pickled(shipped))
        self.configuration.switch(UNDO)

    def run(
        self,
        pairs: list[tuple[int, int]],
        steps: dict[int, Callable[[], None]] | None = None,
        answers: bool = True,
    ) -> list[Row]:
        """Push a key group through the stage; what leaves it comes out, even if it fails later."""
        self.script = Undoing(self, steps or {}, answers)
        self.stage = Stage(self.spec, self.configuration, self.script, self.notes)
        self.stage.on_probation = self.on_probation
        group = KeyGroup("F", self.store)
        hashes = np.array([spread(k) for k, _ in pairs], dtype=np.int64)
        self.leaving: list[Row] = []
        for _, chunk in self.stage.run_group(F, TO_F, rows(pairs), group, hashes):
            self.leaving += chunk.batch.to_pylist()
        return self.leaving

    def states(self) -> dict[int, Any]:
        """By key, its state as rows of the next batch would get it."""
        group = KeyGroup("F", self.store)
        keys = range(8)
        group.load(list(keys), np.array([spread(k) for k in keys], dtype=np.int64))
        return {k: entry[1] for k in keys if (entry := group.get(k)) is not None}


def rows(pairs: list[tuple[int, int]]) -> Chunk:
    made = [{"k": k, "n": n, "f": -1, "m": -1} for k, n in pairs]
    batch = pa.RecordBatch.from_pylist(made, schema=ROWS)
    return Chunk(batch, np.zeros(len(pairs), dtype=np.int64), np.arange(len(pairs)))


def plain(state: Any) -> list[int]:  # noqa: ANN401
    return unwrap(state) if isinstance(state, dict) else state


KEYS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(
    keys=KEYS,
    before=KEYS,
    bad=st.frozensets(st.integers(0, 59), min_size=1, max_size=3),
    in_m=st.booleans(),
    moment=st.integers(0, 3),
    in_base=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_every_row_is_all_old_or_all_new_and_no_state_is_touched_twice(
    keys: list[int],
    before: list[int],
    bad: frozenset[int],
    in_m: bool,
    moment: int,
    in_base: bool,
) -> None:
    bench = Bench()
    bench.run([(k, 1000 + i) for i, k in enumerate(before)])
    bench.load_bad(frozenset() if in_m else bad, bad if in_m else frozenset())
    steps: dict[int, Callable[[], None]] = {}
    if in_base:
        bench.configuration.begin([BAD])
    else:
        steps[moment] = lambda: bench.configuration.switch(BAD)
    bench.configuration.costs.clear()
    bench.notes = Notes()
    pairs = list(zip(keys, range(len(keys)), strict=True))
    found = bench.run(pairs, steps)
    assert [row["n"] for row in found] == list(range(len(keys))), "none is lost, none is twice"
    assert all(row["f"] == row["m"] for row in found)
    assert all(row["f"] == 0 for row in found if row["n"] in bad)
    expected = defaultdict(list)
    for i, k in enumerate(before):
        expected[k].append(1000 + i)
    for k, n in pairs:
        expected[k].append(n)
    assert {k: plain(state) for k, state in bench.states().items()} == expected
    assert bench.script is not None
    assert len(bench.script.held) <= 1
    for met in bench.notes.met.values():
        (f,), (m,) = met["F"], met["M"]
        assert f == m, "the audit has what counted, and nothing of what was dropped"


PAIRS = [(n % 3, n) for n in range(30)]


def switched(bench: Bench) -> dict[int, Callable[[], None]]:
    """The worker has switched to the bad change when the group begins."""
    bench.configuration.costs.clear()
    return {0: lambda: bench.configuration.switch(BAD)}


def test_the_task_that_waits_tells_who_failed_and_in_which_stage() -> None:
    bench = Bench()
    bench.load_bad(frozenset({7}))
    bench.run(PAIRS, switched(bench))
    assert bench.script is not None
    assert bench.script.held == [("F", BAD, 1)]
    assert [change for change, _ in bench.script.failures] == [BAD]


def test_the_undo_is_a_cut_where_the_chunk_began() -> None:
    """So a task that is executed again can repeat it."""
    bench = Bench()
    bench.load_bad(frozenset({7}))
    found = bench.run(PAIRS, switched(bench))
    first_old = next(i for i, row in enumerate(found) if row["f"] == 0)
    assert bench.stage is not None
    assert bench.stage.cuts == [Cut(0, BAD), Cut(first_old, UNDO)]


def test_if_nobody_takes_it_back_the_task_fails_and_nothing_of_the_chunk_has_left() -> None:
    bench = Bench()
    bench.load_bad(frozenset({7}))
    with pytest.raises(OperatorError, match="not 7"):
        bench.run(PAIRS, switched(bench), answers=False)
    assert {row["n"] for row in bench.leaving} <= set(range(7))
    assert bench.states() == {}


def test_an_undo_that_does_not_help_is_tried_once() -> None:
    """The rows were stamped in an earlier stage: here nothing can be done for them."""
    bench = Bench(entry=99)
    bench.load_bad(frozenset({7}))
    bench.configuration.begin([BAD])
    with pytest.raises(OperatorError, match="not 7"):
        bench.run(PAIRS)
    assert bench.script is not None
    assert len(bench.script.held) == 2


def test_versions_that_are_no_longer_new_are_not_waited_for() -> None:
    bench = Bench()
    bench.load_bad(frozenset({7}))
    bench.configuration.begin([BAD])
    bench.on_probation = False
    with pytest.raises(OperatorError, match="not 7"):
        bench.run(PAIRS)
    assert bench.script is not None
    assert bench.script.held == []


def test_a_task_that_is_executed_again_goes_as_before() -> None:
    bench = Bench()
    bench.load_bad(frozenset({7}))
    bench.configuration.begin((), pinned=[BAD])
    with pytest.raises(OperatorError, match="not 7"):
        bench.run(PAIRS)
    assert bench.script is not None
    assert bench.script.held == []


def test_the_first_version_cannot_be_taken_back() -> None:
    bench = Bench()
    bench.spec = StageSpec(
        1,
        (F, OperatorSpec("M", Kind.MAP, ROWS, marks(0, frozenset({7})))),
        (TO_F, TO_M, OUT),
    )
    bench.configuration = Configuration(bench.spec.operators)
    with pytest.raises(OperatorError, match="not 7"):
        bench.run(PAIRS)
    assert bench.script is not None
    assert bench.script.held == []


@pytest.mark.parametrize("in_base", [True, False])
def test_a_migration_that_fails_is_taken_back_with_its_version(in_base: bool) -> None:
    """States that it has migrated are brought back; the others go through neither of the two."""
    bench = Bench()
    bench.run(PAIRS)
    bench.configuration = Configuration(bench.spec.operators)  # without samples to try it on
    bench.load_bad(frozenset(), migrate=wrap_most)
    bench.configuration.begin([BAD]) if in_base else bench.configuration.switch(BAD)
    found = bench.run([(k, 100 + n) for k, n in PAIRS])
    assert bench.script is not None
    assert bench.script.held == [("F", BAD, 1)]
    assert all(row["f"] == row["m"] for row in found)
    assert {k: plain(state) for k, state in bench.states().items()} == {
        k: [n + more for more in (0, 100) for at, n in PAIRS if at == k] for k, _ in PAIRS
    }


class Shared:
    """A state that cannot be copied."""

    def __reduce__(self) -> Any:  # noqa: ANN401
        raise TypeError("not to be copied")


def test_states_that_cannot_be_copied_fail_the_task() -> None:
    """They may have been changed: only the batch as a whole can be replayed."""
    group = KeyGroup("F", MemoryStore())
    group.load([1], np.array([spread(1)], dtype=np.int64))
    group.put(1, 0, Shared())
    group.begin()
    group.get(1)
    assert not group.rewind()


def test_a_group_goes_back_to_what_it_was() -> None:
    group = KeyGroup("F", MemoryStore())
    keys = [1, 2, 3, 4]
    group.load(keys, np.array([spread(k) for k in keys], dtype=np.int64))
    group.put(1, 0, [1])
    group.put(2, 0, 5)
    group.put(3, 0, None)
    group.begin()
    for key in keys:
        group.get(key)
    entry = group.get(1)
    assert entry is not None
    entry[1].append(2)
    for key in keys:
        group.put(key, 1, "new")
    assert group.rewind()
    assert [group.get(key) for key in keys] == [(0, [1], 0), (0, 5, 0), None, None]
    assert not group.rewind(), "once is enough"


def test_a_state_that_was_removed_before_stays_removed() -> None:
    """The store still has it: only the end of the group takes it away there."""
    store = MemoryStore()
    for states in ({1: 10, 2: 20}, {}):
        group = KeyGroup("F", store)
        group.load([1, 2, 3], np.array([spread(1), spread(2), spread(3)]))
        for key, state in states.items():
            group.put(key, 0, state)
        group.save()
    group.put(1, 0, None)
    group.begin()
    assert [group.get(key) for key in (1, 2, 3)] == [None, (0, 20, 0), None]
    for key in (1, 2, 3):
        group.put(key, 1, 99)
    assert group.rewind()
    assert [group.get(key) for key in (1, 2, 3)] == [None, (0, 20, 0), None]
