"""Runs: maps of a row that follow each other directly, and hand their rows on as they are.

In a run nothing is converted and no type is checked between two functions, as if one Python
function called the next: columns and types count where rows leave the last one. So a run costs
little more than a hand-written loop. If something goes wrong the functions are called one after the
other. The one that fails is to blame, unless the row came wrong: see ``misfits``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, Final, TypeAlias

from fries.runtime.data import Data
from fries.runtime.functions import Interrupted, Output, converted, taken_from
from fries.runtime.settle import AgainError, Settler
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec, Style
from fries.runtime.unrolled import through

Names: TypeAlias = "tuple[str, ...]"
ENOUGH: Final = 64
"""Rows of a chunk that tell how the time of a run is shared by its operators."""
SURVEY_EVERY: Final = 32
"""Chunks after which an operator at a time is called and timed again."""


def runs_of(
    operators: Sequence[OperatorSpec], outputs: Mapping[str, Sequence[EdgeSpec]]
) -> list[Names]:
    """The runs of a stage, each with two operators or more."""
    able = {one.name for one in operators if _may_run(one)}
    follows = {
        edges[0].source: edges[0].target
        for edges in outputs.values()
        if len(edges) == 1 and edges[0].source in able and edges[0].target in able
    }
    found = []
    for first in sorted(follows.keys() - set(follows.values())):
        run = [first]
        while run[-1] in follows:
            run.append(follows[run[-1]])
        found.append(tuple(run))
    return found


def _may_run(operator: OperatorSpec) -> bool:
    plain = operator.kind is Kind.MAP and operator.on_error is None
    return plain and operator.style is Style.ROW


class Fused:
    """The functions of a run as one."""

    def __init__(self, specs: Sequence[OperatorSpec]) -> None:
        self._functions = [one for spec in specs if (one := spec.function) is not None]
        self._settlers = [Settler(spec) for spec in specs]
        self._convert = partial(converted, specs[-1])

    @property
    def possible(self) -> bool:
        """Whether no row has nested values, of which functions could keep parts."""
        return not any(settler.strict for settler in self._settlers)

    def __call__(self, data: Data, interrupted: Interrupted) -> Output:
        """Rows through all functions; if anything is wrong they must go the strict way."""
        try:
            made = self._made(data, interrupted)
            return Output(self._settlers[-1].settled(made, {}, self._convert), taken=len(made))
        except BaseException:  # the users' code may raise anything, even SystemExit
            raise AgainError from None

    def _made(self, data: Data, interrupted: Interrupted) -> list[Any]:
        """What comes out; when it returns, nothing here has the rows any more."""
        rows, keep = data.given(), self._settlers[-1].keep
        count = len(rows)
        results = through(self._functions, rows)
        return taken_from(results if keep is None else map(keep, results), count, interrupted)


class Run:
    """A run in one task."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._specs: tuple[OperatorSpec, ...] = ()
        self._fused: Fused | None = None
        self._times: dict[str, float] = {}
        """By operator, the seconds of a chunk that it has processed by itself."""
        self._left = 0
        """Chunks until the operators are to be called by themselves again, to be timed."""

    def fused(self, specs: tuple[OperatorSpec, ...]) -> Fused | None:
        """These versions as one function, unless each must be called by itself."""
        if self._fused is None or not all(map(is_, specs, self._specs)):
            self._specs, self._fused, self._left = specs, Fused(specs), 0
        if not self._left or not self._fused.possible:
            return None
        self._left -= 1
        return self._fused

    def timed(self, operator: str, rows: int, seconds: float) -> None:
        """An operator was called by itself for so many rows."""
        if rows < ENOUGH:
            return
        if operator == self.names[0]:
            self._times = {}
        self._times[operator] = seconds
        if len(self._times) == len(self.names):
            self._left = SURVEY_EVERY

    def shared(self, seconds: float) -> Iterator[tuple[str, float]]:
        """The time of a chunk, by operator: as when they were called by themselves."""
        whole = sum(self._times.values())
        for name in self.names:
            yield name, seconds * self._times[name] / whole
