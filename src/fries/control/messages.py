"""What the engine's control channel carries beside the messages of the protocol.

A worker says hello, is told everything it must know, and from then on announces each task
that it begins. The answer makes micro-batches safe: a task knows every commit that was sent
before it began, so the rows of a batch that begins after a commit are all new, and a change is
in transition for one batch only.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
)


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A worker's first message; its name is unique for each process."""

    flow: str
    worker: str


class Soon(msgspec.Struct, frozen=True, tag=True):
    """A change is about to come: rows may stand back while the driver makes it ready."""


class Shipment(msgspec.Struct, frozen=True, tag=True):
    """Announces the new functions of a change; comes before the change is prepared.

    ``bit`` stands for the change in the epoch mask of rows while it is in transition.
    """

    change: int
    bit: int
    sizes: tuple[int, ...]
    """Bytes of its parts, which follow in pieces: the pickled functions, and what they hold."""
    whole: bytes = b""
    """Its only part, if it is small: then no pieces follow."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Some bytes of a part of a shipment."""

    change: int
    part: int
    start: int
    data: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """What the flow began with, and the changes in the base, whose shipments came before.

    Those under way come after.
    """

    base: tuple[int, ...]
    definition: bytes = b""
    """All operators as the flow was built, pickled."""
    skipped: dict[str, int] = {}
    """By operator, how many updates later ones have replaced without a trace."""


ANY_BATCH: Final = -(1 << 62)
"""A failure that keeps every batch from beginning."""


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Where a task began to stamp rows for a change: after so many rows."""

    rows: int
    change: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A worker is about to begin a task of a batch."""

    batch: int
    stage: int
    partition: int
    execution: int = 0
    """Spark's number of the action that the task belongs to."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """The task may begin: the changes in its batch's base, and those committed since."""

    base: tuple[int, ...]
    """Those that this worker has not been told of."""
    committed: tuple[int, ...]
    pinned: tuple[int, ...] | None = None
    """The task is executed again, and must go as before: it began with these changes."""
    cuts: tuple[Cut, ...] = ()
    """And switched there to others."""
    on_probation: bool = False
    """Whether some version is new, so that one that fails may be taken back."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A task ended; by change, when it last used an old version (seconds since 1970)."""

    batch: int
    stage: int
    partition: int
    last_old: dict[int, float]
    execution: int = 0
    complete: bool = True
    """Whether it gave all its rows."""
    cuts: tuple[Cut, ...] = ()
    """Where it switched inside; it completes only when this is noted."""


class Noted(msgspec.Struct, frozen=True, tag=True):
    """The controller knows where a task that ended had switched; it may complete, or may not."""

    accepted: bool = True


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A version of an operator failed on live rows, or cannot be loaded."""

    batch: int
    """Or :data:`ANY_BATCH`."""
    operator: str
    change: int
    """The change that brought the version; 0: the flow was built with it."""
    problem: str
    row: str
    story: str


class Holds(msgspec.Struct, frozen=True, tag=True):
    """A task has just failed with a version, and holds its chunk: nothing of it has left.

    If the change is taken back while it waits, it processes the same rows again without it.
    """

    operator: str
    change: int
    stage: int


class GivenUp(msgspec.Struct, frozen=True, tag=True):
    """A change is not taken back while tasks wait for that: they fail, and so does the batch."""

    change: int


class Stuck(msgspec.Struct, frozen=True, tag=True):
    """A version of an operator has not returned for a while."""

    operator: str
    change: int
    seconds: float


class Counts(msgspec.Struct, frozen=True):
    """What an operator has done."""

    taken: int = 0
    """Rows in."""
    given: int = 0
    """Rows out."""
    seconds: float = 0.0
    """Time in its function."""
    failed: int = 0
    """Of the rows in, those that failed and were set apart."""

    def __add__(self, more: Counts) -> Counts:
        return Counts(
            self.taken + more.taken,
            self.given + more.given,
            self.seconds + more.seconds,
            self.failed + more.failed,
        )


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """Rows that an operator has taken, as a change sees them."""

    operator: str
    change: int
    new: int
    """By the version that the change brought."""
    old: int
    """By the version before it, while it was in transition."""


class Counted(msgspec.Struct, frozen=True, tag=True):
    """What the operators of a worker have done since it last told."""

    counts: dict[str, Counts]
    memory: int = 0
    """Bytes of memory that the worker uses."""
    taken: tuple[Taken, ...] = ()
    """Of operators that have been changed; nothing is said of those as the flow was built."""


Down: TypeAlias = (
    Prepare
    | Commit
    | Abort
    | Retire
    | StartCheckpoint
    | CancelCheckpoint
    | Soon
    | Shipment
    | Piece
    | Welcome
    | Go
    | Noted
    | GivenUp
)
"""From the controller to a worker."""
Up: TypeAlias = (
    Prepared
    | Refused
    | Switched
    | Snapshotted
    | Hello
    | Begin
    | Ended
    | Counted
    | Failed
    | Holds
    | Stuck
)
"""From a worker to the controller."""

ENCODER: Final = msgspec.msgpack.Encoder()
DOWN: Final[msgspec.msgpack.Decoder[Down]] = msgspec.msgpack.Decoder(Down)
UP: Final[msgspec.msgpack.Decoder[Up]] = msgspec.msgpack.Decoder(Up)
