"""Changes that are over, many in one file: a log stays a few files however long its history is.

A segment has what is left of many changes: all their records, without the functions. Those that
are still needed stay in the intent's own file, and the segment says so. The newest segment names
all segments that count, so files that are left over are told from files that are missing: what a
crash has left is no part of the log, and what the newest one names and nobody has is damage.

What a segment has of a change comes before what single files say of it, but for an end that came
later and has a name of its own (:func:`late_end`): so nothing that a driver writes or removes too
late, because it was stopped in between, can change what is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from fries.errors import LogError
from fries.log.pieces import Buffer
from fries.log.records import Committed, Effective, Ended, Intent, Owned, Segment

NAME: Final = re.compile(r"([0-9]{8})\.segment")
LATE: Final = re.compile(r"([0-9]{8})\.end\.([0-9]{8})")


class Past(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a segment has of a change; what is ``None`` an older segment may have."""

    number: int
    intent: Intent | None = None
    commit: Committed | None = None
    effective: Effective | None = None
    end: Ended | None = None
    functions: bool = False
    """Whether its functions are needed: they are in the file of its intent."""


class Whole(NamedTuple):
    """A segment as it was read or written."""

    record: Segment
    parts: tuple[Buffer, ...]
    """Its changes, in parts that were written together, oldest first."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return segment_name(self.record.number)

    @property
    def size(self) -> int:
        """Bytes of its changes."""
        return sum(map(len, self.parts))

    def pasts(self) -> Iterator[Past]:
        """What it has of its changes, in the order in which it counts."""
        for part in self.parts:
            yield from unpack(part)


class Found(NamedTuple):
    """What there is of a segment."""

    whole: Whole | None
    why: str
    """What is wrong with its file in the log, if something is."""
    copied: bool
    """Whether the copy has a file for it, be that whole or not."""


@dataclass
class Segments:
    """The segments of a log that count."""

    live: list[Whole] = field(default_factory=list)
    """In the order in which they count."""
    problems: list[str] = field(default_factory=list)
    """Why what happened is not known."""
    restored: list[tuple[Whole, str]] = field(default_factory=list)
    """Those that are known from the copy, and why."""
    torn: dict[int, str] = field(default_factory=dict)
    """Those that a crash has cut short, and what is wrong with them."""
    last: int = 0
    """The highest number that was ever used."""

    @property
    def newest(self) -> int:
        """The number of the newest one that counts; 0: there is none."""
        return max((one.record.number for one in self.live), default=0)

    @property
    def names(self) -> frozenset[str]:
        """The files that are needed."""
        return frozenset(one.name for one in self.live)

    def blame(self, told: int) -> None:
        """A record tells of a segment that was safe: if it does not count, it is lost."""
        if told > self.newest:
            lost = [why for number, why in self.torn.items() if number <= told]
            self.problems += lost or [f"{segment_name(told)} is missing"]


def find(numbers: Iterable[int], look: Callable[[int], Found], settled: Owned | None) -> Segments:
    """The segments that count.

    One that no file has whole, and that has not come to the copy, was cut short by a crash:
    nothing that it covers was removed by then. What is damaged otherwise is a problem.
    """
    found = Segments(last=max(numbers := sorted(numbers), default=0))
    for number in reversed(numbers):
        one = look(number)
        if one.whole is None:
            if one.copied:
                found.problems.append(one.why)
            else:
                found.torn[number] = one.why
        elif not _is_void(one.whole.record, settled):
            _gather(one, look, found)
            break
    return found


def _gather(newest: Found, look: Callable[[int], Found], found: Segments) -> None:
    """The newest segment, and those that it names."""
    assert newest.whole is not None
    record = newest.whole.record
    for number in record.segments:
        one = newest if number == record.number else look(number)
        if one.whole is None:
            found.problems.append(one.why)
            continue
        found.live.append(one.whole)
        if one.why:
            found.restored.append((one.whole, one.why))


def _is_void(record: Segment, settled: Owned | None) -> bool:
    """Whether a driver has written it when another one had read the log without it."""
    return (
        settled is not None
        and settled.number > record.owner > 0
        and (0 <= settled.segment < record.number)
    )


def segment_name(number: int) -> str:
    """The name of a segment's file."""
    return f"{number:08}.segment"


def late_end(number: int, owner: int) -> str:
    """The file for an end of a change that a segment may have already."""
    return f"{number:08}.end.{owner:08}"


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[list[Past]]] = msgspec.msgpack.Decoder(list[Past])


def pack(pasts: list[Past]) -> bytes:
    """What is left of some changes, as a part of a segment."""
    return _ENCODER.encode(pasts)


def unpack(part: Buffer) -> list[Past]:
    """The same when it is read."""
    try:
        return _DECODER.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"this version of Fries cannot read it ({error})") from error
