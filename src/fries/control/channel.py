"""The worker's socket: whoever reads or writes, nobody waits.

Several threads use it. The one that processes rows must never wait for a controller that does
not read, so what the socket does not take at once stays in a queue, which the background thread
sends on; if that grows too long, the connection is given up, and the rows go on. With TLS, one
lock keeps two threads from using OpenSSL's object at once, and what OpenSSL has decrypted and
nobody has read counts as something to read, which the bare socket does not know of.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final

from fries.control.seal import TAG_BYTES, Sealer
from fries.control.wire import MAX_UP
from fries.errors import WireError

MOST_UNSENT: Final = 4 * MAX_UP
"""Bytes that wait for a controller that does not read: days of counters, then it is given up."""
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Channel:
    """A connected socket, from which any thread may read and to which any thread may write."""

    def __init__(self, sock: socket.socket, sealer: Sealer) -> None:
        sock.setblocking(False)
        self._socket, self._sealer = sock, sealer
        self._unsent: deque[memoryview] = deque()
        self.unsent = 0
        """Bytes that wait for the other side."""
        self._closed = False
        self._nudged = False
        self._using = threading.Lock()
        """Guards all of the above, and every call of OpenSSL."""
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)

    def readable(self) -> bool:
        """Whether there is something to read now: bytes, or that the connection is closed."""
        with self._using:
            if self._closed:
                return True
            buffered = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
            return buffered or bool(_polled({self._socket.fileno(): select.POLLIN}, 0))

    def nudge(self) -> None:
        """Wake up whoever waits: there is work for it that the socket does not know of."""
        with self._using:
            self._nudged = True
            self._wake()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until there may be something to read, and meanwhile send what was left unsent."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.readable():
            with self._using:
                if self._nudged:
                    self._nudged = False
                    return
                watched = {self._woken.fileno(): select.POLLIN}
                if not self._closed:
                    sending = select.POLLOUT if self._unsent else 0
                    watched[self._socket.fileno()] = select.POLLIN | sending
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            news = _polled(watched, left)
            if self._woken.fileno() in news:
                self._woken.recv(1024)
            with suppress(WireError), self._using:  # if it is gone, reading tells
                self._flush()
            if self._socket.fileno() in news:
                return

    def recv(self, size: int) -> bytes:
        """What has come; nothing if the connection is closed.

        Raises ``BlockingIOError`` if nothing has come.
        """
        with self._using:
            try:
                return b"" if self._closed else self._socket.recv(size)
            except _NOT_NOW:
                raise BlockingIOError from None

    def recv_into(self, view: memoryview) -> int:
        """Put what has come into its place, as :meth:`recv`; TLS gives 16 kB at a time."""
        filled = 0
        with self._using:
            while filled < len(view) and not self._closed:
                try:
                    count = self._socket.recv_into(view[filled:])
                except _NOT_NOW:
                    if not filled:
                        raise BlockingIOError from None
                    break
                filled += count
                if not count or not isinstance(self._socket, ssl.SSLSocket):
                    break
        return filled

    def send(self, body: bytes) -> None:
        """Send a message now, or as soon as the other side takes it."""
        if len(body) + TAG_BYTES > MAX_UP:
            raise WireError(f"a message of {len(body):,} bytes is over the limit of {MAX_UP:,}")
        with self._using:
            if self._closed:  # a task that goes on without us must not pile up what it tells
                raise WireError("the control connection is gone")
            sealed = self._sealer.seal(body)
            self._unsent.append(memoryview(sealed))
            self.unsent += len(sealed)
            self._flush()
            if self.unsent > MOST_UNSENT:
                self._shut()
                raise WireError("the controller does not read what this worker sends")
            if self._unsent:
                self._wake()

    def shut(self) -> None:
        """End the connection; whoever waits for it wakes up."""
        with self._using:
            self._shut()

    def close(self) -> None:
        """Give the descriptors back; only for the thread that waits, when it waits no more."""
        with self._using:
            self._shut()
            for sock in (self._socket, self._woken, self._waker):
                sock.close()

    def _flush(self) -> None:
        """Send what the socket takes."""
        if self._closed:
            raise WireError("the control connection is gone")
        try:
            while self._unsent:
                count = self._socket.send(self._unsent[0])
                self.unsent -= count
                self._unsent[0] = self._unsent[0][count:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except _NOT_NOW:
            pass
        except OSError as error:
            raise WireError(f"the control connection is gone: {error}") from error

    def _shut(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):  # not OpenSSL's: it would say farewell, and might wait
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._waker.send(b"\0")


def _polled(watched: dict[int, int], seconds: float | None) -> set[int]:
    """Descriptors with news; ``poll`` knows no limit on descriptors, unlike ``select``."""
    poller = select.poll()
    for descriptor, events in watched.items():
        poller.register(descriptor, events)
    milliseconds = None if seconds is None else math.ceil(1000 * seconds)
    return {descriptor for descriptor, _ in poller.poll(milliseconds)}
