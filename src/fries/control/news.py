"""What becomes of changes, told to users: from the control thread to log and listeners."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fries.change.model import Change, Phase, WayBack
from fries.control.messages import Failed
from fries.events import (
    ChangeAborted,
    ChangeCommitted,
    ChangeDone,
    ChangeRequested,
    ChangeRolledBack,
    OperatorFailed,
)
from fries.listening import Announcer

MOST_TOLD: Final = 1_000
"""Failures that are remembered as told: tasks that fail for the same reason are told of once."""


class News:
    """Tells each thing once."""

    def __init__(self, events: Announcer) -> None:
        self._events = events
        self.supervised = False
        """Whether a supervisor says what is done about failures: then they are mentioned only."""
        self._failures: set[tuple[str, int, str]] = set()

    def deployed(self, change: Change) -> None:
        """A start has made a change of its new code: all of it has happened at once."""
        about = self._about(change)
        self._requested(change)
        self._events.tell(ChangeCommitted(*about))
        self._events.tell(ChangeDone(*about))

    def moved(self, change: Change, state: str, failures: Iterable[Failed] = ()) -> None:
        """A change may be in another state: its phase is another one, or it has taken rows."""
        if state == change.told:
            return
        change.told = state
        match state:
            case Phase.QUEUED.value:
                self._requested(change)
            case Phase.COMMITTED.value:
                self._events.tell(ChangeCommitted(*self._about(change)))
            case Phase.DONE.value:
                self._events.tell(ChangeDone(*self._about(change), change.delay))
            case Phase.ABORTED.value:
                self._events.tell(ChangeAborted(*self._about(change), change.reason))
            case Phase.ROLLED_BACK.value:
                self._rolled_back(change, failures)

    def failed(self, failed: Failed) -> None:
        """A version failed on live rows."""
        known = failed.operator, failed.change, failed.problem
        if known in self._failures or not failed.operator:
            return
        if len(self._failures) >= MOST_TOLD:
            self._failures.clear()
        self._failures.add(known)
        event = OperatorFailed(
            self._events.flow,
            failed.operator,
            failed.change,
            failed.row,
            failed.problem,
            failed.story,
        )
        self._events.tell(event, logging.DEBUG if self.supervised else None)

    def _requested(self, change: Change) -> None:
        order = change.order
        self._events.tell(ChangeRequested(*self._about(change), order.scheduler, order.note))

    def _rolled_back(self, change: Change, failures: Iterable[Failed]) -> None:
        why = next((one for one in failures if one.change == change.number), None)
        parts = ("",) * 4 if why is None else (why.operator, why.row, why.problem, why.story)
        way = (change.way_back or WayBack.REPLAYED).value
        self._events.tell(ChangeRolledBack(*self._about(change), change.reason, *parts, way))

    def _about(self, change: Change) -> tuple[str, int, tuple[str, ...], tuple[str, ...]]:
        """What every event about a change begins with."""
        order = change.order
        labels = tuple(order.labels.get(name, "") for name in order.targets)
        return self._events.flow, change.number, order.targets, labels
