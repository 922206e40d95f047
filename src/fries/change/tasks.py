"""What is known of Spark's work: which batch runs, which are committed, and how each task went.

Spark executes a task again when it has failed, but also when it had completed and its output
was lost. In the second case others may have consumed rows of it already, so the repetition
must stamp its rows as before. A task that switched inside completes only after the controller
has noted where. So a task of which no end was heard either did not complete, or never
switched: repeating it with what it began with is right in both cases.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fries.control.messages import Begin, Cut, Ended, Noted
from fries.errors import WireError

MOST_TASKS: Final = 1_000
"""Tasks that a worker has begun and not ended: it runs one at a time, and a few may get lost."""


class Place(NamedTuple):
    """Which task: an action on a batch, a stage of the flow, a partition."""

    batch: int
    execution: int
    """Spark's number of the action: in ``foreachBatch`` a batch may have several."""
    stage: int
    partition: int

    @classmethod
    def of(cls, task: Begin | Ended) -> Place:
        """Where a task is."""
        return cls(task.batch, task.execution, task.stage, task.partition)


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


class Parked(NamedTuple):
    """A task of a worker that waits until the log knows in which batch changes take effect."""

    worker: str
    task: Begin | Noted
    """It begins, or it has ended and gets this answer."""
    changes: frozenset[int]
    batch: int


class Batches:
    """The batches of a flow, as its tasks and Spark's progress tell."""

    def __init__(self) -> None:
        self.finished = -1
        """The newest batch that is known to be committed by Spark."""
        self.jobs: set[int] = set()
        """Batch jobs that count as the current batch."""
        self._over: set[int] = set()
        """Those of them that are over, for all that Spark knows."""
        self._current: int | None = None
        self._running: dict[str, int] = {}
        """By worker, how many tasks it has begun and not ended."""
        self._busy = 0
        """All of these."""

    def begin(self, worker: str, batch: int) -> bool:
        """A task begins; whether a batch begins with it."""
        if self.running(worker) >= MOST_TASKS:
            raise WireError("a worker begins more tasks than it can run")
        is_first = self._is_first(batch)
        if is_first:
            self.finished = max(self.finished, batch - 1)
            self._current = batch
            self.jobs.clear()
            self._over.clear()
        if batch < 0:
            self.jobs.add(batch)
        self._running[worker] = self.running(worker) + 1
        self._busy += 1
        return is_first

    def end(self, worker: str) -> None:
        """A task ended."""
        if running := self.running(worker):
            self._running[worker] = running - 1
            self._busy -= 1

    def leave(self, worker: str) -> None:
        """A worker is gone, and its tasks."""
        self._busy -= self._running.pop(worker, 0)

    def running(self, worker: str) -> int:
        """How many tasks a worker has begun and not ended."""
        return self._running.get(worker, 0)

    def computing(self) -> tuple[str, ...]:
        """The workers that run tasks."""
        return tuple(worker for worker, running in self._running.items() if running)

    def commit(self, finished: float) -> bool:
        """Batches up to a number are committed; whether none is under way."""
        if finished < math.inf:
            self.finished = max(self.finished, int(finished))
        return self._current is None or self._current <= finished

    def end_jobs(self, over: Iterable[int]) -> bool:
        """Some batch jobs are over, for all that Spark knows; whether none is under way.

        Between two of its stages a job has no task, and at its begin Spark may not know it yet.
        """
        self._over.update(self.jobs.intersection(over))
        return bool(self.jobs) and not self._busy and self.jobs == self._over

    def cut(self) -> None:
        """The query begins anew."""
        self._current = None
        self.jobs.clear()
        self._over.clear()

    @property
    def is_job(self) -> bool:
        """Whether a batch job runs now, or was the last to run."""
        return self._current is not None and self._current < 0

    def _is_first(self, batch: int) -> bool:
        """Whether no task of a batch has come before.

        Micro-batches come one after the other, and a task of an older one may be late. Of batch
        jobs (negative numbers) several may run together: those count as one batch.
        """
        if batch >= 0:
            return self._current is None or batch > self._current
        if batch in self.jobs or self._busy:
            return False
        return self.jobs == self._over


class Attempts:
    """The tasks of a batch."""

    def __init__(self) -> None:
        self._tasks: dict[Place, _Attempt] = {}

    def begin(self, place: Place, committed: tuple[int, ...]) -> Repetition:
        """A task begins; if it is a repetition that must go as before: how."""
        before = self._tasks.get(place)
        if before is None or before.outcome is Outcome.FAILED:
            self._tasks[place] = _Attempt(committed)
            return Repetition(None, ())
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
