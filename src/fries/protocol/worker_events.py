"""What a worker is told, by the controller and by its own process, and what it wants done.

Time is no part of it: what takes too long comes as an event, and whoever carries instructions out
puts moments on messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fries.control.messages import Begin, Ended, GivenUp, Go, Holds, Noted, Soon, Up, Welcome
from fries.protocol.messages import ToWorker

Message: TypeAlias = ToWorker | Welcome | Soon | Go | Noted | GivenUp
"""What the controller tells a worker. What a change ships travels beside it."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The controller was reached, and has proved itself."""

    flow: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message from the controller."""

    message: Message


@dataclass(frozen=True, slots=True)
class Defined:
    """What :class:`Define` asked for ended, well or with a traceback."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The background load of a change ended, well or with a traceback."""

    change: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadExpired:
    """The load of a change that was aborted goes on and on, and keeps others from theirs."""

    change: int


@dataclass(frozen=True, slots=True)
class TaskBegins:
    """A task wants to begin. The one before it is over, whatever has become of it."""

    task: Begin


@dataclass(frozen=True, slots=True)
class ChunkBoundary:
    """No row is being processed: between two chunks of a task."""


@dataclass(frozen=True, slots=True)
class VersionFailed:
    """A version of an operator failed on live rows."""

    operator: str
    change: int
    """The change that brought the version; 0: the flow was built with it."""
    problem: str
    row: str
    story: str


@dataclass(frozen=True, slots=True)
class TaskHolds:
    """A task holds a chunk on which a version has failed, until its change is taken back."""

    held: Holds


@dataclass(frozen=True, slots=True)
class HoldExpired:
    """It has waited for that long enough."""


@dataclass(frozen=True, slots=True)
class TaskEnds:
    """A task has processed its last row, or has failed."""

    report: Ended


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The controller is gone, is silent, or breaks the rules."""

    why: str


WorkerEvent: TypeAlias = (
    Connected
    | Received
    | Defined
    | Loaded
    | LoadExpired
    | TaskBegins
    | ChunkBoundary
    | VersionFailed
    | TaskHolds
    | HoldExpired
    | TaskEnds
    | ConnectionLost
)


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the controller."""

    message: Up


@dataclass(frozen=True, slots=True)
class Define:
    """Begin with the operators as the flow was built, in the background; then :class:`Defined`."""

    definition: bytes
    skipped: tuple[tuple[str, int], ...]
    """By operator, how many updates later ones have replaced without a trace."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a change in the background, then report :class:`Loaded`. Comes for one at a time."""

    change: int


@dataclass(frozen=True, slots=True)
class LimitLoad:
    """The change that is being loaded was aborted: report :class:`LoadExpired` if it never ends."""

    change: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Begin with a change that was loaded: it is part of the base."""

    change: int


@dataclass(frozen=True, slots=True)
class Ready:
    """All that the worker begins with is there: tasks may come."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Use the new configuration of these operators from the next row on."""

    change: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what was loaded for a change that was aborted, or what a retired one replaced."""

    change: int
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class StandBack:
    """A change is about to come or to be loaded: rows should give way to it for a moment."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """A commit is about to come: chunks should be short."""


@dataclass(frozen=True, slots=True)
class TaskMayStart:
    """Every change that the task begins with has taken effect here."""

    go: Go


@dataclass(frozen=True, slots=True)
class TaskMayEnd:
    """Whoever must know how the task went knows it."""


@dataclass(frozen=True, slots=True)
class TaskMustFail:
    """Whoever waits, to join or for a task to begin or to end, waits in vain."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """A task that holds a chunk goes on."""

    again: bool
    """Whether with the same rows, for another version is in use; else it fails."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End the connection: nobody, on either side, may go on waiting for it."""

    why: str


WorkerInstruction: TypeAlias = (
    Say
    | Define
    | Load
    | LimitLoad
    | Adopt
    | Ready
    | Switch
    | Drop
    | StandBack
    | Hurry
    | TaskMayStart
    | TaskMayEnd
    | TaskMustFail
    | Resume
    | Disconnect
)
