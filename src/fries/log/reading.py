"""What a log says, and what of it is damaged, missing, or known from its copy. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fries.errors import LogDamagedError, LogError
from fries.log.copies import readable
from fries.log.files import Files
from fries.log.pieces import Buffer
from fries.log.records import (
    Committed,
    Effective,
    Ended,
    Founded,
    Intent,
    Owned,
    Record,
    Segment,
    decode,
)
from fries.log.segments import LATE, Found, Past, Whole, find, segment_name
from fries.log.segments import NAME as SEGMENT

NAME: Final = re.compile(r"([0-9]{8})\.(flow|intent|commit|since|end|owner)")
KINDS: Final[dict[type[Record], str]] = {
    Founded: "flow",
    Intent: "intent",
    Committed: "commit",
    Effective: "since",
    Ended: "end",
    Owned: "owner",
    Segment: "segment",
}
MOST_READINGS: Final = 20
"""A driver that has been replaced puts one segment more into a log at most, not so many."""


@dataclass
class Logged:
    """What the log says about a change."""

    number: int
    intent: Intent | None = None
    payload: tuple[memoryview, ...] = field(default=(), repr=False)
    """Its pickled functions and what they hold; nothing if others have replaced them."""
    lost: str = ""
    """Why its functions cannot be read, although the rest of it is known."""
    flow: Founded | None = None
    """The code of a start when this was the newest change."""
    commit: Committed | None = None
    effective: Effective | None = None
    end: Ended | None = None
    void: bool = False
    """Whether its commit does not count: of a driver that had been replaced, and told nobody."""
    told: bool = False
    """Whether something tells of a commit, be it lost or not: what is written only after one."""
    damage: dict[str, str] = field(default_factory=dict)
    """By kind of record, why it cannot be read, if so."""
    covered: bool = False
    """Whether a segment has it: then single files of it do not count, but for a late end."""
    functions: bool = False
    """Whether that segment says that its functions are needed."""

    @property
    def happened(self) -> bool:
        """Whether it was committed and not taken back."""
        return self.commit is not None and not self.ended_as("aborted", "rolled back")

    @property
    def since(self) -> int | None:
        """The first micro-batch with it; ``None`` if no batch that was committed has it.

        If that cannot be read it is taken for an old one: it can be undone, but not erased.
        """
        if "since" in self.damage:
            return -1
        if self.effective is not None:
            return self.effective.since
        return None if self.commit is None else self.commit.since

    @property
    def commit_lost(self) -> bool:
        """Whether it was committed, and the commit is lost in the log and in its copy."""
        return self.commit is None and self.told and not self.ended_as("aborted", "rolled back")

    def add(self, past: Past) -> None:
        """Note what a segment says; one after the other, in their order."""
        self.covered, self.functions = True, past.functions
        self.intent = past.intent or self.intent
        self.commit = past.commit or self.commit
        self.effective = past.effective or self.effective
        if past.end is not None:
            self.finish(past.end)

    def finish(self, end: Ended) -> None:
        """Note an end: that of the later driver counts."""
        if self.end is None or end.owner >= self.end.owner:
            self.end = end

    def ended_as(self, *phases: str) -> bool:
        """Whether its end is known to be one of these."""
        return self.end is not None and self.end.phase in phases

    def loss(self, newest: int) -> str:
        """What of a change that happened was lost, if something was.

        What a crash has cut short is the newest; anything else was damaged afterwards.
        """
        if self.commit is not None and self.intent is None:
            return self.damage.get("intent", f"the intent of change {self.number} is missing")
        if self.commit_lost:
            return self.damage.get("commit", f"the commit of change {self.number} is missing")
        if self.number < newest:
            torn = "" if self.ended_as("aborted", "rolled back") else self.damage.get("commit", "")
            if self.commit is not None:  # it may have been taken back
                torn = torn or self.damage.get("end", "")
            return torn or self.damage.get("flow", "")
        return ""


class Restored(NamedTuple):
    """A record that is known although its file is damaged or missing."""

    name: str
    record: Record
    why: str
    payload: tuple[Buffer, ...] = ()


class Reading:
    """All records of a log, with those of its copy where its own are of no use.

    Another driver may write meanwhile, and remove what a segment has. It writes the segment first,
    so whoever sees no new one in the end has seen all that counts.
    """

    def __init__(self, files: Files, copies: Files | None = None) -> None:
        self.place = files.place
        self._files, self._copies = files, copies
        for _ in range(MOST_READINGS):
            self._read()
            if _segments_in(files.names()) == _segments_in(self.listed):
                return
        raise LogError(f"the log in {self.place} changes faster than it can be read")

    def _read(self) -> None:
        self.last = 0
        """The highest number that was ever used."""
        self.founded: Founded | None = None
        self.base: tuple[memoryview, ...] = ()
        """The operators that the changes build on, pickled."""
        self.base_number = 0
        """The number of the record that has them."""
        self.flow_number = 0
        """The number of the record that says with which code the flow was started last."""
        self.owners: dict[int, Owned] = {}
        """By number, the drivers that this log has had, as far as known."""
        self.last_owner = 0
        self.restored: list[Restored] = []
        self.late: dict[str, Ended] = {}
        """By file, ends that came when a segment may have had their changes already."""
        self._found: dict[int, Logged] = {}
        # the copy first: what is written meanwhile is in the log before it is in the copy
        self.copied = frozenset(() if self._copies is None else readable(self._copies))
        self.listed = frozenset(self._files.names())
        self._see_owners()
        self._see_segments()
        for name in sorted(self.listed | self.copied):
            if NAME.fullmatch(name) or LATE.fullmatch(name):
                self._see(name)
        for logged in self._found.values():
            if logged.functions:
                self._see_functions(logged)
        self._forget_void()
        for logged in self._found.values():
            logged.told = not (logged.covered or logged.void) and self._tells(logged)
        self.segments.blame(self._newest_told())
        self.changes = [logged for _, logged in sorted(self._found.items())]
        """The changes, oldest first, with those of which little is left."""

    def problems(self) -> list[str]:
        """Why nobody can go on with this log; functions that were lost may not be needed."""
        known = self.changes
        newest = max((logged.number for logged in known if logged.commit is not None), default=0)
        found = [story for logged in known if (story := logged.loss(newest))]
        found = [*self.segments.problems, *found]
        if self.founded is None and any(logged.number for logged in known):
            stories = [story for logged in known for story in logged.damage.values()]
            found = [": ".join(["it has changes of an unknown flow", *stories[:1]]), *found]
        return found

    def refuse_damage(self) -> None:
        """Raise if nobody can go on with this log."""
        if found := self.problems():
            raise LogDamagedError(self.place, tuple(found))

    def refuse_lost(self, replaced: Collection[str] = ()) -> None:
        """Raise if functions that are in force were lost, but for operators with new code."""
        lost = [
            f"the functions of operator {name!r} since change {logged.number} are lost, for "
            f"{logged.lost}; restore that file from a backup, or put the functions into the code "
            "and start it once with replace_functions=True"
            for name, logged in self.without_functions()
            if name not in replaced
        ]
        if lost:
            raise LogDamagedError(self.place, tuple(lost))

    def broken_copies(self) -> frozenset[str]:
        """Copies that cannot be read: whoever goes on does not look at them, unless needed."""
        named = [(name, found) for name in self.copied if (found := _named(name))]
        return frozenset(
            name for name, (number, kind) in named if self._copy_of(name, number, kind) is None
        )

    def singles(self) -> list[str]:
        """Files of changes that say what no segment says, also those that are lost."""
        return [name for name in sorted(self.listed | self.copied) if self._is_single(name)]

    def _is_single(self, name: str) -> bool:
        if LATE.fullmatch(name):
            return True
        if NAME.fullmatch(name) is None:
            return False
        number, kind = _kind_of(name)
        return kind not in ("flow", "owner") and not self._found[number].covered

    def spare(self) -> list[str]:
        """Files of the log that are of no use: segments have what they said, or newer records."""
        return [name for name in sorted(self.listed) if self._is_spare(name)]

    def spare_copies(self) -> list[str]:
        """The same of the copy."""
        return [name for name in sorted(self.copied) if self._is_spare(name)]

    def needs_flow(self, number: int) -> bool:
        """Whether a record of a start says something: what changes build on, or what is newest."""
        return number >= self.flow_number or number == self.base_number

    def _is_spare(self, name: str) -> bool:
        if SEGMENT.fullmatch(name):
            return name not in self.segments.names
        if NAME.fullmatch(name) is None:
            return False
        number, kind = _kind_of(name)
        if kind == "flow":
            return not self.needs_flow(number)
        logged = self._found.get(number)
        if kind == "owner" or logged is None or not logged.covered:
            return False
        return kind != "intent" or not logged.functions

    def uncommitted(self) -> tuple[int, ...]:
        """Changes without a commit, but for those that are known to be over."""
        return tuple(
            logged.number
            for logged in self.changes
            if logged.number and logged.commit is None and logged.end is None and not logged.covered
        )

    def without_functions(self) -> Iterator[tuple[str, Logged]]:
        """Operators whose newest functions were lost, each with the change that had them."""
        newest: dict[str, Logged] = {}
        for logged in self.changes:
            if logged.happened and logged.intent is not None:
                newest.update(dict.fromkeys(logged.intent.targets, logged))
        yield from ((name, logged) for name, logged in newest.items() if logged.lost)

    def _see_owners(self) -> None:
        """The last driver, and the last one that had read the log; one file each, or the same."""
        named = (found for name in self.listed if (found := NAME.fullmatch(name)))
        numbers = [int(found[1]) for found in named if found[2] == "owner"]
        self.last_owner = max(numbers, default=0)
        for number in sorted(numbers, reverse=True):
            self._see_owner(number)
            if number in self.owners and self.owners[number].seen >= 0:
                break

    def _see_segments(self) -> None:
        pasts: dict[int, list[Past]] = {}

        def look(number: int) -> Found:
            name = segment_name(number)
            record, payload, why = self._look(name, number, "segment")
            if not isinstance(record, Segment):
                return Found(None, why, name in self.copied)
            whole = Whole(record, tuple(payload))
            try:
                pasts[number] = list(whole.pasts())
            except LogError as error:
                return Found(None, f"{name}: {error}", True)
            return Found(whole, why, name in self.copied)

        settled = (one for one in self.owners.values() if one.seen >= 0)
        newest = max(settled, key=lambda one: one.number, default=None)
        numbers = _segments_in(self.listed | self.copied)
        self.segments = find(numbers, look, newest)
        for whole, why in self.segments.restored:
            self.restored.append(Restored(whole.name, whole.record, why, whole.parts))
        for whole in self.segments.live:
            for past in pasts[whole.record.number]:
                self._found.setdefault(past.number, Logged(past.number)).add(past)
        self.last = max(self._found, default=0)

    def _see(self, name: str) -> None:
        number, kind = _kind_of(name)
        if kind == "owner":
            return
        self.last = max(self.last, number)
        logged = self._found.setdefault(number, Logged(number))
        if logged.covered and kind != "flow" and not LATE.fullmatch(name):
            return
        record, payload, why = self._fetch(name, number, kind)
        if record is None:
            logged.damage[kind] = why
            return
        match record:
            case Founded():
                self._see_flow(logged, record, tuple(payload))
            case Intent():
                logged.intent, logged.payload, logged.lost = record, tuple(payload), why
            case Committed():
                logged.commit = record
            case Effective():
                logged.effective = record
            case Ended():
                logged.finish(record)
                if LATE.fullmatch(name):
                    self.late[name] = record

    def _see_flow(self, logged: Logged, record: Founded, payload: tuple[memoryview, ...]) -> None:
        self.founded = logged.flow = record
        self.flow_number = logged.number
        if payload:
            self.base, self.base_number = payload, logged.number
        for older in self._found.values():
            older.damage.pop("flow", None)

    def _see_functions(self, logged: Logged) -> None:
        """The functions of a change that a segment has."""
        name = f"{logged.number:08}.intent"
        why = f"{name} is missing"
        if name in self.listed:
            try:
                _, payload = self._decoded(self._files, name, logged.number, "intent")
            except LogError as error:
                why = f"{name}: {error}"
            else:
                logged.payload = tuple(payload)
                return
        logged.lost = why
        if logged.intent is not None:
            self.restored.append(Restored(name, logged.intent, why))

    def _fetch(
        self, name: str, number: int, kind: str
    ) -> tuple[Record | None, list[memoryview], str]:
        """A record and its payload; from the copy, why; nothing, why."""
        record, payload, why = self._look(name, number, kind)
        if record is not None and why:
            self.restored.append(Restored(name, record, why))
        return record, payload, why

    def _look(
        self, name: str, number: int, kind: str
    ) -> tuple[Record | None, list[memoryview], str]:
        why = f"{name} is missing"
        if name in self.listed:
            try:
                return *self._decoded(self._files, name, number, kind), ""
            except LogError as error:
                why = f"{name}: {error}"
        copied = self._copy_of(name, number, kind)
        return (None, [], why) if copied is None else (*copied, why)

    def _copy_of(self, name: str, number: int, kind: str) -> tuple[Record, list[memoryview]] | None:
        """What the copy says where the log cannot be read."""
        if self._copies is None:
            return None
        if name in self.copied:
            try:
                return self._decoded(self._copies, name, number, kind)
            except LogError:
                return None
        if name == f"{number:08}.end" and f"{number:08}.commit" in self.copied:
            # only bad ends are copied
            return Ended(number, 0.0, "done", "how it ended was lost"), []
        return None

    def _decoded(
        self, files: Files, name: str, number: int, kind: str
    ) -> tuple[Record, list[memoryview]]:
        record, payload = decode(files.read(name))
        of_change = number if isinstance(record, Founded) else record.number
        if (KINDS[type(record)], of_change) != (kind, number):
            raise LogError("it holds a record of another name")
        return record, payload

    def _see_owner(self, number: int) -> None:
        """A driver that has come; a torn record tells no more than that."""
        try:
            record, _ = self._decoded(self._files, f"{number:08}.owner", number, "owner")
        except LogError:
            return
        if isinstance(record, Owned):
            self.owners[number] = record

    def _tells(self, logged: Logged) -> bool:
        """Whether there is a record of a change that is written only when its commit is safe."""
        since = logged.effective is not None or "since" in logged.damage
        return since or logged.ended_as("done") or f"{logged.number:08}.intent" in self.copied

    def _forget_void(self) -> None:
        """Forget commits by a driver that had been replaced, which the next one has not seen.

        It has told them to nobody, for it looks for its successor after it has written one.
        """
        single = [one for one in self._found.values() if one.commit and not one.covered]
        said = [one.commit.owner for one in single if one.commit and one.commit.owner]
        for number in range(min(said, default=self.last_owner) + 1, self.last_owner):
            if number not in self.owners:
                self._see_owner(number)
        for logged in single:
            commit = logged.commit
            if commit is not None and any(
                owner.number > commit.owner > 0 and owner.missed(logged.number)
                for owner in self.owners.values()
            ):
                logged.commit, logged.void = None, True

    def _newest_told(self) -> int:
        """The newest segment of which another record tells."""
        commits = (one.commit for one in self._found.values() if not one.covered)
        told = [commit.segment for commit in commits if commit is not None]
        return max([*told, *(one.segment for one in self.owners.values())], default=0)


def _segments_in(names: Collection[str]) -> set[int]:
    """The numbers of the segments among some files."""
    return {int(found[1]) for name in names if (found := SEGMENT.fullmatch(name))}


def _named(name: str) -> tuple[int, str] | None:
    """Number and kind of the record in a file, if it is one."""
    found = NAME.fullmatch(name) or SEGMENT.fullmatch(name) or LATE.fullmatch(name)
    return None if found is None else _kind_of(name)


def _kind_of(name: str) -> tuple[int, str]:
    number, kind, *_ = name.split(".")
    return int(number), kind
