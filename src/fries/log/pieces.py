"""Large parts of a change (a model), gone through in no hurry.

Whoever copies, hashes or writes 200 MB at once takes a core from the rows for a few hundred
milliseconds, and they are late. Nobody waits for it: so it is done piece by piece, with rests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Buffer: TypeAlias = "bytes | memoryview"
PIECE_BYTES: Final = 1 << 20
REST: Final = 3
"""How many times as long as the work on a piece is the rest after it."""


def unhurried(parts: Iterable[Buffer]) -> Iterator[memoryview]:
    """The pieces of some parts, in order; after each large one its reader rests."""
    for part in parts:
        view = memoryview(part)
        flat = view.cast("B") if view.nbytes else memoryview(b"")
        for start in range(0, len(flat), PIECE_BYTES):
            began = time.thread_time()
            piece = flat[start : start + PIECE_BYTES]
            yield piece
            if len(piece) == PIECE_BYTES:
                time.sleep(REST * (time.thread_time() - began))
