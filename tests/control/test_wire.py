"""Frames."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.control.wire import (
    LARGE_BYTES,
    MAX_FRAME,
    MAX_GREETING,
    Unframer,
    frame,
    read_frame,
)
from fries.errors import WireError


class Script:
    """A socket that gives some bytes at a time."""

    def __init__(self, sent: bytes, step: int) -> None:
        self._sent, self._step = sent, step

    def recv(self, size: int) -> bytes:
        """The next bytes."""
        count = min(size, self._step)
        given_now, self._sent = self._sent[:count], self._sent[count:]
        return given_now

    def recv_into(self, view: memoryview) -> int:
        """The next bytes, put where they belong."""
        given_now = self.recv(len(view))
        view[: len(given_now)] = given_now
        return len(given_now)


def received(sent: bytes, step: int, limit: int = MAX_FRAME) -> list[bytes]:
    unframer, found = Unframer(), []
    script: Any = Script(sent, step)
    while unframer.receive(script):
        while (body := unframer.take(limit)) is not None:
            found.append(bytes(body))
    return found


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_come_out_whole_however_the_bytes_arrive(bodies: list[bytes], step: int) -> None:
    assert received(b"".join(map(frame, bodies)), step) == bodies


@pytest.mark.parametrize("step", [1 << 12, 100_000, 1 << 30])
def test_large_frames_between_small_ones_come_out_whole(step: int) -> None:
    large = bytes(range(256)) * (LARGE_BYTES // 256 + 1)
    bodies = [b"a", large, b"", large + b"x", b"b"]
    assert received(b"".join(map(frame, bodies)), step) == bodies


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_a_frame_over_the_limit_is_refused_before_it_is_there(rest: bytes) -> None:
    with pytest.raises(WireError, match="over the limit of 256"):
        received((MAX_GREETING + 1).to_bytes(4, "big") + rest, 1000, MAX_GREETING)


def test_reading_from_a_stream_keeps_the_same_limit() -> None:
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(frame(b"x" * 300))
        return await read_frame(reader, MAX_GREETING)

    with pytest.raises(WireError, match="300 bytes is over the limit of 256"):
        asyncio.run(read())
