"""The control channel of a task in a trial: says what is committed when it begins, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fries.control.messages import Cut, Ended, Go
from fries.errors import OperatorError


@dataclass
class Script:
    """What one task is told. It switches where it is told to, as a repeated task does on Spark."""

    base: tuple[int, ...] = ()
    """Changes of earlier batches."""
    begins_with: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()

    hurried = False
    pressed = False

    def begin(self, batch: int, stage: int, partition: int, execution: int) -> Go:  # noqa: ARG002
        """The task begins."""
        return Go(self.base, self.begins_with, self.begins_with, self.cuts)

    def ended(self, report: Ended) -> None:
        """Nobody asks."""

    def poll(self) -> None:
        """Nothing comes but what was told at the begin."""

    def count(self, operator: str, taken: int, given: int, seconds: float, failed: int = 0) -> None:
        """Nobody asks."""

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Nobody asks."""

    def calling(self, operator: str, change: int) -> None:
        """Nobody asks."""

    def returned(self) -> None:
        """Nobody asks."""

    def failed(self, change: int, error: OperatorError) -> None:
        """Whoever runs the trial sees the error itself."""

    def hold(self, operator: str, change: int, stage: int) -> bool:  # noqa: ARG002
        """Nobody takes it back."""
        return False
