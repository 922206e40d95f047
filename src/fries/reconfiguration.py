"""The handle of a reconfiguration that is under way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fries.arguments import NUMBER, expect
from fries.change.model import UNTRIED, Phase, Rows
from fries.control.live import LiveChange
from fries.control.messages import Failed
from fries.errors import AbortedError, RolledBackError, TooFewRowsError, WireError
from fries.events import first_line, named
from fries.plan import Plan

Undo: TypeAlias = "Callable[[Plan, int, float, str], Reconfiguration]"

LOOK_SECONDS: Final = 0.1
"""Between two looks whether a micro-batch that somebody waits for is committed."""
IN_PLACE: Final = frozenset({UNTRIED, Phase.DONE.value})
"""States of a change that happened, and whose micro-batch is over."""


@dataclass(frozen=True, repr=False)
class Reconfiguration:
    """How a reconfiguration goes. Times are seconds."""

    plan: Plan
    _change: LiveChange = field(repr=False)
    _undo: Undo = field(repr=False)
    _look: Callable[[], int] = field(repr=False)
    """Learns from Spark which micro-batches are committed."""

    def __str__(self) -> str:
        targets, labels = self.plan.targets, self.labels
        who = f"{named(targets, tuple(map(labels.__getitem__, targets)))} by {self.plan.scheduler}"
        if self._change.taken_back or self.failure is not None:
            return f"change {self.number} of {who}: {self.state}: {first_line(self.reason)}"
        took = "" if self.delay is None else f", switched after {self.delay * 1000:.1f} ms"
        return f"change {self.number} of {who}: {self.state}{took}"

    __repr__ = __str__

    @property
    def number(self) -> int:
        """Its number, as :meth:`fries.Flow.history` tells it."""
        return self._change.number

    @property
    def state(self) -> str:
        """``queued``, ``preparing``, ``committed``, then ``untried`` or ``done``.

        Or else ``aborted`` or ``rolled back``. A committed change is over when its micro-batch
        is; a batch job is one batch. It is ``untried`` as long as some target has not taken a row
        by its new version: then it may still fail on the first one.
        """
        return self._change.state

    @property
    def labels(self) -> Mapping[str, str]:
        """By target, the label of the version that it brings, or a short hash of its code."""
        return self._change.order.labels

    @property
    def rows(self) -> dict[str, Rows]:
        """By target, the rows that its new and its old version have taken since the commit.

        As far as workers have told, a few times a second; a task that is executed again counts
        again.
        """
        return {name: self._change.rows.get(name, Rows()) for name in self.plan.targets}

    @property
    def delay(self) -> float | None:
        """From the request until no target used its old version; ``None`` before the switch.

        Behind an exchange rows of the old epoch may still arrive after every worker has
        switched: then it grows until the batch has ended.
        """
        return self._change.delay

    @property
    def switch_delay(self) -> float | None:
        """From the commit message until the last running worker had switched."""
        settled, committed = self._change.settled, self._change.committed
        return None if settled is None or committed is None else settled - committed

    @property
    def switches(self) -> dict[str, float]:
        """By worker, how long after the request it switched."""
        begin = self._change.order.requested
        return {worker: moment - begin for worker, moment in self._change.switched.items()}

    @property
    def memory_growth(self) -> dict[str, int]:
        """By worker, how many bytes more it used at last than when it had switched."""
        return {worker: last - first for worker, (first, last) in self._change.memory.items()}

    @property
    def reason(self) -> str:
        """Why it was aborted or rolled back."""
        return self._change.reason

    @property
    def failure(self) -> Failed | None:
        """How its version failed on live rows, if it was rolled back: operator, row, traceback."""
        return self._change.failure

    @property
    def rollback(self) -> str | None:
        """How it was taken back when its version failed; ``None`` if it was not.

        ``in place``: the query ran on, and the rows that failed were processed again by the version
        before, within milliseconds. ``replayed``: the query was started again, and the whole batch
        was replayed on the version before.
        """
        way = self._change.way_back
        return None if way is None else way.value

    def wait(self, timeout: float | None = None, rows: int = 0) -> bool:
        """Wait until all workers have switched; ``False`` if that takes too long.

        With ``rows``, wait also until each target has taken so many rows by its new version:
        they went through it, which a switch alone does not say. If no more rows can come,
        because the query is over or another change has come, it raises
        :class:`~fries.errors.TooFewRowsError`.

        Raises :class:`~fries.errors.AbortedError`, with the traceback of the worker that
        could not load a function, if nothing was changed, and
        :class:`~fries.errors.RolledBackError` if it failed on live rows and was taken back.
        """
        where = f"change {self.number}"
        if timeout is not None:
            expect(where, "the timeout of wait()", timeout, NUMBER, "seconds, or nothing")
        expect(where, "rows", rows, int, "a number of rows")
        deadline = None if timeout is None else time.monotonic() + timeout
        reached = self._change.wait(deadline, rows)
        self._raise_if_taken_back()
        if self._change.no_more_rows and not self._change.taken(rows):
            taken = {name: one.new for name, one in self.rows.items()}
            raise TooFewRowsError(self.number, rows, taken, self._change.no_more_rows)
        return reached

    def wait_until_done(self, timeout: float | None = None) -> bool:
        """Wait until its micro-batch is committed; ``False`` if that takes too long.

        That is the first one with a row that could meet it; of a change that nothing has met yet,
        the one in which it was committed. A batch job is one batch. Raises as :meth:`wait` does if
        it was aborted or taken back.
        """
        where = f"change {self.number}"
        if timeout is not None:
            expect(where, "the timeout", timeout, NUMBER, "seconds, or nothing")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        finished, change = -1, self._change
        while not (reached := _is_over(change, finished)) and not change.abandoned:
            if (left := deadline - time.monotonic()) <= 0:
                break
            with suppress(WireError):  # the controller stops: the change knows
                finished = self._look()
            pause = min(LOOK_SECONDS, left)
            if change.wait_over(time.monotonic() + pause) and not _is_over(change, finished):
                time.sleep(pause)  # until Spark tells of the next batch
        self._raise_if_taken_back()
        return reached

    def undo(self, timeout: float = 60.0, note: str = "") -> Reconfiguration:
        """Take it back, by a reconfiguration like this one with the versions from before.

        States follow by the ``inverse`` of its updates. Refused if it migrated states and has
        no inverse, if another change of the same operators has come after it, or if it never
        happened.
        """
        return self._undo(self.plan, self.number, timeout, note)

    def _raise_if_taken_back(self) -> None:
        if self._change.phase is Phase.ABORTED:
            raise AbortedError(self.reason)
        if self._change.phase is Phase.ROLLED_BACK or self.failure is not None:
            raise RolledBackError(self.plan.targets, self.reason)


def _is_over(change: LiveChange, finished: int) -> bool:
    """Whether nothing can happen to a change, and no batch with it may still be thrown away."""
    met = change.since is not None and not change.taken_back
    return change.over and (not met or change.is_kept(finished) or bool(change.no_more_rows))
