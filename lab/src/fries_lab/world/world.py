"""The world around the machines: Spark, its tasks and processes, the driver, and what users see.

A world is a value: it is copied as bytes, and every action changes it in one way only. What may
happen next is told by :mod:`fries_lab.world.choices`; that something has happened that must not, by
:class:`~fries_lab.world.process.BrokenError`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from fries.change.controller import Controller
from fries.change.events import (
    AbortLogged,
    BatchesCommitted,
    CancelTimer,
    ControllerEvent,
    ControllerInstruction,
    Decided,
    Disconnect,
    EffectLogged,
    Expired,
    Greet,
    Heard,
    Joined,
    Left,
    LogAbort,
    LogCommit,
    LogEffect,
    LogEnd,
    LogIntent,
    NotTakenBack,
    QueryBegins,
    Requested,
    Revoked,
    Send,
    SetTimer,
    Ship,
    TaskWaits,
    Tell,
    Undone,
)
from fries.change.model import UNTRIED, Change, Phase, WayBack
from fries.control import messages
from fries.control.messages import Counted, Failed, Hello, Stuck, Welcome
from fries.protocol.messages import Snapshotted
from fries.protocol.worker_events import Received
from fries_lab.world.judge import Judge
from fries_lab.world.log import LogModel
from fries_lab.world.process import Place, Process, Row, State
from fries_lab.world.scenario import Ask, Fault, Scenario

Action: TypeAlias = "tuple[str | int | Place, ...]"
"""What happens next, and to whom."""
Down: TypeAlias = "tuple[int, int] | messages.Down | None"
"""On its way to a worker: the functions of a change and its bit, a message, or the end."""
MOST_RESTARTS: Final = 4
"""Of a query, before its supervisor gives up."""
UNLOADABLE: Final = "no module named 'missing'"


NEW: Final = State()


@dataclass
class Work:
    """What Spark knows of a task."""

    state: str = "pending"
    attempts: int = 0
    out: list[Row] = field(default_factory=list)
    after: State = NEW


class World:
    """Everything, at one moment."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.faults = Counter(dict(scenario.faults))
        self.asks: dict[int, Ask] = {}
        """By change, what it is."""
        self.asked = 0
        """How many of the scenario's asks were made."""
        self.judge = Judge(self.asks)
        self.log = LogModel()
        self.controller = Controller(durable=scenario.durable)
        self._begin_driver()
        self.timers: set[int] = set()
        self.held: deque[TaskWaits] = deque()
        """Tasks that wait for a change to be taken back, one after the other."""
        self.helping = 0
        """The undo for which the first of them waits."""
        self.undoing: dict[int, Failed] = {}
        """By undo that nobody asked for, what it takes back."""
        self.processes: dict[str, Process] = {}
        self.born = 0
        self.down: dict[str, deque[Down]] = {}
        """By worker, what is on its way to it; a worker that is not in it has no connection."""
        self.finished = -1
        """The newest batch that Spark has committed."""
        self.told_finished = -1
        self.states = [State()] * scenario.partitions
        self.tasks: dict[Place, Work] = {}
        self.failed = False
        """Whether the query has failed, and was not started again."""
        self.over = False
        self.restarts = 0
        self.given_up = False
        """Whether the supervisor has: then there is work left."""
        self._plan_batch()
        self._spawn_all()

    def _begin_driver(self) -> None:
        self.controller.takes_back = self.scenario.supervised
        self.controller.probation = 100 if self.scenario.supervised else 0

    @property
    def batch(self) -> int:
        """The batch that runs, or comes next."""
        return self.finished + 1

    # What happens

    def take(self, action: Action) -> None:
        """Let it happen."""
        match action:
            case ("ask",):
                self._ask(self.scenario.asks[self.asked])
                self.asked += 1
            case ("log", _):
                self._write(works=True, reported=True)
            case ("take back",):
                self._take_back(self.held[0])
            case ("again",):
                self._again()
            case ("progress",):
                self.told_finished = self.finished
                self.drive(BatchesCommitted(math.inf if self.over else self.finished))
            case ("down", str(name)):
                self._hear_down(name)
            case ("up", str(name)):
                self._hear_up(name)
            case ("load", str(name)):
                self.processes[name].loaded(None)
            case ("row", str(name)):
                self.processes[name].step()
            case ("spawn",):
                self._spawn()
            case ("start", Place() as place, str(name)):
                self.tasks[place].state = "running"
                self.processes[name].begin(place, self._rows(place), self._state(place))
            case ("commit",):
                self._commit()
            case (Fault() as fault, *where):
                self.faults[fault] -= 1
                self._go_wrong(fault, *where)
        self._take_up_results()

    def _go_wrong(self, fault: Fault, *where: object) -> None:
        match fault, *where:
            case Fault.WORKER_DIES, str(name):
                self._die(name)
            case Fault.CONNECTION_BREAKS, str(name):
                del self.down[name]
                self.processes[name].said.clear()
                self.processes[name].lose_connection()
            case Fault.TASK_FAILS, str(name):
                self.processes[name]._give_up()
            case Fault.OUTPUT_LOST, Place() as place:
                self.tasks[place].state = "pending"
            case Fault.DRIVER_DIES, int(written):
                for _ in range(written):
                    self.log.write(works=True, reported=True)
                self._restart_driver()
            case Fault.LOG_FAILS, *_:
                self._write(works=False, reported=True)
            case Fault.LOG_AMBIGUOUS, *_:
                self._write(works=True, reported=False)
            case Fault.LOAD_FAILS, str(name):
                self.processes[name].loaded(UNLOADABLE)
            case Fault.TIME_IS_OVER, int(number):
                self.timers.discard(number)
                self.drive(Expired(number))

    # The driver

    def drive(self, event: ControllerEvent) -> None:
        """Hand an event to the controller, and carry out what it says."""
        for instruction in self.controller.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: ControllerInstruction) -> None:
        match instruction:
            case Send(workers, message):
                self._send(workers, message)
            case Ship(workers, change, bit, then):
                self._send(workers, (change, bit))
                if then is not None:
                    self._send(workers, then)
            case Greet(worker, base, skipped):
                self._send((worker,), Welcome(base, b"", dict(skipped)))
            case Disconnect(workers):
                for worker in workers:
                    if worker in self.down:
                        self.down[worker].append(None)
                        self.processes[worker].said.clear()
            case SetTimer(change):
                self.timers.add(change.number)
            case CancelTimer(number):
                self.timers.discard(number)
            case LogIntent() | LogCommit() | LogAbort() | LogEffect() | LogEnd():
                self.log.submit(instruction)
            case TaskWaits():
                self.held.append(instruction)
            case Tell(change, state):
                self._tell(change, state)
            case _:
                pass

    def _send(self, workers: tuple[str, ...], what: Down) -> None:
        for worker in workers:
            if worker in self.down:
                self.down[worker].append(what)

    def _tell(self, change: Change, state: str) -> None:
        number = change.number
        if state == Phase.COMMITTED.value:
            self.judge.promised.add(number)
        if state in (Phase.DONE.value, UNTRIED):
            self.judge.done_from.setdefault(number, self.batch)
        if change.phase is Phase.ABORTED:
            self.judge.bury(number)
        elif change.taken_back:  # for good as soon as the log knows: another driver may come before
            self.judge.withdraw(number)

    def _ask(self, ask: Ask) -> int:
        if ask.undoes and ask.undoes not in self.asks:
            return 0
        number = self.controller.last + 1
        self.asks[number] = ask
        self.judge.buried.discard(number)  # of an earlier driver, whose log has not heard of it
        self.drive(Requested(Change(number, ask.order())))
        return number

    def _write(self, works: bool, reported: bool) -> None:
        what, problem = self.log.write(works, reported)
        match what:
            case LogCommit(number):
                self.drive(Decided(number, problem))
            case LogAbort(number):
                self.drive(AbortLogged(number, problem))
            case LogEffect(ticket, _, _):
                self.drive(EffectLogged(ticket, problem))

    def _take_back(self, held: TaskWaits) -> None:
        """The supervisor hears of a task that waits: see ``Engine.roll_back_in_place``."""
        number, failed = held.failed.change, held.failed
        undo = self.helping or self._undo_of(number)
        if not undo and self._can_undo(number, held.stage):
            self.helping = self._undo(number, failed)
            return  # until that is decided
        first, self.helping = bool(self.helping), 0
        self.held.popleft()
        if undo in self.controller.changes and self.controller.changes[undo].happened:
            if first and number in self.controller.changes:
                change = self.controller.changes[number]
                self.drive(Undone(change, failed, "it raised", WayBack.IN_PLACE))
                return
            if held.worker not in self.controller.changes[undo].switched:
                return  # it will switch
        self.drive(NotTakenBack(held.worker, number))

    def _undo_of(self, number: int) -> int:
        """The change that takes another one back, if one does."""
        undos = (undo for undo in self.undoing if self.asks[undo].undoes == number)
        return next((undo for undo in undos if undo in self.controller.changes), 0)

    def is_undecided(self, number: int) -> bool:
        """Whether a change may still be aborted."""
        change = self.controller.active.get(number)
        return change is not None and change.phase is not Phase.COMMITTED

    def _can_undo(self, number: int, stage: int | None = None) -> bool:
        ask = self.asks[number]
        shared = any(
            later > number and not set(ask.targets).isdisjoint(other.targets)
            for later, other in self.asks.items()
            if later in self.controller.changes and not self.controller.changes[later].taken_back
        )
        in_place = stage is None or ask.entries == {stage}
        return in_place and not ask.undoes and not ask.migrates and not shared

    def _undo(self, number: int, failed: Failed) -> int:
        ask = self.asks[number]
        undo = self._ask(replace(ask, undoes=number, bad_from=None, at_boundary=False))
        self.undoing[undo] = failed
        return undo

    @property
    def undo_under_way(self) -> bool:
        """Whether the query waits for a change that takes another one back."""
        return any(map(self.is_undecided, self.undoing))

    def _again(self) -> None:
        """The query has failed: take back what is to blame, and start it again."""
        if self._blames():
            return
        self.restarts += 1
        if self.restarts > MOST_RESTARTS:
            self.over = self.given_up = True
            return
        self.drive(BatchesCommitted(self.finished))
        self.log.flush()
        self.drive(QueryBegins())
        self.failed = False
        self._plan_batch()

    def _blames(self) -> bool:
        """Take back what has failed; whether something must happen before the query goes on."""
        if not self.scenario.supervised:
            return False
        for failed in self.controller.failures:
            number = failed.change
            if not number or number not in self.controller.changes:
                continue
            if self.controller.changes[number].taken_back or self._undo_of(number):
                continue
            later = {
                n: "it was built on it"
                for n, ask in self.asks.items()
                if n > number and not set(ask.targets).isdisjoint(self.asks[number].targets)
                if n in self.controller.changes and not self.controller.changes[n].taken_back
            }
            reasons = {number: "it raised", **later}
            if self.controller.may_revoke(reasons):
                self.drive(Revoked(reasons))
                return bool(self.log.queue)
            if self._can_undo(number):
                self._undo(number, failed)
                return True
        return False

    def _restart_driver(self) -> None:
        """Another driver comes, and knows what the log knows."""
        for name in list(self.processes):
            del self.processes[name]
        self.down, self.timers, self.held, self.undoing = {}, set(), deque(), {}
        self.helping = 0
        self.log.queue.clear()
        self.log.unwritten.clear()
        self.log.unended.clear()
        happened = self.log.happened
        changes = [
            self._restored(number, number in happened) for number in sorted(self.log.intents)
        ]
        last = max(self.log.intents, default=0)
        for number in [number for number in self.asks if number > last]:
            self.judge.bury(number)
        self.controller = Controller(
            changes, last=last, finished=self.finished, durable=self.scenario.durable
        )
        self._begin_driver()
        self.drive(BatchesCommitted(self.finished))
        self.told_finished, self.failed = self.finished, False
        self._plan_batch()
        self._spawn_all()

    def _restored(self, number: int, happened: bool) -> Change:
        change = Change(number, self.log.intents[number], restored=True)
        if happened:
            change.phase, change.since = Phase.DONE, self.log.effects.get(number)
        else:
            change.phase = Phase.ABORTED
            self.judge.bury(number)
        return change

    # Connections

    def _spawn_all(self) -> None:
        """The workers that come first."""
        for _ in range(self.scenario.workers):
            self._spawn()
        while self.scenario.joins_at_once and self._joins():
            pass

    def _joins(self) -> bool:
        """Let the next step of those that join happen, if there is one."""
        for name, process in self.processes.items():
            if self.down.get(name):
                self._hear_down(name)
            elif process.said:
                self._hear_up(name)
            elif process.loading is not None:
                process.loaded(None)
            else:
                continue
            return True
        return False

    def _spawn(self) -> None:
        self.born += 1
        name = f"w{self.born}"
        self.down[name] = deque()
        self.processes[name] = Process(name, self.asks)

    def _hear_down(self, name: str) -> None:
        process, what = self.processes[name], self.down[name].popleft()
        match what:
            case None:
                del self.down[name]
                process.lose_connection()
            case int(change), int(bit):
                process.shipped[change] = bit
            case messages.Shipment() | messages.Piece():
                raise AssertionError("functions travel beside messages")
            case _:
                process.feed(Received(what))
        if self.scenario.loads_at_once:
            while process.loading is not None:
                process.loaded(None)

    def _hear_up(self, name: str) -> None:
        process = self.processes[name]
        if process.said:
            match process.said.popleft():
                case Hello():
                    self.drive(Joined(name))
                case Counted() | Stuck() | Snapshotted():
                    pass
                case message:
                    self.drive(Heard(name, message))
        else:
            self.drive(Left(name))
            self._forget(name)

    def _forget(self, name: str) -> None:
        """The controller knows that a connection is over; a task of the process may go on."""
        process = self.processes[name]
        if process.task is None:
            del self.processes[name]
        elif not process.may_run and not process.result:
            self._fail_task(process)
            del self.processes[name]
        else:
            process.left = True

    def _die(self, name: str) -> None:
        process = self.processes[name]
        self.down.pop(name, None)
        process.may_run, process.loading, process.dead = False, None, True
        if process.task is not None:
            self._fail_task(process)

    # Spark

    def _plan_batch(self) -> None:
        stages = (self.scenario.tasks, self.scenario.partitions)
        self.tasks = {
            Place(self.batch, stage, number): Work()
            for stage, count in enumerate(stages)
            for number in range(count)
        }
        for process in self.processes.values():  # Spark kills the tasks of a batch that has failed
            process.task, process.may_run = None, False

    def _rows(self, place: Place) -> list[Row]:
        if place.stage:
            works = [work for where, work in self.tasks.items() if not where.stage]
            rows = [row for work in works for row in work.out]
            mine = (
                slice(None)
                if self.scenario.copies
                else slice(place.partition, None, self.scenario.partitions)
            )
            return rows[mine]
        numbers = range(self.scenario.rows)
        return [Row((place.batch, place.partition, number)) for number in numbers]

    def _state(self, place: Place) -> State:
        return self.states[place.partition] if place.stage else State()

    def _take_up_results(self) -> None:
        for name, process in list(self.processes.items()):
            self._take_up(name, process)
            if process.left and process.task is None:
                del self.processes[name]

    def _take_up(self, name: str, process: Process) -> None:
        """See what has become of the task of a process."""
        task, result = process.task, process.result
        if process.dead and name in self.down:
            del self.down[name]
        if task is None or not result:
            return
        process.result = ""
        work = self.tasks.get(task.place)
        if result == "failed" or work is None:
            self._fail_task(process)
            return
        process.task = None
        work.state, work.out, work.after = "done", task.out, task.state

    def _fail_task(self, process: Process) -> None:
        assert process.task is not None
        place, process.task, process.result = process.task.place, None, ""
        process.may_run = False
        work = self.tasks.get(place)
        if work is None or work.state != "running":
            return
        work.attempts += 1
        work.state = "pending"
        if work.attempts >= self.scenario.attempts:
            self.failed = True
            for name, other in self.processes.items():
                if other.task is not None:
                    other.task = None
                    self._die(name)

    def _commit(self) -> None:
        """Spark commits the batch: what it has given counts."""
        out = [row for place, work in self.tasks.items() if place.stage for row in work.out]
        for place, work in self.tasks.items():
            if place.stage:
                self.states[place.partition] = work.after
        phases = self._phases()
        kept = [change.number for change in self.controller.changes.whole]
        self.judge.committed(self.batch, out, self.states, phases, kept)
        self.finished += 1
        self._plan_batch()
        if self.finished + 1 == self.scenario.batches:
            self.over = True
            self.drive(BatchesCommitted(math.inf))

    def _phases(self) -> dict[int, Phase]:
        return {one.number: one.phase for one in self.controller.changes.history()}

    def end(self) -> None:
        """Nothing more can happen: see that nothing is missing."""
        happened = set(self.log.happened) if self.scenario.durable else None
        if self.given_up:
            return
        held = [n for n, change in self.controller.active.items() if change.held]
        self.judge.end(self.over, self._phases(), self.states, happened, held)
