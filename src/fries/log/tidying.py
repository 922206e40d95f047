"""Keeps a log short: what is over goes into segments, and the files that had it are removed.

All of it is done a little at a time, on the thread that writes the log: a commit that comes
meanwhile waits for one step at most, which writes one segment of :data:`MOST_BYTES` or removes
:data:`AT_ONCE` files. A segment takes in what has gathered in :data:`DUE` files. As soon as
:data:`FAN` segments of one level are next to each other they become one of the next level, until
they are too large: so each record is written again a handful of times, whatever its age, and the
number of files follows the logarithm of the number of changes, and then their bytes.

The order of things makes a crash harmless: first the segment is safe, then its driver looks
whether another one has come, and only then files that it has are removed. They do not count any
more from the first of these moments on, so it does not matter which of them are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from fries.log.copies import Copies
from fries.log.files import Files
from fries.log.owners import Ownership
from fries.log.pieces import Buffer
from fries.log.reading import Logged, Reading
from fries.log.records import (
    Committed,
    Effective,
    Ended,
    Intent,
    Record,
    Segment,
    encode,
)
from fries.log.segments import Past, Whole, late_end, pack, segment_name

DUE: Final = 32
"""Files that wait to be removed until a segment is worth its while: those of about 8 changes."""
FAN: Final = 4
"""Segments that become one."""
MOST_BYTES: Final = 1 << 20
"""Of the changes in a segment that is made of others; so much a commit may have to wait for."""
MOST_COVERED: Final = 256
"""Changes that one step takes in: many only when an older log is taken over."""
AT_ONCE: Final = 8
"""Files that one step removes."""


@dataclass
class Open:
    """A change of which single files say something that no segment says yet."""

    number: int
    intent: Intent | None = None
    commit: Committed | None = None
    effective: Effective | None = None
    end: Ended | None = None
    functions: bool = False
    """Whether the file of its intent has functions that are needed, if it happened."""
    earlier: bool = False
    """Whether it is an earlier driver's: nobody is at work on it."""
    covered: bool = False
    """Whether a segment may have it: what comes now goes into files of other names."""
    names: set[str] = field(default_factory=set)
    """The files that it may have in the log."""

    def __post_init__(self) -> None:
        if self.covered and self.functions:
            self.names.add(f"{self.number:08}.intent")

    @classmethod
    def read(cls, logged: Logged, names: set[str]) -> Open:
        """A change of an earlier driver, and its files."""
        since, effective = logged.since, logged.effective
        if effective is None and since is not None:  # an older log says so elsewhere, or nobody can
            effective = Effective(logged.number, since)
        functions = logged.functions if logged.covered else bool(logged.payload or logged.lost)
        what = logged.intent, logged.commit, effective, logged.end
        return cls(logged.number, *what, functions, True, logged.covered, names)

    @property
    def taken_back(self) -> bool:
        """Whether it did not happen, as far as is known here."""
        return self.end is not None and self.end.phase != "done"

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected of it but another end."""
        if self.covered:
            return True
        known = self.earlier or self.end is not None
        return known and (self.taken_back or self.commit is None or self.effective is not None)

    @property
    def needed(self) -> bool:
        """Whether its functions are."""
        happened = self.commit is not None or self.intent is None  # an older segment has both
        return self.functions and happened and not self.taken_back

    def note(self, record: Record) -> None:
        """A record is safe."""
        match record:
            case Intent():
                self.intent = record
            case Committed():
                self.commit = record
            case Effective():
                self.effective = record
            case Ended():
                self.end = record

    def past(self) -> Past:
        """What a segment is to have of it."""
        what = self.intent, self.commit, self.effective, self.end
        return Past(self.number, *what, self.needed)

    def spare(self) -> set[str]:
        """Its files that are of no use when a segment has it."""
        return self.names - {f"{self.number:08}.intent"} if self.needed else self.names


class Tidying:
    """Knows what is in single files, and moves it into segments. For the log's own thread."""

    def __init__(
        self, files: Files, copies: Copies | None, owner: Ownership | None, read: Reading
    ) -> None:
        self._files, self._copies, self._owner = files, copies, owner
        self._segments = [_light(whole) for whole in read.segments.live]
        self.newest = read.segments.newest
        """The newest segment that is safe."""
        self._last = read.segments.last
        self._open: dict[int, Open] = {}
        self._over: dict[int, None] = {}
        """The open ones that are over, in that order."""
        self._needed = {one.number for one in read.changes if one.functions}
        """The covered ones whose functions are needed."""
        self._spare = dict.fromkeys(read.spare())
        """Files that are to be removed, in order."""
        self._read(read)

    def _read(self, read: Reading) -> None:
        """Go on with what earlier drivers have left in single files."""
        names: dict[int, set[str]] = {}
        for name in read.singles():
            names.setdefault(int(name[:8]), set()).add(name)
        for logged in read.changes:
            if logged.number in names:
                self._add(Open.read(logged, names[logged.number]))

    def _add(self, one: Open) -> None:
        self._open[one.number] = one
        if one.over:
            self._over[one.number] = None

    def drop_functions(self, last: int) -> None:
        """The code has the functions of all changes up to a number."""
        for number in [*self._needed, *self._open]:
            if number <= last:
                self.shrunk(number)

    def has_functions(self, number: int) -> bool:
        """Whether the file of a change's intent has functions, as far as anybody needs them."""
        one = self._open.get(number)
        return number in self._needed if one is None else one.functions

    def is_effective(self, number: int) -> bool:
        """Whether the first micro-batch of a change that may be committed is known."""
        one = self._open.get(number)
        return one is not None and one.effective is not None

    def intent_of(self, number: int) -> Intent | None:
        """What is known of a change that is not over."""
        one = self._open.get(number)
        return None if one is None else one.intent

    def name_of_end(self, number: int, owner: int) -> str:
        """The file for the end of a change."""
        one = self._open.get(number)
        covered = one is None or one.covered
        return late_end(number, owner) if covered else f"{number:08}.end"

    def begin(self, number: int) -> None:
        """A change is new."""
        self._open[number] = Open(number, functions=True)

    def expect(self, number: int, name: str) -> None:
        """A file of a change is about to be written: if that fails it may be there all the same."""
        self._spare.pop(name, None)
        one = self._open_again(number)
        one.names.add(name)
        self._add(one)

    def note(self, number: int, record: Record) -> None:
        """A record of a change is safe."""
        one = self._open_again(number)
        one.note(record)
        self._add(one)

    def shrunk(self, number: int) -> None:
        """The functions of a change are of no more use."""
        one = self._open_again(number)
        one.functions = False
        self._add(one)

    def _open_again(self, number: int) -> Open:
        known = self._open.get(number)
        return known or Open(number, covered=True, functions=number in self._needed)

    def step(self) -> bool:
        """Do a little; gives whether there is more to do."""
        if self._owner is not None and self._has_work():
            self._owner.check()
        if self._is_due():
            self._cover()
        elif (place := self._mergeable()) is not None:
            self._merge(place)
        else:
            self._remove()
        return self._has_work()

    def _has_work(self) -> bool:
        return bool(self._spare) or self._is_due() or self._mergeable() is not None

    def _is_due(self) -> bool:
        files = 0
        for number in self._over:
            files += len(self._open[number].spare())
            if files >= DUE:
                return True
        return False

    def _cover(self) -> None:
        """Write a segment of what is over."""
        chosen, size = list[Open](), 0
        for number in islice(self._over, MOST_COVERED):
            one = self._open[number]
            one.covered = True
            chosen.append(one)
            size += len(one.intent.residue) if one.intent is not None else 0
            if size >= MOST_BYTES:
                break
        pasts = [one.past() for one in chosen]
        spare = [name for one in chosen for name in sorted(one.spare())]
        self._write(len(self._segments), 0, (pack(pasts),), 0, spare)
        for past in pasts:
            (self._needed.add if past.functions else self._needed.discard)(past.number)
            del self._open[past.number], self._over[past.number]

    def _mergeable(self) -> int | None:
        """Where segments begin that can become one; the newest first."""
        for place in reversed(range(len(self._segments) - FAN + 1)):
            some = self._segments[place : place + FAN]
            if all(one.parts and one.record.level == some[0].record.level for one in some):
                return place
        return None

    def _merge(self, place: int) -> None:
        """Make one segment of some."""
        some = self._segments[place : place + FAN]
        parts = tuple(part for one in some for part in one.parts)
        self._write(place, FAN, parts, some[0].record.level + 1, [one.name for one in some])

    def _write(
        self, place: int, count: int, parts: Sequence[Buffer], level: int, spare: Sequence[str]
    ) -> None:
        """Write a segment in the place of some; then files are of no use."""
        self._last += 1  # used up, whatever becomes of it
        number, owner = self._last, 0 if self._owner is None else self._owner.number
        numbers = [one.record.number for one in self._segments]
        numbers[place : place + count] = [number]
        record = Segment(number, owner, tuple(numbers), level)
        self._files.write(segment_name(number), encode(record, parts))
        if self._owner is not None:
            self._owner.check()
        self.newest = number
        self._segments[place : place + count] = [_light(Whole(record, tuple(parts)))]
        self._spare.update(dict.fromkeys(spare))
        if self._copies is not None:
            self._copies.keep_instead(spare, **{segment_name(number): (record, tuple(parts))})

    def _remove(self) -> None:
        for name in list(islice(self._spare, AT_ONCE)):
            self._files.remove(name)
            del self._spare[name]


def _light(whole: Whole) -> Whole:
    """A segment without its changes, if it is too large to become a part of another one."""
    return whole if whole.size <= MOST_BYTES // FAN else Whole(whole.record, ())
