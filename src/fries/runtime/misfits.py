"""Rows that are not as declared, on their way through a run: whose fault it is if one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fries.errors import OperatorError


@dataclass(slots=True, eq=False)
class Misfit:
    """What is wrong with a row that goes on as it is: no fault yet, for the next may want it so.

    Or what went wrong with a row that came so.
    """

    error: OperatorError
    extra: frozenset[str]
    """The columns that nobody has declared, if nothing else is wrong."""
    earlier: Misfit | None = None
    """What was wrong with the row that it was made of, if that may be the cause."""
    change: int = 0
    """That brought the version that made the row."""

    def breaks_functions(self) -> bool:
        """Whether it is to blame if a later function fails on the row: not for a column more."""
        return not self.extra

    def causes(self, later: Misfit) -> bool:
        """Whether what is wrong with the row that a later function made of it began here."""
        return not self.extra or bool(self.extra & later.extra)

    def to_blame(self) -> Misfit:
        """Of all that had a part in it the newest version: it gets along with none of the others.

        Of several that one change brought, or the flow was built with, the first.
        """
        found, one = self, self.earlier
        while one is not None:
            found = one if one.change >= found.change else found
            one = one.earlier
        return found


class Misfits:
    """What is wrong with rows that a function has made: looked at when one of them fails."""

    def __init__(
        self, find: Callable[[int], Misfit | None], numbers: Sequence[int], change: int = 0
    ) -> None:
        self._find, self._numbers = find, numbers
        self.change = change
        """That brought the version that made the rows; the stage tells it."""

    def at(self, place: int) -> Misfit | None:
        """What is wrong with one of them."""
        found = self._find(self._numbers[place])
        if found is not None:
            found.change = self.change
        return found

    def take(self, places: Sequence[int]) -> Misfits:
        """The same of some of the rows."""
        return Misfits(self._find, [self._numbers[place] for place in places], self.change)


class EarlierError(Exception):
    """A function failed on a row that was wrong when it came."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.error)
        self.misfit = misfit
