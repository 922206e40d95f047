"""Checkpoints, crashes and both ways to recover (section 7.3).

A crash loses every worker, every channel and every message under way between workers.
What is durable: completed checkpoints, the phases of changes (the controller's log), and
with ``Setup(logging=True)`` the determinants of each worker (the order of what it took, and
its control messages). The sink is transactional: what came after the checkpoint is undone.

*Checkpoint-based*: restore the last complete checkpoint. Changes that were committed and are
not in it are applied again, whole; changes that were not committed never happened.
*Logging-based*: restore the same, then let each worker repeat what its log says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fries.change.model import Phase
from fries.plan import CommitPoint, Propagation
from fries.protocol.messages import ToWorker
from fries.protocol.worker_events import Loaded
from fries_lab.errors import SimulationError
from fries_lab.sim.worker_machine import AligningWorker

if TYPE_CHECKING:
    from fries_lab.sim.engine import Simulation
    from fries_lab.sim.workers import SimWorker


REPLAY_POLL: Final = 0.001
"""Simulated seconds between two looks at whether all logs have been repeated."""


@dataclass(frozen=True)
class Snapshot:
    """What one worker saves for a checkpoint."""

    machine: AligningWorker
    version: int = 0
    emitted: int = 0
    operations: int = 0
    """Data operations that it had done."""
    determinants: int = 0
    """How much of its log it had done."""
    arrivals: dict[int, tuple[int, int]] = field(default_factory=dict)
    stamps: tuple[tuple[int, frozenset[int]], ...] = ()
    tag_bits: int = 0


class Recovery:
    """The durable side of a simulation."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._snapshots: dict[int, dict[str, Snapshot]] = {
            0: {worker.name: Snapshot(worker.machine) for worker in sim.workers}
        }
        self._contained: dict[int, frozenset[int]] = {0: frozenset()}
        """By checkpoint, the changes that were committed when it began."""
        self._last = 0
        self.replaying = False
        """Whether some worker still repeats its log."""

    def snapshot(self, worker: SimWorker, checkpoint: int) -> None:
        """Save a worker's state."""
        if checkpoint not in self._snapshots:
            self._snapshots[checkpoint] = {}
            self._contained[checkpoint] = frozenset(self._committed())
        self._snapshots[checkpoint][worker.name] = Snapshot(
            machine=worker.machine,
            version=worker.version,
            emitted=worker.emitted,
            operations=len(worker.txns),
            determinants=len(worker.log) - len(worker.replay),
            arrivals=dict(worker.arrivals),
            stamps=tuple(worker.stamps),
            tag_bits=worker.tag_bits,
        )

    def complete(self, checkpoint: int) -> None:
        """A checkpoint is complete: recovery starts from it."""
        self._last = checkpoint
        self._sim.metrics.checkpoints += 1

    def configuration(self) -> dict[str, set[int]]:
        """The versions of each operator's workers."""
        found: dict[str, set[int]] = {}
        for worker in self._sim.workers:
            found.setdefault(worker.operator, set()).add(worker.version)
        return found

    def consistent(self) -> bool:
        """Whether every committed change is in effect at all its workers, exactly once."""
        expected = Counter(
            target
            for number in self._committed()
            for target in self._sim.control.records[number].plan.targets
        )
        return all(seen == {expected[name]} for name, seen in self.configuration().items())

    def crash(self) -> None:
        """Lose everything volatile and recover, by the log if there is one."""
        sim, control = self._sim, self._sim.control
        if sim.setup.batch_interval is not None:
            raise SimulationError("crashes are simulated for pipelined runs; drop batch_interval")
        sim.metrics.crashes += 1
        unread = [tuple(worker.control) for worker in sim.workers]
        kept = [control.request, control.checkpoint_due, self.crash]
        if sim.setup.logging:
            kept.append(control.arrive)
        sim.lose_everything(lambda action: action in kept)
        for worker in sim.workers:
            self._restore(worker)
        if sim.setup.logging:
            self._replay(unread)
        else:
            self._apply_again()
            control.restart()
        sim.sources.reopen(self._stopped())
        for worker in sim.sources.workers:
            sim.sources.restart(worker)

    def _restore(self, worker: SimWorker) -> None:
        snapshot = self._snapshots[self._last][worker.name]
        worker.version = snapshot.version
        worker.emitted = snapshot.emitted
        worker.arrivals = dict(snapshot.arrivals)
        del worker.txns[snapshot.operations :]
        del worker.versions[snapshot.operations :]

    def _replay(self, unread: list[tuple[ToWorker, ...]]) -> None:
        """Repeat the log, then read what had arrived and was not in it."""
        self.replaying = True
        for worker, messages in zip(self._sim.workers, unread, strict=True):
            snapshot = self._snapshots[self._last][worker.name]
            worker.machine = snapshot.machine
            for change in snapshot.machine.core.loading[:1]:  # whatever waits for it comes next
                self._sim.control.tell(worker, Loaded(change))
            worker.stamps = list(snapshot.stamps)
            worker.tag_bits = snapshot.tag_bits
            worker.replay.extend(worker.log[snapshot.determinants :])
            worker.control.extend(messages)
            self._sim.wake(worker)
        self._sim.control.fenced.clear()
        self._sim.at(self._sim.now, self._await_replay)

    def _await_replay(self) -> None:
        if any(worker.replay for worker in self._sim.workers):
            self._sim.at(self._sim.now + REPLAY_POLL, self._await_replay)
        else:
            self.replaying = False
            self._sim.control.await_drained()

    def _stopped(self) -> int:
        """How many changes still keep the sources shut; those not submitted yet never happened."""
        stopped = 0
        for record in self._sim.metrics.changes:
            if not record.number:
                record.phase = Phase.ABORTED
            over = record.phase in (Phase.DONE, Phase.ABORTED)
            stopped += not over and record.plan.commit is not CommitPoint.NOW
        return stopped

    def _apply_again(self) -> None:
        """Finish what was committed, forget what was not."""
        sim = self._sim
        for number, record in sim.control.records.items():
            if not record.committed:
                record.phase = Phase.ABORTED
                continue
            record.phase, record.done = Phase.DONE, record.done or sim.now
            for worker in sim.workers:
                if worker.operator in record.plan.targets and not self._holds(worker, number):
                    worker.version += 1
                    record.switched[worker.name] = sim.now

    def _holds(self, worker: SimWorker, number: int) -> bool:
        """Whether a worker's restored version counts a change (by tags: only once retired)."""
        if number not in self._contained[self._last]:
            return False
        tagged = self._sim.control.records[number].plan.propagation is Propagation.TAGS
        snapshot = self._snapshots[self._last][worker.name]
        return not (tagged and number in dict(snapshot.machine.parts))

    def _committed(self) -> list[int]:
        records = self._sim.control.records
        return [number for number, record in records.items() if record.committed]
