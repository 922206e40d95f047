"""The handle of a reconfiguration that is under way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fries.control.changes import Change
from fries.errors import AbortedError
from fries.plan import Plan
from fries.protocol.controller import Phase


@dataclass(frozen=True)
class Reconfiguration:
    """How a reconfiguration goes. Times are seconds."""

    plan: Plan
    _change: Change = field(repr=False)

    def __str__(self) -> str:
        who = f"{', '.join(self.plan.targets)} by {self.plan.scheduler}"
        took = "" if self.delay is None else f", switched after {self.delay * 1000:.1f} ms"
        return f"change of {who}: {self.state}{took}"

    @property
    def state(self) -> str:
        """``queued``, ``preparing``, ``committed``, ``done`` or ``aborted``.

        A committed change is done when the next micro-batch begins; a batch job is one batch.
        """
        return self._change.phase.value

    @property
    def delay(self) -> float | None:
        """From the request until no target used its old version; ``None`` before the switch.

        Behind an exchange rows of the old epoch may still arrive after every worker has
        switched: then it grows until the batch has ended.
        """
        settled = self._change.settled
        if settled is None:
            return None
        return max(settled, self._change.last_old) - self._change.order.requested

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

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have switched; ``False`` if that takes too long.

        Raises :class:`~fries.errors.AbortedError`, with the traceback of the worker that
        could not load a function, if nothing was changed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        settled = self._change.wait(deadline)
        if self._change.phase is Phase.ABORTED:
            raise AbortedError(self._change.reason)
        return settled
