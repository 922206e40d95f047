"""Rows stand back for a change that has come, for a moment, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fries.control.server import ControlServer
from fries.protocol.worker import WorkerEvent
from tests.control.fakes import PATIENCE, Join, order, until


def test_rows_give_way_until_a_change_is_loaded_and_committed(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", PATIENCE)
    client, engine = join(held=True)
    client.begin(0, 0, 0)
    server.request(order("FM"))
    until(lambda: client.hurried)
    wait_for = client._state.wait_for

    def load_now(condition: Callable[[], bool], seconds: float) -> bool:
        engine.loading.release()
        return wait_for(condition, seconds)

    monkeypatch.setattr(client._state, "wait_for", load_now)
    client.poll()
    assert engine.told == [("load", 1), ("switch", 1)]


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


def test_rows_do_not_wait_for_whoever_takes_up_a_piece_of_a_large_change(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.GIVE_WAY_SECONDS", PATIENCE)
    client, _ = join()
    client.begin(0, 0, 0)
    monkeypatch.setattr("fries.control.wire.Unframer.large", True)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with client._state:
            held.set()
            over.wait(PATIENCE)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        assert held.wait(PATIENCE)
        client.poll()
        assert holding.is_alive(), "it did not wait"
    finally:
        over.set()
        holding.join()


def test_while_a_change_is_loaded_somebody_listens(server: ControlServer, join: Join) -> None:
    client, engine = join(held=True)
    server.request(order("FM"))
    until(lambda: client._at_work == 1)
    try:
        assert client.begin(0, 0, 0).committed == (), "the answer is heard"
    finally:
        engine.loading.release()
    until(lambda: ("switch", 1) in engine.told, client)
