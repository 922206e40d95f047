"""Workers that grow since a change: a version that keeps its rows is told of before it hurts."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from fries.change.model import Change

LEAK_BYTES: Final = 256 << 20
"""A worker that has grown by so much since a change is told of."""
MOST_WATCHED: Final = 20
_logger = logging.getLogger(__name__)


class Growth:
    """Watches the last changes that were committed."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=MOST_WATCHED)

    def watch(self, change: Change) -> None:
        """A change was committed."""
        self._changes.append(change)

    def weigh(self, worker: str, memory: int) -> None:
        """Say so if a worker needs much more memory since it has switched to a change."""
        for change in self._changes:
            if worker not in change.switched:
                continue
            _, last = change.memory.get(worker, (0, 0))
            grown = change.grown(worker, memory)
            if grown > LEAK_BYTES >= grown - (memory - last):
                _logger.warning(
                    "since change %d of %s, worker %s uses %d MB more; does it keep its rows?",
                    change.number,
                    ", ".join(change.order.targets),
                    worker,
                    grown >> 20,
                )
