"""What the controller is told, and what it wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fries.change.model import Change, Order, WayBack
from fries.control.messages import Begin, Down, Ended, Failed, Holds, Taken
from fries.protocol.messages import Prepared, Refused, Switched


@dataclass(frozen=True, slots=True)
class Requested:
    """A user asks for a change, which has the next number."""

    change: Change


@dataclass(frozen=True, slots=True)
class ChangeAnnounced:
    """A change is about to be requested."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has proved itself."""

    worker: str


@dataclass(frozen=True, slots=True)
class Left:
    """A worker's connection is gone."""

    worker: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A message from a worker."""

    worker: str
    message: Prepared | Refused | Switched | Begin | Ended | Failed | Holds


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """Versions of changes have taken rows in some worker."""

    taken: tuple[Taken, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """The time to prepare a change is over."""

    change: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The commit that :class:`LogCommit` asked for is in the log, or for some reason cannot be."""

    change: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AbortLogged:
    """What :class:`LogAbort` asked for is in the log, or is not yet for some reason."""

    change: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EffectLogged:
    """What :class:`LogEffect` asked for is in the log, or for some reason cannot be."""

    ticket: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BatchesCommitted:
    """Spark has committed all micro-batches up to a number; infinite: the query is over."""

    upto: float


@dataclass(frozen=True, slots=True)
class JobsOver:
    """Of the batch jobs that have begun, these are over, for all that Spark knows."""

    jobs: frozenset[int]


@dataclass(frozen=True, slots=True)
class QueryBegins:
    """The query begins anew: whatever its next task belongs to is a new batch."""


@dataclass(frozen=True, slots=True)
class RowsExpected:
    """Rows may come from now on, or will not, for some reason."""

    unless: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Changes are to be taken back, with the batch in which they took effect; says why.

    The query has stopped, and :meth:`Controller.may_revoke` was asked before.
    """

    reasons: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Blamed:
    """A version is to be taken back, because it failed."""

    failed: Failed


@dataclass(frozen=True, slots=True)
class Undone:
    """A change that was done has failed on live rows, and another one has taken it back."""

    change: Change
    failed: Failed
    reason: str
    way: WayBack


@dataclass(frozen=True, slots=True)
class NotTakenBack:
    """A change is not taken back while a task of a worker waits for that."""

    worker: str
    change: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The controller stops."""


ControllerEvent: TypeAlias = (
    Requested
    | ChangeAnnounced
    | Joined
    | Left
    | Heard
    | RowsTaken
    | Expired
    | Decided
    | AbortLogged
    | EffectLogged
    | BatchesCommitted
    | JobsOver
    | QueryBegins
    | RowsExpected
    | Revoked
    | Blamed
    | Undone
    | NotTakenBack
    | Stopped
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to some workers."""

    workers: tuple[str, ...]
    message: Down


@dataclass(frozen=True, slots=True)
class Ship:
    """Send the functions of a change to some workers, and a message behind them."""

    workers: tuple[str, ...]
    change: int
    bit: int
    then: Down | None = None


@dataclass(frozen=True, slots=True)
class Greet:
    """Tell a new worker what the flow was built with, and what it begins with."""

    worker: str
    base: tuple[int, ...]
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End the connections of some workers: they begin anew."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report :class:`Expired` when a change had time enough to be prepared."""

    change: Change


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Nobody waits for that any more."""

    change: int


@dataclass(frozen=True, slots=True)
class LogIntent:
    """Have the log know what a change is."""

    change: int
    order: Order


@dataclass(frozen=True, slots=True)
class LogCommit:
    """Have the log commit a change, and report :class:`Decided`."""

    change: int


@dataclass(frozen=True, slots=True)
class LogAbort:
    """Have the log know that a change was not committed, and report :class:`AbortLogged`.

    It may have the commit although writing it has failed: then this overrides it.
    """

    change: int
    reason: str
    again: bool
    """Whether that was tried before: then after a while."""


@dataclass(frozen=True, slots=True)
class LogEffect:
    """Have the log know in which batch changes take effect, and report :class:`EffectLogged`."""

    ticket: int
    changes: tuple[int, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Have the log know how a change has ended."""

    change: Change


@dataclass(frozen=True, slots=True)
class LogShrink:
    """The log need not keep the functions of a change any more."""

    change: int
    order: Order


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell users of a change that may be in another state, and of the failures that explain it."""

    change: Change
    state: str
    """That it is in at this moment: when this is carried out it may be further."""
    failures: tuple[Failed, ...] = ()


@dataclass(frozen=True, slots=True)
class TellFailure:
    """Tell users that a version has failed on live rows."""

    failed: Failed


@dataclass(frozen=True, slots=True)
class TaskWaits:
    """A task of a worker has failed, and waits until the change is taken back, or is not."""

    worker: str
    stage: int
    failed: Failed


ControllerInstruction: TypeAlias = (
    Send
    | Ship
    | Greet
    | Disconnect
    | SetTimer
    | CancelTimer
    | LogIntent
    | LogCommit
    | LogAbort
    | LogEffect
    | LogEnd
    | LogShrink
    | Tell
    | TellFailure
    | TaskWaits
)
