"""What is told of an exception, whatever it is: short, in one piece, and without failing itself.

A user's function may raise anything: an exception whose ``repr`` raises, one that says 100 MB, one
that asks the process to exit. Telling of it must never be the next failure.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeGuard, TypeVar

RUNTIME: Final = str(Path(__file__).parent / "runtime")
"""Where the code is that calls users' functions."""

MOST_PROBLEM: Final = 2_000
"""Characters of an exception's own words."""
MOST_STORY: Final = 20_000
"""Characters of a traceback."""
MOST_VALUE: Final = 300
"""Characters of a row or a state."""
_NAME: Final[Any] = vars(type)["__name__"]
"""Reads the name of a class past its metaclass."""
Kind = TypeVar("Kind", bound=BaseException)


def clipped(text: str, most: int) -> str:
    """A text without its middle: a traceback begins with where and ends with what."""
    text = _bare(text)
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
    return text.encode(errors="backslashreplace").decode()  # names of files may be no text


def described(error: BaseException) -> str:
    """An exception in one line."""
    return clipped(_repr(error), MOST_PROBLEM)


def words_of(error: BaseException) -> str:
    """What an exception says, without its type."""
    try:
        return clipped(str(error), MOST_PROBLEM)
    except BaseException:  # its own methods may raise anything, even SystemExit
        return described(error)


def name_of(kind: type) -> str:
    """The name of a class, whatever its metaclass makes of it."""
    return _bare(_NAME.__get__(kind))


def is_a(error: BaseException, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether an exception is of a type: it is not asked itself, as ``isinstance`` would."""
    return issubclass(type(error), kind)


def story_of(error: BaseException) -> str:
    """The traceback of an exception."""
    try:
        where = _users(error.__traceback__)
        return clipped("".join(traceback.format_exception(type(error), error, where)), MOST_STORY)
    except BaseException as problem:  # its own methods may raise anything, even SystemExit
        return f"{described(error)}\n(its traceback cannot be told: {described(problem)})"


def _users(where: TracebackType | None) -> TracebackType | None:
    """A traceback from the user's function on: how it was called says nothing."""
    found = where
    while found is not None and found.tb_frame.f_code.co_filename.startswith(RUNTIME):
        found = found.tb_next
    return found or where


def told(error: BaseException) -> str:
    """An exception for people: first what happened, then where."""
    try:
        (*_, what) = traceback.format_exception_only(error)
    except BaseException:  # as in words_of
        what = f"{_repr(error)}\n"
    return clipped(what, MOST_PROBLEM) + story_of(error)


def shortened(value: object, most: int = MOST_VALUE) -> str:
    """A value for a message."""
    text = _repr(value)
    text = text if len(text) <= most else text[:most] + "..."
    return text.encode(errors="backslashreplace").decode()


def _repr(value: object) -> str:
    try:
        return _bare(repr(value))
    except BaseException as problem:  # it may raise anything, even SystemExit
        return f"<{name_of(type(value))}, whose repr raises {name_of(type(problem))}>"


def _bare(text: str) -> str:
    """A text of Python's own type: one of a subclass may answer with methods that raise."""
    return str.__str__(text)
