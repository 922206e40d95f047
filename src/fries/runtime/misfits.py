"""Rows that are not as declared, on their way through a run: whose fault it is if one fails."""

from __future__ import annotations

from dataclasses import dataclass

from fries.errors import OperatorError


@dataclass(slots=True, eq=False)
class Misfit:
    """What is wrong with a row that goes on as it is: no fault yet, for the next may want it so."""

    error: OperatorError
    extra: frozenset[str]
    """The columns that nobody has declared, if nothing else is wrong."""
    change: int | None = None
    """That brought the version that made the row; the stage knows it."""

    def breaks_functions(self) -> bool:
        """Whether it is to blame if a later function fails on the row: not for a column more."""
        return not self.extra

    def causes(self, later: Misfit) -> bool:
        """Whether what is wrong with the row that a later function made of it began here."""
        return not self.extra or bool(self.extra & later.extra)


class EarlierError(Exception):
    """A function failed on a row that was wrong when it came: who made it so is to blame."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.error)
        self.misfit = misfit
