"""The durable log: intent, commit and end of every change, under a query's checkpoint.

The rules that make a crash harmless: an intent is safe before its commit is written, a commit
is safe before any worker hears of it, and every record is one file that is there whole or not
at all. So a change without a commit never happened, and one with a commit is finished by
whoever comes back. Commits are written in the order of their numbers, and numbers are never
used again. What decides is written twice (:mod:`fries.log.copies`), and only by the driver that
came last (:mod:`fries.log.owners`). What is over moves into files that hold many changes each
(:mod:`fries.log.tidying`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from fries.log.copies import Copies, Whole
from fries.log.files import Files
from fries.log.owners import Ownership
from fries.log.pieces import Buffer
from fries.log.reading import Reading
from fries.log.records import (
    Committed,
    Effective,
    Ended,
    Founded,
    Intent,
    Record,
    Shape,
    encode,
)
from fries.log.segments import LATE
from fries.log.shape import check_fits
from fries.log.tidying import Tidying

MOST_MISSED: Final = 100
"""Changes whose copies a start makes up for: a crash leaves one, a log of an older Fries many."""
_logger = logging.getLogger(__name__)


class Code(NamedTuple):
    """The operators that a flow was started with."""

    digests: Mapping[str, str] = {}
    payload: tuple[Buffer, ...] = ()
    """All of them, pickled."""


class Log:
    """The log of one checkpoint, open for writing. Used by one thread at a time."""

    def __init__(
        self,
        files: Files,
        shape: Shape,
        replace_functions: bool = False,
        copies: Files | None = None,
        reading: Reading | None = None,
        owner: Ownership | None = None,
        code: Code = Code(),  # noqa: B008 - it is a constant
    ) -> None:
        """``reading`` is what was read, and found to fit, already.

        ``code`` is kept by a log that is new, or whose functions the code replaces for good.
        """
        read = reading or Reading(files, copies)
        read.refuse_damage()
        self._files, self._owner = files, owner
        self._copies = None if copies is None else Copies(copies)
        self._tidying = Tidying(files, self._copies, owner, read)
        self.changes = [logged for logged in read.changes if logged.intent is not None]
        """What happened before, oldest first; forgotten with :meth:`forget`."""
        self.last = read.last
        """The highest number that was ever used."""
        if read.founded is None:
            founded = Founded(shape, time.time(), digests=dict(code.digests))
            self._write(0, "flow", founded, code.payload, replace=True)
            return
        founded = read.founded
        if reading is None:
            check_fits(founded.shape, shape, files.place, columns_may_differ=replace_functions)
        self._mend(read, founded)
        replaces = self.last if replace_functions else founded.replaces
        if replace_functions:
            digests = dict(code.digests or founded.digests)
            self.found(Founded(shape, time.time(), replaces, digests), code.payload)
        self._tidying.drop_functions(replaces)
        for change in self.changes:
            if change.number <= replaces:
                change.payload = ()

    def forget(self) -> None:
        """Let the functions of changes that were read go."""
        self.changes = []

    def found(self, founded: Founded, payload: Sequence[Buffer] = ()) -> None:
        """From now on the flow is started with other code."""
        self._write(self.last, "flow", founded, payload, replace=True)

    def intend(self, intent: Intent, payload: Sequence[Buffer]) -> None:
        """A change is being prepared."""
        self._write(intent.number, "intent", intent, payload)
        self._tidying.begin(intent.number)
        self._tidying.expect(intent.number, f"{intent.number:08}.intent")
        self._tidying.note(intent.number, intent)
        self.last = max(self.last, intent.number)

    def commit(self, number: int) -> None:
        """A change happens: from now on it is finished by whoever comes back.

        Raises if another driver has taken the log over: it may have read the log before.
        """
        segment = self._tidying.newest
        self._note(number, "commit", Committed(number, time.time(), None, self._number, segment))
        if self._owner is not None:
            self._owner.check()

    def take_effect(self, number: int, batch: int) -> None:
        """A micro-batch is the first one that has a change; once is enough."""
        if not self._tidying.is_effective(number):
            self._note(number, "since", Effective(number, batch), replace=True)

    def end(self, ended: Ended) -> None:
        """A change is over."""
        name = self._tidying.name_of_end(ended.number, self._number)
        kind = name.partition(".")[2]
        self._note(ended.number, kind, replace(ended, owner=self._number), replace=True)

    def shrink(self, intent: Intent) -> None:
        """Later changes have replaced the functions of this one: keep what is left of it."""
        if self._tidying.has_functions(intent.number):
            self._note(intent.number, "intent", intent, replace=True)
            self._tidying.shrunk(intent.number)

    def tidy(self) -> bool:
        """Make the log shorter, if only a little; gives whether there is more to do."""
        return self._tidying.step()

    def close(self) -> None:
        """Write what is left to write, and leave the log to the next driver."""
        if self._copies is not None:
            self._copies.close()
        if self._owner is not None:
            self._owner.leave()

    @property
    def _number(self) -> int:
        """Of this driver."""
        return 0 if self._owner is None else self._owner.number

    def _note(self, number: int, kind: str, record: Record, replace: bool = False) -> None:
        """Write a record of a change that is known."""
        self._tidying.expect(number, f"{number:08}.{kind}")
        self._write(number, kind, record, replace=replace)
        self._tidying.note(number, record)

    def _write(
        self,
        number: int,
        kind: str,
        record: Record,
        payload: Sequence[Buffer] = (),
        replace: bool = False,
    ) -> None:
        if self._owner is not None:
            self._owner.check()
        name = f"{number:08}.{kind}"
        self._files.write(name, encode(record, payload), replace)
        if self._copies is not None:
            self._copies.keep(**self._copied(name, number, record))

    def _copied(self, name: str, number: int, record: Record) -> dict[str, Record]:
        """What is copied of a safe record: nothing of what never happened, nor of good ends."""
        match record:
            case Intent():
                return {}
            case Ended(phase="done") if not LATE.fullmatch(name):
                return {}
            case Committed() if (intent := self._tidying.intent_of(number)) is not None:
                return {f"{number:08}.intent": intent, name: record}
        return {name: record}

    def _mend(self, read: Reading, founded: Founded) -> None:
        """Make sure that what a crash has cut short does not look like damage later.

        What is known from the copy is written again, but not what is left of lost functions: the
        place is for the file from a backup.
        """
        for name, record, why, payload in read.restored:
            if not isinstance(record, Intent):
                if self._owner is not None:
                    self._owner.check()
                _logger.warning("the log in %s was mended: %s", read.place, why)
                self._files.write(name, encode(record, payload), replace=True)
        for logged in read.changes:
            if "commit" in logged.damage and logged.end is None:
                story = f"a crash has cut it short ({logged.damage['commit']})"
                self.end(Ended(logged.number, time.time(), "aborted", story))
            if "end" in logged.damage and logged.commit is not None:
                story = f"a crash has cut its end short ({logged.damage['end']})"
                self.end(Ended(logged.number, time.time(), "done", story))
            if "flow" in logged.damage:
                self._write(logged.number, "flow", founded, replace=True)
        if self._copies is not None:
            for missed in missing_copies(read)[-MOST_MISSED:]:
                self._copies.keep(**missed)
            self._copies.keep_instead(read.spare_copies(), **missing_segments(read))


def missing_copies(read: Reading, broken: Collection[str] = ()) -> list[dict[str, Record]]:
    """By change, oldest first, the records that its copy should have and has not."""
    missing = []
    there = read.copied.difference(broken)
    for logged in read.changes:
        flow = logged.flow if read.needs_flow(logged.number) else None
        records: dict[str, Record | None] = {"flow": flow}
        if logged.commit is not None and not logged.covered:
            records |= {
                "intent": logged.intent,
                "commit": logged.commit,
                "since": logged.effective,
                "end": logged.end if logged.ended_as("aborted", "rolled back") else None,
            }
        named = {f"{logged.number:08}.{kind}": one for kind, one in records.items()}
        if lacking := {name: one for name, one in named.items() if one and name not in there}:
            missing.append(lacking)
    if late := {name: end for name, end in read.late.items() if name not in there}:
        missing.append(dict(late))
    return missing


def missing_segments(read: Reading, broken: Collection[str] = ()) -> dict[str, Whole]:
    """The segments that the copy should have and has not."""
    there = read.copied.difference(broken)
    missing = (one for one in read.segments.live if one.name not in there)
    return {one.name: (one.record, one.parts) for one in missing}
