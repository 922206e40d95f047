"""Rows stand back for a change that has come, for a moment; others load it and listen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from fries.change.model import Phase
from fries.control.client import GIVE_WAY_SECONDS, ControlClient
from fries.control.messages import Down, Ended
from fries.control.seal import Opener
from fries.control.server import ControlServer
from fries.control.wire import LARGE_BYTES, SLOW_BYTES
from fries.errors import WireError
from fries.protocol.worker_events import WorkerEvent
from tests.control.fakes import PATIENCE, Join, order, until


def when_waiting(
    client: ControlClient, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Do something as soon as the thread of the rows waits."""
    wait, rows = client._state.wait, threading.current_thread()
    left = [act]

    def act_first(seconds: float | None = None) -> bool:
        if left and threading.current_thread() is rows:
            left.pop()()
        return wait(seconds)

    monkeypatch.setattr(client._state, "wait", act_first)


def test_rows_give_way_until_a_change_is_loaded_and_committed(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", PATIENCE)
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    server.request(order("FM"))
    until(lambda: client.hurried)
    when_waiting(client, monkeypatch, engine.loading.release)
    client.poll()
    assert engine.told == [("load", 1), ("switch", 1)]


def test_rows_give_way_before_a_change_comes(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver makes it ready meanwhile."""
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", PATIENCE)
    client, engine = join()
    client.begin(0, 0, 0)
    server.announce()
    until(lambda: client.pressed)
    when_waiting(client, monkeypatch, lambda: server.request(order("FM")))
    client.poll()
    assert engine.told == [("load", 1), ("switch", 1)], "in one poll"
    assert not client.pressed


def test_what_is_about_to_come_overtakes_a_large_change(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.peers.pause_after", lambda _: PATIENCE)
    client, _ = join()
    client.begin(0, 0, 0)
    large = (memoryview(bytes(2 * LARGE_BYTES)),)
    change = server.request(replace(order("FM"), buffers=large))
    assert not client.pressed
    server.announce()
    until(lambda: client.pressed)
    assert change.phase is Phase.PREPARING


def test_rows_go_on_if_the_change_does_not_come(server: ControlServer, join: Join) -> None:
    """It was refused."""
    client, engine = join()
    client.begin(0, 0, 0)
    server.announce()
    until(lambda: client.pressed)
    client.poll()
    assert not client.pressed
    change = server.request(order("FM"))
    until(lambda: change.settled is not None, client)
    assert engine.told == [("load", 1), ("switch", 1)]


def test_rows_do_not_stand_back_for_ever(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody tries again and again, and is refused."""
    client, _ = join()
    client.begin(0, 0, 0)
    server.announce()
    until(lambda: client.pressed)
    wait = client._state.wait

    def once_more(seconds: float | None = None) -> bool:
        assert seconds is not None
        assert seconds <= 2 * GIVE_WAY_SECONDS
        client._way_until += PATIENCE
        return wait(seconds)

    monkeypatch.setattr(client._state, "wait", once_more)
    client.poll()
    assert not client.pressed


def test_a_worker_without_a_task_is_not_told_that_a_change_is_about_to_come(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, _ = join()
    idle, _ = join()
    busy.begin(0, 0, 0)
    idle.begin(0, 0, 1)
    idle.ended(Ended(0, 0, 1, {}))
    until(lambda: server._machine.batches.running(idle.name) == 0)
    told: list[Down] = []
    monkeypatch.setattr(server._peers[idle.name], "send", told.append)
    server.announce()
    until(lambda: busy.pressed)
    assert told == []


def test_rows_go_on_if_loading_a_change_takes_long(server: ControlServer, join: Join) -> None:
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    server.request(order("FM"))
    try:
        until(lambda: client.hurried)
        client.poll()
        assert engine.told == []
    finally:
        engine.loading.release()


def test_a_change_that_has_come_presses_until_rows_have_stood_back(
    server: ControlServer, join: Join
) -> None:
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    assert not client.pressed
    server.request(order("FM"))
    try:
        until(lambda: client.pressed)
        client.poll()
        assert not client.pressed, "it takes long to load: rows go on"
    finally:
        engine.loading.release()
    until(lambda: client.pressed)
    client.poll()
    assert engine.told == [("load", 1), ("switch", 1)], "its commit had come"
    assert not client.pressed


def test_rows_wait_for_the_thread_that_takes_up_a_change(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", PATIENCE)
    client, engine = join()
    client.begin(0, 0, 0)
    taken, go_on = threading.Event(), threading.Event()
    handle = client._handle

    def slowly(event: WorkerEvent) -> None:
        taken.set()
        go_on.wait(PATIENCE)
        handle(event)

    monkeypatch.setattr(client, "_handle", slowly)
    server.request(order("FM"))
    assert taken.wait(PATIENCE)
    acquire = client._state.acquire

    def while_it_waits(blocking: bool = True, timeout: float = -1) -> bool:
        go_on.set()
        return acquire(blocking, timeout)

    monkeypatch.setattr(client._state, "acquire", while_it_waits)
    client.poll()
    assert engine.told == [("load", 1), ("switch", 1)], "at this poll, not after the next row"


def test_rows_do_not_wait_while_a_piece_of_a_large_change_is_opened(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", 3 * PATIENCE)
    client, engine = join()
    client.begin(0, 0, 0)
    opening, go_on, opens = threading.Event(), threading.Event(), Opener.open
    in_time: list[bool] = []

    def slowly(self: Opener, sealed: bytes | memoryview) -> memoryview:
        if len(sealed) > SLOW_BYTES:
            opening.set()
            in_time.append(go_on.wait(PATIENCE))
        return opens(self, sealed)

    monkeypatch.setattr(Opener, "open", slowly)
    large = memoryview(bytes(LARGE_BYTES + 2 * SLOW_BYTES))
    server.request(replace(order("FM"), buffers=(large,)))
    assert opening.wait(PATIENCE)
    client.poll()
    go_on.set()
    until(lambda: ("switch", 1) in engine.told, client)
    assert in_time == [True, True], "one large frame, and the rest"


def test_while_a_change_is_loaded_somebody_listens(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.LOAD_SECONDS", PATIENCE)
    client, engine = join(held=True)
    server.request(order("FM"))
    engine.wait_until_it_loads()
    try:
        assert client.begin(0, 0, 0).committed == (), "the answer is heard"
    finally:
        engine.loading.release()
    until(lambda: ("switch", 1) in engine.told, client)


def test_a_change_that_only_the_rows_have_heard_of_is_loaded(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.STUCK_SECONDS", 3 * PATIENCE)
    client, engine = join()
    away, go_on = threading.Event(), threading.Event()

    def look_away() -> None:
        away.set()
        go_on.wait(PATIENCE)

    monkeypatch.setattr(client, "_tell_if_stuck", look_away)
    client.begin(0, 0, 0)
    assert away.wait(PATIENCE)
    server.request(order("FM"))
    until(lambda: client._job is not None, client)
    go_on.set()
    engine.wait_for("load", 1)


def test_both_threads_end_with_the_connection_even_if_one_still_loads(
    server: ControlServer, join: Join
) -> None:
    before = set(threading.enumerate())
    client, engine = join(held=True)
    threads = [t for t in set(threading.enumerate()) - before if t.name.startswith("fries-")]
    assert len(threads) == 2
    server.request(order("FM"))
    engine.wait_until_it_loads()
    client.close()
    until(lambda: sum(thread.is_alive() for thread in threads) == 1)
    engine.loading.release()
    until(lambda: not any(thread.is_alive() for thread in threads))
    client.poll()
    assert client.broken


def test_a_reply_that_cannot_be_given_ends_the_connection_and_not_the_rows(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    server.request(order("FM"))
    engine.wait_until_it_loads()

    def fail(body: bytes) -> None:
        raise WireError(f"nobody takes {len(body)} bytes")

    monkeypatch.setattr(client._channel, "send", fail)
    engine.loading.release()
    until(lambda: client.broken, client)
    client.poll()
