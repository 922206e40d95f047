"""Arguments of wrong types, refused where they are given: with what was meant instead."""

from __future__ import annotations

import inspect
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from fries.errors import ArgumentError

NUMBER: Final = (int, float)


def expect(where: str, what: str, value: object, kinds: type | tuple[Any, ...], meant: str) -> None:
    """Refuse a value that is of none of some types; a truth value is no number."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise ArgumentError(where, f"{what} is {reprlib.repr(value)}; give {meant}")


def expect_once(where: str, columns: Iterable[str]) -> None:
    """Refuse a table in which a column's name stands for several."""
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        named = ", ".join(map(repr, twice))
        raise ArgumentError(
            where, f"its table has several columns named {named}; rename them, or drop all but one"
        )


def expect_callable(where: str, what: str, value: object, meant: str) -> None:
    """Refuse what cannot be called, or what runs nothing yet when it is."""
    if not callable(value):
        raise ArgumentError(where, f"{what} is {reprlib.repr(value)}; give {meant}")
    if wrong := deferred(value):
        raise ArgumentError(where, f"{what} is {wrong}")


def deferred(function: Any, may_generate: bool = False) -> str | None:  # noqa: ANN401
    """What a function is whose call runs nothing yet, where results are wanted at once."""
    called = inspect.unwrap(function) if inspect.isroutine(function) else type(function).__call__
    for one in (function, called):
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            return "an async function; nobody awaits it here: call asyncio.run(...) inside"
        if inspect.isgeneratorfunction(one) and not may_generate:
            return "a generator; return the result instead of yielding it (flat_map may yield)"
    return None


def check_name(what: str, name: object) -> None:
    """Refuse a name that is no text, or an empty one."""
    expect(f"{what} {reprlib.repr(name)}", "its name", name, str, "a text")
    if not name:
        raise ArgumentError(f"{what} ''", f"give the {what} a name")


def listed(where: str, what: str, columns: object) -> tuple[str, ...]:
    """Names of columns, whether one is given or several."""
    if isinstance(columns, str):
        return (columns,)
    meant = 'the name of a column, or a list of names such as ["user", "day"]'
    expect(where, what, columns, Sequence, meant)
    assert isinstance(columns, Sequence)
    for column in columns:
        expect(where, what, column, str, meant)
    return tuple(columns)
