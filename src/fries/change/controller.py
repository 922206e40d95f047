"""The controller's half of the protocol, all of it, without I/O.

A change goes through these phases::

    QUEUED -> PREPARING -> COMMITTED -> DONE
                   |            |
                   +-> ABORTED  +-> ROLLED_BACK

One change is prepared at a time. When all workers have loaded it, its commit is logged and then
sent to them: from now on they stamp rows that enter its components. It is DONE when no row of the
old version is left, which is so when a new batch begins: that has the change in its *base*. Until
then it has a bit of the mask that every row carries.

A change *takes effect* in the first batch in which a row, a state or the base could meet it. The
task that could begins, or ends, only when the log knows that batch: so a driver that comes later
can tell what may be taken back without a trace.

Whoever runs the machine hands it events, carries out its instructions in order, and decides
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

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
from fries.change.model import Change, Decision, Phase
from fries.change.store import Changes
from fries.change.tasks import Attempts, Batches, Parked, Place
from fries.control.messages import (
    ANY_BATCH,
    Begin,
    Down,
    Ended,
    Failed,
    GivenUp,
    Go,
    Holds,
    Noted,
    Soon,
)
from fries.errors import ProtocolError, WireError
from fries.protocol.messages import (
    Abort,
    Commit,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Switched,
)

BITS: Final = range(63)
"""Bits of the signed 64-bit mask that stand for changes in transition: one each."""
MOST_FAILURES: Final = 200
"""Failures on live rows that are kept: one is enough to take a change back."""


class Controller:
    """State of the controller, and the only door to it: :meth:`handle`."""

    def __init__(
        self,
        changes: Iterable[Change] = (),
        *,
        last: int = 0,
        finished: int = -1,
        durable: bool = False,
    ) -> None:
        """Begin where an earlier driver has left off, or at the beginning.

        ``last`` is the highest number that was ever used; ``durable``: there is a log.
        """
        self.durable = durable
        self.last = last
        self.changes = Changes(changes)
        self.active: dict[int, Change] = {}
        """Changes that are not over, by number."""
        self.workers: dict[str, None] = {}
        """Those that are connected, in the order in which they came."""
        self.batches = Batches()
        self.batches.finished = finished
        self.failures: list[Failed] = []
        """Versions that failed on live rows since the query was started."""
        self.probation = 0
        """Micro-batches for which a version counts as new; 0: none is ever taken back."""
        self.takes_back = False
        """Whether somebody takes back changes that fail, so that tasks may wait for that."""
        self._newest: float = -math.inf
        """The newest batch that was the first one with some change."""
        self._unmet: dict[int, Change] = {}
        """Changes that happened, and that nothing of any batch has met yet."""
        self._attempts = Attempts()
        self._parked: dict[int, Parked] = {}
        """By ticket, the tasks that wait for the log."""
        self._tickets = 0
        self._now = 0.0
        self._out: list[ControllerInstruction] = []
        self._restore()

    def _restore(self) -> None:
        for change in self.changes.whole:
            if change.phase is not Phase.DONE:
                self.changes.close(change)
                continue
            self.changes.add_to_base(change)
            if change.since is None:
                self._unmet[change.number] = change
            else:
                self._newest = max(self._newest, change.since)

    @property
    def finished(self) -> int:
        """The newest batch that is known to be committed by Spark; -1: none."""
        return self.batches.finished

    def may_revoke(self, numbers: Collection[int]) -> bool:
        """Whether changes can be taken back with their batch: no batch with one is committed."""
        if any(number not in self.changes for number in numbers):
            return False  # it was replaced for good, so a batch with it is committed
        happened = [self.changes[number] for number in numbers if self.changes[number].happened]
        return bool(happened) and not any(change.is_kept(self.finished) for change in happened)

    def handle(self, event: ControllerEvent, now: float = 0.0) -> list[ControllerInstruction]:
        """Change state by one event, and say what is to be done about it, in order."""
        self._now, self._out = now, []
        self._take(event)
        while self._step():
            pass
        out, self._out = self._out, []
        return out

    def _take(self, event: ControllerEvent) -> None:
        match event:
            case Heard(worker, message):
                self._hear(worker, message)
            case RowsTaken():
                self._rows_taken(event)
            case Requested(change):
                self._request(change)
            case ChangeAnnounced():
                self._send(self.batches.computing(), Soon())
            case Joined(worker):
                self._join(worker)
            case Left(worker):
                self._leave(worker)
            case Expired(number):
                self._expire(number)
            case Decided(number, problem):
                self._decided(number, problem)
            case AbortLogged(number, problem):
                self._abort_logged(number, problem)
            case EffectLogged(ticket, problem):
                self._effect_logged(self._parked.pop(ticket), problem)
            case BatchesCommitted(upto):
                if self.batches.commit(upto):
                    self._drain()
            case JobsOver(jobs):
                if self.batches.end_jobs(jobs):
                    self._drain()
            case QueryBegins():
                self.batches.cut()
                self._attempts.forget()
                self.failures = []
                self._release()
            case RowsExpected(unless):
                for change in self.changes.whole:
                    change.expect_rows(unless)
            case Revoked(reasons):
                self._revoke(reasons)
            case Blamed(failed):
                if failed not in self.failures:
                    self.failures.append(failed)
            case Undone():
                self._undone(event)
            case NotTakenBack(worker, number):
                self._send((worker,), GivenUp(number))
            case Stopped():
                for change in self.changes.whole:
                    change.abandon()

    # Changes, from their request to their commit

    def _request(self, change: Change) -> None:
        if change.number != self.last + 1:
            raise ProtocolError("controller", f"change {change.number} is not the next one")
        self.last = change.number
        change.held = change.order.at_boundary
        change.decision = Decision.OPEN if self.durable else Decision.FREE
        self.changes.add(change)
        self.active[change.number] = change
        self._out.append(SetTimer(change))
        if self.durable:
            self._out.append(LogIntent(change.number, change.order))
        self._out.append(Tell(change, change.state))

    def _step(self) -> bool:
        """Carry one change on, if one can be: the one that is prepared, or the next one."""
        queued = None
        for change in self.active.values():
            if change.phase is Phase.PREPARING:
                return self._decide(change) or self._commit(change)
            if change.phase is Phase.QUEUED:
                queued = queued or change
        return queued is not None and self._prepare(queued)

    def _prepare(self, first: Change) -> bool:
        """Start the first change that waits, unless one in transition forbids it."""
        others = [change for change in self.active.values() if change.phase is Phase.COMMITTED]
        used = {change.bit for change in others}
        bit = next((bit for bit in BITS if bit not in used), None)
        if bit is None or not all(first.order.compatible(other.order) for other in others):
            return False
        first.bit, first.waiting = bit, set(self.workers)
        self._move(first, Phase.PREPARING)
        self._ship(tuple(self.workers), first, _prepare(first))
        self._note_ready(first)
        return True

    def _decide(self, change: Change) -> bool:
        """Ask for the log entry of a change that all have loaded, even if it is held."""
        if change.decision is not Decision.OPEN or not change.waiting <= change.late:
            return False
        change.decision = Decision.ASKED
        self._out.append(LogCommit(change.number))
        return True

    def _commit(self, change: Change) -> bool:
        loaded = change.decision is Decision.FREE and not change.waiting
        if change.held or not (loaded or change.decision is Decision.MADE):
            return False
        change.waiting = set(self.workers)
        if self.batches.is_job:  # it has no batches that could be taken back
            change.since = -1
        else:
            self._unmet[change.number] = change
        self._move(change, Phase.COMMITTED)
        self._send(tuple(self.workers), Commit(change.number))
        self._note_settled(change, self._now)
        return True

    def _decided(self, number: int, problem: str) -> None:
        change = self.active.get(number)
        if change is None and 0 < number <= self.last:
            return  # it was revoked meanwhile
        if change is None or change.decision is not Decision.ASKED:
            raise ProtocolError("controller", f"nobody asked for a decision on change {number}")
        if problem:
            change.doubt = f"the commit cannot be logged: {problem}"
            self._out.append(LogAbort(number, change.doubt, again=False))
        else:
            change.decision = Decision.MADE
            self._note_ready(change)

    def _abort_logged(self, number: int, problem: str) -> None:
        """Users hear that a change was aborted when no driver can find its commit any more."""
        change = self.active.get(number)
        if change is None:
            return  # it was revoked meanwhile
        if problem:
            self._out.append(LogAbort(number, change.doubt, again=True))
        else:
            self._abort(change, change.doubt)

    def _expire(self, number: int) -> None:
        """Abort what could not be prepared in time; what is prepared will be finished."""
        change = self.active.get(number)
        if change is None or change.phase is Phase.COMMITTED or change.decided:
            return
        if change.phase is Phase.QUEUED or change.waiting:
            missing = ", ".join(sorted(change.waiting)) or "an earlier change"
            self._abort(change, f"not prepared in time; waited for {missing}")

    def _release(self) -> None:
        """A batch begins: let held changes commit, if all are ready for it; else they wait on.

        Those that joined meanwhile have not begun to work: they will begin with it. A log that
        is still writing means waiting, too.
        """
        for change in tuple(self.active.values()):
            if not change.held or change.phase is not Phase.PREPARING:
                continue
            loaded = change.decision is Decision.FREE and change.waiting <= change.late
            if loaded or change.decision is Decision.MADE:
                change.held = False
                change.waiting.clear()
                while self._step():
                    pass

    def _abort(self, change: Change, reason: str) -> None:
        was_preparing = change.phase is Phase.PREPARING
        self._end(change, Phase.ABORTED, reason)
        if was_preparing:
            self._send(tuple(self.workers), Abort(change.number))

    # Workers

    def _join(self, worker: str) -> None:
        """Tell a new worker everything: what the base is made of, and what is under way."""
        if worker in self.workers:
            raise WireError(f"a second worker calls itself {worker}")
        self.workers[worker] = None
        base, skipped = self.changes.welcome(worker)
        self._out += (Ship((worker,), number, 0) for number in base)
        self._out.append(Greet(worker, base, skipped))
        for change in self.active.values():
            if change.phase is Phase.QUEUED:
                continue
            self._ship((worker,), change, _prepare(change))
            if change.phase is Phase.COMMITTED:
                self._send((worker,), Commit(change.number))
            elif change.held:
                change.late.add(worker)
            change.waiting.add(worker)

    def _leave(self, worker: str) -> None:
        if worker not in self.workers:
            return
        del self.workers[worker]
        self.changes.leave(worker)
        self.batches.leave(worker)
        for change in self.active.values():
            self._answered(change, worker, self._now)

    def _hear(self, worker: str, message: object) -> None:
        match message:
            case Switched(number, moment):
                self._switched(worker, number, moment)
            case Prepared(number):
                if change := self._awaiting(worker, number, Phase.PREPARING):
                    self._answered(change, worker, self._now)
            case Refused(number, reason):
                if change := self._awaiting(worker, number, Phase.PREPARING):
                    self._refused(change, worker, reason)
            case Begin():
                self._begin(worker, message)
            case Ended():
                self._ended(worker, message)
            case Failed():
                if len(self.failures) < MOST_FAILURES:
                    self.failures.append(message)
                    self._out.append(TellFailure(message))
            case Holds():
                self._hold(worker, message)
            case _:
                raise WireError("a message that no worker sends")

    def _awaiting(self, worker: str, number: int, phase: Phase) -> Change | None:
        """The change that an answer counts for; a late answer counts for nothing."""
        change = self.active.get(number)
        counts = change and change.phase is phase and worker in change.waiting
        return change if counts else None

    def _answered(self, change: Change, worker: str, moment: float) -> None:
        change.waiting.discard(worker)
        if not change.waiting:
            self._note_ready(change)
            self._note_settled(change, moment)

    def _switched(self, worker: str, number: int, told: float) -> None:
        if number not in self.changes:
            return
        last = self.changes[number].switch(worker, told, self._now)
        if change := self._awaiting(worker, number, Phase.COMMITTED):
            self._answered(change, worker, last)

    def _refused(self, change: Change, worker: str, reason: str) -> None:
        """Abort; unless the log may have the commit: who came late must see for itself then."""
        if change.decided:
            self._answered(change, worker, self._now)
        else:
            self._abort(change, f"{worker}: {reason}")

    def _note_ready(self, change: Change) -> None:
        """Whether all workers have loaded it and nothing keeps it but a boundary."""
        decided = change.decision in (Decision.FREE, Decision.MADE)
        if change.phase is Phase.PREPARING and decided and not change.waiting:
            change.prepared()

    def _note_settled(self, change: Change, moment: float) -> None:
        """Whether all workers have switched; one at a boundary is settled when it is over."""
        at_once = not change.order.at_boundary and change.settled is None
        if change.phase is Phase.COMMITTED and at_once and not change.waiting:
            change.settle(moment)

    # Tasks and batches

    def _begin(self, worker: str, task: Begin) -> None:
        """A task begins. All that was committed before its batch is in the batch's base."""
        if self.batches.begin(worker, task.batch):
            self.failures = [failed for failed in self.failures if failed.batch == ANY_BATCH]
            self._attempts.forget()
            self._release()
            self._drain()
        self._go(worker, task)

    def _go(self, worker: str, task: Begin) -> None:
        """Let a task begin, when the log knows in which batch its changes take effect."""
        met = (number for number, change in self._unmet.items() if change.meets(task.stage))
        if not self._in_effect(worker, task, met, task.batch):
            return
        committed = tuple(c.number for c in self.active.values() if c.phase is Phase.COMMITTED)
        began_with, cuts = self._attempts.begin(Place.of(task), committed)
        news = self.changes.news(worker)
        self._send((worker,), Go(news, committed, began_with, cuts, self._on_probation))

    @property
    def _on_probation(self) -> bool:
        """Whether some version is new."""
        return self.probation > 0 and self.finished - self._newest < self.probation

    def _ended(self, worker: str, ended: Ended) -> None:
        """A task ended. If it has switched inside, it waits to hear that this is noted."""
        self.batches.end(worker)
        for number, moment in ended.last_old.items():
            if number in self.changes:
                self.changes[number].used_old(moment)
        accepted = self._attempts.end(Place.of(ended), ended.complete, ended.cuts)
        if ended.complete and ended.cuts:
            answer = Noted(accepted)
            met = (cut.change for cut in ended.cuts)
            if self._in_effect(worker, answer, met, ended.batch):
                self._send((worker,), answer)

    def _in_effect(
        self, worker: str, task: Begin | Noted, numbers: Iterable[int], batch: int
    ) -> bool:
        """A batch is about to have changes: whether the log knows; else the task waits for it.

        If the log cannot be written, the task fails: a driver that comes later would take the
        changes for ones that can be taken back without a trace.
        """
        first = frozenset(number for number in numbers if number in self._unmet)
        if first and self.durable:
            self._tickets += 1
            self._parked[self._tickets] = Parked(worker, task, first, batch)
            self._out.append(LogEffect(self._tickets, tuple(sorted(first)), batch))
            return False
        self._take_effect(first, batch)
        return True

    def _effect_logged(self, parked: Parked, problem: str) -> None:
        if problem:
            self._disconnect((parked.worker,))
            return
        self._take_effect(parked.changes, parked.batch)
        if parked.worker not in self.workers:
            return
        if isinstance(parked.task, Begin):
            self._go(parked.worker, parked.task)
        else:
            self._send((parked.worker,), parked.task)

    def _take_effect(self, numbers: Iterable[int], batch: int) -> None:
        """A batch is the first one with some changes; a batch job cannot be taken back."""
        for number in numbers:
            if (change := self._unmet.pop(number, None)) is not None:
                change.since = max(batch, -1)
                self._newest = max(self._newest, change.since)

    def _drain(self) -> None:
        """Make all that is committed the base, and forget what nobody needs."""
        for change in tuple(self.active.values()):
            if change.phase is Phase.COMMITTED:
                self.changes.add_to_base(change)
                self._end(change, Phase.DONE)
                self._expect_no_more_rows(change)
                self._send(tuple(self.workers), Retire(change.number))
        forgotten = self.changes.forget(self.finished)
        if self.durable:
            self._out += (LogShrink(change.number, change.order) for change in forgotten.in_log)

    def _expect_no_more_rows(self, newer: Change) -> None:
        """No row will meet what a newer change has replaced: whoever waits for some must know."""
        for change in self.changes.whole:
            if change.number >= newer.number or change.no_more_rows:
                continue
            gone = [name for name in change.order.targets if name in newer.order.targets]
            if gone:
                names = ", ".join(gone)
                change.expect_rows(f"change {newer.number} has replaced its version of {names}")

    def _rows_taken(self, event: RowsTaken) -> None:
        """Note how many rows the versions of changes have taken."""
        for taken in event.taken:
            if taken.change not in self.changes:
                continue
            change = self.changes[taken.change]
            if taken.operator in change.order.targets:
                change.took(taken.operator, taken.new, taken.old)
                self._out.append(Tell(change, change.state))

    # Failures

    def _hold(self, worker: str, held: Holds) -> None:
        told = (failed for failed in reversed(self.failures) if failed.change == held.change)
        failed = next(told, None)
        if failed is None or not self.takes_back:
            self._send((worker,), GivenUp(held.change))
        else:
            self._out.append(TaskWaits(worker, held.stage, failed))

    def _revoke(self, reasons: Mapping[int, str]) -> None:
        """Take changes back as if they had never been; workers are not told, but begin anew."""
        found = [c for c in self.changes.whole if c.number in reasons and not c.taken_back]
        for change in reversed(found):  # so that none of those that wait begins meanwhile
            reason = change.reason if change.failure else reasons[change.number]
            if change.number in self.active:
                happened = change.decided or change.phase is Phase.COMMITTED
                self._end(change, Phase.ROLLED_BACK if happened else Phase.ABORTED, reason)
            else:
                self.changes.remove_from_base(change)
                self._end(change, Phase.ROLLED_BACK, reason)
        self._disconnect(tuple(self.workers))

    def _undone(self, event: Undone) -> None:
        change = event.change
        change.failed(event.failed, event.reason, event.way)
        self.changes.tell_again(change)
        self._out.append(Tell(change, change.state, (event.failed,)))
        if change.over and self.durable:
            self._out.append(LogEnd(change))

    # What happens to a change, and what is done about it

    def _move(self, change: Change, phase: Phase, reason: str = "") -> None:
        change.move(phase, reason, self._now)
        self._out.append(Tell(change, change.state, tuple(self.failures)))

    def _end(self, change: Change, phase: Phase, reason: str = "") -> None:
        """A change is over: nobody waits for it, and if it never happened nobody needs it."""
        self.active.pop(change.number, None)
        self._move(change, phase, reason)
        self._out.append(CancelTimer(change.number))
        if self.durable:
            self._out.append(LogEnd(change))
        if change.taken_back:
            self._unmet.pop(change.number, None)
            self.changes.close(change)

    def _send(self, workers: tuple[str, ...], message: Down) -> None:
        if workers:
            self._out.append(Send(workers, message))

    def _ship(self, workers: tuple[str, ...], change: Change, then: Down) -> None:
        if workers:
            self._out.append(Ship(workers, change.number, change.bit, then))

    def _disconnect(self, workers: tuple[str, ...]) -> None:
        self._out.append(Disconnect(workers))


def _prepare(change: Change) -> Prepare:
    return Prepare(change.number, Part(change.order.targets, head=True))
