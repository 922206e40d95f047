"""A change: what was ordered, how far it has come, and what is known of it. One type for all.

The controller's machine writes it, anyone reads it. Times are seconds since 1970, and told by
whoever drives the machine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from fries.control.messages import Failed

Footprint: TypeAlias = "frozenset[frozenset[str]]"
UNTRIED: Final = "untried"
"""State of a change that is in force everywhere, but some target has not taken a row by it yet."""
MOST_REASON: Final = 1_000
"""Characters of a reason that the history keeps: the traceback of a worker may be long."""


class Phase(enum.Enum):
    """Where a change stands."""

    QUEUED = "queued"
    PREPARING = "preparing"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled back"
    """It was committed, failed on live rows, and was taken back with its whole batch."""


HAPPENED: Final = (Phase.COMMITTED, Phase.DONE)
TAKEN_BACK: Final = (Phase.ABORTED, Phase.ROLLED_BACK)
UNDECIDED: Final = (Phase.QUEUED, Phase.PREPARING)


class Decision(enum.Enum):
    """Where the log entry of a commit stands."""

    FREE = "free"
    """There is no log: the decision is the machine's alone."""
    OPEN = "open"
    ASKED = "asked"
    """The entry is being written: from now on the change can no longer be aborted."""
    MADE = "made"


class WayBack(enum.Enum):
    """How a change that failed was taken back."""

    IN_PLACE = "in place"
    """The query ran on: the failing rows were processed again by the version before."""
    REPLAYED = "replayed"
    """The batch that failed was replayed on the version before."""


@dataclass(frozen=True)
class Order:
    """What a caller wants: pickled functions for some operators, under some plan."""

    targets: tuple[str, ...]
    payload: bytes = field(repr=False)
    footprint: Footprint
    """Members of each component: decides what may be in transition together."""
    residue: bytes = field(default=b"", repr=False)
    """What is left of the payload when other changes have replaced its functions: migrations."""
    buffers: tuple[memoryview, ...] = field(default=(), repr=False)
    """Large parts of the payload, which travel without being copied."""
    at_boundary: bool = False
    """Take effect between two batches, not at once."""
    timeout: float = 60.0
    """Seconds until it must be prepared everywhere."""
    requested: float = 0.0
    """When the caller asked for it."""
    automatic: bool = False
    """Whether nobody asked for it: it takes back what has failed."""
    undoes: int = 0
    """The change that it takes back, if it is an undo."""
    migrates: bool = False
    """Whether it migrates states: then it leaves a trace even when its functions are replaced."""
    stages: frozenset[int] = frozenset()
    """Stages of the flow in which rows enter its components."""
    scheduler: str = "fries"
    components: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Members and heads of each component, for the log."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By target, how many updates it will have, for the log."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """By target, what people call its version, for the log."""
    note: str = ""
    """What its author has to say about it."""

    def compatible(self, other: Order) -> bool:
        """Whether both may be in transition together: the same components, or disjoint ones."""
        if self.footprint == other.footprint:
            return True
        nobody = frozenset[str]()
        mine, theirs = nobody.union(*self.footprint), nobody.union(*other.footprint)
        return mine.isdisjoint(theirs)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that an operator has taken, as a change of it sees them.

    Those of a task that is executed again count again.
    """

    new: int = 0
    """By the version that the change brought."""
    old: int = 0
    """By the version before, from when workers had loaded the change until it was over."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the history tells of a change; small, for there may be many thousand."""

    number: int
    targets: tuple[str, ...]
    versions: Mapping[str, int]
    labels: Mapping[str, str]
    requested: float
    """Seconds since 1970."""
    scheduler: str
    phase: Phase
    state: str
    """The same for people, who ask more."""
    delay: float | None
    note: str
    reason: str


@dataclass(eq=False)
class Change:
    """A change, from its request to its place in the history."""

    number: int
    order: Order
    phase: Phase = Phase.QUEUED
    reason: str = ""

    # What the protocol decides by
    decision: Decision = Decision.FREE
    doubt: str = ""
    """Why the log may have its commit, or not; it waits until that is known."""
    held: bool = False
    """Prepared in advance, and committed only when a batch ends."""
    bit: int = 0
    """Its bit of the epoch mask, from the moment it is prepared."""
    waiting: set[str] = field(default_factory=set)
    """Workers whose answer is missing in this phase."""
    late: set[str] = field(default_factory=set)
    """Workers that joined while a held change was prepared: its release does not wait for them."""
    since: int | None = None
    """The first micro-batch in which a row, a state or the base could meet it; ``None``: none yet.

    While that batch is not committed by Spark, the change can be taken back without a trace."""

    # What is known of its way
    committed: float | None = None
    switched: dict[str, float] = field(default_factory=dict)
    """By worker, when it had switched."""
    last_switch: float = 0.0
    """The last of these moments."""
    ready: bool = False
    """Whether all workers have loaded it."""
    settled: float | None = None
    """When the last of the workers that run had switched."""
    last_old: float = 0.0
    """When a target last used an old version, as far as tasks that ended have told."""
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By worker, the bytes that it used when it had switched, and those that it uses now."""
    failure: Failed | None = None
    """How its version failed on live rows, for which it was taken back."""
    way_back: WayBack | None = None
    """How it was taken back then."""
    small_in_log: bool = False
    """Whether the log has forgotten its functions."""
    logged_delay: float | None = None
    """Of a change of an earlier life, its delay then."""
    restored: bool = False
    """Whether it is of an earlier life: nobody knows how many rows it had met then."""
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """By target, the rows that it has taken. Replaced, never changed."""
    told: str = ""
    """The last state that listeners were told of."""
    no_more_rows: str = ""
    """Why no further rows will come, as far as known."""
    abandoned: bool = False
    """Whether the controller has stopped: nobody will hear more of it."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.phase in (Phase.DONE, Phase.ABORTED, Phase.ROLLED_BACK)

    @property
    def happened(self) -> bool:
        """Whether it was committed, and not taken back."""
        return self.phase in HAPPENED

    @property
    def taken_back(self) -> bool:
        """Whether it never happened, or no longer has."""
        return self.phase in TAKEN_BACK

    @property
    def decided(self) -> bool:
        """Whether the log may have its commit, or there is none to ask."""
        return self.decision in (Decision.ASKED, Decision.MADE)

    def meets(self, stage: int) -> bool:
        """Whether a row of a task that begins now may meet it: in its base, or stamped by it."""
        return self.phase is Phase.DONE or stage in self.order.stages

    def takes_back(self, number: int) -> bool:
        """Whether it was made, by nobody's request, because an earlier one or its undo failed."""
        return self.order.automatic and self.number > number

    def is_kept(self, finished: float) -> bool:
        """Whether a batch with it is among those that Spark has committed."""
        return self.since is not None and self.since <= finished

    @property
    def state(self) -> str:
        """What people are told that it is."""
        if self.failure is not None:
            return Phase.ROLLED_BACK.value
        if self.phase is Phase.DONE and not self.restored and not self.taken(1):
            return UNTRIED
        return self.phase.value

    def taken(self, rows: int) -> bool:
        """Whether each target has taken so many rows by its new version."""
        return all(self.rows.get(name, Rows()).new >= rows for name in self.order.targets)

    @property
    def delay(self) -> float | None:
        """Seconds from the request until no target used its old version, as far as known."""
        if self.settled is None:
            return self.logged_delay
        return max(self.settled, self.last_old) - self.order.requested

    def summary(self) -> Summary:
        """What its history tells of it now."""
        order = self.order
        return Summary(
            self.number,
            order.targets,
            order.versions,
            order.labels,
            order.requested,
            order.scheduler,
            self.phase,
            self.state,
            self.delay,
            order.note,
            self.reason[:MOST_REASON],
        )

    # What happens to it, told by the machine

    def move(self, phase: Phase, reason: str, now: float = 0.0) -> None:
        """Enter a phase."""
        self.phase, self.reason = phase, reason
        if phase is Phase.COMMITTED:
            self.ready, self.committed = True, now
        if phase in TAKEN_BACK:
            self.shrink()
        if phase is Phase.DONE:  # every task of the batch that begins has it, whoever answered
            self.settled = self.settled or now
        self._notify()

    def prepared(self) -> None:
        """Note that all workers have loaded it."""
        self.ready = True
        self._notify()

    def switch(self, worker: str, told: float, now: float) -> float:
        """Note when a worker has switched, by its clock; gives the last such moment.

        Whatever its clock has told, it was after the commit, and it is over.
        """
        moment = min(max(self.committed or now, told), now)
        self.switched[worker] = moment
        self.last_switch = max(self.last_switch, moment)
        return self.last_switch

    def settle(self, moment: float) -> None:
        """Note that all workers have switched."""
        self.settled = moment
        self._notify()

    def failed(self, failure: Failed, reason: str, way: WayBack | None = None) -> None:
        """Note that it was taken back, why, and how if that is known."""
        self.failure, self.reason, self.way_back = failure, self.reason or reason, way
        self._notify()

    def grown(self, worker: str, memory: int) -> int:
        """Note what a worker that has switched uses; how much more that is than at first."""
        first, _ = self.memory.get(worker, (memory, memory))
        self.memory[worker] = first, memory
        return memory - first

    def took(self, operator: str, new: int, old: int) -> None:
        """Note that a target has taken rows."""
        known = self.rows.get(operator, Rows())
        self.rows = {**self.rows, operator: Rows(known.new + new, known.old + old)}
        self.no_more_rows = ""
        self._notify()

    def expect_rows(self, unless: str = "") -> None:
        """Note whether further rows may come, or why not."""
        self.no_more_rows = unless
        self._notify()

    def used_old(self, moment: float) -> None:
        """Note that a target used an old version."""
        self.last_old = max(self.last_old, moment)

    def shrink(self) -> None:
        """Forget the functions: the change was aborted, or later ones have replaced them all."""
        self.order = replace(self.order, payload=self.order.residue, buffers=())

    def abandon(self) -> None:
        """The controller stops: nobody waits for it any more.

        If the log may have its commit, it is not aborted: the next driver will tell.
        """
        if self.phase in UNDECIDED and not self.decided:
            self.move(Phase.ABORTED, "the flow was stopped")
        self.abandoned = True
        self.no_more_rows = "the flow was stopped"
        self._notify()

    def _notify(self) -> None:
        """Something that others may wait for has changed."""
