"""What workers tell: short enough to be heard, and of some sense.

The controller takes no long messages (``MAX_UP``), so a worker shortens what may be long. The
controller in turn refuses what has the right types and still means nothing.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fries.control.messages import UP, Counted, Counts, Hello, Up
from fries.errors import WireError

MOST_CHARACTERS: Final = 1 << 17
"""Of one text: with four bytes for each it fits into a message, with room for the rest."""
MOST_ENTRIES: Final = 1_000
"""Of one table, by names of operators: with names of a few hundred characters it fits, too."""
COUNT_SECONDS: Final = 0.25
"""Between two reports of counters: often enough to watch, too rarely to cost anything."""
MOST_NAME: Final = 512
"""Characters of a worker's name, which is kept and shown."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
Value = TypeVar("Value")


def clipped(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text without its middle: a traceback begins with where and ends with what."""
    text = text.encode(errors="backslashreplace").decode()  # names of files may be no text
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def told(problem: BaseException) -> str:
    """An exception for people: first what happened, then where."""
    (*_, what) = traceback.format_exception_only(problem)
    return what + "".join(traceback.format_exception(problem))


def memory_used() -> int:
    """Bytes of memory that this process uses; 0 where the system does not tell."""
    try:
        resident = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0
    return int(resident) * PAGE_BYTES


class Tally:
    """What the operators of a worker have done since it last told; for one thread alone."""

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._told = time.monotonic()

    def add(self, operator: str, more: Counts) -> None:
        """Note what an operator has done."""
        self._counts[operator] = self._counts.get(operator, Counts()) + more

    @property
    def due(self) -> bool:
        """Whether it is time to tell."""
        return time.monotonic() - self._told > COUNT_SECONDS

    def take(self) -> list[Counted]:
        """What is to be told now."""
        counts, self._counts = self._counts, {}
        self._told = time.monotonic()
        return [Counted(some, memory_used()) for some in divided(counts)]


def divided(table: dict[str, Value], most: int = MOST_ENTRIES) -> Iterator[dict[str, Value]]:
    """A table in parts that fit; none if it is empty."""
    entries = iter(table.items())
    while part := dict(islice(entries, most)):
        yield part


def heard(body: bytes | memoryview) -> Up:
    """A worker's message; whatever is wrong with it, it is a :class:`WireError`."""
    try:
        message = UP.decode(body)
    except Exception as error:  # text that is none, nesting without end: not only DecodeError
        raise WireError(f"a message that cannot be read: {error}") from error
    _refuse_nonsense(message)
    return message


def _refuse_nonsense(message: Up) -> None:
    """Refuse names that are none and times that never were: they would stay in what users see."""
    if isinstance(message, Hello) and not 0 < len(message.worker) <= MOST_NAME:
        raise WireError("a worker needs a name, and a short one")
    if not all(map(math.isfinite, _floats(msgspec.to_builtins(message)))):
        raise WireError("a number in a worker's message is not finite")


def _floats(value: object) -> Iterator[float]:
    match value:
        case float():
            yield value
        case dict():
            for one in value.values():
                yield from _floats(one)
        case list() | tuple():
            for one in value:
                yield from _floats(one)
