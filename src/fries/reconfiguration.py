"""The handle of a reconfiguration that is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fries.control.changes import Change
from fries.control.messages import Failed
from fries.errors import AbortedError, RolledBackError
from fries.plan import Plan
from fries.protocol.controller import Phase

Undo: TypeAlias = "Callable[[Plan, int, float, str], Reconfiguration]"


@dataclass(frozen=True)
class Reconfiguration:
    """How a reconfiguration goes. Times are seconds."""

    plan: Plan
    _change: Change = field(repr=False)
    _undo: Undo = field(repr=False)

    def __str__(self) -> str:
        who = f"{', '.join(self.plan.targets)} by {self.plan.scheduler}"
        took = "" if self.delay is None else f", switched after {self.delay * 1000:.1f} ms"
        return f"change {self.number} of {who}: {self.state}{took}"

    @property
    def number(self) -> int:
        """Its number, as :meth:`fries.Flow.history` tells it."""
        return self._change.number

    @property
    def state(self) -> str:
        """``queued``, ``preparing``, ``committed``, ``done``, ``aborted`` or ``rolled back``.

        A committed change is done when its micro-batch is; a batch job is one batch.
        """
        return Phase.ROLLED_BACK.value if self.failure else self._change.phase.value

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

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have switched; ``False`` if that takes too long.

        Raises :class:`~fries.errors.AbortedError`, with the traceback of the worker that
        could not load a function, if nothing was changed, and
        :class:`~fries.errors.RolledBackError` if it failed on live rows and was taken back.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        settled = self._change.wait(deadline)
        if self._change.phase is Phase.ABORTED:
            raise AbortedError(self.reason)
        if self._change.phase is Phase.ROLLED_BACK or self.failure is not None:
            raise RolledBackError(self.plan.targets, self.reason)
        return settled

    def undo(self, timeout: float = 60.0, note: str = "") -> Reconfiguration:
        """Take it back, by a reconfiguration like this one with the versions from before.

        States follow by the ``inverse`` of its updates. Refused if it migrated states and has
        no inverse, if another change of the same operators has come after it, or if it never
        happened.
        """
        return self._undo(self.plan, self.number, timeout, note)
