"""The proof that opens a connection, and the seal on everything that follows.

Each side sends a random challenge and proves with an HMAC-SHA256 over both that it knows the
job's secret, which itself never travels here. From the secret and both challenges come two keys,
one for each direction of this connection. Every frame then carries a tag, a keyed BLAKE2b over
its place in the sequence and its body. A frame that was altered, repeated, left out, moved, sent
back or taken from another connection does not fit, and nothing of it is decoded.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from fries.control.wire import frame
from fries.errors import AuthenticationError

SECRET_BYTES: Final = 32
CHALLENGE_BYTES: Final = 32
TAG_BYTES: Final = 16
"""Too many to guess, few enough for a message of thirty bytes."""
GREETING_BYTES: Final = 2 * len(frame(bytes(CHALLENGE_BYTES)))
"""What a worker says before it hears the controller's proof: its challenge and its answer, which
are of the same size."""
COUNTER_BYTES: Final = 8
CONTROLLER: Final = b"controller"
WORKER: Final = b"worker"


class Secret(bytes):
    """Bytes that never show themselves, whatever prints or logs the thing that holds them."""

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__


def new_secret() -> Secret:
    """A fresh secret for one job."""
    return Secret(secrets.token_bytes(SECRET_BYTES))


class Sealer:
    """Tags what one side sends, frame by frame: call it in the order of sending."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)

    def seal(self, body: bytes) -> bytes:
        """A frame, ready to be sent."""
        return frame(self._tags.next(body), body)


class Opener:
    """Checks what the other side has sent, frame by frame, before anybody looks at it."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)

    def open(self, sealed: bytes | memoryview) -> memoryview:
        """The body of a frame, in its place: nothing is copied."""
        view = memoryview(sealed)
        tag, body = view[:TAG_BYTES], view[TAG_BYTES:]
        if not hmac.compare_digest(self._tags.next(body), tag):
            raise AuthenticationError("a frame was altered, or is not the next one of its sender")
        return body


class _Tags:
    """The tags of one direction; each depends on how many there were before."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._count = 0

    def next(self, body: bytes | memoryview) -> bytes:
        tag = self._keyed.copy()
        tag.update(self._count.to_bytes(COUNTER_BYTES, "big"))
        tag.update(body)  # lets other threads run if the body is large
        self._count += 1
        return tag.digest()


class Proof:
    """One side of the mutual proof.

    Each side sends its ``challenge``, meets the peer's, sends its :meth:`answer` and checks the
    peer's. Then, and not before, both may :meth:`seal`.
    """

    def __init__(self, secret: bytes, side: bytes) -> None:
        self._secret, self._side = secret, side
        self._peer = WORKER if side == CONTROLLER else CONTROLLER
        self._proved = False
        self._both = b""
        """Both challenges, the controller's first."""
        self.challenge = secrets.token_bytes(CHALLENGE_BYTES)

    def meet(self, challenge: bytes) -> None:
        """Take the peer's challenge."""
        if len(challenge) != CHALLENGE_BYTES:
            raise AuthenticationError("the peer's challenge has a wrong length")
        ordered = {self._side: self.challenge, self._peer: challenge}
        self._both = ordered[CONTROLLER] + ordered[WORKER]

    def answer(self) -> bytes:
        """What proves to the peer that we know the secret; names the side, against reflection."""
        return self._answer_of(self._side)

    def check(self, answer: bytes) -> None:
        """Refuse a peer that does not know the secret."""
        if not hmac.compare_digest(self._answer_of(self._peer), answer):
            raise AuthenticationError("the peer does not know this job's secret")
        self._proved = True

    def seal(self) -> tuple[Sealer, Opener]:
        """For what we send, and for what we receive."""
        if not self._proved:
            raise AuthenticationError("the peer has not proved that it knows this job's secret")
        keys = hmac.digest(self._both, self._secret, "sha256")
        return Sealer(_key(keys, self._side)), Opener(_key(keys, self._peer))

    def _answer_of(self, side: bytes) -> bytes:
        if not self._both:
            raise AuthenticationError("the peer has sent no challenge")
        return hmac.digest(self._secret, b"fries proof " + side + b" " + self._both, "sha256")


def _key(keys: bytes, sender: bytes) -> bytes:
    """The key of a direction: the second step of HKDF, one block long."""
    return hmac.digest(keys, b"fries seal " + sender + b"\x01", "sha256")
