"""Changes that threads of the driver wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fries.change.model import Change


@dataclass(eq=False)
class LiveChange(Change):
    """A change that tells whoever waits for it."""

    _moved: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def wait(self, deadline: float | None = None, rows: int = 0) -> bool:
        """Wait until all workers have switched, or it is over; ``False`` after the deadline.

        And until each target has taken so many rows by its new version, or no more will come.
        """

        def reached() -> bool:
            if self.taken_back or self.failure is not None:
                return True
            switched = self.settled is not None or self.over
            return switched and (not rows or self.taken(rows) or bool(self.no_more_rows))

        return self._wait(reached, deadline)

    def wait_over(self, deadline: float | None = None) -> bool:
        """Wait until it is over; ``False`` after the deadline."""
        return self._wait(lambda: self.over, deadline)

    def wait_ready(self, deadline: float | None = None) -> bool:
        """Wait until all workers have loaded it, or it is over; ``False`` after the deadline."""
        return self._wait(lambda: self.ready or self.over, deadline)

    def _wait(self, reached: Callable[[], bool], deadline: float | None) -> bool:
        with self._moved:
            while not reached() and not self.abandoned:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._moved.wait(left)
            return reached()

    def _notify(self) -> None:
        """What was changed before this is seen by whoever has not begun to wait yet."""
        with self._moved:
            self._moved.notify_all()
