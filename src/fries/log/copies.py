"""A second copy of what the log says, in a folder of its own: so that it can tell what is missing.

A log whose newest files are gone looks like an older log. So every record that decides what
happened is written a second time, without the functions, after it is safe in the log and beside
the path of a change: nobody waits for it. A record that is damaged or missing in the log is taken
from here. Only a crash between the two writes, of a few milliseconds, leaves a record alone; the
next driver makes up for it. A segment is copied as it is; what it has is removed afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from fries.errors import LogError
from fries.log.files import Files
from fries.log.pieces import Buffer
from fries.log.records import Record, encode

Whole: TypeAlias = "tuple[Record, tuple[Buffer, ...]]"
"""A record with its payload."""
_logger = logging.getLogger(__name__)


class Copies:
    """Writes copies, in order and beside the log; what fails is tried again with the next one."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fries-log-copies")
        self._waiting: dict[str, Whole] = {}
        """By name, what is still to be written; only for the pool's thread, as is the next."""
        self._spare: dict[str, None] = {}
        """What is to be removed when all that waits is written."""

    def keep(self, **records: Record) -> None:
        """Copy records, by their names."""
        self.keep_instead((), **{name: (record, ()) for name, record in records.items()})

    def keep_instead(self, spare: Iterable[str], **wholes: Whole) -> None:
        """Copy records with their payloads, and remove what is of no use when they are safe."""

        def note() -> None:
            for name in spare:
                self._waiting.pop(name, None)
                self._spare[name] = None
            for name in wholes:
                self._spare.pop(name, None)
            self._waiting.update(wholes)

        self._submit(note)

    def close(self) -> None:
        """Write what is left to write."""
        self._pool.shutdown()

    def _submit(self, note: Callable[[], None]) -> None:
        def write() -> None:
            note()
            try:
                self._write_all()
            except Exception as error:  # whatever it is, the log itself is safe
                _logger.warning("the log of changes is safe, its copy was not written: %s", error)

        self._pool.submit(write)

    def _write_all(self) -> None:
        while self._waiting:
            name, (record, payload) = next(iter(self._waiting.items()))
            self.files.write(name, encode(record, payload), replace=True)
            del self._waiting[name]
        while self._spare:
            name = next(iter(self._spare))
            self.files.remove(name)
            del self._spare[name]


def readable(files: Files) -> set[str]:
    """Names of the copies; none if their folder cannot be listed."""
    try:
        return set(files.names())
    except LogError as error:
        _logger.warning("the copy of the log of changes cannot be read: %s", error)
        return set()
