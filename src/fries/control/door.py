"""The controller's door: who comes in, and how long a stranger may stand in it.

A connection is a stranger's until its peer has proved that it knows the job's secret. Strangers
are few, have little time and little room, and nothing that they send is decoded. What anybody does
wrong ends their own connection and nothing else.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from fries.control.messages import ENCODER, Down, Up
from fries.control.reports import heard
from fries.control.seal import CONTROLLER, Opener, Proof, Sealer
from fries.control.wire import MAX_GREETING, MAX_UP, frame, prepare_socket, read_frame
from fries.errors import FriesError

GREETING_SECONDS: Final = 5.0
"""A peer that has not proved itself by then is a stranger who holds a socket open."""
MOST_STRANGERS: Final = 128
"""Connections that have not proved themselves: more are closed at once, and may try again."""
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


class Door:
    """Listens; ``attend`` gets every line with the peer's first message."""

    def __init__(
        self,
        secret: bytes,
        context: ssl.SSLContext | None,
        attend: Callable[[Up, Line], Awaitable[None]],
    ) -> None:
        self._secret, self._context, self._attend = secret, context, attend
        self._strangers = 0
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

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                if self._strangers >= MOST_STRANGERS:
                    sock.close()
                else:
                    self._strangers += 1
                    self._start(self._let_in(sock))

    async def _let_in(self, sock: socket.socket) -> None:
        """Authenticate a peer, then attend to it for as long as it lives."""
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    reader, writer = await self._streams(sock)
                    line = Line(reader, writer, await self._prove(reader, writer))
                    first = await line.read()
            finally:
                self._strangers -= 1
            await self._attend(first, line)
        except (FriesError, OSError, EOFError, TimeoutError):
            pass  # what a peer does wrong ends its own connection and nothing else
        finally:
            sock.close() if writer is None else writer.close()

    async def _streams(
        self, sock: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
