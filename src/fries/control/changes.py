"""A change as the driver sees it: what was ordered, and how it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fries.control.messages import Failed
from fries.protocol.controller import Footprint, Phase

MOST_REASON: Final = 1_000
"""Characters of a reason that the history keeps: the traceback of a worker may be long."""


@dataclass(frozen=True)
class Order:
    """What a caller wants: pickled functions for some operators, under some plan."""

    targets: tuple[str, ...]
    payload: bytes = field(repr=False)
    footprint: Footprint
    residue: bytes = field(default=b"", repr=False)
    """What is left of the payload when other changes have replaced its functions: migrations."""
    buffers: tuple[memoryview, ...] = field(default=(), repr=False)
    """Large parts of the payload, which travel without being copied."""
    at_boundary: bool = False
    """Take effect between two batches, not at once."""
    timeout: float = 60.0
    """Seconds until it must be prepared everywhere."""
    requested: float = field(default_factory=time.time)
    """When the caller asked for it, seconds since 1970."""
    automatic: bool = False
    """Whether nobody asked for it: it takes back what has failed."""
    migrates: bool = False
    """Whether it migrates states: then it leaves a trace even when its functions are replaced."""
    scheduler: str = "fries"
    components: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Members and heads of each component, for the log."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By target, how many updates it will have, for the log."""
    note: str = ""
    """What its author has to say about it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the history tells of a change; small, for there may be many thousand."""

    number: int
    targets: tuple[str, ...]
    versions: Mapping[str, int]
    requested: float
    """Seconds since 1970."""
    scheduler: str
    phase: Phase
    failed: bool
    """Whether its version failed on live rows, and it was taken back for that."""
    delay: float | None
    note: str
    reason: str


@dataclass
class Change:
    """Written by the control thread, read by anyone. Times are seconds since 1970."""

    number: int
    order: Order
    bit: int = 0
    """Its bit of the epoch mask, from the moment it is prepared."""
    phase: Phase = Phase.QUEUED
    reason: str = ""
    committed: float | None = None
    switched: dict[str, float] = field(default_factory=dict)
    """By worker, when it had switched."""
    ready: bool = False
    """Whether all workers have loaded it."""
    settled: float | None = None
    """When the last of the workers that run had switched."""
    last_old: float = 0.0
    """When a target last used an old version, as far as tasks that ended have told."""
    since: int = 0
    """The micro-batch in which it took effect, or an older one."""
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By worker, the bytes that it used when it had switched, and those that it uses now."""
    failure: Failed | None = None
    """How its version failed on live rows, for which it was taken back."""
    small_in_log: bool = False
    """Whether the log has forgotten its functions."""
    logged_delay: float | None = None
    """Of a change of an earlier life, its delay then."""
    _abandoned: bool = False
    _moved: threading.Condition = field(default_factory=threading.Condition, repr=False)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.phase in (Phase.DONE, Phase.ABORTED, Phase.ROLLED_BACK)

    @property
    def taken_back(self) -> bool:
        """Whether it never happened, or no longer has."""
        return self.phase in (Phase.ABORTED, Phase.ROLLED_BACK)

    @property
    def delay(self) -> float | None:
        """Seconds from the request until no target used its old version, as far as known."""
        if self.settled is None:
            return self.logged_delay
        return max(self.settled, self.last_old) - self.order.requested

    def wait(self, deadline: float | None = None) -> bool:
        """Wait until all workers have switched, or it is over; ``False`` after the deadline."""
        return self._wait(lambda: self.settled is not None or self.over, deadline)

    def wait_over(self, deadline: float | None = None) -> bool:
        """Wait until it is over; ``False`` after the deadline."""
        return self._wait(lambda: self.over, deadline)

    def wait_ready(self, deadline: float | None = None) -> bool:
        """Wait until all workers have loaded it, or it is over; ``False`` after the deadline."""
        return self._wait(lambda: self.ready or self.over, deadline)

    def _wait(self, reached: Callable[[], bool], deadline: float | None) -> bool:
        with self._moved:
            while not reached() and not self._abandoned:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._moved.wait(left)
            return reached()

    def abandon(self, decided: bool) -> None:
        """The controller stops: nobody waits for it any more.

        If the log may have its commit, it is not aborted: the next driver will tell.
        """
        if self.phase in (Phase.QUEUED, Phase.PREPARING) and not decided:
            self.move(Phase.ABORTED, "the flow was stopped")
        with self._moved:
            self._abandoned = True
            self._moved.notify_all()

    def summary(self) -> Summary:
        """What its history tells of it now."""
        order = self.order
        return Summary(
            self.number,
            order.targets,
            order.versions,
            order.requested,
            order.scheduler,
            self.phase,
            self.failure is not None,
            self.delay,
            order.note,
            self.reason[:MOST_REASON],
        )

    def shrink(self) -> None:
        """Forget the functions: the change was aborted, or later ones have replaced them all."""
        self.order = replace(self.order, payload=self.order.residue, buffers=())

    def move(self, phase: Phase, reason: str) -> None:
        """Enter a phase."""
        with self._moved:
            self.phase, self.reason = phase, reason
            if phase is Phase.COMMITTED:
                self.ready, self.committed = True, time.time()
            if phase in (Phase.ABORTED, Phase.ROLLED_BACK):
                self.shrink()
            if phase is Phase.DONE:  # every task of the batch that begins has it, whoever answered
                self.settled = self.settled or time.time()
            self._moved.notify_all()

    def prepared(self) -> None:
        """Note that all workers have loaded it."""
        with self._moved:
            self.ready = True
            self._moved.notify_all()

    def switch(self, worker: str, told: float) -> float:
        """Note when a worker has switched, by its clock; gives the last such moment.

        Whatever its clock has told, it was after the commit, and it is over. Readers may hold the
        old table.
        """
        now = time.time()
        moment = min(max(self.committed or now, told), now)
        self.switched = {**self.switched, worker: moment}
        return max(self.switched.values())

    def failed(self, failure: Failed, reason: str) -> None:
        """Note that it was taken back, and why."""
        with self._moved:
            self.failure, self.reason = failure, self.reason or reason
            self._moved.notify_all()

    def settle(self, moment: float) -> None:
        """Note that all workers have switched."""
        with self._moved:
            self.settled = moment
            self._moved.notify_all()

    def grown(self, worker: str, memory: int) -> int:
        """Note what a worker that has switched uses; how much more that is than at first."""
        first, _ = self.memory.get(worker, (memory, memory))
        self.memory = {**self.memory, worker: (first, memory)}
        return memory - first

    def used_old(self, moment: float) -> None:
        """Note that a target used an old version."""
        self.last_old = max(self.last_old, moment)
