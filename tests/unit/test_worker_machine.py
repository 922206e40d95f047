"""The worker's machine: the exact instructions for each event, and the messages on the wire."""

from __future__ import annotations

import msgspec
import pytest

from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    FromWorker,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
    ToWorker,
)

PART = Part(("FM", "MC"), True, frozenset({3, 1}), (4, 5), frozenset({6}))


@pytest.mark.parametrize(
    "message",
    [
        Prepare(1, PART),
        Prepare(2, Part()),
        Commit(3),
        Abort(4),
        Retire(5),
        StartCheckpoint(6),
        CancelCheckpoint(7),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_to_workers_survive_the_wire(message: ToWorker) -> None:
    received: ToWorker = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToWorker)
    assert received == message
    assert type(received) is type(message)
    assert hash(received) == hash(message)


@pytest.mark.parametrize(
    "message",
    [Prepared(1), Refused(2, "naïve: no model"), Switched(3), Snapshotted(4)],
    ids=lambda message: type(message).__name__,
)
def test_messages_from_workers_survive_the_wire(message: FromWorker) -> None:
    received: FromWorker = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromWorker)
    assert received == message
    assert type(received) is type(message)
    assert hash(received) == hash(message)


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode(Prepared(1)),
        msgspec.msgpack.encode({"type": "Shutdown", "change": 1}),
        msgspec.msgpack.encode({"type": "Commit", "change": "one"}),
        msgspec.msgpack.encode({"type": "Commit"}),
    ],
    ids=["wrong direction", "unknown type", "wrong field", "missing field"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=ToWorker)
