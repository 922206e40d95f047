"""The data path of the simulated engine: workers, channels, back-pressure, time.

A worker takes tuples from its channels in the order of their arrival, one at a time,
each for as long as its cost says, and passes its output on. A channel that is full makes
its sender wait. Between two tuples a worker looks at its control messages. Data moves
between workers in no time; what takes time is work, waiting, and control messages.

The control plane is in :mod:`fries_lab.sim.control`, failures are in :mod:`fries_lab.sim.recovery`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fries.plan import Plan
from fries.protocol.worker_events import Received
from fries.trace import Trace, TraceBuilder, updates_of
from fries_lab.errors import SimulationError
from fries_lab.sim.behaviour import mix
from fries_lab.sim.control import ControlPlane
from fries_lab.sim.metrics import Metrics, Probe
from fries_lab.sim.model import Barrier, Marker
from fries_lab.sim.recovery import Recovery
from fries_lab.sim.routing import Router
from fries_lab.sim.setup import Setup, Spread
from fries_lab.sim.sources import Sources
from fries_lab.sim.topology import Topology
from fries_lab.sim.worker_machine import BarrierArrived, MarkerArrived
from fries_lab.sim.workers import Item, Message, SimWorker

OUTSIDE: Final = -1
"""The channel that a source's own tuples come over."""


@dataclass
class Fence:
    """Waits for the tuples that were in flight at some moment, and for their descendants."""

    emitted: list[int]
    """By source worker, how many tuples it had emitted."""
    inflight: int
    passed: Callable[[], None]


class Simulation:
    """A dataflow running in simulated time. Deterministic: the same setup, the same run."""

    def __init__(self, setup: Setup, probe: Probe | None = None) -> None:
        self.setup = setup
        self.probe = probe
        self.topology = Topology(setup.graph)
        self.router = Router(self.topology, setup.behaviours, setup.weights)
        self.random = random.Random(setup.seed)
        self.metrics = Metrics()
        self.now = 0.0
        self.events = 0
        self.inflight = 0
        self.when_drained: Callable[[], None] | None = None
        self.fences: list[Fence] = []
        self.workers = [
            SimWorker(instance, setup, self.topology.inputs[instance.number])
            for instance in self.topology.workers
        ]
        channels = self.topology.channels
        self.queued = [0] * len(channels)
        self._sender = [self.workers[channel.source] for channel in channels]
        self._receiver = [self.workers[channel.target] for channel in channels]
        self._capacity = [
            setup.capacities.get(channel.edge.target, setup.capacity) for channel in channels
        ]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ready: deque[SimWorker] = deque()
        self._sequence = 0
        self.recovery = Recovery(self)
        self.control = ControlPlane(self)
        self.sources = Sources(self)

    def at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        """Do something at a later moment."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, action, arguments))

    def run(self, until: float | None = None) -> None:
        """Go on until some moment, or until nothing more happens, if that ever comes."""
        self._check_end(until)
        while self.step(until):
            pass
        if until is not None:
            self.now = max(self.now, until)

    def _check_end(self, until: float | None) -> None:
        """Refuse to run for ever: timers start again and again, and so do sources."""
        if until is not None:
            if not math.isfinite(until):
                raise SimulationError(f"{until} s is no moment to run until; give a finite one")
            return
        setup = self.setup
        reasons = {
            "checkpoint_interval": setup.checkpoint_interval is not None,
            "batch_interval": setup.batch_interval is not None,
            "no most_tuples": setup.most_tuples is None,
        }
        endless = ", ".join(reason for reason, holds in reasons.items() if holds)
        if endless:
            raise SimulationError(f"this simulation never ends ({endless}); give run an until")

    def step(self, until: float | None = None) -> bool:
        """One event; ``False`` if there is none left before ``until``."""
        ready, heap = self._ready, self._heap
        if ready:
            self._work(ready.popleft())
            return True
        if not heap or (until is not None and heap[0][0] > until):
            return False
        self.now, _, action, arguments = heapq.heappop(heap)
        self.events += 1
        action(*arguments)
        return True

    def lose_everything(self, kept: Callable[[Callable[..., None]], bool]) -> None:
        """A crash: empty all workers and channels; only some future events stay."""
        self._heap = [event for event in self._heap if kept(event[2])]
        heapq.heapify(self._heap)
        self._ready.clear()
        self.fences.clear()
        self.when_drained = None
        self.inflight = 0
        self.queued = [0] * len(self.queued)
        for worker in self.workers:
            worker.reset()

    def request(self, time: float, plan: Plan) -> None:
        """Reconfigure at some moment that is still to come."""
        if not math.isfinite(time):
            raise SimulationError(f"{time} s is no moment for a request; give a finite one")
        if time < self.now:
            raise SimulationError(f"a request at {time} s is in the past; it is {self.now} s now")
        self.at(time, self.control.request, plan)

    def wake(self, worker: SimWorker) -> None:
        """Let a worker look for something to do."""
        if not worker.busy and not worker.awake:
            worker.awake = True
            self._ready.append(worker)

    def ingest(self, worker: SimWorker, item: Item) -> None:
        """A source's own tuple."""
        self.inflight += 1
        self._complete(worker, OUTSIDE, item)

    def send(self, worker: SimWorker, channel: int, message: Message) -> None:
        """Put a message on a channel, behind whatever waits for room."""
        if worker.pending or (
            type(message) is tuple and self.queued[channel] >= self._capacity[channel]
        ):
            worker.pending.append((channel, message))
        else:
            self._deliver(channel, message)

    def _deliver(self, channel: int, message: Message) -> None:
        receiver = self._receiver[channel]
        if type(message) is tuple:
            self.queued[channel] += 1
        receiver.inbox.append((channel, message))
        if not receiver.busy and not receiver.awake:
            receiver.awake = True
            self._ready.append(receiver)

    def _work(self, worker: SimWorker) -> None:
        """Control messages first, then tuples, until there is nothing left or work to wait for."""
        worker.awake = False
        if worker.busy:
            return
        while True:
            if worker.replay:
                if worker.pending or not self._replay(worker):
                    return
                continue
            while worker.control:
                self.control.obey(worker, worker.control.popleft())
            if worker.pending:
                return
            if worker.source is not None:
                if not self.sources.emit(worker):
                    return
                continue
            if not worker.inbox:
                return
            channel, message = worker.inbox.popleft()
            if worker.blocked and channel in worker.blocked:
                worker.held.setdefault(channel, []).append(message)
            else:
                if self.setup.logging:
                    worker.log.append(channel)
                if self._take(worker, channel, message):
                    return

    def _take(self, worker: SimWorker, channel: int, message: Message) -> bool:
        """Begin with a message; whether the worker is busy with it now."""
        if isinstance(message, Marker):
            self.control.tell(worker, MarkerArrived(message.change, channel))
        elif isinstance(message, Barrier):
            self.control.tell(worker, BarrierArrived(message.checkpoint, channel))
        else:
            self._make_room(channel)
            cost = self._cost(worker)
            if cost > 0.0:
                worker.busy = True
                worker.current = message
                self.at(self.now + cost, self._finish, worker, channel, message)
                return True
            self._complete(worker, channel, message)
        return False

    def _cost(self, worker: SimWorker) -> float:
        costs = worker.costs
        cost = costs[min(worker.version, len(costs) - 1)]
        if cost.spread is Spread.EXPONENTIAL:
            return self.random.expovariate(1.0) * cost.mean * worker.slowdown
        return cost.mean * worker.slowdown

    def _finish(self, worker: SimWorker, channel: int, item: Item) -> None:
        worker.busy = False
        worker.current = None
        self._complete(worker, channel, item)
        self._work(worker)

    def _complete(self, worker: SimWorker, channel: int, item: Item) -> None:
        """The data operation itself: version, trace, output."""
        txn, uid, born, tag = item
        if worker.stamps:
            for bit, entries in worker.stamps:
                if channel == OUTSIDE or channel in entries:
                    tag |= bit
        version = worker.version
        if worker.tag_bits:
            version += (tag & worker.tag_bits).bit_count()
            self.control.used(worker.tag_bits & ~tag)
        if self.setup.trace:
            worker.txns.append(txn)
            worker.versions.append(version)
        if self.probe is not None:
            self.probe(self.now, worker.operator, born, version)
        routes: list[tuple[int, int]] = []
        if worker.unique:
            seen, merged = worker.arrivals.get(txn, (0, 0))
            worker.arrivals[txn] = seen + 1, merged | tag
            if seen + 1 == worker.joins:
                tag |= merged
                routes = self.router.route(worker.number, txn, mix(~txn))
        else:
            routes = self.router.route(worker.number, txn, uid)
        for target, child in routes:
            self.send(worker, target, (txn, child, born, tag))
        self.inflight += len(routes) - 1
        if worker.is_sink:
            self.metrics.latencies.add(self.now, self.now - born)
        if self.fences:
            self._pass_fences(txn, len(routes) - 1)
        if not self.inflight and self.when_drained is not None:
            self.sources.check_drained()

    def _make_room(self, channel: int) -> None:
        """A tuple left a channel: its sender may go on."""
        self.queued[channel] -= 1
        sender = self._sender[channel]
        if sender.pending and sender.pending[0][0] == channel:
            self._flush(sender)

    def _flush(self, worker: SimWorker) -> None:
        pending = worker.pending
        while pending:
            channel, message = pending[0]
            if type(message) is tuple and self.queued[channel] >= self._capacity[channel]:
                return
            pending.popleft()
            self._deliver(channel, message)
        self.wake(worker)

    def unblock(self, worker: SimWorker, channels: frozenset[int]) -> None:
        """Put back, in front and in order, what arrived on channels while they were blocked."""
        for channel in channels:
            worker.blocked.discard(channel)
            held = worker.held.pop(channel, [])
            worker.inbox.extendleft((channel, message) for message in reversed(held))
        self.wake(worker)

    def fence(self, passed: Callable[[], None]) -> None:
        """Call back when everything that sources have emitted so far has left."""
        emitted = [worker.emitted for worker in self.sources.workers]
        if self.inflight:
            self.fences.append(Fence(emitted, self.inflight, passed))
        else:
            passed()

    def _pass_fences(self, txn: int, more: int) -> None:
        for fence in tuple(self.fences):
            if self.sources.is_before(txn, fence.emitted):
                fence.inflight += more
                if not fence.inflight:
                    self.fences.remove(fence)
                    fence.passed()

    def _replay(self, worker: SimWorker) -> bool:
        """Do what the log says came next; ``False`` if that has to be waited for."""
        determinant = worker.replay[0]
        if not isinstance(determinant, int):
            worker.replay.popleft()
            self.control.tell(worker, Received(determinant))
            return True
        if determinant == OUTSIDE:
            worker.replay.popleft()
            self.sources.release(worker, self.now, log=False)
            return True
        for place, (channel, message) in enumerate(worker.inbox):
            if channel == determinant:
                del worker.inbox[place]
                worker.replay.popleft()
                return not self._take(worker, channel, message)
        return False

    def trace(self) -> Trace:
        """What happened, for the checker; needs ``Setup(trace=True)``."""
        if not self.setup.trace:
            raise SimulationError("nothing was recorded; give Setup trace=True")
        builder = TraceBuilder(self.setup.graph.order)
        for worker in self.workers:
            place = self.setup.graph.position[worker.operator]
            for txn, version in zip(worker.txns, worker.versions, strict=True):
                builder.record(txn, place, version)
        made = (record for _, record in sorted(self.control.records.items()) if record.committed)
        return builder.build(updates_of(record.plan.targets for record in made))
