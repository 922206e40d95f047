"""What changes ship, on its way into a worker: put together piece by piece, kept until loaded."""

from __future__ import annotations

from typing import NamedTuple

from fries.control.messages import Piece, Shipment
from fries.control.wire import rooms


class Shipped(NamedTuple):
    """The functions of a change, pickled, and what they hold."""

    bit: int
    parts: tuple[memoryview, ...]
    """None if they do not fit into memory."""
    size: int


class Shipments:
    """By change, what has come of its functions."""

    def __init__(self) -> None:
        self._shipped: dict[int, Shipped] = {}

    def announce(self, message: Shipment) -> None:
        """Make room for a change, or keep it if it has come whole."""
        parts = (memoryview(message.whole),) if message.whole else rooms(message.sizes)
        self._shipped[message.change] = Shipped(message.bit, parts, sum(message.sizes))

    def fill(self, piece: Piece) -> None:
        """Put some bytes of a change into their place."""
        parts, end = self._shipped[piece.change].parts, piece.start + len(piece.data)
        if parts:
            parts[piece.part][piece.start : end] = piece.data

    def take(self, change: int) -> Shipped:
        """What a change has shipped, which nobody else needs any more."""
        shipped = self._shipped.pop(change)
        if not shipped.parts:
            raise MemoryError(f"a change of {shipped.size:,} bytes does not fit")
        return shipped

    def forget(self, change: int) -> None:
        """A change that was aborted need not be loaded."""
        self._shipped.pop(change, None)
