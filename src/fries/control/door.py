"""The controller's door: who comes in, and how long a stranger may stand in it.

A connection is a stranger's until its peer has proved that it knows the job's secret. Strangers
are few, have little time and little room, and nothing that they send is decoded. What anybody does
wrong ends their own connection and nothing else. Strangers share the event loop with the changes of
the flow, so what they cost is bounded: one is let in at a time, so many a second, and none wakes
the loop more than a few times. Whoever proves itself does not count.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Final

from fries.control.messages import ENCODER, Down, Up
from fries.control.reports import heard
from fries.control.seal import (
    CHALLENGE_BYTES,
    CONTROLLER,
    GREETING_BYTES,
    Opener,
    Proof,
    Sealer,
)
from fries.control.wire import MAX_GREETING, MAX_UP, frame, prepare_socket, read_frame, unframed
from fries.errors import FriesError

GREETING_SECONDS: Final = 5.0
"""A peer that has not proved itself by then is a stranger who holds a socket open."""
MOST_STRANGERS: Final = 128
"""Connections that have not proved themselves: one more takes the place of the oldest, or is closed
at once, and may try again."""
SILENT_SECONDS: Final = 1.0
"""A stranger that has not proved itself for so long may lose its place: workers need milliseconds.
Else those who hold all places would keep workers out for as long as the greeting may take."""
STRANGERS_PER_SECOND: Final = 1000
"""That are let in and do not prove themselves; each costs a tenth of a millisecond. The others wait
in the system's backlog, where they cost nothing."""
FIRST_WORD: Final = frame(bytes(CHALLENGE_BYTES))[:-CHALLENGE_BYTES]
"""The length of a worker's challenge: whoever begins otherwise is none."""
HASTE: Final = 64
"""Strangers that are let in at once after a quiet time."""
BACKLOG: Final = 1024
"""Connections that the system keeps until they are accepted: all workers may come together."""
EXHAUSTED_SECONDS: Final = 0.5
"""Until the next try, if the process has no descriptors left."""


class Line:
    """A connection whose peer has proved itself."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seal: tuple[Sealer, Opener],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._sealer, self._opener = seal

    async def read(self) -> Up:
        """The next message."""
        return heard(self._opener.open(await read_frame(self._reader, MAX_UP)))

    def write(self, messages: Iterable[Down]) -> int:
        """Send messages at once, or keep them until the peer takes them; their bytes."""
        sealed = b"".join(self._sealer.seal(ENCODER.encode(message)) for message in messages)
        self._writer.write(sealed)
        return len(sealed)

    @property
    def unread(self) -> int:
        """Bytes that were written and not taken by the network yet."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written."""
        await self._writer.drain()

    def abort(self) -> None:
        """End the connection, and forget what was not taken."""
        self._writer.transport.abort()


class Pace:
    """How fast strangers are let in; those who prove themselves are given back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._credit, self._last = clock, float(HASTE), clock()

    def take(self) -> float:
        """Let one in; for how many seconds the next one has to wait."""
        now = self._clock()
        grown = self._credit + (now - self._last) * STRANGERS_PER_SECOND
        self._credit, self._last = min(float(HASTE), grown) - 1, now
        return max(0.0, (1 - self._credit) / STRANGERS_PER_SECOND)

    def give_back(self) -> None:
        """One has proved itself."""
        self._credit += 1


class Door:
    """Listens; ``attend`` gets every line with the peer's first message."""

    def __init__(
        self,
        secret: bytes,
        context: ssl.SSLContext | None,
        attend: Callable[[Up, Line], Awaitable[None]],
    ) -> None:
        self._secret, self._context, self._attend = secret, context, attend
        self._strangers: dict[asyncio.Task[None], float] = {}
        """Since when each is here, oldest first."""
        self._pace = Pace()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> tuple[str, int]:
        """Listen on a free port; where it is."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._start(self._accept(listener))
        name: tuple[str, int] = listener.getsockname()[:2]
        return name

    def close(self) -> None:
        """Take nobody in any more, and end every connection."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    sock, _ = await asyncio.get_running_loop().sock_accept(listener)
                except ConnectionAbortedError:
                    continue  # whoever it was has left again
                except OSError:
                    await asyncio.sleep(EXHAUSTED_SECONDS)
                    continue
                if self._has_room():
                    self._strangers[self._start(self._let_in(sock))] = time.monotonic()
                else:
                    sock.close()
                await asyncio.sleep(self._pace.take())  # others come first, even if it is 0

    def _has_room(self) -> bool:
        """Whether one more may come in; the oldest stranger goes if it has long been silent."""
        if len(self._strangers) < MOST_STRANGERS:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None or time.monotonic() - self._strangers[oldest] < SILENT_SECONDS:
            return False
        del self._strangers[oldest]
        oldest.cancel()
        return True

    async def _let_in(self, sock: socket.socket) -> None:
        """Authenticate a peer, then attend to it for as long as it lives."""
        writer: asyncio.StreamWriter | None = None
        me = asyncio.current_task()
        assert me is not None
        try:
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    seal = await self._meet(sock) if self._context is None else None
                    reader, writer = await self._streams(sock)
                    line = Line(reader, writer, seal or await self._prove(reader, writer))
                    first = await line.read()
            finally:
                self._strangers.pop(me, None)
            self._pace.give_back()
            await self._attend(first, line)
        except (FriesError, OSError, EOFError, TimeoutError):
            pass  # what a peer does wrong ends its own connection and nothing else
        finally:
            sock.close() if writer is None else writer.close()

    async def _meet(self, sock: socket.socket) -> tuple[Sealer, Opener]:
        """The proof on a bare socket.

        A stranger wakes the loop for its first word and when all of its proof is there, however
        many bytes it sends at a time.
        """
        prepare_socket(sock)
        loop, proof = asyncio.get_running_loop(), Proof(self._secret, CONTROLLER)
        await loop.sock_sendall(sock, frame(proof.challenge))
        greeting = bytearray()
        while missing := GREETING_BYTES - len(greeting):
            low = missing if greeting else len(FIRST_WORD)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            data = await loop.sock_recv(sock, missing)
            greeting += data
            if not data or not FIRST_WORD.startswith(greeting[: len(FIRST_WORD)]):
                raise EOFError
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        challenge, *answer = unframed(greeting, MAX_GREETING)
        proof.meet(challenge)
        proof.check(b"".join(answer))
        await loop.sock_sendall(sock, frame(proof.answer()))
        return proof.seal()

    async def _streams(
        self, sock: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._context is not None:
            prepare_socket(sock)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        waits = {} if self._context is None else {"ssl_shutdown_timeout": GREETING_SECONDS}
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=self._context, **waits
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _prove(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Sealer, Opener]:
        proof = Proof(self._secret, CONTROLLER)
        writer.write(frame(proof.challenge))
        proof.meet(await read_frame(reader, MAX_GREETING))
        proof.check(await read_frame(reader, MAX_GREETING))
        writer.write(frame(proof.answer()))
        return proof.seal()
