"""Messages between the controller and the workers, and what they carry.

Connections are FIFO. A *change* is one reconfiguration, known by its number; every
worker switches to changes in the order of their numbers. Messages are
``msgspec`` structs: typed, hashable, and decoded from bytes without running any code.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Part(msgspec.Struct, frozen=True):
    """What one worker has to do in one change."""

    targets: tuple[str, ...] = ()
    """Operators hosted by this worker that get a new configuration."""
    head: bool = False
    """Whether the commit message itself makes this worker switch."""
    awaits: frozenset[int] = frozenset()
    """Input channels on which a marker must arrive before a worker that is no head switches."""
    forwards: tuple[int, ...] = ()
    """Output channels that get a marker when this worker switches."""
    entries: frozenset[int] = frozenset()
    """With tags: input channels over which tuples enter the component, to be stamped."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Load the new configuration off the data path, and answer."""

    change: int
    part: Part


class Commit(msgspec.Struct, frozen=True, tag=True):
    """The fast control message: switch now."""

    change: int


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget a prepared change; nothing has happened."""

    change: int


class Retire(msgspec.Struct, frozen=True, tag=True):
    """No tuple of the old configuration is left: drop it."""

    change: int


class StartCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """To sources: take a snapshot and send a barrier."""

    checkpoint: int


class CancelCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Drop a checkpoint in flight: stop aligning for it and ignore its barriers."""

    checkpoint: int


ToWorker: TypeAlias = Prepare | Commit | Abort | Retire | StartCheckpoint | CancelCheckpoint


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The new configuration is loaded."""

    change: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The new configuration could not be loaded."""

    change: int
    reason: str


class Switched(msgspec.Struct, frozen=True, tag=True):
    """The worker uses the new configuration from now on."""

    change: int
    moment: float = 0.0
    """When that began by the worker's clock, seconds since 1970; nothing is decided by it."""


class Snapshotted(msgspec.Struct, frozen=True, tag=True):
    """The worker's snapshot for a checkpoint is safe."""

    checkpoint: int


FromWorker: TypeAlias = Prepared | Refused | Switched | Snapshotted
