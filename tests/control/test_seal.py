"""The mutual proof, and the seal on every frame."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.seal import (
    CONTROLLER,
    TAG_BYTES,
    WORKER,
    Opener,
    Proof,
    Sealer,
    new_secret,
)
from fries.control.server import ControlServer
from fries.control.wire import LARGE_BYTES, Unframer
from fries.errors import AuthenticationError
from tests.control.fakes import Join, order

SECRET = new_secret()


def pair(secret: bytes = SECRET, other: bytes = SECRET) -> tuple[Proof, Proof]:
    """A controller and a worker that have seen each other's challenge."""
    controller, worker = Proof(secret, CONTROLLER), Proof(other, WORKER)
    controller.meet(worker.challenge)
    worker.meet(controller.challenge)
    return controller, worker


def sealed_pair() -> tuple[tuple[Sealer, Opener], tuple[Sealer, Opener]]:
    """Both ends of a connection, proved."""
    controller, worker = pair()
    controller.check(worker.answer())
    worker.check(controller.answer())
    return controller.seal(), worker.seal()


def body_of(frame: bytes) -> bytes:
    """What an unframer gives for a frame."""
    return frame[4:]


def test_both_sides_prove_that_they_know_the_secret() -> None:
    controller, worker = pair()
    controller.check(worker.answer())
    worker.check(controller.answer())


def test_another_secret_proves_nothing() -> None:
    controller, worker = pair(other=new_secret())
    with pytest.raises(AuthenticationError, match="does not know"):
        controller.check(worker.answer())
    with pytest.raises(AuthenticationError, match="does not know"):
        worker.check(controller.answer())


def test_an_answer_cannot_be_reflected() -> None:
    """A stranger who sends our own challenge back gets an answer that is worth nothing."""
    controller = Proof(SECRET, CONTROLLER)
    controller.meet(controller.challenge)
    with pytest.raises(AuthenticationError):
        controller.check(controller.answer())


def test_an_answer_is_good_for_one_pair_of_challenges() -> None:
    first, worker = pair()
    second = Proof(SECRET, CONTROLLER)
    second.meet(worker.challenge)
    with pytest.raises(AuthenticationError):
        second.check(worker.answer())
    first.check(worker.answer())
    other = Proof(SECRET, WORKER)
    other.meet(first.challenge)
    with pytest.raises(AuthenticationError):
        first.check(other.answer())


@pytest.mark.parametrize("challenge", [b"", b"short", b"x" * 33])
def test_a_challenge_of_another_length_is_refused(challenge: bytes) -> None:
    with pytest.raises(AuthenticationError, match="wrong length"):
        Proof(SECRET, WORKER).meet(challenge)


def test_nothing_is_sealed_before_the_proof() -> None:
    controller, worker = pair()
    with pytest.raises(AuthenticationError, match="has not proved"):
        controller.seal()
    with pytest.raises(AuthenticationError, match="no challenge"):
        Proof(SECRET, WORKER).answer()
    with pytest.raises(AuthenticationError):
        worker.check(b"")
    with pytest.raises(AuthenticationError, match="has not proved"):
        worker.seal()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=6), st.lists(st.binary(max_size=100), max_size=6))
def test_what_is_sealed_in_order_opens_in_order(down: list[bytes], up: list[bytes]) -> None:
    (controller, from_worker), (worker, from_controller) = sealed_pair()
    assert [bytes(from_controller.open(body_of(controller.seal(one)))) for one in down] == down
    assert [bytes(from_worker.open(body_of(worker.seal(one)))) for one in up] == up


@settings(deadline=None)
@given(st.binary(max_size=60), st.data())
def test_a_frame_with_any_bit_turned_does_not_open(body: bytes, data: Any) -> None:  # noqa: ANN401
    (controller, _), (_, opener) = sealed_pair()
    sent = bytearray(body_of(controller.seal(body)))
    bit = data.draw(st.integers(0, 8 * len(sent) - 1))
    sent[bit // 8] ^= 1 << bit % 8
    with pytest.raises(AuthenticationError, match="altered"):
        opener.open(bytes(sent))


@pytest.mark.parametrize(
    "order", [(0, 0), (1,), (0, 2)], ids=["repeated", "the first left out", "the second left out"]
)
def test_a_frame_opens_in_its_own_place_only(order: tuple[int, ...]) -> None:
    (controller, _), (_, opener) = sealed_pair()
    sent = [body_of(controller.seal(b"the same")) for _ in range(3)]
    *before, last = order
    for place in before:
        opener.open(sent[place])
    with pytest.raises(AuthenticationError):
        opener.open(sent[last])


def test_a_frame_cannot_be_reflected_nor_moved_to_another_connection() -> None:
    (controller, from_worker), (_, from_controller) = sealed_pair()
    _, (_, elsewhere) = sealed_pair()
    sent = body_of(controller.seal(b"commit"))
    for opener in (from_worker, elsewhere):
        with pytest.raises(AuthenticationError):
            opener.open(sent)
    assert bytes(from_controller.open(sent)) == b"commit"


@pytest.mark.parametrize("length", range(TAG_BYTES + 1))
def test_a_frame_without_a_whole_tag_does_not_open(length: int) -> None:
    _, (_, opener) = sealed_pair()
    with pytest.raises(AuthenticationError):
        opener.open(bytes(length))


def test_a_large_body_is_opened_where_it_is() -> None:
    (controller, _), (_, opener) = sealed_pair()
    sealed = memoryview(bytearray(body_of(controller.seal(bytes(1 << 21)))))
    opened = opener.open(sealed)
    sealed[-1] = 7
    assert opened[-1] == 7, "it is the same memory"
    assert len(opened) == 1 << 21


def test_rows_do_not_wait_for_the_seal_of_a_large_frame(
    server: ControlServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[tuple[str, bool]] = set()
    opens = Opener.open

    def noted(self: Opener, sealed: bytes | memoryview) -> memoryview:
        opened.add((threading.current_thread().name, len(sealed) > LARGE_BYTES))
        return opens(self, sealed)

    client, engine = join()
    client.begin(0, 0, 0)
    monkeypatch.setattr(Opener, "open", noted)
    server.request(replace(order("FM"), buffers=(memoryview(bytes(8 * LARGE_BYTES)),)))
    while ("switch", 1) not in engine.told:  # without a pause, so that it sees all it can
        client.poll()
    large = {thread for thread, is_large in opened if is_large}
    assert large
    assert large <= {"fries-0", "fries-1"}


class Once:
    """A socket that gives its bytes at once."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def recv(self, _size: int) -> bytes:
        """All of them."""
        return self._sent

    def recv_into(self, _view: memoryview) -> int:
        """Nothing more."""
        return 0


def test_a_sealed_frame_is_a_frame() -> None:
    (controller, _), (_, opener) = sealed_pair()
    unframer = Unframer()
    unframer.receive(Once(controller.seal(b"hello") + controller.seal(b"")))
    first, second = unframer.take(), unframer.take()
    assert first is not None
    assert second is not None
    assert [bytes(opener.open(first)), bytes(opener.open(second))] == [b"hello", b""]


def test_a_secret_does_not_show_itself() -> None:
    assert [repr(SECRET), str(SECRET), f"{SECRET!s}", repr({SECRET: 1})] == [
        "Secret(...)",
        "Secret(...)",
        "Secret(...)",
        "{Secret(...): 1}",
    ]
    assert pickle.loads(pickle.dumps(SECRET)) == SECRET
    assert len(SECRET) == 32
    assert new_secret() != SECRET
