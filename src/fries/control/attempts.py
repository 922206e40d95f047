"""What each task of the current batch has done, so that it can be repeated as it was.

Spark executes a task again when it has failed, but also when it had completed and its output
was lost. In the second case others may have consumed rows of it already, so the repetition
must stamp its rows as before. A task that switched inside completes only after the controller
has noted where. So a task of which no end was heard either did not complete, or never
switched: repeating it with what it began with is right in both cases.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from fries.control.messages import Cut


class Place(NamedTuple):
    """Which task: an action on a batch, a stage of the flow, a partition."""

    batch: int
    execution: int
    """Spark's number of the action: in ``foreachBatch`` a batch may have several."""
    stage: int
    partition: int


class Outcome(enum.Enum):
    """What is known of an attempt."""

    UNKNOWN = "unknown"
    FAILED = "failed"
    COMPLETE = "complete"


@dataclass
class _Attempt:
    began_with: tuple[int, ...]
    """Changes in transition that it applied to its first row."""
    cuts: tuple[Cut, ...] = ()
    outcome: Outcome = Outcome.UNKNOWN
    repeated: bool = False
    """Whether another attempt was told to go as it began."""


class Repetition(NamedTuple):
    """How a task must go, because it went so before."""

    began_with: tuple[int, ...] | None
    """``None``: it is none, and begins with all that is committed."""
    cuts: tuple[Cut, ...]


class Attempts:
    """The tasks of a batch."""

    def __init__(self) -> None:
        self._tasks: dict[Place, _Attempt] = {}

    def begin(self, place: Place, committed: tuple[int, ...]) -> Repetition | None:
        """A task begins; if it is a repetition that must go as before: how."""
        before = self._tasks.get(place)
        if before is None or before.outcome is Outcome.FAILED:
            self._tasks[place] = _Attempt(committed)
            return None
        before.repeated = True
        return Repetition(before.began_with, before.cuts)

    def end(self, place: Place, complete: bool, cuts: tuple[Cut, ...]) -> bool:
        """A task ended: it gave all its rows, or it failed and gave none that count.

        ``False`` if it may not complete, because it has switched where another attempt has not
        (its executor was taken for lost, and lived on).
        """
        attempt = self._tasks.get(place)
        if attempt is None:
            return True
        if attempt.repeated or attempt.outcome is Outcome.COMPLETE:
            if complete and cuts == attempt.cuts:
                attempt.outcome = Outcome.COMPLETE
            return cuts == attempt.cuts
        attempt.outcome = Outcome.COMPLETE if complete else Outcome.FAILED
        attempt.cuts = cuts if complete else ()
        return True

    def forget(self) -> None:
        """The batch is over, or is thrown away."""
        self._tasks.clear()
