"""The durable log under fire: records that were damaged, and folders in which files are mixed up.

Nothing but a refusal may come of damage, and a change may only have happened if its intent and its
commit are, byte for byte, what was written under their names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from benchmarks.fuzz import Target
from fries.errors import LogError, LogMismatchError
from fries.log.log import Log
from fries.log.pieces import Buffer
from fries.log.reading import Reading
from fries.log.records import (
    Committed,
    Ended,
    Founded,
    Intent,
    Record,
    Segment,
    Shape,
    decode,
    encode,
)
from fries.log.segments import Past, pack

SHAPE: Final = Shape(4, {"F": {"kind": "map"}}, (("", "F", 0), ("F", "out", 0)))
OTHER_SHAPE: Final = Shape(8, {"G": {"kind": "map"}}, (("", "G", 0),))
PAYLOAD: Final = (b"functions", b"model")
ROLLED_BACK: Final = 3
CHOICES: Final = 50
CHOICE_BYTES: Final = 2


class Folder:
    """Files in memory."""

    place = "memory"

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents

    def names(self) -> list[str]:
        """The files that are there."""
        return list(self.contents)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return name in self.contents

    def read(self, name: str) -> Buffer:
        """All bytes of a file."""
        return self.contents[name]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.contents.pop(name, None)

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file; the log may only write again what it says it replaces."""
        assert replace or name not in self.contents
        self.contents[name] = _bytes(parts)


def _bytes(parts: Sequence[Buffer]) -> bytes:
    return b"".join(map(bytes, parts))


def _intent(number: int) -> Intent:
    components = ((("F",), ("F",)),)
    versions = {"F": number}
    return Intent(number, 1.5, ("F",), "fries", components, versions, b"left", note="a note")


def _records() -> dict[str, Record]:
    """A flow with changes that are done, aborted, rolled back, replaced by code and under way."""
    records: dict[str, Record] = {
        "00000000.flow": Founded(SHAPE, 1.5),
        "00000002.end": Ended(2, 2.5, "aborted", "not prepared in time"),
        "00000004.flow": Founded(SHAPE, 2.5, 4),
    }
    for number in range(1, 8):
        records[f"{number:08}.intent"] = _intent(number)
    for number in (1, ROLLED_BACK, 4, 5, 6):
        records[f"{number:08}.commit"] = Committed(number, 2.0, number)
    for number, phase in ((1, "done"), (ROLLED_BACK, "rolled back"), (4, "done"), (5, "done")):
        records[f"{number:08}.end"] = Ended(number, 2.5, phase, delay=0.25)
    return records


RECORDS: Final = _records()
FILES: Final = {
    name: _bytes(encode(record, PAYLOAD if isinstance(record, Intent) else ()))
    for name, record in RECORDS.items()
}
NAMES: Final = tuple(sorted(FILES))
ODD_NAMES: Final = (
    "00000007.commit", "00000008.commit", "00000008.end", "99999999.intent", "00000006.flow",
    "00000001.intent.partial", "\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661.intent", "notes",
)  # fmt: skip
"""Of files that were never written, or by somebody else."""
FOREIGN: Final = (
    _bytes(encode(Founded(OTHER_SHAPE, 1.5))),
    _bytes(encode(Committed(7, 2.0, 7))),
    _bytes(encode(Ended(6, 2.5, "rolled back"))),
)
"""Whole records that this folder does not have."""
WHOLE: Final = {**FILES, "00000007.commit": FOREIGN[1]}
"""What a change that happened must be made of."""


def targets() -> list[Target]:
    """What reads the log."""
    encoded = tuple(map(msgspec.msgpack.encode, RECORDS.values()))
    files = (*FILES.values(), *FOREIGN)
    segmented = tuple(SEGMENTED.values())
    read = (decode(data) for name, data in SEGMENTED.items() if name.endswith("segment"))
    parts = tuple(bytes(part) for _, payload in read for part in payload)
    return [
        Target("log records", read_record, files),
        Target("log records, with their digest", read_body, encoded, 0.5, messages=True),
        Target("log", open_log, tuple(_with_choices(files)), 0.3),
        Target("log, with segments", open_segments, tuple(_with_choices(segmented)), 0.3),
        Target("parts of segments", read_segment, parts, 0.3, messages=True),
    ]


def _segments() -> dict[str, bytes]:
    """A log of whose changes segments have the first ones, and of one the functions still count."""
    firsts = [Past(number, _intent(number), Committed(number, 2.0, number)) for number in (1, 2)]
    third = Past(3, _intent(3), Committed(3, 2.0, 3), functions=True)
    parts = {1: (pack(firsts),), 2: (pack([third]), pack([Past(2, end=Ended(2, 3.0, "done"))]))}
    records = {f"{n:08}.segment": (Segment(n, 0, tuple(range(1, n + 1))), parts[n]) for n in parts}
    encoded = {name: _bytes(encode(*whole)) for name, whole in records.items()}
    names = ("00000000.flow", "00000003.intent", "00000004.intent")
    told = _bytes(encode(Committed(4, 2.0, 4, segment=2)))
    return {name: FILES[name] for name in names} | encoded | {"00000004.commit": told}


SEGMENTED: Final = _segments()


def open_segments(data: bytes) -> str:
    """A driver comes back to a log in which this is in the place of some file."""
    choose = random.Random(data[-CHOICE_BYTES:])
    name = choose.choice([one for one in sorted(SEGMENTED) if not one.endswith("commit")])
    contents = SEGMENTED | {name: data[:-CHOICE_BYTES]}
    try:
        log = Log(Folder(contents), SHAPE)
    except LogError:
        return "refused"
    assert [one.number for one in log.changes if one.happened] == [1, 2, 3, 4], name
    assert all(one.intent == _intent(one.number) for one in log.changes)
    return "whole"


def read_segment(body: bytes) -> str:
    """Somebody else's part of a segment, with a digest that fits."""
    whole = _bytes(encode(Segment(1, 0, (1,)), (body,)))
    try:
        read = Reading(Folder({"00000000.flow": FILES["00000000.flow"], "00000001.segment": whole}))
        read.refuse_damage()
    except LogError:
        return "refused"
    return f"{len(read.changes)} changes"


def _with_choices(files: Sequence[bytes]) -> Iterator[bytes]:
    """Every file several times, with different last bytes for :func:`open_log` to choose by."""
    choose = random.Random(1)
    for data in files:
        for _ in range(CHOICES):
            yield data + choose.randbytes(CHOICE_BYTES)


def read_record(data: bytes) -> str:
    """What is read is what was written."""
    try:
        record, payload = decode(data)
    except LogError:
        return "refused"
    assert _bytes(encode(record, payload)) == data
    return type(record).__name__


def read_body(body: bytes) -> str:
    """Somebody else's message, or a later version's, with a digest that fits."""
    parts = encode(msgspec.Raw(body), PAYLOAD)  # type: ignore[arg-type]
    try:
        record, payload = decode(_bytes(parts))
    except LogError:
        return "refused"
    assert tuple(map(bytes, payload)) == PAYLOAD
    written = _bytes(encode(record))
    assert _bytes(encode(decode(written)[0])) == written
    return type(record).__name__


def open_log(data: bytes) -> str:
    """A driver comes back to a folder in which this is one of the files.

    The last bytes choose which one, and what else has happened to the folder.
    """
    choose = random.Random(data[-CHOICE_BYTES:])
    contents = _damaged(data[:-CHOICE_BYTES], choose)
    before = dict(contents)
    replaced = choose.random() < 0.2
    try:
        log = Log(Folder(contents), SHAPE, replaced)
    except LogMismatchError:
        return "another flow"
    except LogError:
        return "refused"
    happened = _happened(log, before)
    again = Log(Folder(contents), SHAPE)
    assert _happened(again, contents) == happened, "it says the same when it is opened again"
    return f"{len(happened)} happened"


def _damaged(data: bytes, choose: random.Random) -> dict[str, bytes]:
    """The folder, with something in the place of a file, and perhaps more accidents."""
    contents = dict(FILES)
    contents[choose.choice(NAMES if choose.random() < 0.8 else ODD_NAMES)] = data
    for _ in range(choose.choice((0, 0, 1, 2))):
        one, other = choose.sample(NAMES, 2)
        match choose.randrange(4):
            case 0 if one in contents and other in contents:
                contents[one], contents[other] = contents[other], contents[one]
            case 1 if other in contents:
                contents[one] = contents[other]
            case 2 if one in contents:
                contents[one] = contents[one][: choose.randrange(len(contents[one]) + 1)]
            case _:
                contents.pop(one, None)
    return contents


def _happened(log: Log, contents: dict[str, bytes]) -> list[int]:
    """The changes that a driver would go on with; all of them are whole."""
    found = [logged for logged in log.changes if logged.happened]
    numbers = [logged.number for logged in found]
    for logged in found:
        for kind in ("intent", "commit"):
            name = f"{logged.number:08}.{kind}"
            assert contents[name] == WHOLE[name], name
        assert logged.intent == _intent(logged.number)
        assert tuple(map(bytes, logged.payload)) in ((), PAYLOAD)
    if ROLLED_BACK in numbers and f"{ROLLED_BACK:08}.end" in contents:
        assert max(numbers) == ROLLED_BACK, "it was rolled back, and others came after it"
    return numbers
