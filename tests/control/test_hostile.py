"""Peers that are strangers, slow, broken or hostile: each costs its own connection and no more."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import msgspec
import pytest

from fries.change.model import Phase
from fries.control.client import ControlClient
from fries.control.door import HASTE, STRANGERS_PER_SECOND, Line, Pace
from fries.control.messages import (
    ANY_BATCH,
    ENCODER,
    Begin,
    Counted,
    Counts,
    Down,
    Ended,
    Failed,
    Go,
    Hello,
    Piece,
    Welcome,
)
from fries.control.peers import Peer
from fries.control.seal import CONTROLLER, WORKER, Proof, new_secret
from fries.control.server import ControlServer
from fries.control.wire import LARGE_BYTES, MAX_UP, Unframer, frame
from fries.errors import OperatorError, WireError
from fries.protocol.messages import Prepared, Refused, Snapshotted, Switched
from tests.control.fakes import SECRET, FakeEngine, Join, order, until
from tests.control.rogue import PATIENCE, Rogue


def many(count: int) -> dict[str, Counts]:
    return {f"operator {number}": Counts() for number in range(count)}


def nested(depth: int) -> bytes:
    """A hello with a field that nobody knows, nested too deeply for any reader."""
    hello = {"type": "Begin", "batch": 1, "stage": 0, "partition": 0, "more": None}
    return msgspec.msgpack.encode(hello)[:-1] + b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        msgspec.msgpack.encode({"type": "Launch", "missiles": 3}),
        msgspec.msgpack.encode({"type": "Begin", "batch": "one", "stage": 0, "partition": 0}),
        msgspec.msgpack.encode({"type": "Begin", "batch": 1}),
        ENCODER.encode(Hello("fraud", "another name")),
        ENCODER.encode(Go((), ())),
        ENCODER.encode(Piece(1, 0, 0, b"mine")),
        ENCODER.encode(Ended(0, 0, 0, {1: math.inf})),
        ENCODER.encode(Ended(0, 0, 0, {1: math.nan})),
        ENCODER.encode(Counted({"FM": Counts(1, 1, -math.inf)})),
        nested(100_000),
    ],
    ids=[
        "empty",
        "no message",
        "a list",
        "unknown type",
        "wrong type",
        "fields missing",
        "second hello",
        "a controller's message",
        "a piece",
        "infinite time",
        "no time",
        "infinite seconds",
        "nested",
    ],
)
def test_nonsense_from_a_worker_ends_its_own_connection(
    server: ControlServer, join: Join, body: bytes
) -> None:
    client, engine = join()
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        until(lambda: "rogue" in server.workers)
        rogue.say_bytes(body)
        assert rogue.turned_away()
    until(lambda: server.workers == (client.name,))
    assert client.begin(0, 0, 0) == Go((), ())
    assert server.request(order("FM")).phase is not Phase.ABORTED
    until(lambda: ("switch", 1) in engine.told, client)


def test_a_begin_for_every_task_that_never_ends(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.change.tasks.MOST_TASKS", 3)
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        for number in range(4):
            rogue.say(Begin(-number - 1, 0, 0))
        assert rogue.turned_away()


def test_counters_of_operators_that_were_made_up(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.server.MOST_COUNTERS", 100)
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        rogue.say(Counted(many(100)))
        rogue.say(Counted({"one more": Counts()}))
        assert rogue.turned_away()
    assert len(server.counters) == 100


def test_answers_that_nobody_has_asked_for_count_for_nothing(
    server: ControlServer, join: Join
) -> None:
    _, engine = join(held=True)
    try:
        change = server.request(order("FM"))
        with Rogue(server.address, SECRET) as rogue:
            rogue.join()
            for number in (0, -1, 7, 2**63, -(2**63), 2**64 - 1):
                for message in (Prepared(number), Switched(number), Snapshotted(number)):
                    rogue.say(message)
                rogue.say(Refused(number, "no"))
                rogue.say(Ended(number if number < 2**63 else 0, 1, 2, {number: 1e300}))
            rogue.say(Begin(0, 0, 0))
            while not isinstance(rogue.hear(), Go):
                pass
        assert change.phase is Phase.PREPARING
    finally:
        engine.loading.release()
    assert change.wait(time.monotonic() + PATIENCE)


@pytest.mark.parametrize("name", ["", "x" * 513], ids=["empty", "long"])
def test_a_worker_needs_a_name_of_some_sense(server: ControlServer, name: str) -> None:
    with Rogue(server.address, SECRET) as rogue:
        rogue.say(Hello("fraud", name))
        assert rogue.turned_away()


def test_nobody_takes_the_name_of_another(server: ControlServer, join: Join) -> None:
    client, _ = join()
    with Rogue(server.address, SECRET) as rogue:
        rogue.say(Hello("fraud", client.name))
        assert rogue.turned_away()
    assert server.workers == (client.name,)
    assert client.begin(0, 0, 0) == Go((), ())


def test_a_message_that_is_too_long_is_not_even_read(server: ControlServer) -> None:
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        rogue.socket.sendall((MAX_UP + 1).to_bytes(4, "big"))
        assert rogue.turned_away()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one, other: one + one,
        lambda one, other: other,
        lambda one, other: one[:-1] + bytes([one[-1] ^ 1]),
        lambda one, other: frame(b"short"),
        lambda one, other: frame(one[20:]),
    ],
    ids=["repeated", "left out", "altered", "no tag", "not sealed"],
)
def test_a_frame_with_a_wrong_seal_ends_the_connection(
    server: ControlServer, join: Join, spoil: Callable[[bytes, bytes], bytes]
) -> None:
    client, _ = join()
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        begin = ENCODER.encode(Begin(0, 0, 0))
        rogue.socket.sendall(spoil(rogue.sealer.seal(begin), rogue.sealer.seal(begin)))
        assert rogue.turned_away()
    until(lambda: server.workers == (client.name,))


def test_a_message_to_a_worker_does_not_wait_for_another_one(
    server: ControlServer, join: Join
) -> None:
    """The system would keep small messages back for 40 ms: a switch takes less than one."""
    client, _ = join()
    sock = server._peers[client.name]._line._writer.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def stranger(address: tuple[str, int]) -> socket.socket:
    """Somebody who connects, has seen the challenge, and says nothing."""
    silent = socket.create_connection(address, timeout=PATIENCE)
    assert len(silent.recv(36, socket.MSG_WAITALL)) == 36
    return silent


def test_strangers_do_not_keep_workers_out(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is turned away at once; a worker tries again."""
    client, _ = join()
    monkeypatch.setattr("fries.control.door.MOST_STRANGERS", 2)
    strangers = [stranger(server.address) for _ in range(2)]
    with socket.create_connection(server.address, timeout=PATIENCE) as third:
        assert third.recv(1) == b""
    assert client.begin(0, 0, 0) == Go((), ())

    def one_leaves(_low: float, _high: float) -> float:
        if strangers:
            strangers.pop().close()
        return 0.001

    monkeypatch.setattr("fries.control.greeting.random.uniform", one_leaves)
    join()
    assert len(server.workers) == 2
    assert len(strangers) < 2
    for left in strangers:
        left.close()


def test_those_who_hold_all_places_lose_the_oldest_one(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.door.MOST_STRANGERS", 2)
    monkeypatch.setattr("fries.control.door.SILENT_SECONDS", 0.0)
    oldest, newer = stranger(server.address), stranger(server.address)
    join()
    assert oldest.recv(1) == b""
    assert len(server.workers) == 1, "at once, and without another try"
    newer.setblocking(False)
    with pytest.raises(BlockingIOError):
        newer.recv(1)
    for one in (oldest, newer):
        one.close()


def test_strangers_are_let_in_at_a_steady_pace_and_workers_do_not_count() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert [pace.take() for _ in range(HASTE - 1)] == [0.0] * (HASTE - 1)
    waits = []
    for _ in range(1000):
        waits.append(pace.take())
        now[0] += waits[-1]
    assert now[0] == pytest.approx(1000 / STRANGERS_PER_SECOND)
    now[0] += 1e6
    assert [pace.take() for _ in range(HASTE)][-1] > 0, "a quiet time is not saved up"
    for _ in range(10 * HASTE):
        pace.give_back()
        assert pace.take() <= 1 / STRANGERS_PER_SECOND


@pytest.mark.parametrize("size", [1, 3, 35, 71])
def test_a_proof_may_come_in_pieces(server: ControlServer, size: int) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proof = Proof(SECRET, WORKER)
        proof.meet(line.recv(36, socket.MSG_WAITALL)[4:])
        said = frame(proof.challenge) + frame(proof.answer())
        for start in range(0, len(said), size):
            line.sendall(said[start : start + size])
        proof.check(line.recv(36, socket.MSG_WAITALL)[4:])


@pytest.mark.parametrize(
    "said",
    [b"\0", b"\0\0\0\x21", frame(bytes(32)), frame(bytes(32)) + frame(bytes(31)) + b"\0"],
    ids=["half a word", "another length", "half a proof", "a shorter answer"],
)
def test_a_proof_that_ends_early_or_is_of_another_shape(server: ControlServer, said: bytes) -> None:
    with stranger(server.address) as line:
        line.sendall(said)
        answer = b""
        with suppress(OSError):  # it has hung up before that
            line.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            answer = line.recv(1)
        assert answer == b""


def test_a_worker_gives_up_on_a_door_that_stays_full(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.door.MOST_STRANGERS", 0)
    monkeypatch.setattr("fries.control.client.CONNECT_SECONDS", 0.1)
    with pytest.raises(WireError, match="turned this worker away"):
        ControlClient(server.address, SECRET, "fraud", FakeEngine())


def test_a_stranger_has_little_time(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fries.control.door.GREETING_SECONDS", 0.02)
    with stranger(server.address) as silent:
        assert silent.recv(1) == b""
    for attempt in count():  # a busy machine may need more time for the proof
        monkeypatch.setattr("fries.control.door.GREETING_SECONDS", 0.02 * 2**attempt)
        with suppress(EOFError, ConnectionError), Rogue(server.address, SECRET) as proved:
            assert proved.turned_away(), "a hello is a part of the greeting"
            break


def test_a_worker_that_does_not_read_is_given_up_and_the_change_goes_on(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.peers.STALLED_SECONDS", 3.0)
    client, engine = join()
    with Rogue(server.address, SECRET, receive_bytes=4096) as rogue:
        rogue.join()
        until(lambda: "rogue" in server.workers)
        large = memoryview(bytes(30 * LARGE_BYTES))
        change = server.request(replace(order("FM"), buffers=(large,)))
        assert change.wait(time.monotonic() + PATIENCE)
    engine.wait_for("switch", 1)
    assert server.workers == (client.name,)


class StuckLine(Line):
    """A line whose peer takes nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting = 0
        self.aborted = asyncio.Event()

    def write(self, messages: Iterable[Down]) -> int:
        """Keep messages."""
        size = sum(len(ENCODER.encode(message)) for message in messages)
        self.waiting += size
        return size

    @property
    def unread(self) -> int:
        """All that was not taken."""
        return self.waiting

    def abort(self) -> None:
        """Note that the connection is ended."""
        self.aborted.set()


def test_what_piles_up_for_a_worker_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fries.control.peers.MOST_UNREAD", 1000)

    async def pile() -> int:
        line = StuckLine()
        peer = Peer(line)
        peer.send(Welcome((), bytes(100_000)))
        assert not line.aborted.is_set(), "a flow's first functions may be large"
        written = 0
        while not line.aborted.is_set():
            peer.send(Go((), ()))
            written = line.waiting
        peer.close()
        return written

    assert 101_000 < asyncio.run(pile()) < 101_200


def test_a_slow_worker_is_given_up_only_if_it_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fries.control.peers.STALLED_SECONDS", 0.01)

    class SlowLine(StuckLine):
        """Takes a byte whenever somebody looks, ten times."""

        looks = 0

        @property
        def unread(self) -> int:
            """One byte less each time."""
            self.looks += 1
            self.waiting -= self.looks < 10
            return self.waiting

    async def give_up() -> int:
        line = SlowLine()
        peer = Peer(line)
        peer.send(Go((), ()))
        await asyncio.wait_for(line.aborted.wait(), PATIENCE)
        peer.close()
        return line.looks

    assert asyncio.run(give_up()) == 10, "it took nothing between the last two looks"


class DeafController:
    """Greets a worker, answers its first task, and never reads again."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._line: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """End it all."""
        self._thread.join()
        self._listener.close()
        if self._line is not None:
            self._line.close()

    def _serve(self) -> None:
        line, _ = self._listener.accept()
        self._line = line
        unframer, proof = Unframer(), Proof(SECRET, CONTROLLER)

        def read() -> bytes:
            while (body := unframer.take()) is None:
                assert unframer.receive(line)
            return bytes(body)

        line.sendall(frame(proof.challenge))
        proof.meet(read())
        proof.check(read())
        line.sendall(frame(proof.answer()))
        sealer, opener = proof.seal()
        opener.open(read())
        line.sendall(sealer.seal(ENCODER.encode(Welcome(()))))
        opener.open(read())
        line.sendall(sealer.seal(ENCODER.encode(Go((), ()))))


def test_rows_do_not_wait_for_a_controller_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)
    deaf = DeafController()
    client = ControlClient(deaf.address, SECRET, "fraud", FakeEngine())
    client.begin(0, 0, 0)
    told = 0
    while not client.broken:  # as between chunks; a write that waits would never come back
        client.count("x" * 200_000, 1, 1, 0.0)
        client.poll()
        told += 1
    assert told < 1000
    client.ended(Ended(0, 0, 0, {}))
    with pytest.raises(WireError, match="no configuration for this task"):
        client.begin(1, 0, 0)
    deaf.close()


def test_a_traceback_of_any_length_reaches_the_controller(server: ControlServer) -> None:
    class Chatty(FakeEngine):
        """Fails with more to say than fits into a message, and not all of it text."""

        def load(self, *_: object) -> None:
            """Fail."""
            raise ImportError("\N{PILE OF POO}" * MAX_UP + "\udcff and this is why")

    client = ControlClient(server.address, SECRET, "fraud", Chatty())
    change = server.request(order("FM"))
    assert change.wait(time.monotonic() + PATIENCE)
    assert change.phase is Phase.ABORTED
    assert "characters left out" in change.reason
    assert change.reason.endswith("and this is why\n")
    assert not client.broken
    client.close()


def test_a_failure_is_told_whatever_its_text(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(0, 0, 0)
    client.failed(1, OperatorError("FM", "\udcff" * MAX_UP, "{}" * MAX_UP, "why " * MAX_UP))
    until(lambda: len(server.failures) == 1)
    assert server.failures[0].problem.startswith("\\udcff")
    assert not client.broken


def test_failures_without_end_are_not_all_kept(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.change.controller.MOST_FAILURES", 2)
    with Rogue(server.address, SECRET) as rogue:
        rogue.join()
        for number in range(5):
            rogue.say(Failed(ANY_BATCH, "FM", number, "", "", ""))
        rogue.say(Failed(0, "FM", 9, "", "", ""))
        rogue.say(Begin(0, 0, 0))
        assert isinstance(rogue.hear(), Go)
    assert [failure.change for failure in server.failures] == [0, 1]


def test_counters_of_very_many_operators_fit(server: ControlServer, join: Join) -> None:
    client, _ = join()
    for name in many(5_000):
        client.count(f"{name:200}", 1, 1, 0.0)
    client.ended(Ended(0, 0, 0, {}))
    until(lambda: len(server.counters) == 5_000)


def test_another_secret_of_the_same_length_is_turned_away(server: ControlServer) -> None:
    with pytest.raises((WireError, EOFError)):
        Rogue(server.address, new_secret())
