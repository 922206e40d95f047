"""Frames and the mutual proof."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.wire import MAX_GREETING, Proof, Unframer, frame, new_secret, read_frame
from fries.errors import AuthenticationError, WireError


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_come_out_whole_however_the_bytes_arrive(bodies: list[bytes], step: int) -> None:
    sent = b"".join(map(frame, bodies))
    unframer, received = Unframer(), []
    for start in range(0, len(sent), step):
        unframer.feed(sent[start : start + step])
        while (body := unframer.take()) is not None:
            received.append(body)
    assert received == bodies


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_a_frame_over_the_limit_is_refused_before_it_is_there(rest: bytes) -> None:
    unframer = Unframer()
    unframer.feed((MAX_GREETING + 1).to_bytes(4, "big") + rest)
    with pytest.raises(WireError, match="over the limit of 256"):
        unframer.take(MAX_GREETING)


def test_reading_from_a_stream_keeps_the_same_limit() -> None:
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(frame(b"x" * 300))
        return await read_frame(reader, MAX_GREETING)

    with pytest.raises(WireError, match="300 bytes is over the limit of 256"):
        asyncio.run(read())


def test_both_sides_prove_that_they_know_the_secret() -> None:
    secret = new_secret()
    worker = Proof(secret, b"worker", b"controller")
    controller = Proof(secret, b"controller", b"worker")
    controller.check(worker.answer(controller.challenge))
    worker.check(controller.answer(worker.challenge))


def test_another_secret_proves_nothing() -> None:
    worker = Proof(new_secret(), b"worker", b"controller")
    controller = Proof(new_secret(), b"controller", b"worker")
    with pytest.raises(AuthenticationError, match="does not know"):
        controller.check(worker.answer(controller.challenge))


def test_an_answer_cannot_be_reflected() -> None:
    """A stranger who sends our own challenge back gets an answer that is worth nothing."""
    secret = new_secret()
    controller = Proof(secret, b"controller", b"worker")
    with pytest.raises(AuthenticationError):
        controller.check(controller.answer(controller.challenge))


def test_an_answer_is_good_for_one_challenge() -> None:
    secret = new_secret()
    worker = Proof(secret, b"worker", b"controller")
    first, second = (Proof(secret, b"controller", b"worker") for _ in range(2))
    with pytest.raises(AuthenticationError):
        second.check(worker.answer(first.challenge))


@pytest.mark.parametrize("challenge", [b"", b"short", b"x" * 33])
def test_a_challenge_of_another_length_is_refused(challenge: bytes) -> None:
    with pytest.raises(AuthenticationError, match="wrong length"):
        Proof(new_secret(), b"worker", b"controller").answer(challenge)
