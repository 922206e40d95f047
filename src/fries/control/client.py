"""The worker's end of the control channel.

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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from msgspec.structs import replace

from fries.control.greeting import connect
from fries.control.messages import (
    ANY_BATCH,
    DOWN,
    ENCODER,
    Begin,
    Counts,
    Down,
    Ended,
    Failed,
    GivenUp,
    Go,
    Hello,
    Holds,
    Noted,
    Piece,
    Shipment,
    Soon,
    Stuck,
    Up,
    Welcome,
)
from fries.control.reports import Tally
from fries.control.tls import Tls
from fries.control.wire import rooms
from fries.errors import OperatorError, WireError
from fries.failing import clipped, story_of, told
from fries.protocol.messages import Commit, Switched
from fries.protocol.worker import (
    Drop,
    Load,
    Loaded,
    Received,
    Say,
    Switch,
    Worker,
    WorkerEvent,
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
        self._shipments: dict[int, Shipment] = {}
        self._parts: dict[int, tuple[memoryview, ...]] = {}
        """By change, the parts of its shipment, filled as pieces come."""
        self._failed: dict[int, str] = {}
        """By change that could not be loaded, the traceback."""
        self._due: list[Switch | Drop] = []
        self._adopted: set[int] = set()
        """Changes that have taken effect here, whether in transition or in the base."""
        self._tally = Tally()
        """Only the data thread's."""
        self._batch = 0
        self._call: tuple[str, int, float] | None = None
        """The function that runs now: its operator, its change, and when it was called."""
        self._loads: deque[Shipment] = deque()
        """Changes that are to be loaded, one after the other."""
        self._has_loader = False
        """Whether a thread is loading them."""
        self._at_work: int | None = None
        """The change that is being loaded."""
        self._abandoned: float | None = None
        """Since when that change is aborted, if it is."""
        self._noted: bool | None = None
        self._given_up = False
        """Whether the change that a task waits for is not taken back."""
        self._hurry_until = 0.0
        self._way_until = 0.0
        """Until then rows stand back for a change."""
        self._busy = False
        self._broken = ""
        self._go: Go | None = None
        self._welcome: Welcome | None = None
        self._state = threading.Condition(threading.RLock())
        """Guards everything above; notified when an answer has come or the connection is gone."""
        self._heard = time.monotonic()
        """When something last arrived: a large configuration may take its time."""
        deadline = self._heard + CONNECT_SECONDS
        self._channel, self._unframer, self._opener = connect(address, secret, tls, deadline)
        self._listening = threading.Lock()
        """Held by the background thread that waits for messages."""
        for number in range(2):
            threading.Thread(target=self._attend, name=f"fries-{number}", daemon=True).start()
        self._say(Hello(flow, self.name))
        with self._state:
            self._wait_for(lambda: self._welcome is not None)

    @property
    def broken(self) -> bool:
        """Whether the connection is gone: a task goes on with what it has, a new one may not."""
        return bool(self._broken)

    @property
    def hurried(self) -> bool:
        """Whether a commit is about to come, so that the next look should be soon."""
        return time.monotonic() < self._hurry_until

    @property
    def pressed(self) -> bool:
        """Whether a change waits for the next poll: to come and be loaded, or to be used."""
        return bool(self._way_until or self._due)

    def close(self) -> None:
        """End the connection."""
        self._channel.shut()

    def begin(self, batch: int, stage: int, partition: int, execution: int = 0) -> Go:
        """Announce a task, and learn of every commit that was sent before it began."""
        with self._state:
            self._go, self._heard, self._batch = None, time.monotonic(), batch
            try:
                self._say(Begin(batch, stage, partition, execution))
            except WireError as lost:  # whoever tries again must not get this connection
                self._break(str(lost))
                raise
            self._wait_for(self._may_go)
            self._busy = True
            assert self._go is not None
            return self._go

    def ended(self, report: Ended) -> None:
        """Tell how a task went, if anyone listens; the worker is idle from now on.

        A task that gave rows of both epochs may only complete if the controller knows where it
        switched, in case it is executed again: so this waits for the answer, and raises if there
        is none.
        """
        with self._state:
            self._busy, self._noted, self._heard = False, None, time.monotonic()
            self._call = None
            self._apply_due()
        self._tell_counts()
        if not (report.complete and report.cuts):
            with suppress(WireError):
                self._say(report)
            return
        self._say(report)
        with self._state:
            self._wait_for(lambda: self._noted is not None, "nobody knows where this task switched")
            if not self._noted:
                raise WireError("another attempt of this task has switched at another row")

    def calling(self, operator: str, change: int) -> None:
        """A version of an operator is about to be called."""
        self._call = operator, change, time.monotonic()

    def returned(self) -> None:
        """It has returned."""
        self._call = None

    def failed(self, change: int, error: OperatorError) -> None:
        """A version of an operator failed: tell whoever can take it back, if anyone listens."""
        texts = (clipped(text, MOST_TEXT) for text in (error.problem, error.row, error.story))
        self._tell_failed(Failed(self._batch, error.operator, change, *texts))

    def hold(self, operator: str, change: int, stage: int) -> bool:
        """A version has failed on a chunk of which nothing has left: wait for it to be taken back.

        ``True`` when something else is in use: the same rows can be processed again.
        """
        with self._state:
            self._given_up, deadline = False, time.monotonic() + HOLD_SECONDS
            self._call = None
            try:
                self._say(Holds(operator, change, stage))
            except WireError:
                return False
            while not (self._due or self._given_up or self._broken):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._state.wait(left)
            switched, self._way_until = bool(self._due), 0.0
            self._apply_due()
            return switched

    def _tell_failed(self, failure: Failed) -> None:
        with suppress(WireError):
            self._say(failure)

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
                if self._loads and not self._has_loader:
                    self._channel.nudge()
                self._give_way()
                self._apply_due()
            finally:
                self._state.release()

    def _give_way(self) -> None:
        """Let a change be made ready and loaded, and its commit be heard of, before rows.

        They would take every other moment of the interpreter from it, and a core from whoever
        else is needed: it would take longer than this pause does.
        """
        most = time.monotonic() + 2 * GIVE_WAY_SECONDS
        left = min(self._way_until, most) - time.monotonic()
        while left > 0 and not (self._due or self._broken):
            self._state.wait(left)  # the change that was announced may come meanwhile
            left = min(self._way_until, most) - time.monotonic()
        self._way_until = 0.0

    def _stand_back(self) -> None:
        """Have rows give way, and look often."""
        self._hurry()
        self._way_until = time.monotonic() + GIVE_WAY_SECONDS

    def _define(self, definition: bytes, skipped: dict[str, int]) -> None:
        try:
            self._engine.define(definition, skipped)
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            problem = f"the flow's functions cannot be loaded here:\n{story_of(error)}"
            raise WireError(problem) from error

    def _adopt(self, base: tuple[int, ...]) -> None:
        """A new worker starts with the base: loaded here and now, before anything else."""
        for number in base:
            shipment = self._shipments.pop(number)
            try:
                self._load(shipment)
            except BaseException as error:
                story = story_of(error)
                self._tell_unloadable(number, story)
                raise WireError(f"change {number} cannot be loaded here:\n{story}") from error
            self._engine.adopt(number)
            self._adopted.add(number)

    def _tell_unloadable(self, change: int, story: str) -> None:
        """A change that others could load makes every task fail here: it must be taken back."""
        problem = f"change {change} cannot be loaded in worker {self.name}"
        self._tell_failed(Failed(ANY_BATCH, "", change, problem, "", clipped(story, MOST_TEXT)))

    def _may_go(self) -> bool:
        """Whether the answer has come and every change in it has taken effect here."""
        self._apply_due()
        if (go := self._go) is None:
            return False
        for change in (*go.base, *go.committed):
            if change in self._failed:
                self._tell_unloadable(change, self._failed[change])
                self._break(f"change {change} cannot be loaded here:\n{self._failed[change]}")
        return self._adopted.issuperset((*go.base, *go.committed))

    def _wait_for(
        self, condition: Callable[[], bool], without: str = "no configuration for this task"
    ) -> None:
        """Wait, with the state locked, until something holds; give up on a silent controller.

        The connection is of no use then: an answer that comes too late must not be taken for
        the answer to another question.
        """
        while not condition():
            patience = LOAD_SECONDS if self._machine.loading else CONNECT_SECONDS
            left = self._heard + patience - time.monotonic()
            if left <= 0:
                self._break("the controller does not answer")
            if self._broken:
                raise WireError(f"{without}: {self._broken}")
            self._state.wait(left)

    def _break(self, why: str) -> None:
        """The connection is over: nobody may go on waiting for it, on either side."""
        self._broken = self._broken or why
        self.close()
        self._loads.clear()
        self._state.notify_all()

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
            if not self._busy:
                self._apply_due()
            self._leave_if_blocked()
            loads = bool(self._loads) and not self._has_loader
            self._has_loader = self._has_loader or loads
        self._tell_if_stuck()
        return loads

    def _leave_if_blocked(self) -> None:
        since = self._abandoned
        if since is not None and time.monotonic() - since > ABANDON_SECONDS:
            self._break(f"change {self._at_work} was aborted, and its loading does not end")

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
            self._break(str(error) or repr(error))

    def _receive(self, message: Down) -> None:
        match message:
            case Shipment(change, _, sizes, whole):
                self._shipments[change] = replace(message, whole=b"")
                self._parts[change] = (memoryview(whole),) if whole else rooms(sizes)
            case Soon():
                self._stand_back()
            case Piece(change, part, start, data):
                if self._parts[change]:
                    self._parts[change][part][start : start + len(data)] = data
            case Welcome(base, definition, skipped):
                self._define(definition, skipped)
                self._adopt(base)
                self._welcome = message
                self._state.notify_all()
            case Go():
                self._go = message
                self._state.notify_all()
            case GivenUp():
                self._given_up = True
                self._state.notify_all()
            case Noted(accepted):
                self._noted = accepted
                self._state.notify_all()
            case Commit(change) if change in self._failed:
                pass  # its first task will say why it cannot begin
            case _:
                self._handle(Received(message))

    def _handle(self, event: WorkerEvent) -> None:
        self._machine, instructions = self._machine.handle(event)
        for instruction in instructions:
            match instruction:
                case Load(change, _):
                    self._stand_back()
                    self._loads.append(self._shipments[change])
                case Switch() | Drop():
                    self._due.append(instruction)
                    self._state.notify_all()
                case Say(Switched()):
                    pass  # sent when the switch has happened, in _apply_due
                case Say(message):
                    self._say(message)

    def _apply_due(self) -> None:
        """Switch and drop, now that no row is being processed."""
        if not self._due:
            return
        due, self._due = self._due, []
        for instruction in due:
            match instruction:
                case Switch(change, _):
                    self._engine.switch(change)
                    self._adopted.add(change)
                    with suppress(WireError):
                        self._say(Switched(change, time.time()))
                case Drop(change, aborted):
                    self._shipments.pop(change, None)
                    self._parts.pop(change, None)
                    if aborted:
                        if change == self._at_work:
                            self._abandoned = time.monotonic()
                        self._failed.pop(change, None)
                        self._engine.drop(change)

    def _load_all(self) -> None:
        """Load one change after the other, beside the data path."""
        while (shipment := self._next_load()) is not None:
            error = None
            try:
                self._load(shipment)
            except BaseException as problem:  # the user's code may raise anything, even SystemExit
                error = told(problem)
            with self._state:
                self._at_work = self._abandoned = None
                self._loaded(shipment.change, error)

    def _next_load(self) -> Shipment | None:
        with self._state:
            if self.broken or not self._loads:
                self._has_loader = False
                return None
            shipment = self._loads.popleft()
            self._at_work = shipment.change
            return shipment

    def _load(self, shipment: Shipment) -> None:
        parts = self._parts.pop(shipment.change)
        if not parts:
            raise MemoryError(f"a change of {sum(shipment.sizes):,} bytes does not fit")
        self._engine.load(shipment.change, shipment.bit, parts[0], parts[1:])

    def _loaded(self, change: int, error: str | None) -> None:
        if error:
            self._failed[change] = error
        try:
            self._handle(Loaded(change, error))
            if not self._busy:
                self._apply_due()
        except Exception as lost:  # whatever it is, the rows go on
            self._break(str(lost) or repr(lost))
        self._hurry()
        self._state.notify_all()

    def _hurry(self) -> None:
        self._hurry_until = time.monotonic() + HURRY_SECONDS
