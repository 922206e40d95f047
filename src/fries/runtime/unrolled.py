"""Functions of a row that are called one after the other, as someone would write it by hand.

A loop over functions costs a small one a tenth of its time. So it is written out, once for each
order of kinds. Nothing of the users' is in the text that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from sys import getrefcount
from typing import Any, Final, NamedTuple, TypeAlias

from fries.runtime.data import Row
from fries.runtime.spec import Function, Kind

Through: TypeAlias = "Callable[[Iterator[None]], list[int]]"
Kinds: TypeAlias = "tuple[tuple[Kind, bool], ...]"
"""Of functions, and which of them only read."""


def _alone() -> int:
    """References to a dict that only a local variable has, as they are counted."""
    row: Row = {}
    return getrefcount(row)


ALONE: Final = _alone()
_BEGIN: Final = """
def through(references, rows, made, starts, branches, {names}, turns):
    take, add, start, branch = rows.pop, made.append, starts.append, branches.append
    {counts} = {zeros}
    for _ in turns:
"""
_START: Final = """
start(len(made))
"""
_TAKE: Final = """
row = take()
"""
_LINES: Final = {
    Kind.MAP: """
row = function{n}(row)
if references(row) > {alone}:
    row = row.copy()
""",
    Kind.FILTER: """
if not function{n}({lent}):
    count{n} += 1
    continue
""",
    # in a list that nobody else has, each row has one reference more
    Kind.FLAT_MAP: """
many = function{n}(row)
most{n} = {in_list} if type(many) is list and references(many) == {alone} else {alone}
for row in many:
    count{n} += 1
    if references(row) > most{n}:
        row = row.copy()
""",
    Kind.SPLIT: """
branch(function{n}({lent}))
""",
}
_LENT: Final = {False: "row.copy()", True: "row if type(row) is dict else row.copy()"}
"""What a filter or split gets; of a class of the user's, a lookup may change it."""
_ADD: Final = """
add(row)
"""
COUNTED: Final = (Kind.FILTER, Kind.FLAT_MAP)


class Step(NamedTuple):
    """A function in its turn."""

    kind: Kind
    function: Function
    reads: bool = False
    """Whether it can neither change nor keep its row."""


class Made:
    """What has come out of functions so far."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.starts: list[int] = []
        """By source row, the number of its first row among these, if that is traced."""
        self.branches: list[Any] = []
        """Of a split: what its function has returned."""


def through(steps: Sequence[Step], rows: list[Row], made: Made, traced: bool) -> Through:
    """What takes the last row of a list through all functions, as often as its argument has items.

    A row that its function keeps goes on as a copy; a filter or split gets one that may need it.
    Rows are taken from their list, so that a function may have the only reference to its row. A
    call returns of each filter how many rows it did not let through, and of each flat_map how many
    it gave.
    """
    kinds = tuple((step.kind, step.reads) for step in steps)
    functions = [step.function for step in steps]
    lists = rows, made.rows, made.starts, made.branches
    return partial(_written(kinds, traced), getrefcount, *lists, *functions)


@lru_cache
def _written(kinds: Kinds, traced: bool) -> Callable[..., list[int]]:
    made: dict[str, Callable[..., list[int]]] = {}
    exec("".join(_text(kinds, traced)), made)
    return made["through"]


def _text(kinds: Kinds, traced: bool) -> Iterator[str]:
    counts = [f"count{n}" for n, (kind, _) in enumerate(kinds) if kind in COUNTED]
    yield _BEGIN.format(
        names=", ".join(f"function{n}" for n in range(len(kinds))),
        counts=f"[{', '.join(counts)}]",
        zeros=[0] * len(counts),
    )
    depth = 2
    yield _indented(_START * traced + _TAKE, depth)
    numbers = {"alone": ALONE, "in_list": ALONE + 1}
    for n, (kind, reads) in enumerate(kinds):
        yield _indented(_LINES[kind].format(n=n, lent=_LENT[reads], **numbers), depth)
        depth += kind is Kind.FLAT_MAP
    yield _indented(_ADD, depth)
    yield f"    return [{', '.join(counts)}]\n"


def _indented(lines: str, depth: int) -> str:
    return "".join("    " * depth + line + "\n" for line in lines.split("\n") if line)
