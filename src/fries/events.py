"""What happens to a running flow, as typed objects: for listeners and for the log.

::

    Event
     +-- ChangeEvent              something became of a change
     |    +-- ChangeRequested
     |    +-- ChangeCommitted     workers switch to it
     |    +-- ChangeDone          every target has taken rows by it, and their batch is over
     |    +-- ChangeAborted       it never happened
     |    +-- ChangeRolledBack    it failed on live rows, and was taken back
     +-- OperatorFailed           a version raised on live rows
     +-- QueryStarted
     +-- QueryRestarting          it failed, and will be started again
     +-- QueryGivenUp             it failed for good
     +-- QueryEnded               it was stopped, or has no more to do

``str(event)`` is the line that is logged.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final

MOST_LINE: Final = 500
"""Characters of a line that people are told."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Event(ABC):
    """Something that happened to a flow."""

    level: ClassVar[int] = logging.INFO
    """How it is logged."""
    flow: str
    time: datetime = field(default_factory=_now, kw_only=True)

    def __str__(self) -> str:
        return f"flow {self.flow!r}: {self._what()}"

    @abstractmethod
    def _what(self) -> str:
        """What has happened, in one line or, with a traceback, in some."""


@dataclass(frozen=True)
class ChangeEvent(Event):
    """Something became of a change."""

    number: int
    targets: tuple[str, ...]
    labels: tuple[str, ...]
    """Of each target, the label of the version that the change brings."""

    @property
    def change(self) -> str:
        """The change, for people."""
        return f"change {self.number} of {named(self.targets, self.labels)}"


@dataclass(frozen=True)
class ChangeRequested(ChangeEvent):
    """Somebody wants a change."""

    scheduler: str = "fries"
    note: str = ""

    def _what(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.change} is requested by {self.scheduler}{note}"


@dataclass(frozen=True)
class ChangeCommitted(ChangeEvent):
    """All workers have loaded it, and switch."""

    def _what(self) -> str:
        return f"{self.change} is committed"


@dataclass(frozen=True)
class ChangeDone(ChangeEvent):
    """Every target has taken rows by its new version, and no old one is used any more."""

    delay: float | None = None
    """Seconds from the request until no target used its old version."""

    def _what(self) -> str:
        took = "" if self.delay is None else f", switched after {self.delay * 1000:.1f} ms"
        return f"{self.change} is done{took}"


@dataclass(frozen=True)
class ChangeAborted(ChangeEvent):
    """It never happened."""

    level: ClassVar[int] = logging.WARNING
    reason: str = ""

    def _what(self) -> str:
        return f"{self.change} is aborted: {first_line(self.reason)}"


@dataclass(frozen=True)
class ChangeRolledBack(ChangeEvent):
    """It was taken back: its version failed on live rows, or it came after one that did."""

    level: ClassVar[int] = logging.WARNING
    reason: str = ""
    """Begins with one line: operator, row and error."""
    operator: str = ""
    """The operator that failed, if that is known."""
    row: str = ""
    problem: str = ""
    story: str = ""
    """The traceback."""
    way: str = ""
    """``in place``: the query ran on; ``replayed``: it was started again, with the whole batch."""

    def _what(self) -> str:
        way = f" ({self.way})" if self.way else ""
        told = first_line(self.reason)
        return f"{self.change} is rolled back{way}: {told}{_indented(self.story)}"


@dataclass(frozen=True)
class OperatorFailed(Event):
    """A version of an operator raised on live rows; Spark fails its task."""

    level: ClassVar[int] = logging.ERROR
    operator: str
    change: int
    """The change that brought the version; 0: the flow was built with it."""
    row: str
    problem: str
    story: str

    def _what(self) -> str:
        return f"{self.headline}{_indented(self.story)}"

    @property
    def headline(self) -> str:
        """Operator, row and error in one line."""
        return headline(self.operator, self.row, self.problem)


@dataclass(frozen=True)
class QueryStarted(Event):
    """A query was started, or started again."""

    query: str
    """Spark's id of it, which belongs to the checkpoint."""

    def _what(self) -> str:
        return f"query {self.query} is started"


@dataclass(frozen=True)
class QueryRestarting(Event):
    """The query failed, and will be started again."""

    level: ClassVar[int] = logging.WARNING
    reason: str
    """Begins with one line."""
    restart: int
    """Which one it is without a committed batch in between, counted from 1."""
    most: int
    """After so many it is given up."""
    pause: float
    """Seconds until then."""

    def _what(self) -> str:
        again = f"restart {self.restart} of {self.most} in {self.pause:.1f} s"
        return f"the query failed, {again}: {self.reason}"


@dataclass(frozen=True)
class QueryGivenUp(Event):
    """The query failed, and will not be started again."""

    level: ClassVar[int] = logging.ERROR
    reason: str
    """Begins with one line."""

    def _what(self) -> str:
        return f"the query is given up: {self.reason}"


@dataclass(frozen=True)
class QueryEnded(Event):
    """The query was stopped, or its source has no more rows."""

    def _what(self) -> str:
        return "the query has ended"


def named(targets: tuple[str, ...], labels: tuple[str, ...]) -> str:
    """Operators with the labels of their versions."""
    pairs = zip(targets, labels or ("",) * len(targets), strict=True)
    return ", ".join(f"{name} ({label})" if label else name for name, label in pairs)


def headline(operator: str, row: str, problem: str) -> str:
    """A failure on live rows in one line."""
    if not operator:
        return first_line(problem)
    where = f" on {row}" if row else ""
    return f"operator {operator!r} failed{where}: {first_line(problem)}"


def first_line(text: str) -> str:
    """What a text says first: a reason begins with one line for people."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= MOST_LINE else first[:MOST_LINE] + "..."


def _indented(story: str) -> str:
    lines = story.rstrip().splitlines()
    return "".join(f"\n    {line}" for line in lines)
