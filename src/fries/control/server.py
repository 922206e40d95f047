"""The shell of the controller in the driver: sockets, timers, the log, and no decisions.

A thread with an event loop owns the machine (:mod:`fries.change.controller`) and every connection.
User threads hand orders over and wait on the change they get; workers connect, prove themselves,
and are told what they must know. A peer that is slow or breaks the rules costs nobody anything but
its own connection (:mod:`fries.control.door`, :mod:`fries.control.peers`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fries.change.controller import Controller
from fries.change.events import (
    AbortLogged,
    BatchesCommitted,
    Blamed,
    CancelTimer,
    ChangeAnnounced,
    ControllerEvent,
    ControllerInstruction,
    Decided,
    Disconnect,
    EffectLogged,
    Expired,
    Greet,
    Heard,
    JobsOver,
    Joined,
    Left,
    LogAbort,
    LogCommit,
    LogEffect,
    LogEnd,
    LogIntent,
    LogShrink,
    NotTakenBack,
    QueryBegins,
    Requested,
    Revoked,
    RowsExpected,
    RowsTaken,
    Send,
    SetTimer,
    Ship,
    Stopped,
    TaskWaits,
    Tell,
    TellFailure,
    Undone,
)
from fries.change.model import Change, Order, Phase, Summary, WayBack
from fries.control.door import Door, Line
from fries.control.growth import Growth
from fries.control.ledger import Ledger
from fries.control.live import LiveChange
from fries.control.loop import LoopThread
from fries.control.messages import (
    Begin,
    Counted,
    Counts,
    Ended,
    Failed,
    Hello,
    Stuck,
    Up,
    Welcome,
)
from fries.control.news import News
from fries.control.peers import Peer, shipping_seconds
from fries.control.tls import Tls
from fries.errors import WireError
from fries.listening import Announcer
from fries.protocol.messages import Snapshotted

MOST_COUNTERS: Final = 100_000
"""Operators with counters: a worker cannot invent so many that they fill the driver."""
RETRY_SECONDS: Final = 1.0
"""Until the log is asked again to forget a commit of which nobody knows whether it is there."""
_logger = logging.getLogger(__name__)


class Held(NamedTuple):
    """A task that waits for a change to be taken back."""

    worker: str
    stage: int
    failed: Failed


OnHold: TypeAlias = "Callable[[Held], None]"
"""Called by the control thread: it must not wait for anything."""


class ControlServer:
    """Listens for the workers of one flow and carries out changes."""

    def __init__(
        self,
        flow: str,
        secret: bytes,
        host: str = "127.0.0.1",
        definition: bytes = b"",
        tls: Tls | None = None,
        is_over: Callable[[int], bool] = lambda _: True,
        events: Announcer | None = None,
    ) -> None:
        """``is_over`` tells whether a batch job, by its number, is over: it may ask Spark."""
        self.news = News(events or Announcer(flow))
        """Tells users what becomes of changes."""
        self.flow = flow
        self.address = (host, 0)
        self.secret = secret
        self._definition = definition
        self._is_over = is_over
        context = None if tls is None else tls.context(server=True)
        self._door = Door(secret, context, self._attend)
        self._machine = Controller()
        self._reading = threading.Lock()
        """Held while the machine works, and by others who read what it keeps."""
        self._peers: dict[str, Peer] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """By change that is not over, when it must be prepared."""
        self._ledger: Ledger | None = None
        self._growth = Growth()
        self.stuck: dict[str, Stuck] = {}
        """By worker, the function that has not returned for a while."""
        self._on_hold: OnHold | None = None
        self._counters: dict[str, Counts] = {}
        self.counted = threading.Condition()
        """Notified when tasks have reported rows; guards the counters."""
        self._loop = LoopThread(f"fries-{flow}", self._open, self._close)

    def start(self) -> None:
        """Listen on a free port; :attr:`address` is known afterwards."""
        try:
            self._loop.start()
        except OSError as error:
            raise WireError(
                f"the controller cannot listen on {self.address[0]}: {error}"
            ) from error

    def stop(self) -> None:
        """Close every connection and end the thread; once is enough."""
        self._loop.stop()

    # What is known, from any thread

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that are connected now."""
        return tuple(self._peers)

    @property
    def finished(self) -> int:
        """The newest batch that is known to be committed by Spark; -1: none."""
        return self._machine.finished

    @property
    def failures(self) -> list[Failed]:
        """Versions that failed on live rows since the query was started."""
        return self._machine.failures

    @property
    def counters(self) -> dict[str, Counts]:
        """By operator, what all tasks together have reported so far."""
        with self.counted:
            return dict(self._counters)

    def has_counted(self, operator: str | None) -> bool:
        """Whether tasks have reported rows of an operator, or of any."""
        return bool(self._counters) if operator is None else operator in self._counters

    def history(self) -> list[Summary]:
        """All changes that were ever requested, oldest first."""
        with self._reading:
            return self._machine.changes.history()

    @property
    def in_transition(self) -> bool:
        """Whether some change is not over."""
        return bool(self._machine.active)

    def committed_changes(self) -> list[Change]:
        """The changes that were committed and not taken back, oldest first.

        Without those that later ones have replaced for good.
        """
        with self._reading:
            return self._machine.changes.happened()

    def updates(self) -> dict[str, int]:
        """By operator, how many updates were committed and not taken back."""
        with self._reading:
            return self._machine.changes.updates()

    def updates_of(self, operator: str) -> int:
        """How many updates of an operator were requested and not taken back."""
        return self._machine.changes.requested(operator)

    # What happens, told by the driver's threads

    def announce(self) -> None:
        """A change is about to be requested: tell the workers that compute."""
        self._tell_machine(ChangeAnnounced())

    def request(self, order: Order) -> LiveChange:
        """Begin a change. Call it from any thread, and wait for it as you like."""

        def submit() -> LiveChange:
            change = LiveChange(self._machine.last + 1, order)
            self._drive(Requested(change))
            return change

        return self._loop.ask(submit)

    def query_begins(self) -> None:
        """The query begins anew: whatever its next task belongs to is a new batch.

        What waits for a boundary is committed now, for a new worker may still be loading it
        when its first task begins.
        """
        self.stuck = {}
        self._tell_machine(QueryBegins())

    def batches_committed(self, upto: float) -> None:
        """Spark has committed batches up to a number: if that is all, what is committed is done.

        The next batch begins with it. That no task runs would prove nothing: so it is between two
        stages of a batch, too.
        """
        self._tell_machine(BatchesCommitted(upto))

    def look_for_jobs(self) -> None:
        """If no batch job is under way, what is committed is done."""
        self._loop.ask(self._look_for_jobs)

    def expect_rows(self, unless: str = "") -> None:
        """The query runs, or tell why no more rows will come: whoever waits for some must know."""
        self._tell_machine(RowsExpected(unless))

    def blame(self, failed: Failed) -> None:
        """A version is to be taken back: know for what."""
        self._tell_machine(Blamed(failed))

    def take_back(self, on_hold: OnHold | None, probation: int) -> None:
        """From now on versions that fail are taken back while they are new; or not any more.

        ``on_hold`` is told of tasks that wait for a change to be taken back; without it they fail
        at once. ``probation``: micro-batches for which a version counts as new.
        """

        def begin() -> None:
            self._on_hold = on_hold
            self._machine.takes_back = on_hold is not None
            self._machine.probation = probation

        self._loop.tell(begin)

    def give_up(self, worker: str, change: int) -> None:
        """A change is not taken back while a task of a worker waits for that."""
        self._loop.tell(lambda: self._drive(NotTakenBack(worker, change)))

    def revoke(self, reasons: Mapping[int, str]) -> bool:
        """Take changes back, with the batch in which they took effect; says why by their numbers.

        With those that wait and were built on them. The query must have stopped. ``False`` if a
        batch with one of them is committed, or none has happened. Workers have made them part of
        what they begin with, so they begin anew.
        """

        def revoke() -> bool:
            if not self._machine.may_revoke(reasons):
                return False
            self._drive(Revoked(reasons))
            return True

        return self._loop.ask(revoke)

    def record_failure(self, change: Change, failed: Failed, reason: str, way: WayBack) -> None:
        """A change that was done has failed on live rows, and another one has taken it back."""
        self._tell_machine(Undone(change, failed, reason, way))

    def flush(self) -> None:
        """Wait until the log knows how every change has ended; raises if that cannot be."""
        if self._ledger is not None:
            self._ledger.flush()

    def restore(
        self,
        ledger: Ledger,
        changes: Sequence[Change],
        last: int,
        finished: int,
        definition: bytes = b"",
    ) -> None:
        """Go on where an earlier driver has left off; before any worker joins.

        ``definition`` is what the changes build on, if it is not the code of now.
        """

        def take_over() -> None:
            self._definition = definition or self._definition
            self._ledger = ledger
            before = self._machine
            self._machine = Controller(changes, last=last, finished=finished, durable=True)
            self._machine.probation = before.probation
            self._machine.takes_back = before.takes_back
            self._drive(BatchesCommitted(finished))

        self._loop.ask(take_over)

    def _tell_machine(self, event: ControllerEvent) -> None:
        self._loop.ask(lambda: self._drive(event))

    # Connections

    async def _open(self) -> None:
        self.address = await self._door.open(self.address[0])

    async def _close(self) -> None:
        self._door.close()
        for peer in self._peers.values():
            peer.close()
        self._drive(Stopped())
        if self._ledger is not None:
            self._ledger.close()

    async def _attend(self, first: Up, line: Line) -> None:
        """Listen to a worker for as long as it lives."""
        if not isinstance(first, Hello) or first.flow != self.flow:
            raise WireError("a worker says hello first, and to its own flow")
        name, peer = first.worker, Peer(line)
        try:
            if name in self._peers:
                raise WireError(f"a second worker calls itself {name}")
            self._peers[name] = peer
            self._drive(Joined(name))
            while True:
                self._hear(name, await line.read())
        finally:
            peer.close()
            if self._peers.get(name) is peer:
                del self._peers[name]
                self.stuck.pop(name, None)
                self._drive(Left(name))

    def _hear(self, name: str, message: Up) -> None:
        match message:
            case Counted(counts, memory, taken):
                self.stuck.pop(name, None)
                self._count(counts)
                self._growth.weigh(name, memory)
                if taken:
                    self._drive(RowsTaken(taken))
            case Stuck():
                self.stuck[name] = message
            case Hello():
                raise WireError("a second hello")
            case Begin(batch):
                if batch < 0:
                    self._look_for_jobs(before=batch)
                self._drive(Heard(name, message))
            case Snapshotted():
                pass  # only the simulator takes snapshots
            case _:
                if isinstance(message, Ended):
                    self.stuck.pop(name, None)
                self._drive(Heard(name, message))

    def _look_for_jobs(self, before: int | None = None) -> None:
        """Ask Spark which batch jobs are over, unless a task of a known one begins."""
        jobs = self._machine.batches.jobs
        if jobs and before not in jobs:
            self._drive(JobsOver(frozenset(filter(self._is_over, jobs))))

    def _count(self, counts: dict[str, Counts]) -> None:
        """Add what a worker has done."""
        with self.counted:
            known = self._counters
            new = sum(name not in known for name in counts)
            if new and len(known) + new > MOST_COUNTERS:
                raise WireError("a worker counts for operators that no flow has")
            for name, more in counts.items():
                known[name] = known[name] + more if name in known else more
            self.counted.notify_all()

    # Instructions of the machine

    def _drive(self, event: ControllerEvent) -> None:
        """Hand an event over, and carry out what the machine wants done."""
        with self._reading:
            instructions = self._machine.handle(event, time.time())
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: ControllerInstruction) -> None:
        match instruction:
            case Send(workers, message):
                for worker in workers:
                    if peer := self._peers.get(worker):
                        peer.send(message)
            case Ship():
                self._ship(instruction)
            case Greet(worker, base, skipped):
                if peer := self._peers.get(worker):
                    peer.send(Welcome(base, self._definition, dict(skipped)))
            case Disconnect(workers):
                for worker in workers:
                    if peer := self._peers.get(worker):
                        peer.close()
            case SetTimer(change):
                self._timers[change.number] = self._timer(change)
            case CancelTimer(number):
                if timer := self._timers.pop(number, None):
                    timer.cancel()
            case Tell(change, state, failures):
                if state == Phase.COMMITTED.value and change.told != state:
                    self._growth.watch(change)
                self.news.moved(change, state, failures)
            case TellFailure(failed):
                self.news.failed(failed)
            case TaskWaits(worker, stage, failed):
                assert self._on_hold is not None
                self._on_hold(Held(worker, stage, failed))
            case _:
                self._log(instruction)

    def _ship(self, what: Ship) -> None:
        parts = self._machine.changes.payload(what.change)
        after = () if what.then is None else (what.then,)
        for worker in what.workers:
            if peer := self._peers.get(worker):
                peer.ship(what.change, what.bit, parts, *after)

    def _timer(self, change: Change) -> asyncio.TimerHandle:
        order = change.order
        patience = order.timeout + shipping_seconds(sum(part.nbytes for part in order.buffers))
        return self._loop.later(patience, lambda: self._drive(Expired(change.number)))

    def _log(self, instruction: ControllerInstruction) -> None:
        """What the machine wants written; the answers come from the writer's thread."""
        ledger = self._ledger
        assert ledger is not None, "a machine that is durable has a log"
        match instruction:
            case LogIntent(number, order):
                ledger.intend(number, order)
            case LogCommit(number):  # if the loop has ended, the log tells the next driver
                ledger.commit(number, lambda problem: self._tell_later(Decided(number, problem)))
            case LogAbort(number, reason, again):
                self._loop.later(
                    RETRY_SECONDS if again else 0.0, lambda: self._log_abort(number, reason)
                )
            case LogEffect(ticket, changes, batch):
                ledger.take_effect(changes, batch, lambda problem: self._effect(ticket, problem))
            case LogEnd(change):
                ledger.end(change)
            case LogShrink(number, order):
                ledger.shrink(number, order)

    def _log_abort(self, number: int, reason: str) -> None:
        assert self._ledger is not None
        self._ledger.abort(
            number, reason, lambda problem: self._tell_later(AbortLogged(number, problem))
        )

    def _effect(self, ticket: int, problem: str) -> None:
        if problem:
            _logger.warning("a task cannot go on, because its changes are not safe: %s", problem)
        self._tell_later(EffectLogged(ticket, problem))

    def _tell_later(self, event: ControllerEvent) -> None:
        self._loop.tell(lambda: self._drive(event))
