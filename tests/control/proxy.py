"""A network that fails on demand: a proxy on loopback, between workers and controller.

It knows frames, so that it can fail at a chosen message, or in the middle of one. Frames are sealed
but not encrypted: the name of a message can be read on the way, which is all that is done with it.
Whatever a link holds back is bounded by one frame and the buffers of the system.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from fries.control.seal import TAG_BYTES
from fries.control.wire import MAX_FRAME

GREETING_FRAMES: Final = 2
"""Frames in each direction before the first sealed one: a challenge and an answer."""
LENGTH: Final = struct.Struct("!I")
Answer = TypeVar("Answer")
RESETTING: Final = struct.pack("ii", 1, 0)
"""``SO_LINGER`` for no time: closing sends a reset instead of a farewell."""


class Way(Enum):
    """Where bytes go."""

    UP = "to the controller"
    DOWN = "to the worker"


class _Typed(msgspec.Struct):
    """What all messages have in common."""

    type: str


class Link:
    """One connection of a worker, and the one to the controller that continues it."""

    def __init__(self) -> None:
        self._writers: dict[Way, asyncio.StreamWriter] = {}
        """By way, where its bytes leave."""
        self._open = {way: asyncio.Event() for way in Way}
        self.release()

    def hold(self, *ways: Way) -> None:
        """Forward nothing, not even that somebody has hung up; both sockets stay open."""
        for way in ways or Way:
            self._open[way].clear()

    def release(self) -> None:
        """Forward what was held back, and all that follows."""
        for gate in self._open.values():
            gate.set()

    def cut(self, reset: bool = False) -> None:
        """End both connections, with a farewell or with a reset."""
        for writer in self._writers.values():
            if reset:
                sock = writer.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETTING)
            writer.transport.abort()
        self.release()

    async def join(
        self,
        worker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        controller: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        trapped: Callable[[Link, Way, str], Trap | None],
    ) -> None:
        """Forward until both sides have hung up."""
        self._writers = {Way.UP: controller[1], Way.DOWN: worker[1]}
        try:
            await asyncio.gather(
                self._forward(Way.UP, worker[0], trapped),
                self._forward(Way.DOWN, controller[0], trapped),
            )
        except OSError:
            pass  # one of them is gone: that is the other's business, too
        finally:
            self.cut()

    async def _forward(
        self,
        way: Way,
        reader: asyncio.StreamReader,
        trapped: Callable[[Link, Way, str], Trap | None],
    ) -> None:
        number = 0
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(LENGTH.size)
                (length,) = LENGTH.unpack(head)
                assert length <= MAX_FRAME
                whole = head + await reader.readexactly(length)
                trap = trapped(self, way, _name(number, whole))
                number += 1
                await self._send(way, whole, trap)
        await self._open[way].wait()
        with suppress(OSError):
            self._writers[way].write_eof()

    async def _send(self, way: Way, whole: bytes, trap: Trap | None) -> None:
        await self._open[way].wait()
        writer = self._writers[way]
        if trap is not None:
            part = int(len(whole) * trap.share)
            writer.write(whole[:part])
            await writer.drain()
            trap.fault(self)
            trap.sprung.set()
            whole = whole[part:]
            await self._open[way].wait()
        writer.write(whole)
        await writer.drain()


@dataclass
class Trap:
    """A fault that waits for a message; it happens once."""

    way: Way
    name: str
    """Of the message; those of the greeting are called "frame 0" and "frame 1"."""
    fault: Callable[[Link], None]
    share: float = 0.0
    """Of the message's bytes that get through before the fault: none, or half of them."""
    skipped: int = 0
    """Messages of that name that get through before."""
    sprung: threading.Event = field(default_factory=threading.Event)

    def fits(self, way: Way, name: str) -> bool:
        """Whether this is the message."""
        if self.sprung.is_set() or (way, name) != (self.way, self.name):
            return False
        self.skipped -= 1
        return self.skipped < 0


class Proxy:
    """Listens in the controller's place; call it from any thread."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._links: list[Link] = []
        self._traps: list[Trap] = []
        self._late: asyncio.Event | None = None
        """What the next connection waits for before it goes on to the controller."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server, self.address = self._run(self._listen())

    def close(self) -> None:
        """End everything; once is enough."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def at(
        self,
        way: Way,
        name: str,
        fault: Callable[[Link], None],
        share: float = 0.0,
        skipped: int = 0,
    ) -> threading.Event:
        """Have a fault when a message comes by; what is set when it has happened."""
        trap = Trap(way, name, fault, share, skipped)
        self.do(lambda: self._traps.append(trap))
        return trap.sprung

    def each(self, fault: Callable[[Link], None]) -> None:
        """Have a fault now, on every link."""

        def have() -> None:
            for link in self._links:
                fault(link)

        self.do(have)

    def delay_next(self) -> Callable[[], None]:
        """Let the next connection wait, so that others overtake it; the answer lets it go."""
        gate = asyncio.Event()

        def delay() -> None:
            self._late = gate

        self.do(delay)
        return lambda: self.do(gate.set)

    @property
    def links(self) -> int:
        """Connections so far."""
        return len(self._links)

    def do(self, what: Callable[[], object]) -> None:
        """Do something in the proxy's thread, and wait until it is done."""

        async def call() -> None:
            what()

        self._run(call())

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        done: Future[Answer] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result()

    async def _listen(self) -> tuple[asyncio.Server, tuple[str, int]]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        return server, (host, port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late, self._late = self._late, None
        link = Link()
        self._links.append(link)
        task = self._loop.create_task(self._continue(link, (reader, writer), late))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _continue(
        self,
        link: Link,
        worker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        late: asyncio.Event | None,
    ) -> None:
        try:
            if late is not None:
                await late.wait()
            controller = await asyncio.open_connection(*self._target)
        except OSError:
            worker[1].transport.abort()
            return
        except asyncio.CancelledError:
            worker[1].transport.abort()
            raise
        await link.join(worker, controller, self._trapped)

    def _trapped(self, _link: Link, way: Way, name: str) -> Trap | None:
        return next((trap for trap in self._traps if trap.fits(way, name)), None)

    async def _end(self) -> None:
        self._server.close()
        for link in self._links:
            link.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the next turn


def _name(number: int, whole: bytes) -> str:
    """How a frame is called: by its message, or by its number if it belongs to the greeting."""
    if number < GREETING_FRAMES:
        return f"frame {number}"
    body = memoryview(whole)[LENGTH.size + TAG_BYTES :]
    return msgspec.msgpack.decode(body, type=_Typed).type
