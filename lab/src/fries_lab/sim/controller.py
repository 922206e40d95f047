"""The controller's side of the protocol, without I/O.

A change goes through these phases::

    QUEUED -> PREPARING -> COMMITTED -> DONE
                   |            |
                   +-> ABORTED  +-> ROLLED_BACK

One change is prepared at a time. When all workers that take part have loaded it, COMMIT
is logged and then sent to the heads; where the log is slow (``durable``), the machine asks for
the entry and goes on when it is safe. With markers a change is DONE when every part has
switched; with tags the old tuples must drain first, which the engine reports.

Checkpoints follow section 7.3: those in flight are cancelled when a change commits, and
new ones wait until all heads have the commit message. ``guard=False`` turns that rule off,
to show what happens without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from fries.change.model import Decision, Footprint, Phase
from fries.errors import ProtocolError
from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    FromWorker,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
)
from fries_lab.sim.events import (
    CheckpointComplete,
    CheckpointDue,
    ControllerEvent,
    ControllerInstruction,
    Decide,
    Decided,
    Drained,
    Expired,
    Heard,
    Joined,
    Left,
    Parts,
    Record,
    Released,
    Requested,
    Revoked,
    Send,
)

__all__ = [
    "MOST_IN_TRANSITION",
    "Change",
    "CheckpointComplete",
    "CheckpointDue",
    "Controller",
    "ControllerEvent",
    "ControllerInstruction",
    "Decide",
    "Decided",
    "Decision",
    "Drained",
    "Expired",
    "Footprint",
    "Heard",
    "Joined",
    "Left",
    "Parts",
    "Phase",
    "Record",
    "Released",
    "Requested",
    "Revoked",
    "Send",
]

MOST_IN_TRANSITION: Final = 63
"""Changes in transition at once: each has a bit of the signed 64-bit mask on every row."""


class Change(msgspec.Struct, frozen=True):
    """One reconfiguration as the controller sees it. ``parts`` go by the role of a worker."""

    number: int
    parts: Parts
    footprint: Footprint
    """Members of each component: decides what may be in transition together."""
    tagged: bool = False
    held: bool = False
    """Prepared in advance, and committed only when released."""
    phase: Phase = Phase.QUEUED
    waiting: frozenset[str] = frozenset()
    """Workers whose answer is missing in this phase."""
    late: frozenset[str] = frozenset()
    """Workers that joined while a held change was prepared: its release does not wait for them."""
    decision: Decision = Decision.FREE

    def part(self, role: str) -> Part | None:
        """What a worker with this role does in the change, if anything."""
        return next((part for name, part in self.parts if name == role), None)

    def compatible(self, other: Change) -> bool:
        """Whether both may be in transition together: the same components, or disjoint ones."""
        if self.footprint == other.footprint:
            return True
        mine, theirs = _union(self.footprint), _union(other.footprint)
        return mine.isdisjoint(theirs)


class Controller(msgspec.Struct, frozen=True):
    """State of the controller."""

    workers: tuple[Joined, ...] = ()
    changes: tuple[Change, ...] = ()
    """All changes that are not over yet, by number."""
    last: int = 0
    """Number of the newest change."""
    checkpoint: int = 0
    """Number of the newest checkpoint."""
    unsaved: frozenset[str] = frozenset()
    """Workers whose snapshot of the checkpoint in flight is missing; empty if none is."""
    due: bool = False
    """A checkpoint is wanted and has not started."""
    guard: bool = True

    def handle(
        self, event: ControllerEvent
    ) -> tuple[Controller, tuple[ControllerInstruction, ...]]:
        """Change state by one event: the only door."""
        turn = _Turn(self)
        turn.take(event)
        turn.settle()
        return turn.state, tuple(turn.out)

    def change(self, number: int) -> Change | None:
        """A change that is not over yet."""
        return next((change for change in reversed(self.changes) if change.number == number), None)

    @property
    def holding(self) -> bool:
        """Whether checkpoints wait because some head lacks the commit message of a change."""
        return self.guard and any(
            joined.worker in change.waiting
            for change in self.changes
            if change.phase is Phase.COMMITTED
            for joined in self.workers
            if (part := change.part(joined.role)) and part.head
        )


class _Turn:
    """One event being handled: the state so far and the instructions so far."""

    def __init__(self, state: Controller) -> None:
        self.state = state
        self.out: list[ControllerInstruction] = []

    def take(self, event: ControllerEvent) -> None:
        match event:
            case Requested(parts, footprint, tagged, held, durable):
                change = Change(self.state.last + 1, parts, footprint, tagged, held)
                decision = Decision.OPEN if durable else Decision.FREE
                self._request(replace(change, decision=decision))
            case Joined():
                self._join(event)
            case Left(worker):
                self._leave(worker)
            case Heard(worker, message):
                self._hear(worker, message)
            case Expired(number):
                self._expire(number)
            case Released(number):
                self._release(number)
            case Drained(number):
                self._drained(number)
            case Decided(number, problem):
                self._decided(number, problem)
            case Revoked(number, reason):
                self._revoked(number, reason)
            case CheckpointDue():
                self.state = replace(self.state, due=True)

    def settle(self) -> None:
        """Carry out whatever has become possible, until nothing more is."""
        while self._step():
            pass
        self._checkpoint()

    def _step(self) -> bool:
        """Carry one change on, if one can be: that which is prepared, one that ends, a new one.

        Most changes are in transition, and there is nothing to do for them.
        """
        preparing = finished = queued = None
        for change in self.state.changes:
            if change.phase is Phase.PREPARING:
                preparing = change
            elif change.phase is Phase.QUEUED:
                queued = queued or change
            elif not change.tagged and not change.waiting:
                finished = finished or change
        if preparing is not None and (self._decide(preparing) or self._commit(preparing)):
            return True
        if finished is not None:
            self._retire(finished)
            return True
        return queued is not None and preparing is None and self._prepare(queued)

    def _decide(self, change: Change) -> bool:
        """Ask for the log entry of a change that all have loaded, even if it is held."""
        if change.decision is not Decision.OPEN or not change.waiting <= change.late:
            return False
        self._put(replace(change, decision=Decision.ASKED))
        self.out.append(Decide(change.number))
        return True

    def _commit(self, change: Change) -> bool:
        loaded = change.decision is Decision.FREE and not change.waiting
        if change.held or not (loaded or change.decision is Decision.MADE):
            return False
        if self.state.guard:
            self._cancel_checkpoint()
        taking_part = self._taking_part(change)
        waiting = frozenset(
            worker for worker, part in taking_part if part.head or not change.tagged
        )
        self._move(change, Phase.COMMITTED, waiting)
        for worker, part in taking_part:
            if part.head:
                self.out.append(Send(worker, Commit(change.number)))
        return True

    def _prepare(self, first: Change) -> bool:
        """Start the first queued change, unless one in transition forbids it."""
        active = [change for change in self.state.changes if change.phase is not Phase.QUEUED]
        if len(active) >= MOST_IN_TRANSITION or not all(map(first.compatible, active)):
            return False
        taking_part = self._taking_part(first)
        self._move(first, Phase.PREPARING, frozenset(worker for worker, _ in taking_part))
        self.out.extend(Send(worker, Prepare(first.number, part)) for worker, part in taking_part)
        return True

    def _checkpoint(self) -> None:
        state = self.state
        if not state.due or state.unsaved or state.holding:
            return
        number = state.checkpoint + 1
        everyone = frozenset(joined.worker for joined in state.workers)
        self.state = replace(self.state, checkpoint=number, unsaved=everyone, due=False)
        for joined in state.workers:
            if joined.source:
                self.out.append(Send(joined.worker, StartCheckpoint(number)))

    def _request(self, change: Change) -> None:
        self.state = replace(self.state, changes=(*self.state.changes, change), last=change.number)
        self.out.append(Record(change.number, Phase.QUEUED))

    def _join(self, joined: Joined) -> None:
        """Tell a new worker every change under way; a head switches once it has loaded."""
        self.state = replace(self.state, workers=(*self.state.workers, joined))
        for change in self.state.changes:
            part = change.part(joined.role)
            if part is None or change.phase is Phase.QUEUED:
                continue
            committed = change.phase is Phase.COMMITTED
            self.out.append(Send(joined.worker, Prepare(change.number, part)))
            if committed and part.head:
                self.out.append(Send(joined.worker, Commit(change.number)))
            if not committed or part.head or not change.tagged:
                late = change.late | ({joined.worker} if change.held else set[str]())
                waiting = change.waiting | {joined.worker}
                self._put(replace(change, waiting=waiting, late=late))

    def _leave(self, worker: str) -> None:
        staying = tuple(joined for joined in self.state.workers if joined.worker != worker)
        self.state = replace(self.state, workers=staying)
        if worker in self.state.unsaved:
            self._cancel_checkpoint()
        for change in self.state.changes:
            self._put(replace(change, waiting=change.waiting - {worker}))

    def _hear(self, worker: str, message: FromWorker) -> None:
        match message:
            case Snapshotted(checkpoint):
                self._saved(worker, checkpoint)
            case Refused(number, reason):
                if change := self._awaiting(worker, number, Phase.PREPARING):
                    self._refused(change, worker, reason)
            case Prepared(number):
                if change := self._awaiting(worker, number, Phase.PREPARING):
                    self._put(replace(change, waiting=change.waiting - {worker}))
            case Switched(number):
                if change := self._awaiting(worker, number, Phase.COMMITTED):
                    self._put(replace(change, waiting=change.waiting - {worker}))

    def _refused(self, change: Change, worker: str, reason: str) -> None:
        """Abort; unless the log may have the commit: who came late must see for itself then."""
        if change.decision in (Decision.FREE, Decision.OPEN):
            self._abort(change, f"{worker}: {reason}")
        else:
            self._put(replace(change, waiting=change.waiting - {worker}))

    def _decided(self, number: int, problem: str) -> None:
        change = self.state.change(number)
        if change is None and 0 < number <= self.state.last:
            return  # it was revoked meanwhile
        if change is None or change.decision is not Decision.ASKED:
            raise ProtocolError("controller", f"nobody asked for a decision on change {number}")
        if problem:
            self._abort(change, f"the commit cannot be logged: {problem}")
        else:
            self._put(replace(change, decision=Decision.MADE))

    def _revoked(self, number: int, reason: str) -> None:
        """Workers are not told: whoever revokes a change makes them begin anew."""
        change = self.state.change(number)
        if change is None:
            raise ProtocolError("controller", f"change {number} is not under way")
        logged = change.decision in (Decision.ASKED, Decision.MADE)
        happened = logged or change.phase is Phase.COMMITTED
        self._remove(change, Phase.ROLLED_BACK if happened else Phase.ABORTED, reason)

    def _awaiting(self, worker: str, number: int, phase: Phase) -> Change | None:
        """The change that an answer counts for; a late answer counts for nothing."""
        change = self.state.change(number)
        counts = change and change.phase is phase and worker in change.waiting
        return change if counts else None

    def _expire(self, number: int) -> None:
        """Abort what could not be prepared in time; what is prepared will be finished."""
        change = self.state.change(number)
        if change is None or change.phase is Phase.COMMITTED:
            return
        if change.decision in (Decision.ASKED, Decision.MADE):
            return
        if change.phase is Phase.QUEUED or change.waiting:
            missing = ", ".join(sorted(change.waiting)) or "an earlier change"
            self._abort(change, f"not prepared in time; waited for {missing}")

    def _release(self, number: int) -> None:
        """Let a held change commit, if all are ready for it; else it waits for the next time.

        Those that joined meanwhile have not begun to work: they will begin with it. A log that
        is still writing means waiting, too.
        """
        change = self.state.change(number)
        if change is None or change.phase is not Phase.PREPARING:
            return
        loaded = change.decision is Decision.FREE and change.waiting <= change.late
        if loaded or change.decision is Decision.MADE:
            self._put(replace(change, held=False, waiting=frozenset()))

    def _drained(self, number: int) -> None:
        """The engine knows that no old tuple is left, whoever has answered (some may be dead)."""
        change = self.state.change(number)
        if change is None or change.phase is not Phase.COMMITTED:
            raise ProtocolError("controller", f"change {number} cannot have drained")
        self._retire(change)

    def _saved(self, worker: str, checkpoint: int) -> None:
        if checkpoint != self.state.checkpoint or worker not in self.state.unsaved:
            return
        self.state = replace(self.state, unsaved=self.state.unsaved - {worker})
        if not self.state.unsaved:
            self.out.append(CheckpointComplete(checkpoint))

    def _cancel_checkpoint(self) -> None:
        if self.state.unsaved:
            number = self.state.checkpoint
            self.state = replace(self.state, unsaved=frozenset(), due=True)
            for joined in self.state.workers:
                self.out.append(Send(joined.worker, CancelCheckpoint(number)))

    def _abort(self, change: Change, reason: str) -> None:
        self._remove(change, Phase.ABORTED, reason)
        if change.phase is Phase.PREPARING:
            for worker, _ in self._taking_part(change):
                self.out.append(Send(worker, Abort(change.number)))

    def _retire(self, change: Change) -> None:
        self._remove(change, Phase.DONE)
        for worker, _ in self._taking_part(change):
            self.out.append(Send(worker, Retire(change.number)))

    def _taking_part(self, change: Change) -> list[tuple[str, Part]]:
        workers = self.state.workers
        found = ((joined.worker, change.part(joined.role)) for joined in workers)
        return [(worker, part) for worker, part in found if part is not None]

    def _move(self, change: Change, phase: Phase, waiting: frozenset[str]) -> None:
        self._put(replace(change, phase=phase, waiting=waiting))
        self.out.append(Record(change.number, phase))

    def _put(self, change: Change) -> None:
        changes = self.state.changes
        self.state = replace(
            self.state, changes=tuple(change if c.number == change.number else c for c in changes)
        )

    def _remove(self, change: Change, phase: Phase, reason: str = "") -> None:
        self.state = replace(
            self.state, changes=tuple(c for c in self.state.changes if c.number != change.number)
        )
        self.out.append(Record(change.number, phase, reason))


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
