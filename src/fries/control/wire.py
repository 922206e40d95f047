"""Frames on a connection, and the proof that comes before the first of them.

A frame is a length (four bytes, big endian) and a body. Bodies are ``msgspec`` messages, so
decoding them runs no code of the peer's; what must be unpickled (functions) is unpickled
only after both sides have proved that they know the job's secret. The proof is a random
challenge and an HMAC-SHA256 of it, each way; the secret itself never travels here.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import struct
from typing import Final

from fries.errors import AuthenticationError, WireError

MAX_FRAME: Final = 1 << 31
"""Bytes in one frame at the most: models are shipped whole. More is a bug or an attack."""
MAX_GREETING: Final = 256
"""Bytes in one frame before the peer has proved itself: a stranger cannot make us allocate."""
SECRET_BYTES: Final = 32
CHALLENGE_BYTES: Final = 32
_LENGTH: Final = struct.Struct("!I")


def new_secret() -> bytes:
    """A fresh secret for one job."""
    return secrets.token_bytes(SECRET_BYTES)


def frame(body: bytes) -> bytes:
    """A body with its length in front."""
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The body of the next frame."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > limit:
        raise WireError(f"a frame of {length:,} bytes is over the limit of {limit:,}")
    return await reader.readexactly(length)


class Unframer:
    """Turns bytes as they arrive into whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        self._buffer += data

    def take(self, limit: int = MAX_FRAME) -> bytes | None:
        """The next whole frame, if there is one."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > limit:
            raise WireError(f"a frame of {length:,} bytes is over the limit of {limit:,}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return body


class Proof:
    """One side of the mutual proof.

    Each side sends its ``challenge``, answers the peer's, and checks the peer's answer.
    """

    def __init__(self, secret: bytes, side: bytes, peer: bytes) -> None:
        self._secret, self._side, self._peer = secret, side, peer
        self.challenge = secrets.token_bytes(CHALLENGE_BYTES)

    def answer(self, challenge: bytes) -> bytes:
        """What proves to the peer that we know the secret; names the side, against reflection."""
        if len(challenge) != CHALLENGE_BYTES:
            raise AuthenticationError("the peer's challenge has a wrong length")
        return hmac.digest(self._secret, self._side + challenge, "sha256")

    def check(self, answer: bytes) -> None:
        """Refuse a peer that does not know the secret."""
        expected = hmac.digest(self._secret, self._peer + self.challenge, "sha256")
        if not hmac.compare_digest(expected, answer):
            raise AuthenticationError("the peer does not know this job's secret")
