"""The durable log, as its writer's thread meets it: one write after the other; some fail."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from fries.change.events import LogAbort, LogCommit, LogEffect, LogEnd, LogIntent
from fries.change.model import Order, Phase

Write: TypeAlias = "LogIntent | LogCommit | LogAbort | LogEffect | tuple[int, Phase]"
"""What is to be written; the end of a change as it was when that was asked for."""


@dataclass
class LogModel:
    """What is on disk, and what waits to be written."""

    intents: dict[int, Order] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    effects: dict[int, int] = field(default_factory=dict)
    ends: dict[int, Phase] = field(default_factory=dict)
    queue: deque[Write] = field(default_factory=deque)
    unwritten: set[int] = field(default_factory=set)
    """Changes whose intent could not be written: they cannot be committed."""
    unended: list[tuple[int, Phase]] = field(default_factory=list)
    """Ends that could not be written: they are, before the query goes on."""

    def submit(self, what: LogIntent | LogCommit | LogAbort | LogEffect | LogEnd) -> None:
        """Something is to be written when what came before it is."""
        if isinstance(what, LogEnd):
            self.queue.append((what.change.number, what.change.phase))
        else:
            self.queue.append(what)

    def write(self, works: bool, reported: bool) -> tuple[Write, str]:
        """The next thing is written or not, and that is known or not; gives it and a problem."""
        what = self.queue.popleft()
        problem = "" if works and reported else "the disk is full"
        match what:
            case LogIntent(number, order):
                if works:
                    self.intents[number] = order
                if problem:
                    self.unwritten.add(number)
            case LogCommit(number):
                if number in self.unwritten:
                    problem = "its intent is not written"
                elif works:
                    self.commits.add(number)
            case LogAbort(number):
                if number in self.unwritten:
                    problem = ""
                elif works:
                    self.ends[number] = Phase.ABORTED
            case LogEffect(_, changes, batch):
                if works:
                    for number in changes:
                        self.effects.setdefault(number, batch)
            case number, phase:
                if number in self.unwritten:
                    self.unwritten.discard(number)
                elif works and reported:
                    self.unended.append((number, phase))
                    self.flush()
                else:
                    self.unended.append((number, phase))
        return what, problem

    def flush(self) -> None:
        """Write the ends that are missing."""
        for number, phase in self.unended:
            self.ends[number] = phase
        self.unended = []

    @property
    def happened(self) -> list[int]:
        """The changes that a driver would find to have happened, if it came now."""
        gone = (Phase.ABORTED, Phase.ROLLED_BACK)
        return sorted(number for number in self.commits if self.ends.get(number) not in gone)
