"""The durable log beside the event loop: one thread writes, in order, and nobody waits for it.

But a commit waits: the controller sends it only when the log has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from fries.control.changes import Change, Order
from fries.errors import FriesError, LogError
from fries.log.log import Log
from fries.log.records import Buffer, Ended, Intent

_logger = logging.getLogger(__name__)


class Ledger:
    """Writes what becomes of changes; the answers come through callbacks of its own thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fries-log")
        self._unwritten: dict[int, str] = {}
        """Changes whose intent could not be written, and why: they cannot be committed."""

    def intend(self, number: int, order: Order) -> None:
        """A change is requested."""
        intent = intent_of(number, order)
        payload: tuple[Buffer, ...] = (order.payload, *order.buffers)

        def write() -> None:
            try:
                self._log.intend(intent, payload)
            except FriesError as error:
                self._unwritten[number] = str(error)

        self._pool.submit(write)

    def commit(self, number: int, since: int, then: Callable[[str], None]) -> None:
        """Write a commit; the callback gets nothing, or what went wrong."""

        def write() -> str:
            problem = self._unwritten.pop(number, "")
            if not problem:
                try:
                    self._log.commit(number, since)
                except FriesError as error:
                    problem = str(error)
            return problem

        self._pool.submit(write).add_done_callback(lambda done: then(_outcome(done)))

    def end(self, change: Change) -> None:
        """A change is over; that the log lacks it would do no harm."""
        record = Ended(change.number, time.time(), change.phase.value, change.reason, change.delay)
        self._pool.submit(self._calmly, lambda: self._log.end(record))

    def shrink(self, number: int, order: Order) -> None:
        """The functions of a change are of no more use."""
        intent = intent_of(number, order)
        self._pool.submit(self._calmly, lambda: self._log.shrink(intent))

    def close(self) -> None:
        """Write what is left to write."""
        self._pool.shutdown()

    def _calmly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LogError as error:
            _logger.warning("the log of changes could not be tidied: %s", error)


def intent_of(number: int, order: Order) -> Intent:
    """What the log says about an order, beside its functions."""
    return Intent(
        number,
        order.requested,
        order.targets,
        order.scheduler,
        order.components,
        dict(order.versions),
        order.residue,
        order.migrates,
        order.note,
    )


def _outcome(done: Future[str]) -> str:
    error = done.exception()
    return done.result() if error is None else repr(error)
