"""A worker process: the production machine, the production epochs, and a task with its rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fries.change.epochs import Epochs, InTransition
from fries.control.messages import Begin, Cut, Ended, Go, Holds, Up
from fries.protocol.worker import Worker
from fries.protocol.worker_events import (
    Adopt,
    ChunkBoundary,
    Connected,
    ConnectionLost,
    Define,
    Defined,
    Disconnect,
    Drop,
    Load,
    Loaded,
    Resume,
    Say,
    Switch,
    TaskBegins,
    TaskEnds,
    TaskHolds,
    TaskMayEnd,
    TaskMayStart,
    TaskMustFail,
    VersionFailed,
    WorkerEvent,
    WorkerInstruction,
)
from fries_lab.world.scenario import Ask


class Row(NamedTuple):
    """A row on its way: its transaction, its stamps, and by operator what it has met there."""

    txn: tuple[int, int, int]
    """Batch, task of the first stage, and number."""
    mask: int = 0
    met: tuple[tuple[str, frozenset[int]], ...] = ()
    """By operator that has processed it, the changes that its version had."""


class Place(NamedTuple):
    """Which task."""

    batch: int
    stage: int
    partition: int


class State(NamedTuple):
    """The state of the keyed operator in one partition."""

    version: int = 0
    trail: tuple[int, ...] = ()
    """The changes whose migrations it has seen, in this order."""


@dataclass
class Task:
    """An attempt at a task, in this process."""

    place: Place
    rows: list[Row]
    state: State
    out: list[Row] = field(default_factory=list)
    taken: int = 0
    stamping: frozenset[int] = frozenset()
    cuts: list[Cut] = field(default_factory=list)
    ahead: list[Cut] = field(default_factory=list)
    tries_again: bool = False
    """Whether a version that fails may be taken back while the task waits."""
    is_ready: bool = False
    """Whether its rows are in the order in which the operator takes them."""


class BrokenError(Exception):
    """Something happened that must never happen."""


class Process:
    """A worker process and its end of the control channel."""

    def __init__(self, name: str, asks: dict[int, Ask]) -> None:
        self.name = name
        self._asks = asks
        """By change, what it is: shared with the world."""
        self.machine = Worker(name)
        self.epochs = Epochs()
        self.base: list[int] = []
        """Changes that all rows get, in the order in which they were adopted."""
        self.shipped: dict[int, int] = {}
        """By change, its bit."""
        self.loading: int | None = None
        self.task: Task | None = None
        self.said: deque[Up] = deque()
        """What the controller has not read yet."""
        self.result: str = ""
        """What has become of the task: ``ended`` or ``failed``; Spark takes it up."""
        self.may_run = False
        """Whether the task may process rows, and is not holding or ending."""
        self.dead = False
        """Whether the connection is over."""
        self.left = False
        """Whether the controller knows that it is; a task goes on with what it has."""
        self.feed(Connected("flow"))

    def feed(self, event: WorkerEvent) -> None:
        """An event, and all that follows from it at once."""
        self.machine, instructions = self.machine.handle(event)
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: WorkerInstruction) -> None:
        match instruction:
            case Say(message):
                self.said.append(message)
            case Define():
                self.feed(Defined())
            case Load(change):
                self.loading = change
            case Adopt(change):
                self._adopt(change)
            case Switch(change):
                self.epochs.switch(change)
            case Drop(change, aborted):
                if aborted:
                    self.epochs.drop(change)
            case TaskMayStart(go):
                self._start(go)
            case TaskMayEnd():
                self.result = "ended"
            case TaskMustFail():
                self.result = "failed"
            case Resume(again):
                if again:
                    self.may_run = True
                else:
                    self._give_up()
            case Disconnect():
                self.dead = True
            case _:
                pass  # haste, and who is told

    def loaded(self, error: str | None) -> None:
        """What is being loaded is there, or cannot be."""
        change, self.loading = self.loading, None
        assert change is not None
        if error is None:
            ask = self._asks[change]
            what = InTransition(1 << self.shipped[change], frozenset(ask.targets), ask.entries)
            self.epochs.load(change, what)
        self.feed(Loaded(change, error))

    def lose_connection(self) -> None:
        """The controller is gone."""
        self.feed(ConnectionLost("the connection is gone"))

    def _adopt(self, change: int) -> None:
        self.epochs.adopt(change)
        self.base.append(change)

    # Tasks

    def begin(self, place: Place, rows: list[Row], state: State) -> None:
        """Spark gives it a task."""
        self.task, self.result, self.may_run = Task(place, rows, state), "", False
        self.feed(TaskBegins(Begin(place.batch, place.stage, place.partition)))

    def _start(self, go: Go) -> None:
        """As the runtime begins a task: :mod:`fries.runtime.task` and ``stage``."""
        task = self._at_hand
        for change in self.epochs.begin(go.base, go.pinned):
            self._adopt(change)
        stamping = self.epochs.stamping({task.place.stage})
        task.stamping = stamping & frozenset(go.committed if go.pinned is None else go.pinned)
        task.ahead = list(go.cuts)
        task.tries_again = go.on_probation
        self.may_run = True

    @property
    def _at_hand(self) -> Task:
        assert self.task is not None
        return self.task

    def step(self) -> None:
        """The next row, or the end of the task."""
        self.feed(ChunkBoundary())
        task = self._at_hand
        operator = "AB"[task.place.stage]
        if not task.is_ready:  # a key group comes whole, older epochs first
            bits = self.epochs.bits_of(operator) if operator == "B" else 0
            task.rows.sort(key=lambda row: (row.mask & bits).bit_count())
            task.is_ready = True
        if task.taken == len(task.rows):
            self._end(complete=True)
            return
        self._note_cut(task)
        row = task.rows[task.taken]
        mask = row.mask | self.epochs.stamp_on(task.place.stage)
        applied = self.epochs.applied(operator, mask)
        changes = [*(n for n in self.base if operator in self._asks[n].targets), *applied]
        if operator == "B":
            newest = self._in_force(changes)
            first = self._asks[newest].bad_from if newest else None
            if first is not None and task.place.batch >= first:
                self._fail(newest)
                return
            task.state = self._touched(task.state, changes)
        made = row._replace(mask=mask, met=(*row.met, (operator, frozenset(changes))))
        task.out.append(made)
        task.taken += 1

    def _in_force(self, changes: list[int]) -> int:
        """The change whose version is used: the newest one that is not undone."""
        undone: set[int] = set()
        for number in sorted(changes, reverse=True):
            if number in undone:
                continue
            if not (undoes := self._asks[number].undoes):
                return number
            undone.add(undoes)
        return 0

    def _note_cut(self, task: Task) -> None:
        while task.ahead and task.ahead[0].rows == task.taken:
            self.epochs.pin(task.ahead.pop(0).change)
        stamping = self.epochs.stamping({task.place.stage})
        if stamping != task.stamping:
            task.cuts += [Cut(task.taken, change) for change in sorted(stamping - task.stamping)]
            task.stamping = stamping

    def _touched(self, state: State, changes: list[int]) -> State:
        """The state that a row meets: every migration that its version has, once and in order."""
        steps = [number for number in changes if self._asks[number].migrates]
        if state.version > len(steps):
            raise BrokenError(f"a state of version {state.version} meets a row of {len(steps)}")
        return State(len(steps), (*state.trail, *steps[state.version :]))

    def _fail(self, change: int) -> None:
        task = self._at_hand
        self.feed(VersionFailed("B", change, "it raises", "a row", ""))
        if (task.tries_again or self.epochs.loaded) and not self.epochs.repeats:
            self.may_run = False
            self.feed(TaskHolds(Holds("B", change, task.place.stage)))
        else:
            self._give_up()

    def _give_up(self) -> None:
        """The task fails, and Spark learns of it."""
        self._end(complete=False)
        self.result = "failed"

    def _end(self, complete: bool) -> None:
        task = self._at_hand
        self.may_run = False
        cuts = tuple(task.cuts) if complete else ()
        place = task.place
        report = Ended(place.batch, place.stage, place.partition, {}, 0, complete, cuts)
        self.feed(TaskEnds(report))
