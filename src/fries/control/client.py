"""The worker's end of the control channel: a socket, threads and timers around a machine.

What to do is decided by :class:`~fries.protocol.worker.Worker`, which is told of everything that
comes or happens, under one lock; here its instructions are carried out.

One connection for each Python process and flow, kept while Spark reuses the process. A
background thread waits for messages, so that an idle worker answers. The thread that processes
rows polls between chunks and hardly waits: while it computes it holds the interpreter, and a
background thread alone would see a commit message late. New functions are loaded beside the data
path, by the background thread that has heard of them: it begins at once, and a second one goes on
listening.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from fries.control.greeting import connect
from fries.control.messages import (
    DOWN,
    ENCODER,
    Begin,
    Counts,
    Down,
    Ended,
    Go,
    Holds,
    Piece,
    Shipment,
    Stuck,
    Up,
)
from fries.control.reports import Tally
from fries.control.shipments import Shipments
from fries.control.tls import Tls
from fries.errors import OperatorError, ProtocolError, WireError
from fries.failing import clipped, story_of, told
from fries.protocol.messages import Switched
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
    HoldExpired,
    Hurry,
    LimitLoad,
    Load,
    Loaded,
    LoadExpired,
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

CONNECT_SECONDS: Final = 10.0
"""Until a task that cannot reach the controller fails, and Spark runs it again elsewhere."""
LOAD_SECONDS: Final = 600.0
"""The same, while a change is being loaded: a model may take its time."""
HURRY_SECONDS: Final = 0.1
"""After news of a change, chunks are short for this long: its commit is about to come."""
GIVE_WAY_SECONDS: Final = 0.003
"""For so long rows stand back when a change is about to come, and once more when it has come: most
are loaded and committed by then."""
STUCK_SECONDS: Final = 1.0
"""A function that has not returned for so long is told of, again and again."""
ABANDON_SECONDS: Final = 10.0
"""A change that was aborted and is still being loaded after so long keeps others from it: then the
connection is given up, and the next task makes a new one, with threads of its own."""
HOLD_SECONDS: Final = 10.0
"""A task that has failed waits so long for the change to be taken back, before it fails for good:
what undoes it is loaded in milliseconds, but the driver may be busy with another change."""
MOST_TEXT: Final = 20_000
"""Characters of a message or a traceback that are told."""
SILENT: Final = ConnectionLost("the controller does not answer")
Answer: TypeAlias = Ready | TaskMayStart | TaskMayEnd | TaskMustFail | Resume
"""What a thread waits for that may not go on by itself."""


class Engine(Protocol):
    """What the control channel does to the runtime that it belongs to."""

    def define(self, definition: bytes, skipped: dict[str, int]) -> None:
        """Begin with the operators as the flow was built, each after some updates."""

    def load(self, change: int, bit: int, payload: memoryview, parts: Sequence[memoryview]) -> None:
        """Make a change ready for use; raises if that is impossible. Any thread."""

    def adopt(self, change: int) -> None:
        """Begin with a change that was loaded: it is part of the base."""

    def switch(self, change: int) -> None:
        """Use a change from the next row on. Only between two chunks."""

    def drop(self, change: int) -> None:
        """Forget an aborted change. Only between two chunks."""


class ControlClient:
    """A connection to the controller, and the protocol machine of this worker."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        flow: str,
        engine: Engine,
        tls: Tls | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}/{os.getpid()}/{time.time_ns()}"
        self._engine = engine
        self._machine = Worker(self.name)
        self._shipments = Shipments()
        self._tally = Tally()
        """Only the data thread's."""
        self._call: tuple[str, int, float] | None = None
        """The function that runs now: its operator, its change, and when it was called."""
        self._job: Define | Load | None = None
        """What a thread has to load next."""
        self._has_loader = False
        """Whether a thread is loading something."""
        self._limited: tuple[int, float] | None = None
        """A change whose load must end, and since when."""
        self._answer: Answer | None = None
        """What the machine says to whoever waits."""
        self.broken = False
        """Whether the connection is gone: a task goes on with what it has, a new one may not."""
        self._hurry_until = 0.0
        self._way_until = 0.0
        """Until then rows stand back for a change."""
        self._state = threading.Condition(threading.RLock())
        """Guards everything above; notified when the machine has decided something."""
        self._heard = time.monotonic()
        """When something last arrived: a large configuration may take its time."""
        deadline = self._heard + CONNECT_SECONDS
        self._channel, self._unframer, self._opener = connect(address, secret, tls, deadline)
        self._listening = threading.Lock()
        """Held by the background thread that waits for messages."""
        for number in range(2):
            threading.Thread(target=self._attend, name=f"fries-{number}", daemon=True).start()
        self._ask(Connected(flow))

    @property
    def hurried(self) -> bool:
        """Whether a commit is about to come, so that the next look should be soon."""
        return time.monotonic() < self._hurry_until

    @property
    def pressed(self) -> bool:
        """Whether a change waits for the next poll: to come and be loaded, or to be used."""
        return bool(self._way_until or self._machine.due)

    def close(self) -> None:
        """End the connection."""
        self._channel.shut()

    def begin(self, batch: int, stage: int, partition: int, execution: int = 0) -> Go:
        """Announce a task, and learn of every commit that was sent before it began."""
        answer = self._ask(TaskBegins(Begin(batch, stage, partition, execution)))
        assert isinstance(answer, TaskMayStart), answer
        return answer.go

    def ended(self, report: Ended) -> None:
        """Tell how a task went, if anyone listens; the worker is idle from now on.

        A task that gave rows of both epochs may only complete if the controller knows where it
        switched, in case it is executed again: so this waits for the answer, and raises if there
        is none.
        """
        self._call = None
        self._tell_counts()
        self._ask(TaskEnds(report))

    def calling(self, operator: str, change: int) -> None:
        """A version of an operator is about to be called."""
        self._call = operator, change, time.monotonic()

    def returned(self) -> None:
        """It has returned."""
        self._call = None

    def failed(self, change: int, error: OperatorError) -> None:
        """A version of an operator failed: tell whoever can take it back, if anyone listens."""
        texts = (clipped(text, MOST_TEXT) for text in (error.problem, error.row, error.story))
        with self._state:
            self._handle(VersionFailed(error.operator, change, *texts))

    def hold(self, operator: str, change: int, stage: int) -> bool:
        """A version has failed on a chunk of which nothing has left: wait for it to be taken back.

        ``True`` when something else is in use: the same rows can be processed again.
        """
        self._call = None
        holds = TaskHolds(Holds(operator, change, stage))
        answer = self._ask(holds, HOLD_SECONDS, HoldExpired())
        self._way_until = 0.0
        return isinstance(answer, Resume) and answer.again

    def count(self, operator: str, taken: int, given: int, seconds: float, failed: int = 0) -> None:
        """Note what an operator has done, and tell it now and then."""
        self._tally.add(operator, Counts(taken, given, seconds, failed))
        if self._tally.due:
            self._tell_counts(all_of_it=False)

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Note which version of an operator has taken rows; told with what is counted next."""
        self._tally.took(operator, change, rows, older)

    def _tell_counts(self, all_of_it: bool = True) -> None:
        with suppress(WireError):
            for report in self._tally.take(all_of_it):
                self._say(report)

    def poll(self) -> None:
        """Between two chunks: take up what has arrived, and wait for a few milliseconds at most.

        Whoever has the state has heard something; if it is a change, rows would be late to stand
        back for it. Pieces of a large one come all the time, and rows do not wait for them.
        """
        if self._state.acquire(timeout=0 if self._unframer.large else GIVE_WAY_SECONDS):
            try:
                self._take_arrived(leave_large=True)
                if self._job is not None and not self._has_loader:
                    self._channel.nudge()
                if self._way_until:
                    self._give_way()
                if self._machine.due:
                    self._handle(ChunkBoundary())
            finally:
                self._state.release()

    def _give_way(self) -> None:
        """Let a change be made ready and loaded, and its commit be heard of, before rows.

        They would take every other moment of the interpreter from it, and a core from whoever
        else is needed: it would take longer than this pause does.
        """
        most = time.monotonic() + 2 * GIVE_WAY_SECONDS
        left = min(self._way_until, most) - time.monotonic()
        while left > 0 and not (self._machine.due or self.broken):
            self._state.wait(left)  # the change that was announced may come meanwhile
            left = min(self._way_until, most) - time.monotonic()
        self._way_until = 0.0

    def _ask(
        self, event: WorkerEvent, seconds: float | None = None, late: WorkerEvent = SILENT
    ) -> Answer:
        """Tell the machine something, and wait until whoever asks may go on.

        The machine is told when that takes too long: more than some seconds, or more than one can
        wait for a controller that is silent.
        """
        with self._state:
            self._answer, self._heard = None, (began := time.monotonic())
            self._handle(event)
            while (answer := self._answer) is None:
                until = self._heard + self._patience if seconds is None else began + seconds
                left = until - time.monotonic()
                if left > 0:
                    self._state.wait(left)
                else:
                    self._handle(late)
        if isinstance(answer, TaskMustFail):
            raise WireError(answer.why)
        return answer

    @property
    def _patience(self) -> float:
        return LOAD_SECONDS if self._machine.awaits_load else CONNECT_SECONDS

    def _handle(self, event: WorkerEvent) -> None:
        """Let the machine decide, and do what it says. What it does not allow is the end."""
        try:
            self._machine, instructions = self._machine.handle(event)
        except ProtocolError as breach:
            self._lose(breach)
            return
        gone: WireError | None = None
        for instruction in instructions:
            try:
                self._carry_out(instruction)
            except WireError as error:
                gone = error
        self._state.notify_all()
        if gone is not None:
            self._lose(gone)

    def _lose(self, error: Exception) -> None:
        self._handle(ConnectionLost(str(error) or repr(error)))

    def _carry_out(self, instruction: WorkerInstruction) -> None:
        match instruction:
            case Say(Switched() as switched):
                self._say(replace(switched, moment=time.time()))
            case Say(message):
                self._say(message)
            case Switch(change):
                self._engine.switch(change)
            case Adopt(change):
                self._engine.adopt(change)
            case Drop(change, aborted):
                if aborted:
                    self._shipments.forget(change)
                    self._engine.drop(change)
            case Define() | Load():
                self._job = instruction
            case LimitLoad(change):
                self._limited = change, time.monotonic()
            case StandBack():
                self._hurry()
                self._way_until = time.monotonic() + GIVE_WAY_SECONDS
            case Hurry():
                self._hurry()
            case Disconnect():
                self.broken, self._job = True, None
                self.close()
            case Ready() | TaskMayStart() | TaskMayEnd() | TaskMustFail() | Resume():
                self._answer = instruction

    def _hurry(self) -> None:
        self._hurry_until = time.monotonic() + HURRY_SECONDS

    def _say(self, message: Up) -> None:
        """Send a message without waiting for anybody to read it."""
        self._channel.send(ENCODER.encode(message))

    def _attend(self) -> None:
        """What both background threads do: listen, or load what has come, or wait their turn."""
        while True:
            with self._listening:
                while not self.broken and not self._listen():
                    pass
                if self.broken:
                    self._channel.close()
                    return
            self._load_all()

    def _listen(self) -> bool:
        """Wait for messages and act on them; whether the thread must load what has come."""
        self._channel.wait(STUCK_SECONDS)
        with self._state:
            self._take_arrived()
            self._look_at_load()
            loads = self._job is not None and not self._has_loader
            self._has_loader = self._has_loader or loads
        self._tell_if_stuck()
        return loads

    def _look_at_load(self) -> None:
        if self._limited is not None:
            change, since = self._limited
            if time.monotonic() - since > ABANDON_SECONDS:
                self._limited = None
                self._handle(LoadExpired(change))

    def _tell_if_stuck(self) -> None:
        if (call := self._call) is None:
            return
        operator, change, began = call
        seconds = time.monotonic() - began
        if seconds >= STUCK_SECONDS:
            with suppress(WireError):
                self._say(Stuck(operator, change, seconds))

    def _take_arrived(self, leave_large: bool = False) -> None:
        """Read what the socket has, if anything, and act on it.

        The seal of a large frame takes a millisecond to check: the rows do not wait for that.
        """
        if self.broken:
            return
        try:
            if not self._unframer.full and not self._unframer.receive(self._channel):
                raise WireError("the controller closed the connection")
            self._heard = time.monotonic()
            while not (leave_large and self._unframer.full):
                if (sealed := self._unframer.take()) is None:
                    return
                self._receive(DOWN.decode(self._opener.open(sealed)))
            self._channel.nudge()
        except BlockingIOError:
            pass  # nothing has come
        except Exception as error:  # whatever it is, the rows go on
            self._lose(error)

    def _receive(self, message: Down) -> None:
        match message:
            case Shipment():
                self._shipments.announce(message)
            case Piece():
                self._shipments.fill(message)
            case _:
                self._handle(Received(message))

    def _load_all(self) -> None:
        """Load one thing after the other, beside the data path."""
        while (job := self._next_job()) is not None:
            error = None
            try:
                self._do(job)
            except BaseException as problem:  # the user's code may raise anything, even SystemExit
                error = story_of(problem) if isinstance(job, Define) else told(problem)
            with self._state:
                self._limited = None
                try:
                    done = Loaded(job.change, error) if isinstance(job, Load) else Defined(error)
                    self._handle(done)
                except Exception as problem:  # whatever it is, the rows go on
                    self._lose(problem)

    def _next_job(self) -> Define | Load | None:
        with self._state:
            job, self._job = self._job, None
            self._has_loader = job is not None
            return job

    def _do(self, job: Define | Load) -> None:
        match job:
            case Define(definition, skipped):
                self._engine.define(definition, dict(skipped))
            case Load(change):
                shipped = self._shipments.take(change)
                self._engine.load(change, shipped.bit, shipped.parts[0], shipped.parts[1:])
