"""What the controller is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fries.change.model import Footprint, Phase
from fries.protocol.messages import FromWorker, Part, ToWorker

Parts: TypeAlias = "tuple[tuple[str, Part], ...]"


@dataclass(frozen=True, slots=True)
class Requested:
    """A user asks for a change."""

    parts: Parts
    footprint: Footprint
    tagged: bool = False
    held: bool = False
    """Prepare now, but commit only when :class:`Released` says so (a batch boundary)."""
    durable: bool = False
    """Commit only when :class:`Decided` says that a slow log has it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker connected; ``source`` workers start checkpoints."""

    worker: str
    role: str
    source: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """A worker's connection is gone."""

    worker: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A message from a worker."""

    worker: str
    message: FromWorker


@dataclass(frozen=True, slots=True)
class Expired:
    """The time to prepare a change is over."""

    change: int


@dataclass(frozen=True, slots=True)
class Released:
    """A change that was held may be committed."""

    change: int


@dataclass(frozen=True, slots=True)
class Drained:
    """No tuple of the old configuration of a tagged change is left."""

    change: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The commit that :class:`Decide` asked for is in the log, or for some reason cannot be."""

    change: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The batch in which a committed change took effect is thrown away, and the change with it.

    Or a change that waits was built on such a one.
    """

    change: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """It is time for the next checkpoint."""


ControllerEvent: TypeAlias = (
    Requested
    | Joined
    | Left
    | Heard
    | Expired
    | Released
    | Drained
    | Decided
    | Revoked
    | CheckpointDue
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker."""

    worker: str
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Record:
    """Write the new phase of a change to the durable log, before anything that follows."""

    change: int
    phase: Phase
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decide:
    """Write the commit of a change to a slow log, and report :class:`Decided`."""

    change: int


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """All snapshots of a checkpoint are safe: recovery may start from it."""

    checkpoint: int


ControllerInstruction: TypeAlias = Send | Record | Decide | CheckpointComplete
