"""Workers that join late and have much to learn, or cannot; and workers that only seem there."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fries.change.model import Change, Phase
from fries.control.client import ControlClient
from fries.control.messages import ANY_BATCH, Begin, Ended, Failed, Go, Piece, Up, Welcome
from fries.control.peers import MOST_UNREAD
from fries.control.server import ControlServer
from fries.errors import WireError
from fries.log.pieces import PIECE_BYTES
from tests.control.fakes import PATIENCE, SECRET, FakeEngine, Join, Stubborn, order, until
from tests.control.rogue import Rogue
from tests.control.sites import Site, batch

LARGE = MOST_UNREAD // 2 + PIECE_BYTES + 1
"""Bytes of a change of which two are more than may wait for a worker."""


def committed(server: ControlServer, client: ControlClient, *names: str) -> Change:
    """A change that all have switched to."""
    change = server.request(order(*names))
    assert change.wait(time.monotonic() + PATIENCE)
    until(lambda: client.name in change.switched, client)
    return change


# A base that is larger than what may wait for a worker


@pytest.fixture
def large_base(server: ControlServer, join: Join) -> tuple[bytes, bytes]:
    """What two changes in the base have shipped."""
    client, _ = join()
    models = bytes([1]) * LARGE, bytes([2]) * LARGE
    for number, (name, model) in enumerate(zip(("FM", "MC"), models, strict=True)):
        change = server.request(replace(order(name), buffers=(memoryview(model),)))
        assert change.wait(time.monotonic() + PATIENCE)
        batch(client, number)
    assert not server.in_transition
    return models


def test_a_late_worker_gets_a_large_base_in_pieces(
    server: ControlServer, join: Join, large_base: tuple[bytes, bytes]
) -> None:
    late, engine = join()
    assert engine.told == [(what, n) for n in (1, 2) for what in ("load", "adopt")]
    assert (engine.parts[1], engine.parts[2]) == ([large_base[0]], [large_base[1]])
    assert late.begin(2, 0, 0) == Go((), ())
    assert len(server.workers) == 2


@pytest.mark.usefixtures("large_base")
def test_a_late_worker_waits_for_nobody_s_rows(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none yet: what it begins with is sent without the pauses of a running worker."""
    monkeypatch.setattr("fries.control.peers.pause_after", lambda _: PATIENCE)
    late, _ = join()
    assert late.begin(2, 0, 0) == Go((), ())


@pytest.mark.usefixtures("large_base")
def test_a_late_worker_that_reads_slowly_gets_all_of_a_large_base(server: ControlServer) -> None:
    with Rogue(server.address, SECRET, receive_bytes=1 << 16) as slow:
        slow.hello()
        until(lambda: "rogue" in server.workers)
        heard = 0
        while not isinstance(message := slow.hear(), Welcome):
            if isinstance(message, Piece):
                heard += len(message.data)
        assert heard == 2 * (LARGE + len(b"good"))
        assert message.base == (1, 2)


@pytest.mark.usefixtures("large_base")
def test_a_change_comes_after_the_base_for_a_worker_that_still_gets_it(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    with Rogue(server.address, SECRET, receive_bytes=1 << 16) as slow:
        slow.hello()
        until(lambda: "rogue" in server.workers)
        change = server.request(order("FM"))
        assert client.begin(2, 0, 0) == Go((), ()), "others go on"
        assert change.phase is Phase.PREPARING, "it waits for the one that joins"
    until(lambda: client.name in change.switched, client)


# A change that others could load


def test_a_newcomer_tells_of_a_change_in_the_base_that_it_cannot_load(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    committed(server, client, "FM")
    batch(client, 1)
    with pytest.raises(WireError, match=r"(?s)change 1 cannot be loaded here.*not today"):
        ControlClient(server.address, SECRET, "fraud", Stubborn())
    assert unloadable(server).change == 1


def test_a_newcomer_tells_of_a_change_in_transition_that_it_cannot_load(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM"))
    until(lambda: client.name in change.switched, client)
    late = ControlClient(server.address, SECRET, "fraud", Stubborn())
    with pytest.raises(WireError, match="change 1 cannot be loaded here"):
        late.begin(1, 0, 1)
    assert unloadable(server).change == 1


def test_the_connection_ends_when_its_last_words_are_said(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that listens closes what is broken: what is said after that is lost."""
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM"))
    until(lambda: client.name in change.switched, client)
    late = ControlClient(server.address, SECRET, "fraud", Stubborn())
    say, broken = late._say, list[bool]()

    def noticed(message: Up) -> None:
        broken.append(late.broken)
        say(message)

    monkeypatch.setattr(late, "_say", noticed)
    with pytest.raises(WireError, match="change 1 cannot be loaded here"):
        late.begin(1, 0, 1)
    assert late.broken
    assert not any(broken)


class Picky(FakeEngine):
    """An engine that cannot load one change."""

    def __init__(self, change: int) -> None:
        super().__init__()
        self._change = change

    def load(
        self, change: int, bit: int, payload: memoryview, parts: Sequence[memoryview] = ()
    ) -> None:
        """Load, unless it is that one."""
        if change == self._change:
            raise ImportError("not here")
        super().load(change, bit, payload, parts)


def test_only_the_change_that_cannot_be_loaded_is_told_of(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    for number, name in enumerate(("FM", "MC", "FC")):
        committed(server, client, name)
        batch(client, number)
    with pytest.raises(WireError, match="change 2 cannot be loaded here"):
        ControlClient(server.address, SECRET, "fraud", Picky(2))
    assert unloadable(server).change == 2


def test_a_change_that_a_newcomer_cannot_load_can_be_taken_back(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    change = site.change(client)
    late = ControlClient(site.server.address, SECRET, "fraud", Stubborn())
    with pytest.raises(WireError):
        late.begin(0, 0, 1)
    assert site.revoke(unloadable(site.server).change, "it cannot be loaded everywhere")
    assert change.phase is Phase.ROLLED_BACK
    site.server.query_begins()
    again, engine = site.join()
    assert again.begin(0, 0, 0) == Go((), ())
    assert engine.told == []


def unloadable(server: ControlServer) -> Failed:
    """The only failure that was told, which says so."""
    until(lambda: bool(server.failures))
    (failed,) = server.failures
    assert failed.batch == ANY_BATCH, "whatever the batch, it fails there"
    assert "cannot be loaded in worker" in failed.problem
    assert "ImportError" in failed.story
    return failed


# A worker that is there for the controller only


def test_a_half_open_worker_holds_a_change_up_no_longer_than_its_timeout(
    server: ControlServer, join: Join
) -> None:
    client, engine = join()
    with Rogue(server.address, SECRET) as gone:
        gone.join()
        until(lambda: "rogue" in server.workers)
        change = server.request(replace(order("FM"), timeout=0.5))
        assert client.begin(0, 0, 0) == Go((), ()), "rows go on"
        assert change.wait(time.monotonic() + PATIENCE)
        assert change.phase is Phase.ABORTED
        assert change.reason == "not prepared in time; waited for rogue"
        client.ended(Ended(0, 0, 0, {}))
    until(lambda: ("drop", 1) in engine.told, client)


def test_a_worker_that_half_closes_its_connection_is_gone(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    with Rogue(server.address, SECRET) as gone:
        gone.join()
        until(lambda: "rogue" in server.workers)
        change = server.request(order("FM"))
        gone.socket.shutdown(socket.SHUT_WR)
        assert change.wait(time.monotonic() + PATIENCE)
        assert change.phase is not Phase.ABORTED
        assert server.workers == (client.name,)


def test_a_task_of_a_half_open_worker_is_repeated_as_it_began(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    with Rogue(server.address, SECRET) as gone:
        gone.join()
        gone.say(Begin(3, 0, 0))
        assert gone.hear() == Go((), ())
        gone.socket.shutdown(socket.SHUT_WR)
        until(lambda: server.workers == (client.name,))
    committed(server, client, "FM")
    assert client.begin(3, 0, 0) == Go((), (1,), (), ()), "nobody knows whether it completed"
