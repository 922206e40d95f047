"""A peer that knows the secret and keeps no rule unless it is told to."""

from __future__ import annotations

import socket
from types import TracebackType

from fries.control.messages import DOWN, ENCODER, Down, Hello, Up, Welcome
from fries.control.seal import WORKER, Proof
from fries.control.wire import MAX_FRAME, Unframer, frame
from tests import waiting

PATIENCE = waiting.PATIENCE


class Rogue:
    """A connection that has proved itself; the rest is up to the test."""

    def __init__(self, address: tuple[str, int], secret: bytes, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(address)
        self._unframer = Unframer()
        proof = Proof(secret, WORKER)
        try:
            proof.meet(self._frame())
            self.socket.sendall(frame(proof.challenge) + frame(proof.answer()))
            proof.check(self._frame())
        except BaseException:
            self.socket.close()
            raise
        self.sealer, self._opener = proof.seal()

    def __enter__(self) -> Rogue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def say(self, message: Up | Down) -> None:
        """Send a message as it should be."""
        self.say_bytes(ENCODER.encode(message))

    def say_bytes(self, body: bytes) -> None:
        """Send anything, well sealed."""
        self.socket.sendall(self.sealer.seal(body))

    def hello(self, name: str = "rogue", flow: str = "fraud") -> None:
        """Say hello."""
        self.say(Hello(flow, name))

    def join(self, name: str = "rogue", flow: str = "fraud") -> None:
        """Say hello and be welcome."""
        self.hello(name, flow)
        while not isinstance(self.hear(), Welcome):
            pass

    def hear(self) -> Down:
        """The next message."""
        return DOWN.decode(self._opener.open(self._frame()))

    def turned_away(self) -> bool:
        """Read until the controller hangs up."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def _frame(self) -> bytes:
        while (body := self._unframer.take(MAX_FRAME)) is None:
            if not self._unframer.receive(self.socket):
                raise EOFError
        return bytes(body)
