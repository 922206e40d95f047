"""A second copy of what the log says, in a folder of its own: so that it can tell what is missing.

A log whose newest files are gone looks like an older log. So every record that decides what
happened is written a second time, without the functions, after it is safe in the log and beside
the path of a change: nobody waits for it. A record that is damaged or missing in the log is taken
from here. Only a crash between the two writes, of a few milliseconds, leaves a record alone; the
next driver makes up for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fries.errors import LogError
from fries.log.files import Files
from fries.log.records import Record, encode

_logger = logging.getLogger(__name__)


class Copies:
    """Writes copies, in order and beside the log; what fails is tried again with the next one."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fries-log-copies")
        self._waiting: dict[str, Record] = {}
        """By name, what is still to be written; only for the pool's thread."""

    def keep(self, **records: Record) -> None:
        """Copy records, by their names."""
        self._submit(lambda: self._waiting.update(records))

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
            name, record = next(iter(self._waiting.items()))
            self.files.write(name, encode(record), replace=True)
            del self._waiting[name]


def readable(files: Files) -> set[str]:
    """Names of the copies; none if their folder cannot be listed."""
    try:
        return set(files.names())
    except LogError as error:
        _logger.warning("the copy of the log of changes cannot be read: %s", error)
        return set()
