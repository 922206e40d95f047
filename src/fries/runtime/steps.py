"""What brings the state of a keyed operator from one version to the next, and on to the newest.

A change that takes another one back brings its states back, too. A state that was not touched in
between needs neither of the two: it is as it was before. So a migration that some states do not
bear can be taken back, whatever has become of the others meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fries.runtime.keyed import MigrationError
from fries.runtime.spec import Function


class Step(NamedTuple):
    """What brings a state from one version to the next."""

    change: int
    """That brought it; 0: the flow was built so."""
    migrate: Function | None
    """``None``: that version kept the state as it was."""
    undoes: int = 0
    """The change that it takes back, if it does that."""


def through(steps: Iterable[Step], state: Any) -> Any:  # noqa: ANN401
    """A state after some steps, each in its turn, without those that take each other back."""
    for change, migrate, _ in _needed(steps):
        try:
            state = state if migrate is None else migrate(state)
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            raise MigrationError(change, error) from error
    return state


def _needed(steps: Iterable[Step]) -> list[Step]:
    left: list[Step] = []
    for step in steps:
        if left and step.undoes == left[-1].change != 0:
            left.pop()
        else:
            left.append(step)
    return left
