"""What the log holds, as bytes that can be checked.

A record is one file: a magic number, the sizes of its parts, a digest of all of it, and the
parts. The first part is a message; the others are pickled functions and what they hold (a
model), which are never copied. A file that a crash has cut short, at whatever byte, or that
someone has changed, does not match its digest. Nothing is unpickled here. Records of which there
are many are of no interest to Python's garbage collector (``gc=False``): they refer to nothing that
could refer to them, and it would go through all of them again and again while a log is read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from fries.errors import LogError
from fries.log.pieces import Buffer, unhurried

MAGIC: Final = b"fries\x00\x02\n"
MOST_PARTS: Final = 1 << 20
_COUNT: Final = struct.Struct(">I")
_SIZE: Final = struct.Struct(">Q")


class Shape(msgspec.Struct, frozen=True):
    """What a flow must have in common with the flow that its checkpoint was written by."""

    groups: int
    operators: dict[str, dict[str, str]]
    """By name, what belongs to the plan of an operator: kind, key, columns and so on."""
    edges: tuple[tuple[str, str, int], ...]


class Founded(msgspec.Struct, frozen=True, tag=True):
    """A flow was started on this checkpoint: for the first time, or with newer code."""

    shape: Shape
    time: float
    replaces: int = 0
    """The code has the functions of all changes up to this one; their migrations still count."""
    digests: dict[str, str] = {}
    """By operator, the digest of the code that the flow was started with."""


class Intent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A change is being prepared; without a commit it never happened."""

    number: int
    time: float
    targets: tuple[str, ...]
    scheduler: str
    components: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """Members and heads of each."""
    versions: dict[str, int]
    """By target, how many updates it will have."""
    residue: bytes
    """Its migrations, pickled: what is left when other changes have replaced its functions."""
    migrates: bool = False
    """Whether there are any."""
    note: str = ""
    undoes: int = 0
    """The change that it takes back, if it is an undo."""
    automatic: bool = False
    """Whether nobody asked for it: it takes back what has failed."""
    labels: dict[str, str] = {}
    """By target, what people call its version."""


class Committed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A change happened, whatever becomes of the driver."""

    number: int
    time: float
    since: int | None = None
    """In logs of older versions, the micro-batch in which it took effect, or an older one."""
    owner: int = 0
    """The driver that has committed it; 0: one that did not say."""
    segment: int = 0
    """The newest segment that was safe then; 0: none. Whoever lacks it knows that it is lost."""


class Effective(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A change takes effect: a row, a state or the base of a micro-batch is about to meet it.

    Without it no batch that Spark has committed has anything of the change.
    """

    number: int
    since: int
    """The first micro-batch with it."""


class Ended(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A change is done, was aborted, or was rolled back."""

    number: int
    time: float
    phase: str
    reason: str = ""
    delay: float | None = None
    failed: bool = False
    """Whether it was done and failed on live rows later, so that another change took it back."""
    owner: int = 0
    """The driver that says so: of two ends that of the later driver counts."""


class Owned(msgspec.Struct, frozen=True, tag=True):
    """A driver has taken the log over: nothing that an earlier one writes from now on counts."""

    number: int
    time: float
    host: str
    process: str
    """Number of its process, and when that began."""
    seen: int = -1
    """The newest change that it has read; -1 while it is reading."""
    uncommitted: tuple[int, ...] = ()
    """Changes up to that one that it has read without a commit."""
    left: bool = False
    """Whether it has ended well, and writes no more."""
    segment: int = -1
    """The newest segment that it has read, 0 if none; later ones of earlier drivers do not count.

    -1: it did not say.
    """

    def missed(self, change: int) -> bool:
        """Whether it has read the log without the commit of a change by an earlier driver."""
        return change in self.uncommitted or 0 <= self.seen < change


class Segment(msgspec.Struct, frozen=True, tag=True):
    """Many changes that are over, in one file (:mod:`fries.log.segments`)."""

    number: int
    """Of segments, which are counted by themselves."""
    owner: int
    """The driver that has written it; 0: one that did not say."""
    segments: tuple[int, ...]
    """All segments that count when this is the newest one, itself among them, oldest first."""
    level: int = 0
    """How often its records were merged."""


Record: TypeAlias = Founded | Intent | Committed | Effective | Ended | Owned | Segment
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)


def encode(record: Record, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """A record as pieces to be written one after the other."""
    parts: list[Buffer] = [_ENCODER.encode(record)]
    parts += (memoryview(part).cast("B") for part in payload)
    sizes = _COUNT.pack(len(parts)) + b"".join(_SIZE.pack(len(part)) for part in parts)
    digest = hashlib.sha256(sizes)
    for piece in unhurried(parts):
        digest.update(piece)
    return [MAGIC, sizes, digest.digest(), *parts]


def decode(data: Buffer) -> tuple[Record, list[memoryview]]:
    """A record and its payload; :class:`~fries.errors.LogError` if the bytes are not whole."""
    view = memoryview(data).cast("B")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise LogError("it does not begin as a record of this version of Fries")
    sizes, start = _sizes(view)
    digest_end = start + hashlib.sha256().digest_size
    if len(view) != digest_end + sum(sizes):
        raise LogError("it is cut short, or too long")
    whole = hashlib.sha256(view[len(MAGIC) : start])
    whole.update(view[digest_end:])
    if whole.digest() != bytes(view[start:digest_end]):
        raise LogError("its bytes do not match its digest")
    parts, at = [], digest_end
    for size in sizes:
        parts.append(view[at : at + size])
        at += size
    try:
        return _DECODER.decode(parts[0]), parts[1:]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"this version of Fries cannot read it ({error})") from error


def _sizes(view: memoryview) -> tuple[list[int], int]:
    """Sizes of the parts, and where they end."""
    at = len(MAGIC)
    if len(view) < at + _COUNT.size:
        raise LogError("it is cut short")
    (count,) = _COUNT.unpack_from(view, at)
    at += _COUNT.size
    if not 0 < count <= MOST_PARTS or len(view) < at + count * _SIZE.size:
        raise LogError("it is cut short")
    sizes = [_SIZE.unpack_from(view, at + n * _SIZE.size)[0] for n in range(count)]
    return sizes, at + count * _SIZE.size
