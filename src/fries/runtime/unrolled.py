"""Functions of a row that are called one after the other, as someone would write it by hand.

A loop over functions costs a small one a tenth of its time. So it is written out, once for each
number of functions. Nothing of the users' is in the text that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from sys import getrefcount
from typing import Any, Final, TypeAlias

from fries.runtime.data import Row
from fries.runtime.spec import Function

Through: TypeAlias = "Callable[..., Iterator[Any]]"


def _alone() -> int:
    """References to a dict that only a local variable has, as they are counted."""
    row: Row = {}
    return getrefcount(row)


ALONE: Final = _alone()
_BEGIN: Final = """
def through(references, rows, {names}):
    rows.reverse()
    while rows:
        row = rows.pop()
"""
_CALL: Final = """
        row = {name}(row)
        if references(row) > {alone}:
            row = row.copy()
"""
_END: Final = """
        yield row
"""


def through(functions: Sequence[Function], rows: list[Row]) -> Iterator[Any]:
    """Each row through all functions; one that a function keeps goes on as a copy.

    Rows are taken from their list, so that a function may have the only reference to its row.
    """
    return _written(len(functions))(getrefcount, rows, *functions)


@lru_cache
def _written(count: int) -> Through:
    names = [f"function{number}" for number in range(count)]
    calls = [_CALL.format(name=name, alone=ALONE) for name in names]
    made: dict[str, Through] = {}
    exec("".join([_BEGIN.format(names=", ".join(names)), *calls, _END]), made)
    return made["through"]
