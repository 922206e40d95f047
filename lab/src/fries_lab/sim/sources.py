"""Where tuples come from: rates, back-pressure, mini-batches, and the gate for restarts.

In a pipelined run a source that is held up by back-pressure makes no new tuples, so their
latency starts when they enter. While the gate is shut (a restart) or a mini-batch is being
collected, tuples queue up at the source and their latency counts from their birth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fries_lab.sim.behaviour import mix
from fries_lab.sim.setup import Rate

if TYPE_CHECKING:
    from fries_lab.sim.engine import Simulation
    from fries_lab.sim.workers import SimWorker

NO_LIMIT: Final = 1 << 62


class Sources:
    """All source workers of a simulation."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._interval = sim.setup.batch_interval
        self._shut = 0
        """Changes that keep the gate shut."""
        self._due = False
        self._batch_running = False
        self._at_boundary: list[Callable[[], None]] = []
        graph = sim.setup.graph
        self.workers = [worker for worker in sim.workers if graph[worker.operator].source]
        for number, worker in enumerate(self.workers):
            worker.source = number
            worker.allowance = NO_LIMIT if self._interval is None else 0
            sim.at(0.0, self._tick, worker)
        if self._interval is not None:
            sim.at(self._interval, self._boundary)

    def restart(self, worker: SimWorker) -> None:
        """Begin to make tuples again, after a recovery."""
        worker.allowance = NO_LIMIT
        self._sim.at(self._sim.now, self._tick, worker)

    def emit(self, worker: SimWorker) -> bool:
        """Send the next tuple on its way; ``False`` if there is none or none is wanted."""
        if not worker.backlog or not worker.allowance or self._shut:
            if not worker.backlog:
                self._go_on(worker)
            return False
        born = worker.backlog.popleft()
        worker.allowance -= 1
        self.release(worker, born)
        return True

    def release(self, worker: SimWorker, born: float, *, log: bool = True) -> None:
        """Give a tuple its number and let it into the dataflow."""
        assert worker.source is not None
        txn = worker.emitted * len(self.workers) + worker.source
        worker.emitted += 1
        if log and self._sim.setup.logging:
            worker.log.append(-1)
        self._sim.ingest(worker, (txn, mix(txn), born, 0))

    def is_before(self, txn: int, emitted: list[int]) -> bool:
        """Whether a tuple left its source before that source had emitted so many."""
        return txn // len(self.workers) < emitted[txn % len(self.workers)]

    def at_boundary(self, then: Callable[[], None]) -> None:
        """Do something between two mini-batches; go on with :meth:`open`."""
        self._at_boundary.append(then)
        if not self._batch_running:
            self._batch_done()

    def close(self, then: Callable[[], None]) -> None:
        """Let nothing more in, and call back when everything in flight has left.

        A running mini-batch is finished first. Go on with :meth:`open`.
        """
        if self._interval is not None:
            self.at_boundary(then)
            return
        self._shut += 1
        before = self._sim.when_drained
        self._sim.when_drained = then if before is None else partial(_both, before, then)
        for worker in self.workers:
            self._go_on(worker)
        if not self._sim.inflight:
            self.check_drained()

    def open(self) -> None:
        """Let tuples in again, once nobody else keeps them out."""
        self._shut -= 1
        if self._shut:
            return
        if self._interval is not None and self._due:
            self._start_batch()
        for worker in self.workers:
            self._sim.wake(worker)

    def reopen(self, shut: int) -> None:
        """After a crash: only so many changes keep the gate shut."""
        self._shut = shut

    def check_drained(self) -> None:
        """Nothing is in flight: tell whoever waits, unless a batch has more to come."""
        if self._batch_running and any(w.allowance and w.backlog for w in self.workers):
            return
        then, self._sim.when_drained = self._sim.when_drained, None
        if then is not None:
            self._sim.at(self._sim.now, then)

    def _tick(self, worker: SimWorker) -> None:
        """A tuple is born; in a pipelined run only if the one before it has left."""
        setup = self._sim.setup
        if setup.most_tuples is not None:
            made = worker.emitted + len(worker.backlog) + worker.replay.count(-1)
            if made >= setup.most_tuples:
                return
        if worker.backlog and not self._shut and self._interval is None:
            worker.paused = True
            return
        worker.backlog.append(self._sim.now)
        self._sim.wake(worker)
        rate = _current(setup.rates[worker.operator], self._sim.now)
        self._sim.at(self._sim.now + 1.0 / rate, self._tick, worker)

    def _go_on(self, worker: SimWorker) -> None:
        """Make tuples again after a pause."""
        if worker.paused:
            worker.paused = False
            self._sim.at(self._sim.now, self._tick, worker)

    def _boundary(self) -> None:
        assert self._interval is not None
        self._sim.at(self._sim.now + self._interval, self._boundary)
        self._due = True
        if not self._batch_running and not self._shut:
            self._start_batch()

    def _start_batch(self) -> None:
        self._due = False
        self._batch_running = True
        for worker in self.workers:
            worker.allowance = len(worker.backlog)
            self._sim.wake(worker)
        self._sim.when_drained = self._batch_done
        if not any(worker.allowance for worker in self.workers):
            self.check_drained()

    def _batch_done(self) -> None:
        self._batch_running = False
        waiting, self._at_boundary = self._at_boundary, []
        if waiting:
            self._shut += len(waiting)
            for then in waiting:
                then()
        elif self._due:
            self._start_batch()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _current(rates: tuple[Rate, ...], now: float) -> float:
    return [rate.per_second for rate in rates if rate.start <= now][-1]
