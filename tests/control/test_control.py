"""The controller and its workers over real sockets: one process, no sleeps."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fries.change.model import Change, Phase
from fries.control.client import ControlClient
from fries.control.messages import Counts, Cut, Ended, Go
from fries.control.peers import (
    HASTY_PIECES,
    PIECE_SECONDS,
    pause_after,
    shipping_seconds,
)
from fries.control.seal import new_secret
from fries.control.server import ControlServer
from fries.control.wire import LARGE_BYTES, SLOW_BYTES, frame
from fries.errors import AuthenticationError, WireError
from fries.log.pieces import PIECE_BYTES
from tests.control.fakes import (
    PATIENCE,
    SECRET,
    FakeEngine,
    Join,
    order,
    settled,
    until,
)


def test_large_parts_of_a_change_travel_beside_it(server: ControlServer, join: Join) -> None:
    _, early = join()
    large = bytes(range(256)) * (2 * LARGE_BYTES // 256)
    parts = (memoryview(large), memoryview(b""), memoryview(b"small"))
    change = server.request(replace(order("FM"), buffers=parts))
    assert change.wait(time.monotonic() + PATIENCE)
    _, late = join()
    late.wait_for("load", 1)
    assert early.parts[1] == late.parts[1] == [large, b"", b"small"]


@pytest.mark.parametrize("size", [0, 1, SLOW_BYTES, SLOW_BYTES + 1, 3 * LARGE_BYTES])
@pytest.mark.parametrize("buffers", [(), (memoryview(b"small"),)])
def test_functions_arrive_whole_whatever_their_size(
    server: ControlServer, join: Join, size: int, buffers: tuple[memoryview, ...]
) -> None:
    _, engine = join()
    payload = (bytes(range(256)) * (1 + size // 256))[:size]
    change = server.request(replace(order("FM", payload=payload), buffers=buffers))
    assert change.wait(time.monotonic() + PATIENCE)
    assert engine.payloads[1] == payload
    assert engine.parts[1] == list(map(bytes, buffers))


def test_a_task_begins_while_a_large_change_is_on_its_way(
    server: ControlServer, join: Join
) -> None:
    """Its answer overtakes the pieces; the change itself is neither committed nor lost."""
    client, engine = join()
    change = server.request(replace(order("FM"), buffers=(memoryview(bytes(20 * LARGE_BYTES)),)))
    assert client.begin(0, 0, 0) == Go((), ())
    assert change.phase is Phase.PREPARING
    client.ended(Ended(0, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    assert [len(part) for part in engine.parts[1]] == [20 * LARGE_BYTES]


def test_pauses_grow_with_what_was_sent() -> None:
    pauses = [pause_after(pieces) for pieces in range(1, 3 * HASTY_PIECES)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == PIECE_SECONDS
    for count in (0, 1, HASTY_PIECES, HASTY_PIECES + 1, len(pauses)):
        assert shipping_seconds(count * PIECE_BYTES) == pytest.approx(sum(pauses[:count]))


def test_the_timeout_does_not_count_the_pauses(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.server.shipping_seconds", lambda _: PATIENCE)
    join()
    change = server.request(replace(order("FM"), timeout=0.0))
    assert settled(change) is Phase.COMMITTED


def test_a_task_completes_while_a_large_change_is_on_its_way(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its switch is noted overtakes the pieces, too."""
    monkeypatch.setattr("fries.control.peers.pause_after", lambda _: PATIENCE)
    client, _ = join()
    client.begin(0, 0, 0)
    first = server.request(order("FM"))
    until(lambda: first.settled is not None, client)
    large = (memoryview(bytes(2 * LARGE_BYTES)),)
    second = server.request(replace(order("FM"), buffers=large))
    client.ended(Ended(0, 0, 0, {}, cuts=(Cut(10, 1),)))
    assert second.phase is Phase.PREPARING
    assert not client.broken


def test_a_change_is_loaded_by_all_workers_and_then_committed(
    server: ControlServer, join: Join
) -> None:
    (_, first), (_, second) = join(), join()
    change = server.request(order("FM", "MC"))
    assert settled(change) is Phase.COMMITTED
    for engine in (first, second):
        engine.wait_for("switch", 1)
        assert engine.told == [("load", 1), ("switch", 1)]
    assert change.wait(time.monotonic() + PATIENCE)
    assert len(change.switched) == 2
    assert change.committed is not None
    assert change.settled is not None
    assert change.settled >= change.committed >= change.order.requested


def test_a_busy_worker_switches_at_its_next_poll_only(server: ControlServer, join: Join) -> None:
    client, engine = join()
    assert client.begin(batch=0, stage=0, partition=0) == Go((), ())
    change = server.request(order("FM"))
    assert settled(change) is Phase.COMMITTED
    assert ("switch", 1) not in engine.told
    assert not change.wait(time.monotonic())
    until(lambda: ("switch", 1) in engine.told, client)
    until(lambda: len(change.switched) == 1)


def test_a_worker_that_cannot_load_aborts_the_change_for_all(
    server: ControlServer, join: Join
) -> None:
    (client, good), (_, other) = join(), join()
    change = server.request(order("FM", payload=b"bad"))
    assert settled(change) is Phase.ABORTED
    assert "ImportError: no module named 'missing'" in change.reason
    good.wait_for("drop", 1)
    other.wait_for("drop", 1)
    assert client.begin(0, 0, 0) == Go((), ())
    again = server.request(order("FM"))
    until(lambda: again.phase is Phase.COMMITTED, client)


def test_a_new_worker_gets_the_whole_configuration(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(0, 0, 0)
    assert settled(server.request(order("FM"))) is Phase.COMMITTED
    client.ended(Ended(0, 0, 0, {}))
    client.begin(1, 0, 0)
    assert settled(server.request(order("MC"))) is Phase.COMMITTED
    late, engine = join()
    task = late.begin(1, 0, 1)
    assert (task.base, task.committed) == ((), (2,)), "it was welcomed with the first"
    assert engine.told == [("load", 1), ("adopt", 1), ("load", 2), ("switch", 2)]


def test_more_changes_than_bits_wait_their_turn(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(0, 0, 0)
    changes = [server.request(order("FM")) for _ in range(70)]
    until(lambda: changes[62].phase is Phase.COMMITTED, client)
    assert changes[63].phase is Phase.QUEUED
    assert len({change.bit for change in changes[:63]}) == 63
    client.ended(Ended(0, 0, 0, {}))
    client.begin(1, 0, 0)
    until(lambda: changes[69].phase is Phase.COMMITTED, client)


def test_a_controller_that_does_not_run_says_so() -> None:
    stopped = ControlServer("fraud", SECRET)
    with pytest.raises(WireError, match="does not run"):
        stopped.request(order("FM"))
    with pytest.raises(WireError, match="cannot listen on 192"):
        ControlServer("fraud", SECRET, "192.0.2.77").start()


def test_a_worker_that_dies_holds_nothing_up(server: ControlServer, join: Join) -> None:
    (client, _), (other, engine) = join(), join()
    client.begin(0, 0, 0)
    other.begin(0, 0, 1)
    client.close()
    until(lambda: server.workers == (other.name,))
    change = server.request(order("FM"))
    until(lambda: ("switch", 1) in engine.told, other)
    assert change.phase is Phase.COMMITTED


def test_a_task_goes_on_without_the_controller_and_a_new_one_is_refused(
    server: ControlServer, join: Join
) -> None:
    client, engine = join()
    client.begin(0, 0, 0)
    server.stop()
    until(lambda: client.broken, client)
    client.poll()
    client.ended(Ended(0, 0, 0, {}))
    with pytest.raises(WireError, match=r"no configuration for this task|connection is gone"):
        client.begin(1, 0, 0)
    assert engine.told == []


def test_a_stranger_is_turned_away_and_sees_nothing(server: ControlServer, join: Join) -> None:
    client, _ = join()
    with pytest.raises((AuthenticationError, WireError)):
        ControlClient(server.address, new_secret(), "fraud", FakeEngine())
    assert server.workers == (client.name,)


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, frame(b"x" * 32) + frame(b"y" * 32), frame(b"")],
    ids=["http", "huge frame", "wrong proof", "empty challenge"],
)
def test_noise_ends_its_own_connection_and_nothing_else(
    server: ControlServer, join: Join, noise: bytes
) -> None:
    client, _ = join()
    with socket.create_connection(server.address, timeout=PATIENCE) as stranger:
        stranger.sendall(noise)
        received = b""
        while data := stranger.recv(1024):
            received += data
    assert len(received) == 36  # the controller's challenge, and nothing more
    assert client.begin(0, 0, 0) == Go((), ())


def test_a_worker_of_another_flow_is_turned_away(server: ControlServer) -> None:
    with pytest.raises(WireError):
        ControlClient(server.address, SECRET, "another", FakeEngine())
    assert server.workers == ()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(WireError, match=r"cannot be reached .* spark\.driver\.host"):
        ControlClient(address, SECRET, "fraud", FakeEngine())


class Undefinable(FakeEngine):
    """A worker that lacks a module that the flow's functions need."""

    def define(self, definition: bytes, skipped: dict[str, int]) -> None:  # noqa: ARG002
        """Fail."""
        raise ImportError(f"no module named {definition.decode() or 'missing'!r}")


def test_a_definition_that_cannot_be_loaded_is_told_with_its_traceback(
    server: ControlServer,
) -> None:
    story = r"(?s)cannot be loaded here:\nTraceback.*in define.*ImportError: no module named 'miss"
    with pytest.raises(WireError, match=story):
        ControlClient(server.address, SECRET, "fraud", Undefinable())
    until(lambda: server.workers == ())


def test_a_worker_is_in_a_hurry_after_it_has_heard_of_a_change(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.HURRY_SECONDS", PATIENCE)
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    assert not client.hurried
    try:
        server.request(order("FM"))
        until(lambda: client.hurried, client)
        assert engine.told == [], "while it loads"
    finally:
        engine.loading.release()


@pytest.mark.parametrize(
    ("told", "noted"),
    [(15.0, 15.0), (5.0, 10.0), (0.0, 10.0), (1e12, 20.0), (math.nan, 10.0)],
)
def test_a_switch_was_after_the_commit_and_before_now_whatever_a_clock_says(
    told: float, noted: float
) -> None:
    change = Change(1, order("FM"), committed=10.0)
    assert change.switch("a", told, 20.0) == noted
    assert change.switch("b", 11.0, 20.0) == max(noted, 11.0)
    assert change.switched == {"a": noted, "b": 11.0}


def test_a_hurry_ends_if_nothing_comes(server: ControlServer, join: Join) -> None:
    client, engine = join()
    client.begin(0, 0, 0)
    server.request(order("FM", at_boundary=True))
    engine.wait_for("load", 1)
    until(lambda: not client.hurried, client)
    assert engine.told == [("load", 1)]


def test_what_all_workers_have_counted_is_added_up(server: ControlServer, join: Join) -> None:
    (client, _), (other, _) = join(), join()
    client.count("FM", 10, 9, 0.5)
    client.count("FM", 5, 5, 0.25, 2)
    client.count("MC", 14, 14, 1.0)
    client.ended(Ended(0, 0, 0, {}))
    other.count("FM", 1, 0, 0.125, 1)
    other.ended(Ended(0, 0, 1, {}))
    expected = {"FM": Counts(16, 14, 0.875, 3), "MC": Counts(14, 14, 1.0)}
    until(lambda: server.counters == expected)
    client.ended(Ended(0, 1, 0, {}))
    client.count("MC", 1, 1, 0.5)
    client.ended(Ended(0, 2, 0, {}))
    until(lambda: server.counters["MC"] == Counts(15, 15, 1.5))
    assert server.counters["FM"] == expected["FM"], "what was told is not told again"


def test_a_task_that_takes_long_tells_its_counts_on_the_way(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)
    client, _ = join()
    client.begin(0, 0, 0)
    client.count("FM", 3, 2, 0.5)
    until(lambda: server.counters == {"FM": Counts(3, 2, 0.5)})


def test_a_change_that_is_over_is_waited_for_no_longer(server: ControlServer, join: Join) -> None:
    join()
    change = server.request(order("FM", payload=b"bad", at_boundary=True))
    assert change.wait_ready(time.monotonic() + PATIENCE)
    assert (change.phase, change.ready) == (Phase.ABORTED, False)


def test_a_change_is_ready_once_it_is_committed(server: ControlServer, join: Join) -> None:
    join()
    change = server.request(order("FM"))
    assert change.wait(time.monotonic() + PATIENCE)
    assert change.wait_ready(time.monotonic())


class Exits(FakeEngine):
    """An engine whose user's code ends the process when it is loaded."""

    def define(self, definition: bytes, skipped: dict[str, int]) -> None:  # noqa: ARG002
        """Fail as a script without a main guard does."""
        raise SystemExit(len(definition))


def test_a_definition_that_exits_is_told_like_any_other_failure(server: ControlServer) -> None:
    with pytest.raises(WireError, match="cannot be loaded here"):
        ControlClient(server.address, SECRET, "fraud", Exits())


class ExitsLater(FakeEngine):
    """An engine that is defined well, and whose updates may exit when they are loaded."""

    def load(
        self, change: int, bit: int, payload: memoryview, parts: Sequence[memoryview] = ()
    ) -> None:
        """Load, or exit."""
        if bytes(payload) == b"exit":
            raise SystemExit(change)
        super().load(change, bit, payload, parts)


def test_an_update_that_exits_when_it_is_loaded_is_aborted_and_its_worker_goes_on(
    server: ControlServer,
) -> None:
    client = ControlClient(server.address, SECRET, "fraud", ExitsLater())
    change = server.request(order("FM", payload=b"exit"))
    assert settled(change) is Phase.ABORTED
    assert "SystemExit: 1" in change.reason
    assert settled(server.request(order("FM"))) is Phase.COMMITTED
    client.close()


def test_what_was_loaded_too_late_is_forgotten(server: ControlServer, join: Join) -> None:
    """A change that was aborted while it was loaded must not stay and be obeyed."""
    _, engine = join()
    with engine.loading:
        change = server.request(replace(order("FM"), timeout=0.01))
        assert change.wait_over(time.monotonic() + PATIENCE)
    assert change.phase is Phase.ABORTED
    assert change.order.payload == b"", "nobody needs it any more"
    engine.wait_for("drop", 1)
    assert engine.told[-1] == ("drop", 1)


def test_a_worker_in_which_loading_does_not_end_leaves_and_can_come_back(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.ABANDON_SECONDS", 0.0)
    monkeypatch.setattr("fries.control.client.STUCK_SECONDS", 0.01)
    client, engine = join()
    with engine.loading:
        change = server.request(replace(order("FM"), timeout=0.01))
        assert change.wait_over(time.monotonic() + PATIENCE)
        until(lambda: client.broken)
        until(lambda: not server.workers)
        other, _ = join()
        assert server.request(order("FM")).wait(time.monotonic() + PATIENCE)
        assert not other.broken


def test_of_functions_that_were_replaced_only_migrations_are_kept(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    for number in (1, 2):
        later = replace(order("FM"), payload=b"functions", residue=b"migrations")
        assert server.request(later).wait(time.monotonic() + PATIENCE)
        client.begin(number, 0, 0)
        client.ended(Ended(number, 0, 0, {}))
    client.begin(3, 0, 0)  # so the second batch is committed
    kept = [change.order.payload for change in server.committed_changes()]
    assert kept == [b"migrations", b"functions"]


def test_nobody_waits_for_a_controller_that_was_stopped(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(1, 0, 0)
    held = server.request(order("FM", at_boundary=True))
    server.stop()
    assert held.wait()
    assert (held.phase, held.reason) == (Phase.ABORTED, "the flow was stopped")
    with pytest.raises(WireError, match="does not run"):
        server.request(order("MC"))


def test_a_task_waits_for_a_change_that_takes_long_to_load(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: the controller has answered, and the model is on its way into memory."""
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM"))
    client.ended(Ended(1, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    slow = FakeEngine()
    with slow.loading:
        late = ControlClient(server.address, SECRET, "fraud", slow)
        until(lambda: late._machine.first_load == 1)
        monkeypatch.setattr("fries.control.client.CONNECT_SECONDS", 0.05)
        answers: list[Go] = []
        task = threading.Thread(target=lambda: answers.append(late.begin(1, 0, 1)))
        task.start()
        task.join(0.3)
        assert task.is_alive()
        assert not late.broken
    task.join(PATIENCE)
    assert [(task.base, task.committed) for task in answers] == [((), (1,))]
    late.close()
