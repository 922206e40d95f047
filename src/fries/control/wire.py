"""Frames on a connection.

A frame is a length (four bytes, big endian) and a body. Bodies are ``msgspec`` messages, so
decoding them runs no code of the peer's; what must be unpickled (functions) is unpickled
only after both sides have proved that they know the job's secret (:mod:`fries.control.seal`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np

from fries.errors import WireError

MAX_FRAME: Final = 1 << 31
"""Bytes in one frame at the most: a flow's first functions are one. More is a bug or an attack."""
MAX_UP: Final = 1 << 20
"""Bytes in one frame to the controller: a worker reports, it does not ship. More is an attack."""
MAX_GREETING: Final = 256
"""Bytes in one frame before the peer has proved itself: a stranger cannot make us allocate."""
RECEIVE_BYTES: Final = 1 << 18
"""Bytes taken from a socket at once."""
GONE_SECONDS: Final = 60
"""A peer whose machine or network is silent for so long is gone. Nobody says so: without this a
change would wait in vain for a lost machine for a quarter of an hour, and so would the next one."""
LARGE_BYTES: Final = 1 << 20
"""Frames larger than this are not collected piece by piece."""
SLOW_BYTES: Final = 1 << 16
"""Rows do not wait while a frame larger than this is opened; small ones take no time. Functions
that are not larger are not sent in pieces."""
_LENGTH: Final = struct.Struct("!I")


class Receives(Protocol):
    """What bytes come from: a socket, or something that reads like one."""

    def recv(self, size: int, /) -> bytes:
        """Some bytes; none if it is closed."""

    def recv_into(self, view: memoryview, /) -> int:
        """How many bytes were put there."""


def prepare_socket(sock: socket.socket) -> None:
    """Send small messages at once, and notice a peer that vanished without a farewell.

    The system asks a silent peer whether it is there, and the peer's system answers, however
    busy the process is.
    """
    # without it, a message waits 40 ms for the one before
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", GONE_SECONDS // 3),
        ("TCP_KEEPINTVL", GONE_SECONDS // 3),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 1000 * GONE_SECONDS),
    ):
        if hasattr(socket, name):  # where the system lacks one, it has a patience of its own
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def frame(*parts: bytes) -> bytes:
    """A body, in one part or several, with its length in front."""
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def room(length: int) -> memoryview:
    """Room for bytes, not filled with zeros: that would take long, and stop all threads."""
    return np.empty(length, dtype=np.uint8).data


def rooms(sizes: Iterable[int]) -> tuple[memoryview, ...]:
    """Room for several parts; nothing if there is not enough memory for all."""
    try:
        return tuple(map(room, sizes))
    except MemoryError:
        return ()


def unframed(data: bytes | bytearray, limit: int) -> list[bytes]:
    """The bodies of whole frames, one behind the other."""
    bodies, start = [], 0
    while start < len(data):
        if len(data) < start + _LENGTH.size:
            raise WireError("a frame is cut short")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size + length
        if length > limit or start > len(data):
            raise WireError(f"a frame of {length:,} bytes is over the limit")
        bodies.append(bytes(data[start - length : start]))
    return bodies


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The body of the next frame."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > limit:
        raise WireError(f"a frame of {length:,} bytes is over the limit of {limit:,}")
    return await reader.readexactly(length)


class Unframer:
    """Turns bytes as they arrive into whole frames.

    The body of a large frame (a model) is received where it will stay: copying it, or filling
    its place with zeros first, would hold the interpreter, and with it the rows, for a hundred
    milliseconds.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._large: memoryview | None = None
        """Body of the large frame that is being received."""
        self._filled = 0
        self._took_large = False

    @property
    def large(self) -> bool:
        """Whether a large frame is being received, or was the last one to be taken."""
        return self._large is not None or self._took_large

    @property
    def full(self) -> bool:
        """Whether a large frame is whole and waits to be taken; nothing more is received then."""
        return self._large is not None and self._filled == len(self._large)

    def receive(self, sock: Receives) -> bool:
        """Take what a socket has; ``False`` if it is closed.

        Raises ``BlockingIOError`` if the socket says so: nothing has come.
        """
        if self._large is not None:
            count = sock.recv_into(self._large[self._filled :])
            self._filled += count
            return count > 0
        data = sock.recv(RECEIVE_BYTES)
        self._buffer += data
        return bool(data)

    def take(self, limit: int = MAX_FRAME) -> bytes | memoryview | None:
        """The next whole frame, if there is one."""
        body = self._take(limit)
        self._took_large = body is not None and len(body) > SLOW_BYTES
        return body

    def _take(self, limit: int) -> bytes | memoryview | None:
        if self._large is not None:
            return self._take_large()
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > limit:
            raise WireError(f"a frame of {length:,} bytes is over the limit of {limit:,}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            if length > LARGE_BYTES:
                self._begin_large(length)
            return None
        body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return body

    def _begin_large(self, length: int) -> None:
        here = self._buffer[_LENGTH.size :]
        self._large, self._filled = room(length), len(here)
        self._large[: len(here)] = here
        self._buffer.clear()

    def _take_large(self) -> memoryview | None:
        if self._large is None or self._filled < len(self._large):
            return None
        body, self._large = self._large, None
        return body
