"""How a query is kept running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fries.arguments import NUMBER, expect
from fries.errors import ArgumentError

MOST_DOUBLINGS: Final = 30
"""Of the pause between two restarts: a number that stays one."""


@dataclass(frozen=True)
class Supervision:
    """How a query is kept running. Times are seconds."""

    rollback: bool = True
    """Take a change back whose new version raises on live rows, and replay the batch."""
    restarts: int = 5
    """How often a query that fails for other reasons is started again without getting on."""
    pause: float = 1.0
    """Before the first restart; each further one waits twice as long."""
    longest_pause: float = 60.0
    patience: float = 60.0
    """A new version that has not returned for so long is taken back, too."""
    probation: int = 100
    """Micro-batches for which a version counts as new."""
    quiet: bool = True
    """Spark's stack traces about failures of the query go to a file instead of the console."""

    def __post_init__(self) -> None:
        expect("Supervision", "rollback", self.rollback, bool, "True or False")
        for name in ("restarts", "probation", "pause", "longest_pause", "patience"):
            expect("Supervision", name, getattr(self, name), NUMBER, "a number")
        if min(self.restarts, self.probation, self.pause, self.longest_pause, self.patience) < 0:
            raise ArgumentError("Supervision", "its numbers cannot be negative")

    def pause_before(self, restart: int) -> float:
        """How long to wait before a restart, counted from 1."""
        return float(min(self.pause * 2 ** min(restart - 1, MOST_DOUBLINGS), self.longest_pause))

    @property
    def starts_again(self) -> bool:
        """Whether a query that fails may be started again."""
        return self.rollback or self.restarts > 0
