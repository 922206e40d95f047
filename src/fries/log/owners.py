"""One driver at a time on a log: whoever comes last has it, and the one before finds out.

A driver that starts writes a record with the next number, which nobody can write twice, and only
then reads the log for good. After each commit, and before any worker hears of it, a driver looks
whether a record with a higher number is there. If so, it tells nobody: the other one may have read
the log before the commit was in it, and then it does not count. A driver that died is in nobody's
way; one that lives stops its query when it finds out, and the new one waits for that a moment.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from fries.errors import LogError, LogTakenError
from fries.log.files import Files
from fries.log.reading import Reading
from fries.log.records import Owned, decode, encode

HANDOVER_SECONDS: Final = 5.0
"""For which a new driver waits for one that may live to stop its query: it looks every second."""
LOOK_SECONDS: Final = 0.05
"""Between two looks at whether it has."""


class Ownership:
    """Whether this driver is still the one that came last."""

    def __init__(self, files: Files, record: Owned) -> None:
        self._files, self._record = files, record

    @property
    def number(self) -> int:
        """The number of this driver among those that the log has had."""
        return self._record.number

    def check(self) -> None:
        """Raise if another driver has come."""
        name = _name(self.number + 1)
        if self._files.has(name):
            other = read_owner(self._files, self.number + 1)
            raise LogTakenError(self._files.place, "unknown" if other is None else _who(other))

    def settle(self, read: Reading) -> None:
        """The log was read: what an earlier driver commits from now on does not count."""
        seen, uncommitted = read.last, read.uncommitted()
        record = msgspec.structs.replace(
            self._record, seen=seen, uncommitted=uncommitted, segment=read.segments.newest
        )
        self._replace(record)

    def leave(self) -> None:
        """Tell the next driver that it need not wait: nothing more is written."""
        with suppress(LogError):  # then the next one waits a little
            self._replace(msgspec.structs.replace(self._record, left=True))

    def stay(self) -> None:
        """Raise if another driver has come; else go on, and let the next one wait again."""
        self.check()
        if self._record.left:
            self._replace(msgspec.structs.replace(self._record, left=False))

    def _replace(self, record: Owned) -> None:
        self._record = record
        self._files.write(_name(record.number), encode(record), replace=True)


def claim(files: Files, read: Reading) -> Ownership:
    """Take a log over from those that have been read; refused if another driver just does."""
    record = Owned(read.last_owner + 1, time.time(), socket.gethostname(), process())
    files.write(_name(record.number), encode(record))
    return Ownership(files, record)


def take_over(
    files: Files, copies: Files | None, check: Callable[[Reading], None]
) -> tuple[Reading, Ownership]:
    """Read a log and become its driver.

    ``check`` raises if it cannot be gone on with: before anything is written, so that a start that
    is refused leaves the driver that runs alone.
    """
    read = Reading(files, copies)
    check(read)
    before = read.owners.get(read.last_owner)
    owner = claim(files, read)
    try:
        if read.last_owner and (before is None or not before.left):
            if before is not None:
                wait_for(files, before)
            read = Reading(files, copies)  # it may have written meanwhile
            check(read)
        owner.settle(read)
    except Exception:
        owner.leave()
        raise
    return read, owner


def wait_for(files: Files, owner: Owned, sleep: Callable[[float], None] = time.sleep) -> Owned:
    """Wait until an earlier driver has left, as long as it may live."""
    deadline = time.monotonic() + HANDOVER_SECONDS
    while not owner.left and may_live(owner) and time.monotonic() < deadline:
        sleep(LOOK_SECONDS)
        owner = read_owner(files, owner.number) or owner
    return owner


def may_live(owner: Owned) -> bool:
    """Whether a driver may still run: of a process on this machine, we can tell."""
    if owner.host != socket.gethostname():
        return True
    number, _, began = owner.process.partition(" ")
    return number.isdecimal() and _began(int(number)) == began


def read_owner(files: Files, number: int) -> Owned | None:
    """The record of a driver; ``None`` if it cannot be read."""
    try:
        record, _ = decode(files.read(_name(number)))
    except LogError:
        return None
    return record if isinstance(record, Owned) else None


@lru_cache(maxsize=1)
def process() -> str:
    """Tell this process from all others: numbers are used again, so with when it began."""
    return f"{os.getpid()} {_began(os.getpid())}"


def _began(number: int) -> str:
    """When a process began, as the system counts it; nothing if there is none, or no telling."""
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{number}/stat").read_text()
        return text.rpartition(")")[2].split()[19]
    return ""


def _name(number: int) -> str:
    return f"{number:08}.owner"


def _who(owner: Owned) -> str:
    return f"process {owner.process.partition(' ')[0]} on {owner.host}"
