"""What ``benchmarks.fuzz`` feeds: everything that reads bytes of others. Add yours to the list.

Targets that need a connection get few inputs. They share a controller and an honest worker, which
must work on whatever the others send; nothing may be unpickled, and no thread may die.
"""

from __future__ import annotations

import errno
import logging
import math
import pickle
import random
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Final
from unittest import mock

import msgspec

from benchmarks import fuzz_log
from benchmarks.fuzz import Target
from fries.change.model import Order
from fries.control import greeting, wire
from fries.control.client import ControlClient
from fries.control.messages import (
    DOWN,
    ENCODER,
    Begin,
    Counted,
    Counts,
    Cut,
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
    Taken,
    Up,
    Welcome,
)
from fries.control.reports import heard
from fries.control.seal import CONTROLLER, Opener, Proof, Sealer, new_secret
from fries.control.server import ControlServer
from fries.control.wire import MAX_UP, Unframer, frame
from fries.errors import FriesError, WireError
from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
)
from fries.protocol.worker import Worker
from fries.protocol.worker_events import Loaded, Received
from fries_lab.sim.controller import Controller, Heard, Joined, Requested

PATIENCE: Final = 86_400.0
"""Seconds until an answer that does not come counts as a hang."""
CHECK_EVERY: Final = 25
"""Inputs between two looks at the honest worker."""
KEY: Final = bytes(range(32))
UPS: Final[tuple[Up, ...]] = (
    Prepared(1),
    Refused(1, "Traceback"),
    Switched(1),
    Snapshotted(1),
    Hello("fraud", "worker"),
    Begin(3, 1, 0, 2),
    Ended(3, 1, 0, {1: 1.5}, 2, True, (Cut(10, 1),)),
    Counted({"FM": Counts(3, 2, 0.5), "MC": Counts()}, 1 << 20, (Taken("FM", 1, 2, 3),)),
    Failed(3, "FM", 1, "ValueError", "{}", "Traceback"),
    Stuck("FM", 1, 2.5),
    Holds("FM", 1, 0),
)
DOWNS: Final[tuple[Down, ...]] = (
    Prepare(1, Part(("FM",), True, frozenset({1}), (2,), frozenset({3}))),
    Commit(1),
    Abort(1),
    Retire(1),
    StartCheckpoint(1),
    CancelCheckpoint(1),
    Soon(),
    Shipment(2, 0, (3, 4)),
    Shipment(3, 1, (5,), b"whole"),
    Piece(1, 0, 0, b"abc"),
    Welcome((1,), b"definition"),
    Go((1,), (2,), (2,), (Cut(10, 2),)),
    Noted(),
    GivenUp(1),
)
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""How a worker's decoder refuses; the worker takes any error for a refusal."""
UP_SEEDS: Final = tuple(map(ENCODER.encode, UPS))
DOWN_SEEDS: Final = tuple(map(ENCODER.encode, DOWNS))


def targets(stack: ExitStack) -> list[Target]:
    """All of them; what they need ends with the stack."""
    stack.enter_context(nothing_unpickled())
    stack.enter_context(mock.patch.object(wire, "LARGE_BYTES", 100))
    alone = [
        Target("frames", read_frames, _streams(frame)),
        Target("sealed frames", open_frames, _streams(Sealer(KEY).seal), 0.5),
        Target("messages up", read_up, UP_SEEDS, messages=True),
        Target("messages down", read_down, DOWN_SEEDS, messages=True),
        Target("controller machine", tell_controller, UP_SEEDS, 0.5, messages=True),
        Target("worker machine", tell_worker, DOWN_SEEDS, 0.5, messages=True),
        *fuzz_log.targets(),
    ]
    controller = stack.enter_context(controller_under_fire())
    stranger_seeds = (frame(bytes(32)) + frame(bytes(32)), frame(bytes(32)), b"GET / HTTP/1.1\r\n")
    over_sockets = [
        Target("controller, from a stranger", controller.from_stranger, stranger_seeds, 0.008),
        Target("controller, from a worker", controller.from_worker, UP_SEEDS, 0.008, True),
    ]
    worker = stack.enter_context(worker_under_fire())
    over_sockets += [
        Target("worker, from a stranger", worker.from_stranger, stranger_seeds, 0.004),
        Target("worker, from its controller", worker.from_controller, DOWN_SEEDS, 0.004, True),
    ]
    return [*alone, *over_sockets]


@contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Fail if anybody unpickles anything."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("bytes from outside were unpickled")

    with mock.patch.object(pickle, "loads", refuse), mock.patch.object(pickle, "load", refuse):
        yield


def _streams(seal: Callable[[bytes], bytes]) -> tuple[bytes, ...]:
    """Streams of some frames; the last one is what :func:`open_frames` expects."""
    return (b"".join(map(seal, BODIES)),)


BODIES: Final = (b"first", b"", DOWN_SEEDS[0], bytes(300), b"x" * 99, b"last")


def _is_hung_up(error: OSError) -> bool:
    """Whether the other side has ended the connection; ``shutdown`` has a number of its own."""
    return isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN


class Slices:
    """A socket that gives bytes in pieces of any size."""

    def __init__(self, sent: bytes) -> None:
        self._sent, self._choose = sent, random.Random(zlib.crc32(sent))

    def recv(self, size: int) -> bytes:
        """The next bytes."""
        cut = min(size, self._choose.choice((1, 3, 50, 1000)))
        given, self._sent = self._sent[:cut], self._sent[cut:]
        return given

    def recv_into(self, view: memoryview) -> int:
        """The next bytes, in their place."""
        given = self.recv(len(view))
        view[: len(given)] = given
        return len(given)


def unframed(sent: bytes) -> Iterator[bytes | memoryview]:
    """The frames of a stream, as a worker reads them."""
    unframer, slices = Unframer(), Slices(sent)
    while unframer.receive(slices):
        while (body := unframer.take(MAX_UP)) is not None:
            yield body


def read_frames(sent: bytes) -> str:
    """Frames are those that a reader of the whole stream finds."""
    place = 0
    try:
        for body in unframed(sent):
            length = int.from_bytes(sent[place : place + 4], "big")
            place += 4 + length
            assert bytes(body) == sent[place - length : place]
    except WireError:
        assert int.from_bytes(sent[place : place + 4], "big") > MAX_UP
        return "refused"
    left = len(sent) - place
    assert left < 4 or left < 4 + int.from_bytes(sent[place : place + 4], "big")
    return "whole" if not left else "incomplete"


def open_frames(sent: bytes) -> str:
    """What opens is what was sealed, from the first on, without a gap."""
    opener = Opener(KEY)
    opened: list[bytes] = []
    try:
        opened.extend(bytes(opener.open(sealed)) for sealed in unframed(sent))
    except WireError:
        return "refused"
    finally:
        assert opened == list(BODIES[: len(opened)])
    return "all opened" if len(opened) == len(BODIES) else "some opened"


def read_up(body: bytes) -> str:
    """A worker's message, or none."""
    try:
        message = heard(body)
    except WireError:
        return "refused"
    assert heard(ENCODER.encode(message)) == message
    return type(message).__name__


def read_down(body: bytes) -> str:
    """A controller's message, or none."""
    try:
        message = DOWN.decode(body)
    except UNREADABLE:
        return "refused"
    assert DOWN.decode(ENCODER.encode(message)) == message
    return type(message).__name__


def tell_controller(body: bytes) -> str:
    """The controller's machine takes any message at any time."""
    try:
        message = heard(body)
    except WireError:
        return "refused"
    if not isinstance(message, (Prepared, Refused, Switched, Snapshotted)):
        return "not its"
    state, _ = AT_WORK.handle(Heard("worker", message))
    assert state.last == AT_WORK.last
    return "nothing" if state == AT_WORK else "a step"


def tell_worker(body: bytes) -> str:
    """The worker's machine takes a message or refuses it as a breach of the protocol."""
    try:
        message = DOWN.decode(body)
    except UNREADABLE:
        return "refused"
    if isinstance(message, (Shipment, Piece)):
        return "not its"
    try:
        state, _ = LOADED.handle(Received(message))
    except FriesError:
        return "a breach"
    return "nothing" if state == LOADED else "a step"


def _at_work() -> Controller:
    """A controller with two workers and a change that both prepare."""
    state = Controller()
    part = (("role", Part(("FM",), head=True)),)
    members = frozenset({frozenset({"FM"})})
    for event in (
        Joined("worker", "role"),
        Joined("other", "role"),
        Requested(part, members, tagged=True),
    ):
        state, _ = state.handle(event)
    return state


AT_WORK: Final = _at_work()
LOADED: Final = (
    Worker("worker").handle(Received(Prepare(1, Part(("FM",), head=True))))[0].handle(Loaded(1))[0]
)


class NoEngine:
    """A worker's runtime that counts how often it is used."""

    def __init__(self) -> None:
        self.used = 0

    def define(self, definition: bytes, *_: object, **__: object) -> None:
        """Where functions would be unpickled."""
        self.used += bool(definition)

    def adopt(self, *_: object, **__: object) -> None:
        """Nothing to do."""

    def load(self, *_: object, **__: object) -> None:
        """Where functions would be unpickled."""
        self.used += 1

    def switch(self, change: int) -> None:
        """Nothing to do."""

    def drop(self, change: int) -> None:
        """Nothing to do."""


class Deaths(logging.Handler):
    """Threads and tasks that ended with an error that nobody took."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note what the event loop says."""
        self.found.append(self.format(record))

    def note(self, died: threading.ExceptHookArgs) -> None:
        """Note a thread."""
        self.found.append(f"{died.thread}: {died.exc_value!r}")

    def check(self) -> None:
        """Fail if there were any."""
        found, self.found = self.found, []
        assert not found, "\n".join(found)


@contextmanager
def deaths() -> Iterator[Deaths]:
    """Watch over threads and event loops."""
    noted = Deaths()
    logging.getLogger("asyncio").addHandler(noted)
    with mock.patch.object(threading, "excepthook", noted.note):
        try:
            yield noted
        finally:
            logging.getLogger("asyncio").removeHandler(noted)


class ControllerUnderFire:
    """A controller that an honest worker relies on, whatever others send to it."""

    def __init__(self, server: ControlServer, honest: ControlClient, deaths: Deaths) -> None:
        self._server, self._honest, self._deaths = server, honest, deaths
        self._numbers = count()

    def from_stranger(self, sent: bytes) -> str:
        """Somebody who does not know the secret learns nothing but a challenge."""
        received = 0
        with socket.create_connection(self._server.address, timeout=PATIENCE) as stranger:
            try:
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                while data := stranger.recv(1024):
                    received += len(data)
            except OSError as error:
                if not _is_hung_up(error):
                    raise
        assert received <= 36, "a stranger was answered"
        self._check()
        return "hung up"

    def from_worker(self, body: bytes) -> str:
        """Somebody who knows the secret can end its own connection, and nothing else."""
        deadline = time.monotonic() + PATIENCE
        channel, unframer, opener = greeting.connect(
            self._server.address, self._server.secret, None, deadline
        )
        try:
            for said in (Hello("fraud", f"rogue {next(self._numbers)}"), body, Begin(0, 0, 0)):
                channel.send(said if isinstance(said, bytes) else ENCODER.encode(said))
            while True:
                channel.wait()
                if not unframer.receive(channel):
                    return "hung up"
                while (sealed := unframer.take()) is not None:
                    if isinstance(DOWN.decode(opener.open(sealed)), Go):
                        return "answered"
        except (WireError, ConnectionError):
            return "hung up"
        finally:
            channel.close()
            self._check()

    def _check(self) -> None:
        """Now and then: the honest worker begins a task, and a change is on its way."""
        number = next(self._numbers)
        self._deaths.check()
        if number % CHECK_EVERY == 0:
            self._honest.ended(Ended(number, 0, 0, {}))
            self._honest.begin(number, 0, 0)
            members = frozenset({frozenset({"FM"})})
            self._server.request(Order(("FM",), b"payload", members, timeout=0.5))
        self._honest.poll()
        assert not self._honest.broken
        assert self._honest.name in self._server.workers


@contextmanager
def controller_under_fire() -> Iterator[ControllerUnderFire]:
    """A controller and its honest worker."""
    server = ControlServer("fraud", new_secret())
    server.start()
    try:
        with deaths() as noted:
            honest = ControlClient(server.address, server.secret, "fraud", NoEngine())
            honest.begin(0, 0, 0)
            yield ControllerUnderFire(server, honest, noted)
            honest.close()
    finally:
        server.stop()


class WorkerUnderFire:
    """A worker whose controller, or somebody in its place, sends anything."""

    def __init__(
        self, listener: socket.socket, threads: ThreadPoolExecutor, deaths: Deaths
    ) -> None:
        self._listener, self._threads, self._deaths = listener, threads, deaths
        self._secret = new_secret()

    def from_stranger(self, sent: bytes) -> str:
        """Somebody in the controller's place who does not know the secret."""
        engine = NoEngine()

        def speak() -> None:
            sock, _ = self._listener.accept()
            with sock:
                sock.sendall(sent)

        spoken = self._threads.submit(speak)
        try:
            self._connect(engine)
            raise AssertionError("a worker believes a stranger")
        except WireError:
            pass
        spoken.result(PATIENCE)
        self._deaths.check()
        assert not engine.used
        return "refused"

    def from_controller(self, body: bytes) -> str:
        """The controller itself, gone mad, before or after the worker is welcome."""
        early = zlib.crc32(body) % 4 == 0
        welcome, shipment = ENCODER.encode(Welcome(())), ENCODER.encode(Shipment(1, 0, (3,)))
        said = [body, welcome] if early else [welcome, shipment, body]
        spoken = self._threads.submit(self._speak, said)
        try:
            client = self._connect(NoEngine())
        except WireError:
            spoken.result(PATIENCE)
            return "refused"
        spoken.result(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while not client.broken:
            assert time.monotonic() < deadline, "the worker has not noticed"
            client.poll()
        self._deaths.check()
        return "taken to the end"

    def _connect(self, engine: NoEngine) -> ControlClient:
        return ControlClient(self._listener.getsockname(), self._secret, "fraud", engine)

    def _speak(self, bodies: list[bytes]) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(PATIENCE)
            unframer, proof = Unframer(), Proof(self._secret, CONTROLLER)

            def read() -> bytes:
                while (body := unframer.take()) is None:
                    assert unframer.receive(sock)
                return bytes(body)

            sock.sendall(frame(proof.challenge))
            proof.meet(read())
            proof.check(read())
            sock.sendall(frame(proof.answer()))
            sealer, _ = proof.seal()
            read()  # hello
            try:
                sock.sendall(b"".join(map(sealer.seal, bodies)))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1024):
                    pass
            except OSError as error:
                if not _is_hung_up(error):
                    raise


@contextmanager
def worker_under_fire() -> Iterator[WorkerUnderFire]:
    """A place where workers look for their controller."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as threads,
        deaths() as noted,
        mock.patch.object(greeting, "BUSY_SECONDS", math.inf),  # no second try
    ):
        listener.settimeout(PATIENCE)
        yield WorkerUnderFire(listener, threads, noted)
