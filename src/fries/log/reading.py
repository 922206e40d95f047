"""What a log says, and what of it is damaged, missing, or known from its copy. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fries.errors import LogDamagedError, LogError
from fries.log.copies import readable
from fries.log.files import Files
from fries.log.records import Committed, Effective, Ended, Founded, Intent, Owned, Record, decode

NAME: Final = re.compile(r"([0-9]{8})\.(flow|intent|commit|since|end|owner)")
KINDS: Final[dict[type[Record], str]] = {
    Founded: "flow",
    Intent: "intent",
    Committed: "commit",
    Effective: "since",
    Ended: "end",
    Owned: "owner",
}


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
    told: bool = False
    """Whether something tells of a commit, be it lost or not: what is written only after one."""
    damage: dict[str, str] = field(default_factory=dict)
    """By kind of record, why it cannot be read, if so."""

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


class Reading:
    """All records of a log, with those of its copy where its own are of no use."""

    def __init__(self, files: Files, copies: Files | None = None) -> None:
        self.place = files.place
        self.last = 0
        """The highest number that was ever used."""
        self.founded: Founded | None = None
        self.base: tuple[memoryview, ...] = ()
        """The operators that the changes build on, pickled."""
        self.base_number = 0
        """The number of the record that has them."""
        self.owners: dict[int, Owned] = {}
        """By number, the drivers that this log has had, as far as known."""
        self.last_owner = 0
        self.restored: list[Restored] = []
        self._files, self._copies = files, copies
        self._found: dict[int, Logged] = {}
        # the copy first: what is written meanwhile is in the log before it is in the copy
        self.copied = frozenset(readable(copies) if copies is not None else ())
        self.names = frozenset(name for name in files.names() if NAME.fullmatch(name))
        for name in sorted(self.names | {name for name in self.copied if NAME.fullmatch(name)}):
            self._see(name)
        for logged in self._found.values():
            logged.told = self._tells(logged)
        self._forget_void()

    @property
    def changes(self) -> list[Logged]:
        """The changes, oldest first, with those of which little is left."""
        return [logged for _, logged in sorted(self._found.items())]

    def problems(self) -> list[str]:
        """Why nobody can go on with this log; functions that were lost may not be needed."""
        known = self.changes
        newest = max((logged.number for logged in known if logged.commit is not None), default=0)
        found = [story for logged in known if (story := logged.loss(newest))]
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
        named = [(name, found) for name in self.copied if (found := NAME.fullmatch(name))]
        return frozenset(
            name for name, found in named if self._copy_of(name, int(found[1]), found[2]) is None
        )

    def uncommitted(self) -> tuple[int, ...]:
        """Changes without a commit, but for those that are known to be over."""
        return tuple(
            logged.number
            for logged in self.changes
            if logged.number and logged.commit is None and logged.end is None
        )

    def without_functions(self) -> Iterator[tuple[str, Logged]]:
        """Operators whose newest functions were lost, each with the change that had them."""
        newest: dict[str, Logged] = {}
        for logged in self.changes:
            if logged.happened and logged.intent is not None:
                newest.update(dict.fromkeys(logged.intent.targets, logged))
        yield from ((name, logged) for name, logged in newest.items() if logged.lost)

    def _see(self, name: str) -> None:
        matched = NAME.fullmatch(name)
        assert matched is not None
        number, kind = int(matched[1]), matched[2]
        if kind == "owner":
            self._see_owner(name, number)
            return
        self.last = max(self.last, number)
        logged = self._found.setdefault(number, Logged(number))
        record, payload, why = self._fetch(name, number, kind)
        if record is None:
            logged.damage[kind] = why
            return
        match record:
            case Founded():
                self.founded = logged.flow = record
                if payload:
                    self.base, self.base_number = tuple(payload), number
                for older in self._found.values():
                    older.damage.pop("flow", None)
            case Intent():
                logged.intent, logged.payload, logged.lost = record, tuple(payload), why
            case Committed():
                logged.commit = record
            case Effective():
                logged.effective = record
            case Ended():
                logged.end = record

    def _fetch(
        self, name: str, number: int, kind: str
    ) -> tuple[Record | None, list[memoryview], str]:
        """A record and its payload; from the copy, why; nothing, why."""
        why = f"{name} is missing"
        if name in self.names:
            try:
                return *self._decoded(self._files, name, number, kind), ""
            except LogError as error:
                why = f"{name}: {error}"
        record = self._copy_of(name, number, kind)
        if record is not None:
            self.restored.append(Restored(name, record, why))
        return record, [], why

    def _copy_of(self, name: str, number: int, kind: str) -> Record | None:
        """What the copy says where the log cannot be read."""
        if self._copies is None:
            return None
        if name in self.copied:
            try:
                return self._decoded(self._copies, name, number, kind)[0]
            except LogError:
                return None
        if kind == "end" and f"{number:08}.commit" in self.copied:  # only bad ends are copied
            return Ended(number, 0.0, "done", "how it ended was lost")
        return None

    def _decoded(
        self, files: Files, name: str, number: int, kind: str
    ) -> tuple[Record, list[memoryview]]:
        record, payload = decode(files.read(name))
        of_change = number if isinstance(record, Founded) else record.number
        if (KINDS[type(record)], of_change) != (kind, number):
            raise LogError("it holds a record of another name")
        return record, payload

    def _see_owner(self, name: str, number: int) -> None:
        """A driver that has come; a torn record tells no more than that."""
        self.last_owner = max(self.last_owner, number)
        try:
            record, _ = self._decoded(self._files, name, number, "owner")
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
        for logged in self._found.values():
            commit = logged.commit
            if commit is not None and any(
                owner.number > commit.owner > 0 and owner.missed(logged.number)
                for owner in self.owners.values()
            ):
                logged.commit, logged.told = None, False
