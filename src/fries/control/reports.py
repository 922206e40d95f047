"""What workers tell: short enough to be heard, and of some sense.

The controller takes no long messages (``MAX_UP``), so a worker shortens what may be long. The
controller in turn refuses what has the right types and still means nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fries.control.messages import UP, Counted, Counts, Hello, Taken, Up
from fries.errors import WireError

MOST_ENTRIES: Final = 1_000
"""Of one table, by names of operators: with names of a few hundred characters it fits, too."""
COUNT_SECONDS: Final = 0.25
"""Between two reports of counters: often enough to watch, too rarely to cost anything."""
YOUNG_SECONDS: Final = 30.0
"""After its first rows in a worker those of a change are told with each report; later on rarely."""
RARE_SECONDS: Final = 5.0
"""Between two reports of rows by versions that are not young, while a task goes on."""
MOST_NAME: Final = 512
"""Characters of a worker's name, which is kept and shown."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
Value = TypeVar("Value")


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
        self._taken: dict[tuple[str, int], list[int]] = {}
        """By operator and change, the rows that its new and its old version have taken."""
        self._told = time.monotonic()
        self._told_rows = self._told
        self._newest = 0
        """The newest change of which rows were told."""
        self._young_until = 0.0
        """Until then somebody may wait for its rows."""

    def add(self, operator: str, more: Counts) -> None:
        """Note what an operator has done."""
        self._counts[operator] = self._counts.get(operator, Counts()) + more

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Note which version has taken rows: the one of a change, and none of some others yet."""
        if change:
            self._taken.setdefault((operator, change), [0, 0])[0] += rows
        for one in older:
            self._taken.setdefault((operator, one), [0, 0])[1] += rows

    @property
    def due(self) -> bool:
        """Whether it is time to tell."""
        return time.monotonic() - self._told > COUNT_SECONDS

    def take(self, all_of_it: bool = True) -> list[Counted]:
        """What is to be told now; the rows of a change that is not young may wait."""
        counts, self._counts = self._counts, {}
        self._told = time.monotonic()
        taken = self._take_rows(all_of_it)
        parts = [taken[at : at + MOST_ENTRIES] for at in range(0, len(taken), MOST_ENTRIES)]
        return [
            Counted(some or {}, memory_used(), tuple(rows or ()))
            for some, rows in zip_longest(divided(counts), parts)
        ]

    def _take_rows(self, all_of_it: bool) -> list[Taken]:
        newest = max((change for _, change in self._taken), default=0)
        if newest > self._newest:
            self._newest, self._young_until = newest, self._told + YOUNG_SECONDS
        is_due = self._told < self._young_until or self._told - self._told_rows > RARE_SECONDS
        if not (is_due or all_of_it):
            return []
        taken, self._taken, self._told_rows = self._taken, {}, self._told
        return [Taken(*which, *rows) for which, rows in taken.items()]


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
