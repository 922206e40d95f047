"""What is told of an exception, whatever it is: short, in one piece, and without failing itself.

A user's function may raise anything: an exception whose ``repr`` raises, one that says 100 MB, one
that asks the process to exit. Telling of it must never be the next failure.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

RUNTIME: Final = str(Path(__file__).parent / "runtime")
"""Where the code is that calls users' functions."""

MOST_PROBLEM: Final = 2_000
"""Characters of an exception's own words."""
MOST_STORY: Final = 20_000
"""Characters of a traceback."""
MOST_VALUE: Final = 300
"""Characters of a row or a state."""


def clipped(text: str, most: int) -> str:
    """A text without its middle: a traceback begins with where and ends with what."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
    return text.encode(errors="backslashreplace").decode()  # names of files may be no text


def described(error: BaseException) -> str:
    """An exception in one line."""
    return clipped(_repr(error), MOST_PROBLEM)


def story_of(error: BaseException) -> str:
    """The traceback of an exception."""
    try:
        where = _users(error.__traceback__)
        return clipped("".join(traceback.format_exception(type(error), error, where)), MOST_STORY)
    except BaseException as problem:  # its own methods may raise anything, even SystemExit
        return f"{_repr(error)}\n(its traceback cannot be told: {_repr(problem)})"


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
    except BaseException:  # as above
        what = f"{_repr(error)}\n"
    return clipped(what, MOST_PROBLEM) + story_of(error)


def shortened(value: object, most: int = MOST_VALUE) -> str:
    """A value for a message."""
    text = _repr(value)
    text = text if len(text) <= most else text[:most] + "..."
    return text.encode(errors="backslashreplace").decode()


def _repr(value: object) -> str:
    try:
        return repr(value)
    except BaseException as problem:  # it may raise anything, even SystemExit
        return f"<{type(value).__name__}, whose repr raises {type(problem).__name__}>"
