"""The controller's end of one connection: changes in order, large ones politely.

What a change ships is sent in pieces with pauses between them, because a model of 200 MB
written at once would take the cores from the rows for a second, on the driver and in every
worker. Nobody waits for it: it is loaded beside the data path. Only a worker that joins gets what
it begins with as fast as it can take it: it has no rows yet. What a task waits for (``Go``,
``Noted``), and what is of use only now (``Soon``), overtakes the pieces; everything else keeps its
order. A worker that takes nothing for a long time, or lets too much pile up, loses its connection,
so that its messages do not fill the driver.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from fries.control.door import Line
from fries.control.messages import Down, Go, Noted, Piece, Shipment, Soon, Welcome
from fries.control.wire import SLOW_BYTES
from fries.log.pieces import PIECE_BYTES

PIECE_SECONDS: Final = 0.1
"""Between two pieces of a large change: not quite 10 MB a second for each worker."""
HASTY_PIECES: Final = 32
"""So many pieces have shorter pauses, from none on: a model of some MB is there soon."""
STALLED_SECONDS: Final = 60.0
"""A worker that takes nothing for so long, while there is something to take, is given up."""
MOST_UNREAD: Final = 16 << 20
"""Bytes that may wait for a worker, beside the flow's first functions, which are one message."""


class Peer:
    """Sends to one worker; call it from the event loop's thread."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._written = 0
        """Bytes so far."""
        self._most_unread = MOST_UNREAD
        self._welcomed = False
        """Whether the worker has all that it begins with."""
        self._watch: asyncio.TimerHandle | None = None
        self._waiting: deque[Iterator[Down]] = deque()
        """What must wait for the pieces before it."""
        self._pump: asyncio.Task[None] | None = None

    def send(self, message: Down) -> None:
        """Send a message: at once, or in its turn."""
        if self._pump is None or isinstance(message, (Go, Noted, Soon)):
            self._write(message)
        else:
            self._waiting.append(iter((message,)))

    def ship(self, change: int, bit: int, parts: Sequence[memoryview], *after: Down) -> None:
        """Send what a change ships, and what comes after it.

        In one go if it is small, so that the worker wakes up once. Of what is large, nothing is
        copied but the piece at hand.
        """
        sizes = tuple(part.nbytes for part in parts)
        whole = bytes(parts[0]) if len(parts) == 1 and sizes[0] <= SLOW_BYTES else b""
        pieces = () if whole else _pieces(change, parts)
        messages = chain((Shipment(change, bit, sizes, whole),), pieces, after)
        small = sum(sizes) + self._line.unread <= PIECE_BYTES
        if small and self._pump is None:
            self._write(*messages)
            return
        self._waiting.append(messages)
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._send_waiting())

    def close(self) -> None:
        """End the connection."""
        if self._pump is not None:
            self._pump.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._line.abort()

    def _write(self, *messages: Down) -> None:
        size = self._line.write(messages)
        self._written += size
        if isinstance(messages[0], Welcome):
            self._most_unread += size
            self._welcomed = True
        unread = self._line.unread
        if unread > self._most_unread:
            self._line.abort()
        elif unread and self._watch is None:
            self._look_again(self._written - unread)

    def _look_again(self, taken: int) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(STALLED_SECONDS, self._give_up_unless_more_than, taken)

    def _give_up_unless_more_than(self, taken: int) -> None:
        """See whether the worker has taken anything since the last look."""
        self._watch = None
        unread = self._line.unread
        if unread and self._written - unread == taken:
            self._line.abort()
        elif unread:
            self._look_again(self._written - unread)

    async def _send_waiting(self) -> None:
        pieces = 0
        with suppress(OSError):  # whoever reads from this connection notices, too
            while self._waiting:
                for message in self._waiting.popleft():
                    self._write(message)
                    await self._line.drain()
                    if isinstance(message, Piece):
                        pieces += 1
                        await asyncio.sleep(pause_after(pieces) if self._welcomed else 0.0)
        self._pump = None


def pause_after(pieces: int) -> float:
    """Seconds until the next piece, after some of them."""
    return PIECE_SECONDS * min(1.0, pieces / HASTY_PIECES)


def shipping_seconds(size: int) -> float:
    """How long the pauses are, all together, while so many bytes are sent."""
    pieces = size // PIECE_BYTES
    hasty = min(pieces, HASTY_PIECES)
    return sum(map(pause_after, range(1, hasty + 1))) + PIECE_SECONDS * (pieces - hasty)


def _pieces(change: int, parts: Sequence[memoryview]) -> Iterator[Down]:
    for number, part in enumerate(parts):
        flat = part.cast("B")
        for start in range(0, len(flat), PIECE_BYTES):
            yield Piece(change, number, start, bytes(flat[start : start + PIECE_BYTES]))
