"""Runs: functions of a row that follow each other directly, and hand their rows on as they are.

In a run nothing is converted and no type is checked between two functions, as if one Python
function called the next: columns and types count where rows leave the last one. So a run costs
little more than a hand-written loop. If something goes wrong the functions are called one after the
other. The one that fails is to blame, unless the row came wrong: see ``misfits``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fries.runtime.arrow import Integers
from fries.runtime.configuration import Configuration
from fries.runtime.data import Data
from fries.runtime.functions import LOOKS, Interrupted, Output, never, numbers
from fries.runtime.reading import only_reads
from fries.runtime.returned import converted
from fries.runtime.settle import AgainError, Settler, any_nested
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec, Style
from fries.runtime.unrolled import COUNTED, Made, Step, through

Names: TypeAlias = "tuple[str, ...]"
ENOUGH: Final = 64
"""Rows of a chunk that tell how the time of a run is shared by its operators."""
SURVEY_EVERY: Final = 32
"""Chunks after which an operator at a time is called and timed again."""
MOST_FLAT_MAPS: Final = 8
"""In a run: each is a loop in the one before, and Python allows only so many."""
MAKERS: Final = (Kind.MAP, Kind.FLAT_MAP)
"""Kinds whose functions return rows."""


def runs_of(
    operators: Sequence[OperatorSpec], outputs: Mapping[str, Sequence[EdgeSpec]]
) -> list[Names]:
    """The runs of a stage, each with two operators or more.

    A split may be the last of one. Without a map or flat_map there is nothing to hand on.
    """
    kinds = {one.name: one.kind for one in operators if _may_run(one)}
    follows = {
        edges[0].source: edges[0].target
        for edges in outputs.values()
        if len(edges) == 1
        and kinds.get(edges[0].source, Kind.SPLIT) is not Kind.SPLIT
        and edges[0].target in kinds
    }
    found = []
    for first in sorted(follows.keys() - set(follows.values())):
        line = [first]
        while line[-1] in follows:
            line.append(follows[line[-1]])
        found += _parts(line, kinds)
    return [run for run in found if len(run) > 1 and {kinds[name] for name in run} & {*MAKERS}]


def _parts(line: Sequence[str], kinds: Mapping[str, Kind]) -> list[Names]:
    """Operators that follow each other, in runs that are not too long."""
    loops = list(accumulate(kinds[name] is Kind.FLAT_MAP for name in line))
    places = [max(0, loop - 1) // MOST_FLAT_MAPS for loop in loops]
    return [
        tuple(name for name, at in zip(line, places, strict=True) if at == place)
        for place in sorted(set(places))
    ]


def _may_run(operator: OperatorSpec) -> bool:
    able = operator.kind in (*MAKERS, Kind.FILTER, Kind.SPLIT)
    return able and operator.style is Style.ROW and operator.on_error is None


class Passed(NamedTuple):
    """What has come of rows that went through a run."""

    output: Output
    given: list[int]
    """By operator, how many rows it gave."""


class Fused:
    """The functions of a run as one."""

    def __init__(self, specs: Sequence[OperatorSpec]) -> None:
        self._steps = [
            Step(one.kind, one.function, only_reads(one.function))
            for one in specs
            if one.function is not None
        ]
        self._last = specs[-1]
        self._settlers = [Settler(spec) for spec in specs if spec.kind in MAKERS]
        *_, maker = [spec for spec in specs if spec.kind in MAKERS]
        self._convert = partial(converted, maker)

    def takes(self, schema: pa.Schema) -> bool:
        """Whether rows never have nested values, of which functions could change or keep parts."""
        if self._steps[0].kind is Kind.FILTER and any_nested(schema):
            return False
        return not any(settler.strict for settler in self._settlers)

    def __call__(self, data: Data, interrupted: Interrupted, traced: bool) -> Passed:
        """Rows through all functions; if anything is wrong they must go the strict way.

        Traced: it matters of which row each one came.
        """
        try:
            return self._passed(data, interrupted, traced)
        except BaseException:  # the users' code may raise anything, even SystemExit
            raise AgainError from None

    def _passed(self, data: Data, interrupted: Interrupted, traced: bool) -> Passed:
        traced = traced and any(step.kind in COUNTED for step in self._steps)
        made, taken, counts = self._made(data.given(), interrupted, traced)
        settled = self._settlers[-1].settled(made.rows, {}, self._convert)
        output = Output(settled, _parents(made) if traced else None, self._ways(made), taken)
        return Passed(output, list(self._given(taken, iter(counts))))

    def _made(
        self, rows: list[Any], interrupted: Interrupted, traced: bool
    ) -> tuple[Made, int, list[int]]:
        """What comes out; when it returns, nothing else here has the rows any more."""
        made, steps, taken, count = Made(), self._all_steps(), 0, len(rows)
        rows.reverse()
        go = through(steps, rows, made, traced)
        some = count if interrupted is never else 1 + count // LOOKS
        counts = [0] * sum(step.kind in COUNTED for step in steps)
        while taken < count:
            turns = min(some, count - taken)
            counts = list(map(add, counts, go(repeat(None, turns))))
            taken += turns
            if interrupted():
                break
        return made, taken, counts

    def _all_steps(self) -> list[Step]:
        keep = self._settlers[-1].keep
        return self._steps if keep is None else [*self._steps, Step(Kind.MAP, keep)]

    def _ways(self, made: Made) -> Integers | None:
        if self._last.kind is not Kind.SPLIT:
            return None
        return numbers(self._last, "branch", made.branches, self._last.branches)

    def _given(self, taken: int, counts: Iterator[int]) -> Iterator[int]:
        """By operator, how many rows it gave."""
        left = taken
        for step in self._steps:
            if step.kind is Kind.FILTER:
                left -= next(counts)
            elif step.kind is Kind.FLAT_MAP:
                left = next(counts)
            yield left


def _parents(made: Made) -> Integers:
    """Of each row, the number of the one that it came of."""
    return np.repeat(np.arange(len(made.starts)), np.diff([*made.starts, len(made.rows)]))


class Run:
    """A run in one task."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.title = " or ".join(names)
        self.origins: list[int] = []
        """By operator, the change that brought its version."""
        self._fused: Fused | None = None
        self._age = 0
        """Of the configuration that has these versions."""
        self._times: dict[str, float] = {}
        """By operator, the seconds of a chunk that it has processed by itself."""
        self._left = 0
        """Chunks until the operators are to be called by themselves again, to be timed."""

    def fused(self, configuration: Configuration, schema: pa.Schema) -> Fused | None:
        """Its base's versions as one function, unless each must be called by itself."""
        if self._fused is None or self._age != configuration.age:
            self._age, self._left = configuration.age, 0
            self._fused = Fused([configuration.body(name, 0).spec for name in self.names])
            self.origins = [configuration.origin(name, 0) for name in self.names]
        if not self._left or not self._fused.takes(schema):
            return None
        self._left -= 1
        return self._fused

    def timed(self, operator: str, rows: int, seconds: float) -> None:
        """An operator was called by itself for so many rows; others follow for what it gave."""
        if operator == self.names[0]:
            self._times = dict.fromkeys(self.names, 0.0)
            self._left = SURVEY_EVERY if rows >= ENOUGH else self._left
        self._times[operator] = seconds

    def shared(self, seconds: float) -> Iterator[tuple[str, float]]:
        """The time of a chunk, by operator: as when they were called by themselves."""
        whole = sum(self._times.values())
        for name in self.names:
            yield name, seconds * self._times[name] / whole
