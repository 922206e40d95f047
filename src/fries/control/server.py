"""The controller in the driver: an event loop in a thread of its own.

It owns the protocol's :class:`~fries.protocol.controller.Controller` and every connection.
User threads hand orders over and wait on the handle they get; workers connect, prove
themselves, and are told what they must know. A peer that is slow or breaks the rules costs
nobody anything but its own connection (:mod:`fries.control.door`, :mod:`fries.control.peers`). A
worker that does not answer makes a change fail after its timeout, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec import structs
from msgspec.structs import replace

from fries.control.attempts import Attempts, Place, Repetition
from fries.control.base import Base
from fries.control.batches import Batches
from fries.control.changes import Change, Order, Summary, WayBack
from fries.control.door import Door, Line
from fries.control.growth import Growth
from fries.control.ledger import Ledger
from fries.control.loop import LoopThread
from fries.control.messages import (
    ANY_BATCH,
    Begin,
    Counted,
    Counts,
    Down,
    Ended,
    Failed,
    GivenUp,
    Go,
    Hello,
    Holds,
    Noted,
    Soon,
    Stuck,
    Taken,
    Up,
    Welcome,
)
from fries.control.news import News
from fries.control.peers import Peer, shipping_seconds
from fries.control.register import HAPPENED, Register
from fries.control.tls import Tls
from fries.errors import WireError
from fries.listening import Announcer
from fries.protocol.controller import (
    CheckpointComplete,
    Controller,
    ControllerEvent,
    Decide,
    Decided,
    Decision,
    Drained,
    Expired,
    Heard,
    Joined,
    Left,
    Phase,
    Record,
    Released,
    Requested,
    Revoked,
    Send,
)
from fries.protocol.messages import Part, Prepare, Switched

MOST_FAILURES: Final = 200
"""Failures on live rows that are kept: one is enough to take a change back."""
MOST_COUNTERS: Final = 100_000
"""Operators with counters: a worker cannot invent so many that they fill the driver."""
ROLE: Final = "worker"
"""Any Python process of a flow may be given any stage, so all have the same role."""
BITS: Final = range(63)
"""Bits of the signed 64-bit epoch mask that stand for changes in transition."""
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
        self._definition = definition
        self.address = (host, 0)
        self.secret = secret
        context = None if tls is None else tls.context(server=True)
        self._door = Door(secret, context, self._attend)
        self._controller = Controller()
        self._peers: dict[str, Peer] = {}
        self._changes = Register()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """By change that is not over, when it must be prepared."""
        self._bits: dict[int, int] = {}
        """By change that is being prepared or in transition, its bit of the mask."""
        self._unsettled: set[int] = set()
        """Changes that some worker may still be missing."""
        self._unmet: dict[int, Change] = {}
        """Changes that happened, and that nothing of any batch has met yet."""
        self._base = Base()
        self._batches = Batches(is_over)
        self._attempts = Attempts()
        self._ledger: Ledger | None = None
        self._growth = Growth()
        self.failures: list[Failed] = []
        """Versions that failed on live rows since the query was started."""
        self.stuck: dict[str, Stuck] = {}
        """By worker, the function that has not returned for a while."""
        self.probation = 0
        """Micro-batches for which a version counts as new; 0: none is ever taken back."""
        self._newest = -(1 << 62)
        """The newest batch that was the first one with some change."""
        self.on_hold: OnHold | None = None
        """Told of tasks that wait for a change to be taken back; ``None``: they fail at once."""
        self.counters: dict[str, Counts] = {}
        """By operator, what all tasks together have reported so far."""
        self.counted = threading.Condition()
        """Notified when tasks have reported rows."""
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

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that are connected now."""
        return tuple(self._peers)

    @property
    def finished(self) -> int:
        """The newest batch that is known to be committed by Spark; -1: none."""
        return self._batches.finished

    def history(self) -> list[Summary]:
        """All changes that were ever requested, oldest first."""
        return self._changes.history()

    @property
    def in_transition(self) -> bool:
        """Whether some change is not over."""
        return bool(self._controller.changes)

    def committed_changes(self) -> list[Change]:
        """The changes that were committed and not taken back, oldest first.

        Without those that later ones have replaced for good.
        """
        return self._changes.happened()

    def updates(self) -> dict[str, int]:
        """By operator, how many updates were committed and not taken back."""
        return self._changes.updates()

    def updates_of(self, operator: str) -> int:
        """How many updates of an operator were requested and not taken back."""
        return self._changes.requested(operator)

    def announce(self) -> None:
        """A change is about to be requested: tell the workers that compute."""

        def tell() -> None:
            for name in self._peers:
                if self._batches.running(name):
                    self._tell(name, Soon())

        self._loop.ask(tell)

    def request(self, order: Order) -> Change:
        """Begin a change. Call it from any thread; the answer is its handle."""
        return self._loop.ask(lambda: self._submit(order))

    def cut(self) -> None:
        """The query begins anew: whatever its next task belongs to is a new batch.

        What waits for a boundary is committed now, for a new worker may still be loading it
        when its first task begins.
        """
        self._loop.ask(self._forget_batch)

    def rest(self, finished: float) -> None:
        """Batches up to a number are finished: if that is all, what is committed is done.

        The next batch begins with it. That no task runs would prove nothing: so it is between two
        stages of a batch, too.
        """

        def drain() -> None:
            if self._batches.rest(finished):
                self._drain()

        self._loop.ask(drain)

    def rest_jobs(self) -> None:
        """If no batch job is under way, what is committed is done."""

        def drain() -> None:
            if self._batches.jobs_over:
                self._drain()

        self._loop.ask(drain)

    def restore(
        self,
        ledger: Ledger,
        changes: list[Change],
        last: int,
        finished: int,
        definition: bytes = b"",
    ) -> None:
        """Go on where an earlier driver has left off; before any worker joins.

        ``definition`` is what the changes build on, if it is not the code of now.
        """

        def take_over() -> None:
            self._definition = definition or self._definition
            self._ledger, self._batches.finished = ledger, finished
            self._controller = replace(self._controller, last=last)
            self._changes = Register(changes)
            for change in changes:
                if change.phase is Phase.DONE:
                    self._base.add(change.number)
                    if change.since is None:
                        self._unmet[change.number] = change
                    else:
                        self._newest = max(self._newest, change.since)
                else:
                    self._changes.close(change.number)
            self._forget_functions()

        self._loop.ask(take_over)

    def revoke(self, reasons: Mapping[int, str]) -> bool:
        """Take changes back, with the batch in which they took effect; says why by their numbers.

        With those that wait and were built on them. The query must have stopped. ``False`` if a
        batch with one of them is committed, or none has happened. Workers have made them part of
        what they begin with, so they begin anew.
        """
        return self._loop.ask(lambda: self._revoke(reasons))

    def _revoke(self, reasons: Mapping[int, str]) -> bool:
        if any(number not in self._changes for number in reasons):
            return False  # it was replaced for good, so a batch with it is committed
        found = [c for c in self._changes.whole if c.number in reasons and not c.taken_back]
        happened = [c for c in found if c.phase in HAPPENED]
        if not happened or any(change.is_kept(self.finished) for change in happened):
            return False
        for change in reversed(found):  # so that none of those that wait begins meanwhile
            reason = change.reason if change.failure else reasons[change.number]
            if self._controller.change(change.number) is not None:
                self._drive(Revoked(change.number, reason))
            else:
                self._base.remove(change.number)
                self._moved(change.number, Phase.ROLLED_BACK, reason)
        for peer in self._peers.values():
            peer.close()
        return True

    def record_failure(self, change: Change, failed: Failed, reason: str, way: WayBack) -> None:
        """A change that was done has failed on live rows, and another one has taken it back."""

        def record() -> None:
            change.failed(failed, reason, way)
            self.news.moved(change, [failed])
            if change.over and self._ledger is not None:
                self._ledger.end(change)

        self._loop.ask(record)

    def give_up(self, worker: str, change: int) -> None:
        """A change is not taken back while a task of a worker waits for that."""
        self._loop.tell(lambda: self._tell(worker, GivenUp(change)))

    def _hold(self, name: str, held: Holds) -> None:
        told = (failed for failed in reversed(self.failures) if failed.change == held.change)
        failed = next(told, None)
        if self.on_hold is None or failed is None:
            self._tell(name, GivenUp(held.change))
        else:
            self.on_hold(Held(name, held.stage, failed))

    def flush(self) -> None:
        """Wait until the log knows how every change has ended; raises if that cannot be."""
        if self._ledger is not None:
            self._ledger.flush()

    def _forget_batch(self) -> None:
        self._batches.cut()
        self._attempts.forget()
        self.failures, self.stuck = [], {}
        self._release()

    def _submit(self, order: Order) -> Change:
        change = Change(self._controller.last + 1, order)
        self._changes.add(change)
        self._unsettled.add(change.number)
        patience = order.timeout + shipping_seconds(sum(part.nbytes for part in order.buffers))
        late = self._loop.later(patience, lambda: self._drive(Expired(change.number)))
        self._timers[change.number] = late
        if self._ledger is not None:
            self._ledger.intend(change.number, order)
        parts = ((ROLE, Part(order.targets, head=True)),)
        durable = self._ledger is not None
        self._drive(Requested(parts, order.footprint, True, order.at_boundary, durable))
        self.news.requested(change)
        return change

    async def _open(self) -> None:
        self.address = await self._door.open(self.address[0])

    async def _close(self) -> None:
        self._door.close()
        for peer in self._peers.values():
            peer.close()
        decided = {
            active.number
            for active in self._controller.changes
            if active.decision in (Decision.ASKED, Decision.MADE)
        }
        for change in self._changes.whole:
            change.abandon(change.number in decided)
        if self._ledger is not None:
            self._ledger.close()

    async def _attend(self, first: Up, line: Line) -> None:
        """Listen to a worker for as long as it lives."""
        if not isinstance(first, Hello) or first.flow != self.flow:
            raise WireError("a worker says hello first, and to its own flow")
        name, peer = first.worker, Peer(line)
        try:
            self._join(name, peer)
            while True:
                self._hear(name, await line.read())
        finally:
            peer.close()
            if self._peers.get(name) is peer:
                self._base.leave(name)
                self._batches.leave(name)
                self.stuck.pop(name, None)
                del self._peers[name]
                self._drive(Left(name))

    def _join(self, name: str, peer: Peer) -> None:
        """Tell a new worker everything: what the base is made of, and what is under way."""
        if name in self._peers:
            raise WireError(f"a second worker calls itself {name}")
        self._peers[name] = peer
        needed, skipped = self._base.welcome(name)
        for number in needed:
            self._ship(name, number)
        self._tell(name, Welcome(needed, self._definition, skipped))
        self._drive(Joined(name, ROLE))

    def _hear(self, name: str, message: Up) -> None:
        match message:
            case Begin():
                self._begin(name, message)
            case Counted(counts, memory, taken):
                self.stuck.pop(name, None)
                self._count(counts)
                self._take(taken)
                self._growth.weigh(name, memory)
            case Ended():
                self.stuck.pop(name, None)
                self._end(name, message)
            case Failed():
                if len(self.failures) < MOST_FAILURES:
                    self.failures.append(message)
                    self.news.failed(message)
            case Stuck():
                self.stuck[name] = message
            case Holds():
                self._hold(name, message)
            case Hello():
                raise WireError("a second hello")
            case _:
                moment = time.time()
                if isinstance(message, Switched) and message.change in self._changes:
                    moment = self._changes[message.change].switch(name, message.moment)
                self._drive(Heard(name, message), moment)

    def _count(self, counts: dict[str, Counts]) -> None:
        """Add what a worker has done; readers may hold the old table."""
        sums = {name: self.counters.get(name, Counts()) + more for name, more in counts.items()}
        if len(self.counters.keys() | sums.keys()) > MOST_COUNTERS:
            raise WireError("a worker counts for operators that no flow has")
        with self.counted:
            self.counters = {**self.counters, **sums}
            self.counted.notify_all()

    def _take(self, taken: Iterable[Taken]) -> None:
        """Note how many rows the versions of a change have taken."""
        for operator, number, new, old in map(structs.astuple, taken):
            if number in self._changes and operator in self._changes[number].order.targets:
                change = self._changes[number]
                change.took(operator, new, old)
                self.news.moved(change)

    def _replace(self, newer: Change) -> None:
        """No row will meet what a newer change has replaced: whoever waits for some must know."""
        for change in self._changes.whole:
            if change.number >= newer.number or change.no_more_rows:
                continue
            gone = [name for name in change.order.targets if name in newer.order.targets]
            if gone:
                names = ", ".join(gone)
                change.expect_rows(f"change {newer.number} has replaced its version of {names}")

    def expect_rows(self, unless: str = "") -> None:
        """The query runs, or tell why no more rows will come: whoever waits for some must know."""

        def tell() -> None:
            for change in self._changes.whole:
                change.expect_rows(unless)

        self._loop.ask(tell)

    def blame(self, failed: Failed) -> None:
        """A version is to be taken back: know for what."""

        def note() -> None:
            if failed not in self.failures:
                self.failures.append(failed)

        self._loop.ask(note)

    def _end(self, name: str, ended: Ended) -> None:
        """A task ended. If it has switched inside, it waits to hear that this is noted."""
        self._batches.end(name)
        for number, moment in ended.last_old.items():
            if number in self._changes:
                self._changes[number].used_old(moment)
        place = Place(ended.batch, ended.execution, ended.stage, ended.partition)
        accepted = self._attempts.end(place, ended.complete, ended.cuts)
        if ended.complete and ended.cuts:
            met = [cut.change for cut in ended.cuts]
            self._when_in_effect(name, met, ended.batch, lambda: self._tell(name, Noted(accepted)))

    def _settle(self, moment: float) -> None:
        """Note which changes no worker is missing any more."""
        for active in self._controller.changes:
            if active.waiting or active.number not in self._unsettled:
                continue
            change = self._changes[active.number]
            decided = active.decision in (Decision.FREE, Decision.MADE)
            if active.phase is Phase.PREPARING and decided:
                change.prepared()
            elif active.phase is Phase.COMMITTED and not change.order.at_boundary:
                change.settle(moment)
                self._unsettled.remove(change.number)

    def _begin(self, name: str, task: Begin) -> None:
        """A task begins. All that was committed before its batch is in the batch's base."""
        batch = task.batch
        if self._batches.begin(name, batch):
            self.failures = [failed for failed in self.failures if failed.batch == ANY_BATCH]
            self._attempts.forget()
            self._release()
            self._drain()
        self._go(name, task)

    def _go(self, name: str, task: Begin) -> None:
        """Let a task begin, when the log knows in which batch its changes take effect."""
        met = [number for number, one in self._unmet.items() if _meets(task, one)]
        if met:
            self._when_in_effect(name, met, task.batch, lambda: self._go(name, task))
            return
        batch = task.batch
        active = self._controller.changes
        committed = tuple(c.number for c in active if c.phase is Phase.COMMITTED)
        place = Place(batch, task.execution, task.stage, task.partition)
        as_before = self._attempts.begin(place, committed)
        new = self._base.news(name)
        how = Repetition(None, ()) if as_before is None else as_before
        self._tell(name, Go(new, committed, how.began_with, how.cuts, self._on_probation))

    @property
    def _on_probation(self) -> bool:
        """Whether some version is new."""
        return self.probation > 0 and self.finished - self._newest < self.probation

    def _when_in_effect(
        self, name: str, numbers: Iterable[int], batch: int, then: Callable[[], None]
    ) -> None:
        """A batch is about to have changes: answer its task when the log knows, if it did not.

        If the log cannot be written, the task fails: a driver that comes later would take the
        changes for ones that can be taken back without a trace.
        """
        first = {number for number in numbers if number in self._unmet}
        if self._ledger is None or not first:
            self._take_effect(first, batch)
            then()
            return
        peer = self._peers.get(name)

        def go_on(problem: str) -> None:
            if problem:
                _logger.warning(
                    "a task cannot go on, because its changes are not safe: %s", problem
                )
                if peer is not None:
                    peer.close()
                return
            self._take_effect(first, batch)
            if self._peers.get(name) is peer:
                then()

        self._ledger.take_effect(first, batch, lambda told: self._loop.tell(lambda: go_on(told)))

    def _take_effect(self, numbers: Iterable[int], batch: int) -> None:
        """A batch is the first one with some changes; a batch job cannot be taken back."""
        for number in numbers:
            if (change := self._unmet.pop(number, None)) is not None:
                change.since = max(batch, -1)
                self._newest = max(self._newest, change.since)

    def _drain(self) -> None:
        """Make all that is committed the base, and forget functions that nobody needs."""
        for change in self._controller.changes:
            if change.phase is Phase.COMMITTED:
                self._base.add(change.number)
                self._drive(Drained(change.number))
        self._forget_functions()

    def _forget_functions(self) -> None:
        """Forget what later changes have replaced for good; migrations are kept."""
        for change in self._base.forget(self._changes, self.finished):
            if not change.order.migrates:
                self._changes.close(change.number)
        for change in self._base.forget_in_log(self._changes, self.finished):
            if self._ledger is not None:
                self._ledger.shrink(change.number, change.order)

    def _release(self) -> None:
        """Let changes that wait for a boundary be committed."""
        for change in self._controller.changes:
            if change.held and change.phase is Phase.PREPARING:
                self._drive(Released(change.number))

    def _drive(self, event: ControllerEvent, moment: float | None = None) -> None:
        """Handle an event, which happened at some moment; by default, now."""
        self._controller, instructions = self._controller.handle(event)
        for instruction in instructions:
            match instruction:
                case Send(worker, Prepare() as message):
                    self._ship(worker, message.change, message)
                case Send(worker, message):
                    self._tell(worker, message)
                case Record(number, phase, reason):
                    self._moved(number, phase, reason)
                case Decide(number):
                    self._decide(number)
                case CheckpointComplete():
                    pass
        self._settle(moment or time.time())

    def _moved(self, number: int, phase: Phase, reason: str) -> None:
        """A change has entered a phase."""
        change = self._changes[number]
        if phase is Phase.PREPARING:
            used = set(self._bits.values())
            change.bit = next(bit for bit in BITS if bit not in used)
            self._bits[number] = change.bit
        if phase is Phase.COMMITTED:
            if self._batches.is_job:  # it has no batches that could be taken back
                change.since = -1
            else:
                self._unmet[number] = change
            self._growth.watch(change)
        change.move(phase, reason)
        self.news.moved(change, self.failures)
        if phase is Phase.DONE:
            self._replace(change)
        if change.over:
            self._end_change(change)

    def _end_change(self, change: Change) -> None:
        """A change is over: nobody waits for it, and if it never happened nobody needs it."""
        if change.number in self._timers:
            self._timers.pop(change.number).cancel()
        self._bits.pop(change.number, None)
        self._unsettled.discard(change.number)
        if self._ledger is not None:
            self._ledger.end(change)
        if change.taken_back:
            self._unmet.pop(change.number, None)
            self._changes.close(change.number)

    def _decide(self, number: int) -> None:
        """Have a commit written; go on when it is safe."""
        assert self._ledger is not None

        def then(problem: str) -> None:
            # if the loop has ended, the log tells the next driver
            self._loop.tell(lambda: self._drive(Decided(number, problem)))

        self._ledger.commit(number, then)

    def _ship(self, worker: str, number: int, *after: Down) -> None:
        change = self._changes[number]
        parts = memoryview(change.order.payload), *change.order.buffers
        if worker in self._peers:
            self._peers[worker].ship(number, change.bit, parts, *after)

    def _tell(self, worker: str, message: Down) -> None:
        if worker in self._peers:
            self._peers[worker].send(message)


def _meets(task: Begin, change: Change) -> bool:
    """Whether a row of a task that begins now may meet a change: in its base, or stamped by it."""
    return change.phase is Phase.DONE or task.stage in change.order.stages
