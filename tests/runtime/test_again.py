"""Rows that are processed a second time are what they were the first time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pytest

from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec, StageSpec
from fries.runtime.stage import Stage
from fries.runtime.state import KeyGroup
from tests.runtime.test_chains import FRAME, chunk, same, spec, stage
from tests.runtime.test_stage import Script, pickled
from tests.runtime.test_state import MemoryStore, spread

Row = dict[str, Any]
ROWS: Final = 40
IN: Final = EdgeSpec(0, "", "F")
SPLITS: Final = spec("F", lambda row: row["n"] % 2, FRAME, kind=Kind.SPLIT, branches=2)
KEEPS_EVEN: Final = spec("F", lambda row: row["n"] % 2 == 0, FRAME, kind=Kind.FILTER)


def adds(row: Row) -> Row:
    """Changes the row that it gets, and returns it."""
    row["n"] += 100
    return row


def raises(row: Row) -> Row:
    raise ValueError(row["n"])


class FailsQuickly:
    """Fails from its n-th row on, but not where a stage repeats a chunk in the strict way."""

    def __init__(self, rows: int, error: type[BaseException] = ValueError) -> None:
        self._left, self._error = rows, error
        self.stage: Stage | None = None

    def __call__(self, row: Row) -> Row:
        """The row as it is."""
        assert self.stage is not None
        self._left -= 1
        if self._left < 0 and not self.stage._strict:
            raise self._error("not in this way")
        return row


def numbers(leaving: Iterable[tuple[EdgeSpec, Chunk]]) -> list[int]:
    return [one["n"] for _, made in leaving for one in made.batch.to_pylist()]


EXPECTED: Final = [n + 100 for n in range(0, ROWS, 2)]


@pytest.mark.parametrize("rows", [0, 7, 20])
@pytest.mark.parametrize("first", [KEEPS_EVEN, SPLITS])
def test_a_chunk_that_fails_quickly_goes_strictly_as_it_came(
    first: OperatorSpec, rows: int
) -> None:
    fails = FailsQuickly(rows)
    made, _ = stage(first, spec("A", adds, FRAME), spec("B", fails, FRAME))
    fails.stage = made
    assert numbers(made.run(IN, chunk(ROWS, FRAME))) == EXPECTED


def test_what_follows_a_keyed_operator_goes_strictly_as_it_came() -> None:
    keyed = spec(
        "K", lambda state, row: (state, row), FRAME, kind=Kind.PROCESS, keying=Keying(("n",))
    )
    fails = FailsQuickly(7)
    made, _ = stage(keyed, KEEPS_EVEN, spec("A", adds, FRAME), spec("B", fails, FRAME))
    fails.stage = made
    hashes = np.array([spread(n) for n in range(ROWS)], dtype=np.int64)
    group = KeyGroup("K", MemoryStore())
    leaving = made.run_group(keyed, EdgeSpec(0, "", "K"), chunk(ROWS, FRAME), group, hashes)
    assert numbers(leaving) == EXPECTED


class Undoing(Script):
    """A driver that takes change 1 back as soon as a task waits for that."""

    def __init__(self, configuration: Configuration, before: OperatorSpec) -> None:
        super().__init__()
        self._configuration, self._before = configuration, before

    def hold(self, operator: str, change: int, stage: int) -> bool:  # noqa: ARG002
        """Switch to the version before."""
        undo = Shipped({operator: self._before}, entries=frozenset({IN.number}))
        self._configuration.load(2, 1, pickled(undo))
        self._configuration.switch(2)
        return True


def test_a_chunk_goes_by_the_version_before_as_it_came() -> None:
    operators = KEEPS_EVEN, spec("A", adds, FRAME), spec("B", same, FRAME)
    configuration = Configuration(operators)
    bad = Shipped({"B": spec("B", raises, FRAME)}, entries=frozenset({IN.number}))
    configuration.load(1, 0, pickled(bad))
    configuration.switch(1)
    names = ["", "F", "A", "B", "out"]
    line = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(names)))
    script = Undoing(configuration, operators[-1])
    made = Stage(StageSpec(0, operators, line), configuration, script)
    made.on_probation = True
    assert numbers(made.run(IN, chunk(ROWS, FRAME))) == EXPECTED
    assert [change for change, _ in script.failures] == [1]


def test_pairs_that_go_two_ways_are_of_their_own() -> None:
    """A function that changes its rows changes none of the other branch."""
    joined = OperatorSpec("J", Kind.JOIN, FRAME, keying=Keying(("n",)))
    edges = (
        *(EdgeSpec(0, "", "J"), EdgeSpec(1, "", "J"), EdgeSpec(2, "J", "F"), EdgeSpec(3, "F", "A")),
        *(EdgeSpec(4, "A", "out"), EdgeSpec(5, "J", "B"), EdgeSpec(6, "B", "other")),
    )
    operators = joined, KEEPS_EVEN, spec("A", adds, FRAME), spec("B", same, FRAME)
    made, _ = stage(*operators, edges=edges)
    rows = chunk(ROWS, FRAME)
    leaving = list(made.run_join(joined, (edges[0], rows), (edges[1], rows)))
    assert numbers(one for one in leaving if one[0].target == "out") == EXPECTED
    assert numbers(one for one in leaving if one[0].target == "other") == list(range(ROWS))
