"""Rows that are not as declared, on their way through a run: whose fault it is if one fails."""

from __future__ import annotations

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
    """That brought the version that made the row; the stage tells it."""

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


class EarlierError(Exception):
    """A function failed on a row that was wrong when it came."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.error)
        self.misfit = misfit
