"""Lives of a log that is tidied, every operation on its files noted, and what it must say then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from fries.log.log import Log
from fries.log.owners import take_over
from fries.log.pieces import Buffer
from fries.log.reading import Reading
from fries.log.records import Committed, Effective, Ended, Intent, decode
from fries.log.segments import NAME as SEGMENT
from tests.files import SHAPE, MemoryFiles, intent

Folder = dict[str, bytes]


class Operation(NamedTuple):
    """One write, or one removal if there is no data."""

    name: str
    data: bytes | None
    after: int
    """How many operations the log itself had seen."""


@dataclass
class Journal:
    """What was done to the log and to its copy, in order."""

    main: list[Operation] = field(default_factory=list)
    copy: list[Operation] = field(default_factory=list)

    def folder(self, count: int) -> Folder:
        """The log after some operations."""
        return after(self.main[:count])

    def copies(self, count: int) -> Iterator[Folder]:
        """What the copy may be by then: it comes later, in order, and nobody knows how much."""
        possible = [one for one in self.copy if one.after <= count]
        for behind in range(len(possible) + 1):
            yield after(possible[: len(possible) - behind])


def after(operations: Sequence[Operation]) -> Folder:
    """A folder after some operations."""
    contents: Folder = {}
    for name, data, _ in operations:
        contents.pop(name, None)
        if data is not None:
            contents[name] = data
    return contents


class Noted(MemoryFiles):
    """A folder whose operations are noted, and that lets something happen before any of them."""

    def __init__(
        self, journal: Journal, operations: list[Operation], contents: Folder | None = None
    ) -> None:
        super().__init__(contents)
        self._journal, self._operations = journal, operations
        self.before: Callable[[str, str], None] = lambda what, name: None

    def names(self) -> list[str]:
        """The files that are there."""
        self.before("list", "")
        return super().names()

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        self.before("has", name)
        return super().has(name)

    def read(self, name: str) -> Buffer:
        """Read a file."""
        self.before("read", name)
        return super().read(name)

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file, and note it."""
        self.before("write", name)
        super().write(name, parts, replace)
        self._note(name, self.contents[name])

    def remove(self, name: str) -> None:
        """Remove a file, and note it."""
        self.before("remove", name)
        super().remove(name)
        self._note(name, None)

    def _note(self, name: str, data: bytes | None) -> None:
        done = len(self._journal.main)
        mine = self._operations is self._journal.main
        self._operations.append(Operation(name, data, done + mine))


class AtOnce:
    """A pool without threads."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, call: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401
        """Call it now."""
        call(*arguments)

    def shutdown(self) -> None:
        """There is nothing to wait for."""


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies be written at once, and nobody wait for another driver."""
    monkeypatch.setattr("fries.log.copies.ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr("fries.log.owners.HANDOVER_SECONDS", 0.0)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let segments be written and merged after a few changes, and one file go at a time."""
    at_once(monkeypatch)
    for name, value in {"DUE": 6, "FAN": 2, "AT_ONCE": 1, "MOST_COVERED": 4}.items():
        monkeypatch.setattr(f"fries.log.tidying.{name}", value)


class Site:
    """Drivers that come one after the other on a log and its copy."""

    def __init__(self, main: Folder | None = None, copy: Folder | None = None) -> None:
        self.journal = Journal()
        self.files = Noted(self.journal, self.journal.main, main)
        self.copies = Noted(self.journal, self.journal.copy, copy)
        self.log = self.start()

    def start(self) -> Log:
        """A driver comes; the one before need not have ended."""
        read, owner = take_over(self.files, self.copies, Reading.refuse_damage)
        self.log = Log(self.files, SHAPE, copies=self.copies, reading=read, owner=owner)
        return self.log

    def request(self, *targets: str) -> int:
        """A change is prepared."""
        number = self.log.last + 1
        residue = b"migrations of %d" % number
        self.log.intend(intent(number, *targets, residue=residue), (b"functions of %d" % number,))
        return number

    def change(self, *targets: str, end: str = "done") -> int:
        """A change that is committed, takes effect and ends."""
        number = self.request(*targets)
        self.log.commit(number)
        self.log.take_effect(number, number + 100)
        self.log.end(Ended(number, 1.0, end, delay=0.5))
        return number

    def abort(self, *targets: str) -> int:
        """A change that a worker refuses."""
        number = self.request(*targets)
        self.log.end(Ended(number, 1.0, "aborted", "a: no"))
        return number

    def shrink(self, number: int) -> None:
        """Later changes have replaced the functions of one."""
        self.log.shrink(intent(number, residue=b"migrations of %d" % number))

    def back(self, number: int) -> None:
        """A change that was done is taken back."""
        self.log.end(Ended(number, 2.0, "rolled back", "it raised"))

    def fail(self, number: int) -> None:
        """A change that was done has failed, and another one has taken it back."""
        self.log.end(Ended(number, 2.0, "done", "it raised", failed=True))

    def tidy(self, steps: int = 1_000) -> None:
        """Make the log shorter."""
        while steps and self.log.tidy():
            steps -= 1


def grown(changes: int) -> Site:
    """A log of many changes of which the newest four keep their functions."""
    site = Site()
    for _ in range(changes):
        number = site.change("F")
        if number > 4:
            site.shrink(number - 4)
        site.tidy()
    return site


Said = dict[int, tuple[Any, ...]]


def said(read: Reading) -> tuple[int, Said]:
    """What a log says: its last number, and of each change what a driver would go on with."""
    assert read.problems() == []
    changes = {}
    for one in read.changes:
        if one.intent is not None:
            functions = [bytes(part) for part in one.payload] if one.happened else []
            end = one.end and replace(one.end, owner=0)
            since = one.since if one.happened else None
            changes[one.number] = (one.intent, one.happened, since, end, functions)
    return read.last, changes


def model(operations: Sequence[Operation]) -> tuple[int, Said]:
    """The same, worked out from single records alone, one by one as they were written."""
    intents: dict[int, tuple[Intent, list[bytes]]] = {}
    commits, effective, ends = set[int](), dict[int, int](), dict[int, Ended]()
    last = 0
    for name, data, _ in operations:
        if data is None or SEGMENT.fullmatch(name) or name.endswith((".owner", ".flow")):
            continue
        record, payload = decode(data)
        last = max(last, int(name[:8]))
        match record:
            case Intent(number):
                intents[number] = record, [bytes(part) for part in payload]
            case Committed(number):
                commits.add(number)
            case Effective(number, since):
                effective[number] = since
            case Ended(number):
                ends[number] = replace(record, owner=0)
    changes = {}
    for number, (record, functions) in intents.items():
        end = ends.get(number)
        happened = number in commits and (end is None or end.phase == "done")
        first = effective.get(number) if happened else None
        changes[number] = (record, happened, first, end, functions if happened else [])
    return last, changes
