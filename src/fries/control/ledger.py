"""The durable log beside the event loop: one thread writes, in order, and nobody waits for it.

But a commit waits: the controller sends it only when the log has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from fries.change.model import Change, Order, Phase
from fries.errors import FriesError
from fries.log.log import Log
from fries.log.pieces import Buffer
from fries.log.records import Ended, Intent

_logger = logging.getLogger(__name__)


class Ledger:
    """Writes what becomes of changes; the answers come through callbacks of its own thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fries-log")
        self._unended: list[Ended] = []
        """Ends that are still to be written, in order."""
        self._unwritten: dict[int, str] = {}
        """Changes whose intent could not be written, and why: they cannot be committed."""
        self._tidies = False
        """Whether a step that makes the log shorter is waiting for its turn."""
        self._pool.submit(self._tidy_later)

    def intend(self, number: int, order: Order) -> None:
        """A change is requested."""
        intent = intent_of(number, order)
        payload: tuple[Buffer, ...] = (order.payload, *order.buffers)

        def write() -> None:
            try:
                self._log.intend(intent, payload)
            except Exception as error:  # whatever it is, the change cannot be committed
                self._unwritten[number] = str(error) or repr(error)

        self._pool.submit(write)

    def commit(self, number: int, then: Callable[[str], None]) -> None:
        """Write a commit; the callback gets nothing, or what went wrong."""

        def write() -> str:
            problem = self._unwritten.get(number, "")
            if not problem:
                try:
                    self._log.commit(number)
                except FriesError as error:
                    problem = str(error)
            return problem

        self._pool.submit(write).add_done_callback(lambda done: then(_outcome(done)))

    def abort(self, number: int, reason: str, then: Callable[[str], None]) -> None:
        """Write that a change was not committed, whatever came of its commit.

        If its intent could not be written nothing was, and its number may be another driver's.
        """
        record = Ended(number, time.time(), Phase.ABORTED.value, reason)

        def write() -> str:
            if number not in self._unwritten:
                try:
                    self._log.end(record)
                except FriesError as error:
                    return str(error)
            return ""

        self._pool.submit(write).add_done_callback(lambda done: then(_outcome(done)))

    def take_effect(self, numbers: Iterable[int], batch: int, then: Callable[[str], None]) -> None:
        """Write that changes take effect in a batch; the callback is as for a commit."""

        def write() -> str:
            try:
                for number in numbers:
                    self._log.take_effect(number, batch)
            except FriesError as error:
                return str(error)
            return ""

        self._pool.submit(write).add_done_callback(lambda done: then(_outcome(done)))

    def end(self, change: Change) -> None:
        """A change is over. If the log lacks that, it is written when somebody asks for it.

        Where its intent could not be written, its number may be another driver's.
        """
        failed = change.failure is not None
        how = change.phase.value, change.reason, change.delay, failed
        record = Ended(change.number, time.time(), *how)

        def write() -> None:
            if not self._unwritten.pop(record.number, ""):
                self._unended.append(record)
                self._end_all()
                self._tidy_later()

        self._pool.submit(self._calmly, write)

    def shrink(self, number: int, order: Order) -> None:
        """The functions of a change are of no more use."""
        intent = intent_of(number, order)
        self._pool.submit(self._calmly, lambda: self._log.shrink(intent))

    def flush(self) -> None:
        """Wait until the end of every change is safe; raises if that cannot be."""
        self._pool.submit(self._end_all).result()

    def close(self) -> None:
        """Write what is left to write."""
        self._pool.shutdown()
        self._log.close()

    def _end_all(self) -> None:
        while self._unended:
            self._log.end(self._unended[0])
            self._unended.pop(0)

    def _tidy_later(self) -> None:
        """Have the log made shorter, step by step: what was asked for meanwhile comes first."""
        if not self._tidies:
            with suppress(RuntimeError):  # the log is about to be closed
                self._pool.submit(self._calmly, self._tidy)
                self._tidies = True

    def _tidy(self) -> None:
        self._tidies = False
        if self._log.tidy():
            self._tidy_later()

    def _calmly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # whatever it is, the flow goes on
            _logger.warning("the log of changes could not be written: %s", error)


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
        order.undoes,
        order.automatic,
        dict(order.labels),
    )


def _outcome(done: Future[str]) -> str:
    error = done.exception()
    return done.result() if error is None else repr(error)
