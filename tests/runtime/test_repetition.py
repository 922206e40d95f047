"""Tasks that are executed again go as they went before, row by row and stamp by stamp."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.messages import Cut, Ended, Go
from fries.errors import ReplayError
from fries.runtime.audit import Audit
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.layout import Layout
from fries.runtime.pacer import Pacer
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, StageSpec
from fries.runtime.stage import Stage
from fries.runtime.state import KeyGroup
from fries.runtime.task import Execution, Task
from fries.stages import PhysicalStage, physical
from tests.runtime.test_keyed_stage import SJ, TO_F, Bench, E, hashes, listed, mark, process
from tests.runtime.test_keyed_stage import change as keyed_change
from tests.runtime.test_keyed_stage import left as left_half
from tests.runtime.test_keyed_stage import note as keyed_note
from tests.runtime.test_keyed_stage import right as right_half
from tests.runtime.test_keyed_stage import rows as keyed_rows
from tests.runtime.test_stage import SCHEMA, Script, change, operator, pickled, rows
from tests.runtime.test_state import MemoryStore

EDGES = (EdgeSpec(0, "", "A"), EdgeSpec(1, "A", "B"), EdgeSpec(2, "B", "output"))
OPERATORS = (operator("A"), operator("B"))
STAGE: PhysicalStage = physical(OPERATORS, EDGES).stages[0]


class Channel(Script):
    """A scripted channel for whole tasks."""

    def __init__(
        self, go: Go, steps: dict[int, Callable[[], None]] | None = None, pressed: int = 0
    ) -> None:
        super().__init__(steps)
        self.go = go
        self.reports: list[Ended] = []
        self._every, self._asked = pressed, 0

    @property
    def pressed(self) -> bool:
        """Every n-th time: there a chunk ends early."""
        self._asked += 1
        return self._every > 0 and self._asked % self._every == 0

    def begin(self, batch: int, stage: int, partition: int, execution: int) -> Go:  # noqa: ARG002
        """Let a task begin."""
        return self.go

    def ended(self, report: Ended) -> None:
        """Keep a report."""
        self.reports.append(report)


class Sizes(Pacer):
    """Chunks of given sizes, again and again."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self._sizes = itertools.cycle(sizes)

    def next(self, left: int, hurried: bool) -> int:  # noqa: ARG002
        """The next size."""
        return next(self._sizes)


@dataclass(frozen=True)
class Planned:
    """A change, and when the first attempt switches to it."""

    names: frozenset[str]
    moment: int
    """After so many looks; 0: it begins with it."""

    def shipped(self, number: int) -> bytes:
        """What a worker loads."""
        return change(number, *self.names, entries=(0,) if "A" in self.names else (1,))


class Worker:
    """A worker that has loaded some changes."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self.configuration = Configuration(OPERATORS)
        for number, one in enumerate(planned, 1):
            self.configuration.load(number, number, one.shipped(number))

    def switch(self, numbers: Sequence[int]) -> None:
        """Switch to some changes."""
        for number in numbers:
            self.configuration.switch(number)

    def run(
        self, channel: Channel, parts: Sequence[Chunk], sizes: Sequence[int], ordered: bool = True
    ) -> list[dict[str, Any]]:
        """A whole task; the rows that leave it, with their stamps."""
        gives = Layout({2: SCHEMA}, audit=True)
        where, audit = Execution(0, 0), Audit(("A", "B"))
        task = Task(STAGE, gives, where, self.configuration, channel, audit, ordered=ordered)
        task._stage._pacer = Sizes(sizes)
        made = list(task.rows((0, part) for part in parts))
        task.report(complete=True)
        return [row for batch in made for row in batch.to_pylist()]


def cut_up(count: int, pieces: Sequence[int]) -> list[Chunk]:
    """Rows in batches of some sizes."""
    whole, parts, start = rows(count), list[Chunk](), 0
    for size in itertools.cycle(pieces):
        if start >= count:
            return parts
        parts.append(whole.slice(start, size))
        start += size
    return parts


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)
PRESSED = st.integers(0, 4)
NAMES = st.frozensets(st.sampled_from("AB"), min_size=1)
PLANS = st.lists(st.builds(Planned, NAMES, st.integers(0, 12)), max_size=4)


@given(PLANS, st.integers(0, 60), SIZES, SIZES, SIZES, st.tuples(PRESSED, PRESSED))
@settings(deadline=None)
def test_a_repetition_gives_the_same_rows_with_the_same_stamps(
    planned: list[Planned],
    count: int,
    first_sizes: list[int],
    second_sizes: list[int],
    pieces: list[int],
    pressed: tuple[int, int],
) -> None:
    """Whatever the second worker has switched to by then, and wherever chunks end early."""
    planned = sorted(planned, key=lambda one: one.moment)
    everything = tuple(range(1, len(planned) + 2))
    later = Planned(frozenset("AB"), 0)
    parts = cut_up(count, pieces)
    first, second = Worker(planned), Worker([*planned, later])
    steps: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(planned, 1):
        steps[one.moment].append(number)
    began = tuple(steps.pop(0, ()))
    first.switch(began)
    switches: dict[int, Callable[[], None]] = {
        n: partial(first.switch, s) for n, s in steps.items()
    }
    channel = Channel(Go((), began), switches, pressed[0])
    expected = first.run(channel, parts, first_sizes)
    (report,) = channel.reports
    assert [row["n"] for row in expected] == list(range(count))

    second.switch(everything)
    again = Channel(Go((), everything, began, report.cuts), pressed=pressed[1])
    assert second.run(again, parts, second_sizes) == expected
    assert again.reports[0].cuts == report.cuts


def test_cuts_say_after_how_many_rows_of_the_task_it_switched() -> None:
    worker = Worker([Planned(frozenset("AB"), 0), Planned(frozenset("B"), 0)])
    steps: dict[int, Callable[[], None]] = {
        2: lambda: worker.switch([1]),
        5: lambda: worker.switch([2]),
    }
    channel = Channel(Go((), ()), steps)
    worker.run(channel, cut_up(30, [7]), [5])
    # looks before rows 0, 5, then 7, 12, then 14, 19 and so on: a batch ends a chunk
    assert channel.reports[0].cuts == (Cut(7, 1), Cut(19, 2))


def test_a_switch_that_stamps_nothing_here_is_no_cut() -> None:
    """The entry is in another stage: rows come with their stamps."""
    configuration = Configuration(OPERATORS)
    configuration.load(1, 1, change(1, "B", entries=()))
    script = Script({2: lambda: configuration.switch(1)})
    stage = Stage(STAGE.spec, configuration, script)
    list(stage.run(EDGES[0], rows(50)))
    assert stage.cuts == []


def test_a_switch_that_comes_with_the_answer_is_a_cut_before_the_first_row() -> None:
    """The commit was sent just after the answer: the controller thinks that it began without."""
    plan = [Planned(frozenset("AB"), 0)]
    worker = Worker(plan)
    worker.switch([1])
    channel = Channel(Go((), ()))
    expected = worker.run(channel, [rows(20)], [5])
    assert channel.reports[0].cuts == (Cut(0, 1),)
    for ordered in (True, False):  # before the first row their order does not matter
        second = Worker(plan)
        again = Channel(Go((), (1,), (), (Cut(0, 1),)))
        assert second.run(again, [rows(20)], [3], ordered) == expected


# Rows without a fixed order


def test_rows_without_a_fixed_order_cannot_be_cut_again() -> None:
    worker = Worker([Planned(frozenset("AB"), 0)])
    channel = Channel(Go((), (1,), (), (Cut(7, 1),)))
    with pytest.raises(ReplayError) as caught:
        worker.run(channel, [rows(20)], [5], ordered=False)
    assert (caught.value.stage, caught.value.partition) == (0, 0)
    (report,) = channel.reports
    assert (report.complete, report.cuts) == (False, ())


def test_rows_without_a_fixed_order_can_be_repeated_if_there_was_no_cut() -> None:
    worker = Worker([Planned(frozenset("AB"), 0), Planned(frozenset("AB"), 0)])
    worker.switch([1, 2])
    channel = Channel(Go((), (1, 2), (1,), ()))
    made = worker.run(channel, [rows(20)], [5], ordered=False)
    assert {row["_epoch"] for row in made} == {1 << 1}
    assert {row["seen"] for row in made} == {"A1 B1 "}
    assert channel.reports[0].complete


# What is committed later


def test_a_repetition_obeys_stamps_of_changes_that_it_does_not_apply_itself() -> None:
    worker = Worker([Planned(frozenset("AB"), 0)])
    worker.switch([1])
    made = worker.run(Channel(Go((), (1,), ())), [rows(6, [0, 2, 0, 2, 2, 0])], [6])
    assert {row["n"]: row["seen"] for row in made} == {
        n: "A1 B1 " if n in (1, 3, 4) else "A0 B0 " for n in range(6)
    }


def test_the_next_task_is_free_again() -> None:
    worker = Worker([Planned(frozenset("AB"), 0)])
    worker.switch([1])
    worker.run(Channel(Go((), (1,), ())), [rows(3)], [5])
    made = worker.run(Channel(Go((), (1,))), [rows(3)], [5])
    assert {row["seen"] for row in made} == {"A1 B1 "}


# Pacing


class Growing(Pacer):
    """Every chunk is eight times as long as the last."""

    def measured(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        """Learn that it was cheap."""
        super().measured(rows, 0.0)


def sizes_with(entries: tuple[int, ...]) -> list[int]:
    """Rows of each chunk, if a change is switched to at the fourth look."""
    configuration = Configuration(OPERATORS)
    configuration.load(1, 1, change(1, "A", "B", entries=entries))
    stage = Stage(STAGE.spec, configuration, Script({3: lambda: configuration.switch(1)}))
    stage._pacer = Growing()
    return [len(chunk) for _, chunk in stage.run(EDGES[0], rows(100))]


def test_after_a_switch_chunks_begin_with_one_row_again() -> None:
    """The new version may be far slower."""
    assert sizes_with(entries=(0,)) == [1, 8, 64, 1, 8, 18]


def test_a_switch_that_stamps_nothing_here_does_not_slow_the_stage_down() -> None:
    assert sizes_with(entries=()) == [1, 8, 64, 27]


# Keyed stages


def fold(bench: Bench, stage: Stage, pairs: Sequence[tuple[int, int]]) -> list[tuple[Any, ...]]:
    chunk = keyed_rows(pairs)
    group = KeyGroup("F", bench.store)
    leaving = list(stage.run_group(bench.spec, TO_F, chunk, group, hashes(chunk)))
    epochs = [int(one) for _, made in leaving for one in made.epochs]
    return list(zip((row["seen"] for row in listed(leaving)), epochs, strict=True))


@given(st.integers(0, 14), SIZES, SIZES, st.lists(st.integers(0, 20), min_size=1, max_size=4))
@settings(deadline=None)
def test_key_groups_are_cut_again_at_the_same_row(
    moment: int, first_sizes: list[int], second_sizes: list[int], lengths: list[int]
) -> None:
    made = []
    groups = [[(n % 3, n) for n in range(length)] for length in lengths]
    cuts: list[Cut] = []
    for sizes in (first_sizes, second_sizes):
        bench = Bench()
        bench.store = MemoryStore()
        bench.configuration.load(1, 3, keyed_change(1, process(1), mark(1), entries=[1]))
        if sizes is second_sizes:
            bench.configuration.begin((), ())
        script = Script({moment: bench.switch(1)})
        stage = Stage(bench.stage_spec, bench.configuration, script)
        stage._pacer = Sizes(sizes)
        stage.repeat(cuts)
        made.append([fold(bench, stage, pairs) for pairs in groups])
        assert not cuts or stage.cuts == cuts
        cuts = stage.cuts
    assert made[0] == made[1]


JOIN_IN = (EdgeSpec(4, "B", "SJ"), EdgeSpec(5, "C", "SJ"))


def join_all(configuration: Configuration, cuts: list[Cut], script: Script) -> Iterator[Any]:
    """Two key groups of a join, with the stamps of what leaves."""
    spec = StageSpec(1, (SJ, E), (*JOIN_IN, EdgeSpec(6, "SJ", "E"), EdgeSpec(7, "E", "output")))
    stage = Stage(spec, configuration, script)
    stage._pacer = Sizes([2])
    stage.repeat(cuts)
    for keys in ([1, 2, 3], [4, 5]):
        halves = (JOIN_IN[0], left_half(keys)), (JOIN_IN[1], right_half(keys))
        for _, chunk in stage.run_join(SJ, *halves):
            yield [(row["k"], row["seen"]) for row in chunk.batch.to_pylist()], list(chunk.epochs)
    yield stage.cuts


@pytest.mark.parametrize("moment", range(7))
def test_pairs_of_a_join_are_cut_again_at_the_same_pair(moment: int) -> None:
    """Also if the switch comes between the halves and their first pair."""
    shipped = Shipped({"E": replace(E, function=partial(keyed_note, 1))}, entries=frozenset({4, 5}))
    attempts, cuts = [], list[Cut]()
    for repeated in (False, True):
        configuration = Configuration([SJ, E])
        configuration.load(1, 3, pickled(shipped))
        if repeated:
            configuration.begin((), ())
        script = Script({moment: partial(configuration.switch, 1)})
        *made, cuts = join_all(configuration, cuts, script)
        attempts.append((made, cuts))
    assert attempts[0] == attempts[1]


def test_the_stamps_of_the_tests_are_those_of_their_rows() -> None:
    """What the comparisons above rest on."""
    worker = Worker([Planned(frozenset("AB"), 0)])
    channel = Channel(Go((), ()), {1: lambda: worker.switch([1])})
    made = worker.run(channel, [rows(4)], [2])
    assert [(row["_epoch"], row["seen"]) for row in made] == [
        (0, "A0 B0 "),
        (0, "A0 B0 "),
        (2, "A1 B1 "),
        (2, "A1 B1 "),
    ]
    assert [row["_txn"] for row in made] == np.arange(4).tolist()
