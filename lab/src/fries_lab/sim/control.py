"""The control plane of the simulated engine: drives the protocol's machines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fries.plan import CommitPoint, Plan, Propagation
from fries.protocol.messages import Abort, FromWorker, Part, Prepare, Retire, ToWorker
from fries.protocol.worker_events import Drop, Load, Loaded, Received, Say, Switch
from fries_lab.errors import SimulationError
from fries_lab.sim.controller import (
    CheckpointComplete,
    CheckpointDue,
    Controller,
    ControllerEvent,
    Drained,
    Heard,
    Joined,
    Phase,
    Record,
    Send,
)
from fries_lab.sim.metrics import ChangeRecord
from fries_lab.sim.model import Barrier, Marker
from fries_lab.sim.worker_machine import (
    AligningEvent,
    AligningInstruction,
    Block,
    SendMarkers,
    TakeSnapshot,
    Unblock,
)

if TYPE_CHECKING:
    from fries_lab.sim.engine import Simulation
    from fries_lab.sim.workers import SimWorker


class ControlPlane:
    """The controller, its messages under way, and the carrying out of instructions."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._by_name = {worker.name: worker for worker in sim.workers}
        self.records: dict[int, ChangeRecord] = {}
        """By number, the changes that were submitted: what a durable log would keep."""
        self.fenced: set[int] = set()
        """Tagged changes for whose last old tuple the engine waits."""
        self.controller = Controller(guard=sim.setup.guard)
        self._join_all()
        if sim.setup.checkpoint_interval is not None:
            sim.at(sim.setup.checkpoint_interval, self.checkpoint_due)

    def restart(self) -> None:
        """A new controller after a crash: it knows the numbers used so far, and the workers."""
        before = self.controller
        self.controller = Controller(
            last=before.last, checkpoint=before.checkpoint, guard=before.guard
        )
        self._join_all()

    def request(self, plan: Plan) -> None:
        """A reconfiguration is asked for, now."""
        record = ChangeRecord(plan, self._sim.now)
        self._sim.metrics.changes.append(record)
        match plan.commit:
            case CommitPoint.NOW:
                self._submit(record)
            case CommitPoint.NEXT_BATCH:
                if self._sim.setup.batch_interval is None:
                    raise SimulationError(
                        "the mini_batch scheduler needs mini-batches; give Setup a batch_interval"
                    )
                self._sim.sources.at_boundary(lambda: self._submit(record))
            case CommitPoint.RESTART:
                restarted = self._sim.setup.restart_time
                self._sim.sources.close(
                    lambda: self._sim.at(self._sim.now + restarted, self._submit, record)
                )

    def drive(self, event: ControllerEvent) -> None:
        """Feed the controller and carry out what it says."""
        self.controller, instructions = self.controller.handle(event)
        for instruction in instructions:
            match instruction:
                case Send(worker, message):
                    arrival = self._sim.now + self._sim.setup.control_latency
                    self._sim.at(arrival, self.arrive, self._by_name[worker], message)
                case Record(change, phase, _):
                    self._note(change, phase)
                case CheckpointComplete(checkpoint):
                    self._sim.recovery.complete(checkpoint)

    def tell(self, worker: SimWorker, event: AligningEvent) -> None:
        """Feed a worker's machine and carry out what it says."""
        worker.machine, instructions = worker.machine.handle(event)
        for instruction in instructions:
            self._carry_out(worker, instruction)

    def used(self, old: int) -> None:
        """Some target used the old version of these tagged changes (bits) just now."""
        while old:
            lowest = old & -old
            self.records[lowest.bit_length() - 1].last_old = self._sim.now
            old ^= lowest

    def _submit(self, record: ChangeRecord) -> None:
        record.number = self.controller.last + 1
        self.records[record.number] = record
        self.drive(self._sim.topology.request(record.plan))

    def _join_all(self) -> None:
        graph = self._sim.setup.graph
        for worker in self._sim.workers:
            self.drive(Joined(worker.name, worker.name, source=graph[worker.operator].source))

    def checkpoint_due(self) -> None:
        """Ask for a checkpoint, and again after the interval."""
        interval = self._sim.setup.checkpoint_interval
        assert interval is not None
        self.drive(CheckpointDue())
        self._sim.at(self._sim.now + interval, self.checkpoint_due)

    def arrive(self, worker: SimWorker, message: ToWorker) -> None:
        """A message reaches a worker: loading goes on at once, the rest between two tuples."""
        if isinstance(message, Prepare | Abort | Retire) and not worker.replay:
            self.obey(worker, message)
        else:
            worker.control.append(message)
            self._sim.wake(worker)

    def obey(self, worker: SimWorker, message: ToWorker) -> None:
        """A worker takes a message up."""
        if self._sim.setup.logging:
            worker.log.append(message)
        self.tell(worker, Received(message))

    def _note(self, change: int, phase: Phase) -> None:
        record = self.records[change]
        record.phase = phase
        if phase is Phase.DONE:
            record.done = self._sim.now
            if record.plan.commit is not CommitPoint.NOW:
                self._sim.sources.open()

    def _heard(self, event: Heard) -> None:
        self.drive(event)
        if not self._sim.recovery.replaying:
            self.await_drained()

    def await_drained(self) -> None:
        """Tagged changes are over when what was in flight at the last switch has left."""
        for change in self.controller.changes:
            switched = change.phase is Phase.COMMITTED and not change.waiting
            if change.tagged and switched and change.number not in self.fenced:
                self.fenced.add(change.number)
                self._sim.fence(partial(self.drive, Drained(change.number)))

    def _carry_out(self, worker: SimWorker, instruction: AligningInstruction) -> None:
        sim = self._sim
        match instruction:
            case Say(message):
                assert isinstance(message, FromWorker), "it has no tasks"
                arrival = sim.now + sim.setup.control_latency
                sim.at(arrival, self._heard, Heard(worker.name, message))
            case Load(change):
                self._load(worker, change, dict(worker.machine.parts)[change])
            case Switch(change, targets):
                self._switch(worker, change, targets)
            case SendMarkers(change, channels):
                for channel in channels:
                    sim.send(worker, channel, Marker(change))
            case Block(channel):
                worker.blocked.add(channel)
            case Unblock(channels):
                sim.unblock(worker, channels)
            case TakeSnapshot(checkpoint):
                sim.recovery.snapshot(worker, checkpoint)
                for channel in sim.topology.outputs[worker.number]:
                    sim.send(worker, channel, Barrier(checkpoint))
            case Drop(change):
                self._drop(worker, change)

    def _load(self, worker: SimWorker, change: int, part: Part) -> None:
        """Load in the background; a replay waits for nothing, since it has been loaded before."""
        if self._is_tagged(change) and part.targets:
            worker.tag_bits |= 1 << change
        load_time = 0.0 if self._sim.recovery.replaying else self._sim.setup.load_time
        if load_time:
            self._sim.at(self._sim.now + load_time, self.tell, worker, Loaded(change))
        else:
            self.tell(worker, Loaded(change))

    def _switch(self, worker: SimWorker, change: int, targets: tuple[str, ...]) -> None:
        self.records[change].switched[worker.name] = self._sim.now
        if self._is_tagged(change):
            part = dict(worker.machine.parts)[change]
            worker.stamps.append((1 << change, part.entries))
        elif targets:
            worker.version += 1

    def _drop(self, worker: SimWorker, change: int) -> None:
        """Forget an aborted change; make a tagged one that is done part of the base."""
        bit = 1 << change
        worker.stamps = [stamp for stamp in worker.stamps if stamp[0] != bit]
        if worker.tag_bits & bit:
            worker.tag_bits ^= bit
            worker.version += self.records[change].phase is Phase.DONE

    def _is_tagged(self, change: int) -> bool:
        return self.records[change].plan.propagation is Propagation.TAGS
