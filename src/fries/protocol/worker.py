"""The worker's side of the protocol, without I/O.

A worker is welcomed with the base, loads a change when told to prepare, and switches when told to
commit. Changes are loaded one after the other, beside the data path. What is due, a switch or a
drop, takes effect only where no row is being processed: between two chunks of a task, or while no
task runs. A task may start once every change that the controller names has taken effect here, and
one that switched inside may end once the controller has noted where.

Without the controller a task goes on with what the worker has; a new one may not start.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec.structs import replace

from fries.control.messages import (
    ANY_BATCH,
    Ended,
    Failed,
    GivenUp,
    Go,
    Hello,
    Holds,
    Noted,
    Soon,
    Up,
    Welcome,
)
from fries.errors import ProtocolError
from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    StartCheckpoint,
    Switched,
)
from fries.protocol.worker_events import (
    Adopt,
    ChunkBoundary,
    Connected,
    ConnectionLost,
    Define,
    Defined,
    Disconnect,
    Drop,
    HoldExpired,
    Hurry,
    LimitLoad,
    Load,
    Loaded,
    LoadExpired,
    Message,
    Ready,
    Received,
    Resume,
    Say,
    StandBack,
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

UNTOLD: Final = "no configuration for this task"
"""Why a task cannot begin, or a worker cannot join, without the controller."""
UNHEARD: Final = "nobody knows where this task switched"
"""Why a task that switched inside cannot end without the controller."""


class Activity(enum.Enum):
    """What the worker's process is about."""

    IDLE = "idle"
    JOINING = "joining"
    """Said hello, and has not all that it begins with."""
    STARTING = "starting"
    """A task was announced, and may not start yet."""
    RUNNING = "running"
    """Rows are processed: the only state in which what is due waits for the end of a chunk."""
    HOLDING = "holding"
    """A task has failed on a chunk, and waits for the change to be taken back."""
    ENDING = "ending"
    """A task that switched inside waits until that is noted."""


class Worker(msgspec.Struct, frozen=True):
    """State of one worker."""

    name: str
    activity: Activity = Activity.IDLE
    lost: str = ""
    """Why the connection is gone; empty while it is not."""
    welcomed: bool = False
    defining: bool = False
    """Whether the operators as the flow was built are being loaded; nothing else is meanwhile."""
    base: tuple[int, ...] = ()
    """Of the changes that this worker begins with, those that it has not adopted yet."""
    parts: tuple[tuple[int, Part], ...] = ()
    """Changes that this worker prepares or has prepared, and that are not retired."""
    loading: tuple[int, ...] = ()
    """Changes to load, one after the other. The first may have been aborted since it began."""
    failed: tuple[tuple[int, str], ...] = ()
    """Changes that could not be loaded here and were not aborted, with the traceback."""
    early: frozenset[int] = frozenset()
    """Those of ``parts`` to switch to as soon as they and those before them are loaded."""
    retired: frozenset[int] = frozenset()
    """Those of ``early`` whose transition is over: to forget once they have been switched to."""
    due: tuple[Switch | Drop, ...] = ()
    """What takes effect as soon as no row is being processed."""
    effective: frozenset[int] = frozenset()
    """Changes that have taken effect here, and that a task may be told to begin with."""
    batch: int = 0
    """Of the newest task."""
    go: Go | None = None
    """The answer to a task that is starting."""
    held: Holds | None = None
    """What a task that holds waits for."""

    def handle(self, event: WorkerEvent) -> tuple[Worker, tuple[WorkerInstruction, ...]]:
        """Change state by one event: the only door."""
        turn = _Turn(self)
        turn.take(event)
        turn.settle(self)
        return turn.state, tuple(turn.out)

    @property
    def awaits_load(self) -> bool:
        """Whether something is being loaded that is still wanted."""
        return self.defining or any(
            change in self.base or self.part(change) is not None for change in self.loading
        )

    @property
    def first_load(self) -> int | None:
        """The change that is being loaded."""
        return self.loading[0] if self.loading and not self.defining else None

    def part(self, change: int) -> Part | None:
        """What this worker does in a change that it prepares or has prepared."""
        return next((part for number, part in self.parts if number == change), None)


class _Turn:
    """One event being handled: the state so far and the instructions so far."""

    def __init__(self, state: Worker) -> None:
        self.state = state
        self.out: list[WorkerInstruction] = []

    def take(self, event: WorkerEvent) -> None:
        match event:
            case ChunkBoundary():
                self._take_effect()
            case Received(message):
                if not self.state.lost:
                    self._receive(message)
            case Loaded(change, error):
                if not self.state.lost:
                    self._loaded(change, error)
            case TaskBegins(task):
                self._leave_task()
                self.state = replace(self.state, batch=task.batch)
                self._say_or_fail(task, Activity.STARTING, UNTOLD)
            case TaskEnds(report):
                self._end_task(report)
            case VersionFailed(operator, change, problem, row, story):
                self._say(Failed(self.state.batch, operator, change, problem, row, story))
            case TaskHolds(held):
                self._hold(held)
            case HoldExpired():
                self._resume(again=False)
            case Connected(flow):
                self._say_or_fail(Hello(flow, self.state.name), Activity.JOINING, UNTOLD)
            case Defined(error):
                self._defined(error)
            case LoadExpired(change):
                self._load_expired(change)
            case ConnectionLost(why):
                self._lose(why)

    def settle(self, before: Worker) -> None:
        """Carry out whatever has become possible."""
        if self.state.activity is not Activity.RUNNING:
            self._take_effect()
        if self.state.go is not None:
            self._start(self.state.go)
        first = self.state.first_load
        if first is not None and first != before.first_load:
            self.out.append(Load(first))

    def _receive(self, message: Message) -> None:
        match message:
            case Welcome(base, definition, skipped):
                self._welcome(base, definition, skipped)
            case Soon():
                self.out.append(StandBack())
            case Prepare(change, part):
                self._prepare(change, part)
            case Commit(change):
                self._commit(change)
            case Abort(change):
                self._abort(change)
            case Retire(change):
                self._retire(change)
            case Go():
                self._go(message)
            case Noted(accepted):
                self._noted(accepted)
            case GivenUp(change):
                if self.state.held is not None and self.state.held.change == change:
                    self._resume(again=False)
            case StartCheckpoint() | CancelCheckpoint():
                raise self._breach("checkpoints are not taken here")

    # Changes

    def _welcome(self, base: tuple[int, ...], definition: bytes, skipped: dict[str, int]) -> None:
        if self.state.welcomed or self.state.parts:
            raise self._breach("it was welcomed twice, or too late")
        self.state = replace(self.state, welcomed=True, defining=True, base=base, loading=base)
        self.out.append(Define(definition, tuple(skipped.items())))

    def _defined(self, error: str | None) -> None:
        if error is not None:
            self._lose(f"the flow's functions cannot be loaded here:\n{error}")
        else:
            self.state = replace(self.state, defining=False)
            self._ready()

    def _ready(self) -> None:
        if self.state.activity is Activity.JOINING and not self.state.base:
            self.state = replace(self.state, activity=Activity.IDLE)
            self.out.append(Ready())

    def _prepare(self, change: int, part: Part) -> None:
        state = self.state
        if state.part(change) is not None:
            raise self._breach(f"change {change} was prepared twice")
        parts, loading = (*state.parts, (change, part)), (*state.loading, change)
        self.state = replace(state, parts=parts, loading=loading)
        self.out.append(StandBack())

    def _loaded(self, change: int, error: str | None) -> None:
        loading = tuple(number for number in self.state.loading if number != change)
        self.state = replace(self.state, loading=loading)
        if change in self.state.base:
            self._loaded_of_base(change, error)
        elif self.state.part(change) is None:  # aborted meanwhile: forget what came too late
            self._let_be_due(Drop(change, aborted=True))
        elif error is not None:
            self._forget(change)
            self.state = replace(self.state, failed=(*self.state.failed, (change, error)))
            self._say(Refused(change, error))
        else:
            self.out.append(Hurry())
            self._say(Prepared(change))
            self._catch_up()

    def _loaded_of_base(self, change: int, error: str | None) -> None:
        if error is not None:
            self._tell_unloadable(change, error)
            return
        base = tuple(number for number in self.state.base if number != change)
        self.state = replace(self.state, base=base)
        self.out.append(Adopt(change))
        self._ready()

    def _load_expired(self, change: int) -> None:
        """An aborted change keeps others from being loaded; a new connection has new threads."""
        if change == self.state.first_load and self.state.part(change) is None:
            self._lose(f"change {change} was aborted, and its loading does not end")

    def _commit(self, change: int) -> None:
        """A change that could not be loaded here is committed all the same: a task will tell."""
        state = self.state
        if change in dict(state.failed):
            return
        if state.part(change) is None:
            raise self._breach(f"change {change} was never prepared here")
        switching = {one.change for one in state.due if isinstance(one, Switch)}
        if change in state.early | switching | state.effective:
            raise self._breach(f"change {change} was committed twice")
        self.state = replace(state, early=state.early | {change})
        self._catch_up()

    def _abort(self, change: int) -> None:
        """What is being loaded cannot be stopped; what waits for that need not be loaded."""
        state = self.state
        at_work = change == state.first_load
        failed = tuple((number, story) for number, story in state.failed if number != change)
        loading = tuple(n for n in state.loading if n != change or at_work)
        self.state = replace(state, failed=failed, loading=loading)
        self._forget(change)
        self._let_be_due(Drop(change, aborted=True))
        if at_work:
            self.out.append(LimitLoad(change))

    def _retire(self, change: int) -> None:
        """A change that was not switched to yet has become part of the base: that must happen."""
        state = self.state
        if change in state.early or (change in state.loading and state.part(change) is not None):
            early, retired = state.early | {change}, state.retired | {change}
            self.state = replace(state, early=early, retired=retired)
        else:
            self._forget(change)
            self._let_be_due(Drop(change))

    def _catch_up(self) -> None:
        """Switch to all that is committed and loaded, in the order of numbers."""
        for change in sorted(self.state.early):
            if change in self.state.loading:
                break
            part = self.state.part(change)
            assert part is not None, "what is committed was prepared"
            self.state = replace(self.state, early=self.state.early - {change})
            self._let_be_due(Switch(change, part.targets))
            if change in self.state.retired:
                self._forget(change)
                self._let_be_due(Drop(change))

    def _forget(self, change: int) -> None:
        state = self.state
        self.state = replace(
            state,
            parts=tuple((number, part) for number, part in state.parts if number != change),
            early=state.early - {change},
            retired=state.retired - {change},
        )

    def _let_be_due(self, one: Switch | Drop) -> None:
        self.state = replace(self.state, due=(*self.state.due, one))

    def _take_effect(self) -> frozenset[str]:
        """No row is being processed: do what is due. Gives the operators that were switched."""
        due, switched = self.state.due, frozenset[str]()
        if not due:
            return switched
        self.state = replace(self.state, due=())
        for one in due:
            self.out.append(one)
            if isinstance(one, Switch):
                effective = self.state.effective | {one.change}
                self.state = replace(self.state, effective=effective)
                self._say(Switched(one.change))
                switched = switched.union(one.targets)
        held = self.state.held
        if held is not None and held.operator in switched:
            self._resume(again=True)
        return switched

    # Tasks

    def _leave_task(self) -> None:
        """No task runs. If the last one was left while it waited, its answer may be under way."""
        waited = self.state.activity not in (Activity.IDLE, Activity.RUNNING)
        self.state = replace(self.state, activity=Activity.IDLE, go=None, held=None)
        if waited:
            self._lose("a task was left while it waited for an answer")
        self._take_effect()

    def _go(self, go: Go) -> None:
        """The answer to a task. What was retired before it is asked for now or never."""
        state = self.state
        if state.activity is not Activity.STARTING or state.go is not None:
            raise self._breach("no task waits to begin")
        wanted = {*dict(state.parts), *go.base, *go.committed}
        self.state = replace(state, go=go, effective=state.effective & wanted)

    def _start(self, go: Go) -> None:
        """Let a task start if every change that it begins with has taken effect here."""
        wanted, failed = (*go.base, *go.committed), dict(self.state.failed)
        for change in wanted:
            if change in failed:
                self._tell_unloadable(change, failed[change])
                return
        if self.state.effective.issuperset(wanted):
            self.state = replace(self.state, activity=Activity.RUNNING, go=None)
            self.out.append(TaskMayStart(go))

    def _hold(self, held: Holds) -> None:
        """Wait until another version of the operator that failed is in use."""
        if held.operator in self._take_effect():
            self.out.append(Resume(again=True))
        elif self.state.lost:
            self.out.append(Resume(again=False))
        else:
            self.state = replace(self.state, activity=Activity.HOLDING, held=held)
            self._say(held)

    def _resume(self, *, again: bool) -> None:
        if self.state.activity is Activity.HOLDING:
            self.state = replace(self.state, activity=Activity.RUNNING, held=None)
            self.out.append(Resume(again))

    def _end_task(self, report: Ended) -> None:
        """A task that switched inside waits until that is noted."""
        self._leave_task()
        if report.complete and report.cuts:
            self._say_or_fail(report, Activity.ENDING, UNHEARD)
        else:
            self._say(report)
            self.out.append(TaskMayEnd())

    def _noted(self, accepted: bool) -> None:
        if self.state.activity is not Activity.ENDING:
            raise self._breach("no task waits to end")
        if accepted:
            self.state = replace(self.state, activity=Activity.IDLE)
            self.out.append(TaskMayEnd())
        else:
            self._fail("another attempt of this task has switched at another row")

    def _fail(self, why: str) -> None:
        self.state = replace(self.state, activity=Activity.IDLE, go=None)
        self.out.append(TaskMustFail(why))

    # The connection

    def _say(self, message: Up) -> None:
        if not self.state.lost:
            self.out.append(Say(message))

    def _say_or_fail(self, message: Up, activity: Activity, without: str) -> None:
        """Say what must be answered before anything goes on."""
        if self.state.lost:
            self._fail(f"{without}: {self.state.lost}")
        else:
            self.state = replace(self.state, activity=activity)
            self._say(message)

    def _tell_unloadable(self, change: int, story: str) -> None:
        """A change that others could load makes every task fail here: it must be taken back."""
        problem = f"change {change} cannot be loaded in worker {self.state.name}"
        self._say(Failed(ANY_BATCH, "", change, problem, "", story))
        self._lose(f"change {change} cannot be loaded here:\n{story}")

    def _lose(self, why: str) -> None:
        """The connection is over. An answer that comes too late must not be taken for another."""
        if self.state.lost:
            return
        self.state = replace(self.state, lost=why, defining=False, loading=(), go=None)
        self.out.append(Disconnect(why))
        match self.state.activity:
            case Activity.JOINING | Activity.STARTING:
                self._fail(f"{UNTOLD}: {why}")
            case Activity.ENDING:
                self._fail(f"{UNHEARD}: {why}")
            case Activity.HOLDING:
                self._resume(again=False)
            case Activity.IDLE | Activity.RUNNING:
                pass

    def _breach(self, problem: str) -> ProtocolError:
        return ProtocolError(self.state.name, problem)
