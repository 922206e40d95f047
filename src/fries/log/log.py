"""The durable log: intent, commit and end of every change, under a query's checkpoint.

The rules that make a crash harmless: an intent is safe before its commit is written, a commit
is safe before any worker hears of it, and every record is one file that is there whole or not
at all. So a change without a commit never happened, and one with a commit is finished by
whoever comes back. Commits are written in the order of their numbers, and numbers are never
used again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fries.errors import LogError
from fries.log.files import Files
from fries.log.pieces import Buffer
from fries.log.records import (
    Committed,
    Ended,
    Founded,
    Intent,
    Record,
    Shape,
    decode,
    encode,
)
from fries.log.shape import check_fits

_NAME: Final = re.compile(r"([0-9]{8})\.(flow|intent|commit|end)")
_KINDS: Final[dict[type[Record], str]] = {
    Founded: "flow",
    Intent: "intent",
    Committed: "commit",
    Ended: "end",
}


@dataclass
class Logged:
    """What the log says about a change."""

    number: int
    intent: Intent | None = None
    payload: tuple[memoryview, ...] = field(default=(), repr=False)
    """Its pickled functions and what they hold; nothing if others have replaced them."""
    commit: Committed | None = None
    end: Ended | None = None
    damage: dict[str, str] = field(default_factory=dict)
    """By kind of record, why it cannot be read, if so."""

    @property
    def happened(self) -> bool:
        """Whether it was committed and not taken back."""
        return self.commit is not None and not self.ended_as("aborted", "rolled back")

    def ended_as(self, *phases: str) -> bool:
        """Whether its end is known to be one of these."""
        return self.end is not None and self.end.phase in phases

    def loss(self, newest: int) -> str:
        """What of a change that happened was lost, if something was.

        What a crash has cut short is the newest; anything else was damaged afterwards.
        """
        if self.commit is not None and self.intent is None:
            return self.damage.get("intent", f"the intent of change {self.number} is missing")
        if self.commit is None and self.ended_as("done"):
            return self.damage.get("commit", f"the commit of change {self.number} is missing")
        if self.number < newest:
            torn = "" if self.ended_as("aborted", "rolled back") else self.damage.get("commit", "")
            if self.commit is not None:  # it may have been taken back
                torn = torn or self.damage.get("end", "")
            return torn or self.damage.get("flow", "")
        return ""


class Log:
    """The log of one checkpoint, open for writing. Used by one thread at a time."""

    def __init__(self, files: Files, shape: Shape, replace_functions: bool = False) -> None:
        self._files = files
        self.changes: list[Logged] = []
        """What happened before, oldest first; forgotten with :meth:`forget`."""
        self.last = 0
        """The highest number that was ever used."""
        self._torn: list[Logged] = []
        founded = self._read()
        if founded is None:
            self._write(0, "flow", Founded(shape, time.time()), replace=True)
            return
        check_fits(founded.shape, shape, files.place, columns_may_differ=replace_functions)
        self._mend(founded)
        replaces = self.last if replace_functions else founded.replaces
        if replace_functions:
            self._write(replaces, "flow", Founded(shape, time.time(), replaces), replace=True)
        for change in self.changes:
            if change.number <= replaces:
                change.payload = ()

    def forget(self) -> None:
        """Let the functions of changes that were read go."""
        self.changes = []

    def intend(self, intent: Intent, payload: Sequence[Buffer]) -> None:
        """A change is being prepared."""
        self._write(intent.number, "intent", intent, payload)
        self.last = max(self.last, intent.number)

    def commit(self, number: int, since: int) -> None:
        """A change happens: from now on it is finished by whoever comes back."""
        self._write(number, "commit", Committed(number, time.time(), since))

    def end(self, ended: Ended) -> None:
        """A change is over."""
        self._write(ended.number, "end", ended, replace=True)

    def shrink(self, intent: Intent) -> None:
        """Later changes have replaced the functions of this one: keep what is left of it."""
        self._write(intent.number, "intent", intent, replace=True)

    def _write(
        self,
        number: int,
        kind: str,
        record: Record,
        payload: Sequence[Buffer] = (),
        replace: bool = False,
    ) -> None:
        self._files.write(f"{number:08}.{kind}", encode(record, payload), replace)

    def _read(self) -> Founded | None:
        """Read all that is there, and see what a crash has left unfinished."""
        founded: Founded | None = None
        found: dict[int, Logged] = {}
        for name in sorted(self._files.names()):
            if (match := _NAME.fullmatch(name)) is None:
                continue
            number = int(match[1])
            self.last = max(self.last, number)
            logged = found.setdefault(number, Logged(number))
            try:
                record, payload = decode(self._files.read(name))
                _check_place(record, number, match[2])
            except LogError as error:
                logged.damage[match[2]] = f"{name}: {error}"
                continue
            match record:
                case Founded():
                    founded = record
                    for older in found.values():
                        older.damage.pop("flow", None)
                case Intent():
                    logged.intent, logged.payload = record, tuple(payload)
                case Committed():
                    logged.commit = record
                case Ended():
                    logged.end = record
        known = [logged for _, logged in sorted(found.items())]
        self._refuse_damage(known, founded)
        self.changes = [logged for logged in known if logged.intent is not None]
        self._torn = [logged for logged in known if logged.damage]
        return founded

    def _refuse_damage(self, known: list[Logged], founded: Founded | None) -> None:
        newest = max((logged.number for logged in known if logged.commit is not None), default=0)
        for logged in known:
            if story := logged.loss(newest):
                raise LogError(f"the log in {self._files.place} is damaged ({story}); restore it")
        if founded is None and any(logged.number for logged in known):
            stories = [story for logged in known for story in logged.damage.values()]
            raise LogError(
                f"the log in {self._files.place} has changes of an unknown flow"
                + (f" ({stories[0]}); restore it" if stories else "")
            )

    def _mend(self, founded: Founded) -> None:
        """Make sure that what a crash has cut short does not look like damage later."""
        for logged in self._torn:
            if "commit" in logged.damage and logged.end is None:
                story = f"a crash has cut it short ({logged.damage['commit']})"
                self.end(Ended(logged.number, time.time(), "aborted", story))
            if "end" in logged.damage and logged.commit is not None:
                story = f"a crash has cut its end short ({logged.damage['end']})"
                self.end(Ended(logged.number, time.time(), "done", story))
            if "flow" in logged.damage:
                self._write(logged.number, "flow", founded, replace=True)


def _check_place(record: Record, number: int, kind: str) -> None:
    """Refuse a record that was written under another name: somebody has mixed up files."""
    of_change = number if isinstance(record, Founded) else record.number
    if (_KINDS[type(record)], of_change) != (kind, number):
        raise LogError("it holds a record of another name")
