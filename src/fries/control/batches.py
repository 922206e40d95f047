"""Which batch runs now, which are finished, and which workers have tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from fries.errors import WireError

MOST_TASKS: Final = 1_000
"""Tasks that a worker has begun and not ended: it runs one at a time, and a few may get lost."""


class Batches:
    """The batches of a flow, as its tasks and Spark's progress tell."""

    def __init__(self, is_over: Callable[[int], bool] = lambda _: True) -> None:
        self._is_over = is_over
        """Whether a batch job is over: between two of its stages it has no task."""
        self.finished = -1
        """The newest batch that is known to be committed by Spark."""
        self._current: int | None = None
        self._jobs: set[int] = set()
        """Batch jobs that count as the current batch."""
        self._running: dict[str, int] = {}
        """By worker, how many tasks it has begun and not ended."""

    def begin(self, worker: str, batch: int) -> bool:
        """A task begins; whether a batch begins with it."""
        if self._running.get(worker, 0) >= MOST_TASKS:
            raise WireError("a worker begins more tasks than it can run")
        is_first = self._is_first(batch)
        if is_first:
            self.finished = max(self.finished, batch - 1)
            self._current = batch
            self._jobs.clear()
        if batch < 0:
            self._jobs.add(batch)
        self._running[worker] = self._running.get(worker, 0) + 1
        return is_first

    def end(self, worker: str) -> None:
        """A task ended."""
        self._running[worker] = max(0, self._running.get(worker, 0) - 1)

    def leave(self, worker: str) -> None:
        """A worker is gone, and its tasks."""
        self._running.pop(worker, None)

    def running(self, worker: str) -> int:
        """How many tasks a worker has begun and not ended."""
        return self._running.get(worker, 0)

    def rest(self, finished: float) -> bool:
        """Batches up to a number are committed; whether none is under way."""
        if finished < math.inf:
            self.finished = max(self.finished, int(finished))
        return self._current is None or self._current <= finished

    @property
    def jobs_over(self) -> bool:
        """Whether all batch jobs that have begun are over."""
        busy = any(self._running.values())
        return bool(self._jobs) and not busy and all(map(self._is_over, self._jobs))

    def cut(self) -> None:
        """The query begins anew."""
        self._current = None
        self._jobs.clear()

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
        if batch in self._jobs or any(self._running.values()):
            return False
        return all(map(self._is_over, self._jobs))
