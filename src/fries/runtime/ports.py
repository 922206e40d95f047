"""What a stage needs of the process that it runs in, and what it notes of its operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from fries.errors import OperatorError
from fries.runtime.arrow import Integers
from fries.runtime.dead_letters import DeadLetter


class Control(Protocol):
    """What a stage needs of the control channel."""

    @property
    def hurried(self) -> bool:
        """Whether a commit is about to come, so that the next look should be soon."""

    @property
    def pressed(self) -> bool:
        """Whether a change waits for the next poll, so that a chunk should end early."""

    def poll(self) -> None:
        """Take up what has arrived, and stand back for a moment if that is a change."""

    def count(self, operator: str, taken: int, given: int, seconds: float, failed: int = 0) -> None:
        """Note what an operator has done."""

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Note that rows were taken by the version of a change, or by one older than others."""

    def calling(self, operator: str, change: int) -> None:
        """A version of an operator is about to be called."""

    def returned(self) -> None:
        """It has returned."""

    def failed(self, change: int, error: OperatorError) -> None:
        """It has failed; tell whoever can take it back."""

    def hold(self, operator: str, change: int, stage: int) -> bool:
        """Wait until its change is taken back; ``True`` if the same rows can be processed again."""


class Recorder(Protocol):
    """Notes data operations, in audit mode."""

    def record(self, operator: str, version: int, txns: Integers | None, moment: float) -> None:
        """An operator has processed rows of transactions at some version, from some moment on."""


class Note(NamedTuple):
    """What an operator has done with a chunk, or with some rows of it.

    The rows themselves are not kept: nothing needs them any more.
    """

    operator: str
    mask: int
    """Of the rows' epochs, the bits that decide their version."""
    taken: int
    """Rows in."""
    txns: Integers | None
    """Their transactions, in audit mode."""
    given: int
    """Rows out."""
    moment: float
    """When it began, seconds since 1970."""
    seconds: float
    change: int = 0
    """That brought the version."""
    older: Sequence[int] = ()
    """The changes in transition that these rows do not have."""
    letters: tuple[DeadLetter, ...] = ()
    """Rows that failed, where they may."""
