"""The worker's socket: bounded, and nobody waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fries.control import channel as module
from fries.control.channel import Channel
from fries.control.seal import Opener, Sealer
from fries.control.wire import MAX_UP, Unframer
from fries.errors import WireError
from tests.control.rogue import PATIENCE

KEY = bytes(32)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    near, far = socket.socketpair()
    far.settimeout(PATIENCE)
    channel = Channel(near, Sealer(KEY))
    yield channel, far
    far.close()
    channel.close()


def fill(channel: Channel) -> int:
    """Send until the system takes no more; how many messages."""
    count = 0
    while not channel.unsent:
        channel.send(count.to_bytes(4, "big") * 1000)
        count += 1
    return count


def test_what_the_socket_does_not_take_is_sent_by_whoever_waits(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, far = ends
    waiting = threading.Thread(target=channel.wait)
    waiting.start()  # before anything is unsent: it must be woken
    count = fill(channel) + 3
    for number in range(count - 3, count):
        channel.send(number.to_bytes(4, "big") * 1000)
    unframer, opener = Unframer(), Opener(KEY)
    found: list[bytes] = []
    while len(found) < count:
        assert unframer.receive(far)
        while (sealed := unframer.take()) is not None:
            found.append(bytes(opener.open(sealed)))
    assert found == [number.to_bytes(4, "big") * 1000 for number in range(count)]
    assert channel.unsent == 0
    far.sendall(b"x")
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert channel.recv(10) == b"x"


def test_a_peer_that_does_not_read_is_given_up(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT", 10_000)
    channel, _ = ends
    fill(channel)
    with pytest.raises(WireError, match="does not read"):
        channel.send(bytes(10_000))
    assert channel.readable(), "the end"
    assert channel.recv(10) == b""


def test_a_message_that_the_controller_would_refuse_is_not_sent(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, far = ends
    with pytest.raises(WireError, match="over the limit"):
        channel.send(bytes(MAX_UP))
    channel.send(b"fits")
    unframer, opener = Unframer(), Opener(KEY)
    unframer.receive(far)
    sealed = unframer.take()
    assert sealed is not None
    assert bytes(opener.open(sealed)) == b"fits", "as the first one"


def test_who_waits_wakes_up_when_the_connection_is_shut(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, far = ends
    waiting = threading.Thread(target=channel.wait)
    waiting.start()
    channel.shut()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert far.recv(1) == b"", "the other side knows"
    with pytest.raises(WireError, match="gone"):
        channel.send(b"too late")


def test_a_peer_that_is_gone_is_told_to_the_sender(ends: tuple[Channel, socket.socket]) -> None:
    channel, far = ends
    far.close()
    with pytest.raises(WireError, match="gone"):
        channel.send(b"anybody")
    channel.wait()
    assert channel.recv(1) == b""


def test_who_waits_for_some_time_gets_it_back(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.wait(0.01)
    assert not channel.readable()


def test_who_waits_is_nudged(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.nudge()
    channel.wait()
    assert not channel.readable()


def test_nothing_piles_up_when_the_connection_is_gone(
    ends: tuple[Channel, socket.socket],
) -> None:
    """A task goes on for hours without it, and tells its counters all the same."""
    channel, _ = ends
    channel.shut()
    for _ in range(3):
        with pytest.raises(WireError, match="is gone"):
            channel.send(bytes(1000))
    assert channel.unsent == 0
