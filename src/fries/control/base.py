"""The changes that are done: what a worker must know of them, and what may be forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from fries.control.changes import Change
from fries.control.register import Register

LOGGED: Final = 4
"""Versions of an operator whose functions the log keeps: so many but one can be taken back one
after the other by a driver that was started again."""


class Base:
    """What every row of the next batch gets."""

    def __init__(self) -> None:
        self._needed: list[int] = []
        """Changes that a new worker must have, oldest first."""
        self._skipped: Counter[str] = Counter()
        """By operator, updates that have left no trace: a new worker needs only their number."""
        self._done: list[int] = []
        """All changes that are done, oldest first."""
        self._logged: dict[int, Change] = {}
        """Changes that are replaced twice, but the log still has their functions."""
        self._told: dict[str, int] = {}
        """By worker, how many of those it knows."""

    def add(self, number: int) -> None:
        """A change is done."""
        self._needed.append(number)
        self._done.append(number)

    def remove(self, number: int) -> None:
        """A change is taken back, with the batch in which it took effect."""
        self._needed.remove(number)
        self._done.remove(number)

    def welcome(self, worker: str) -> tuple[tuple[int, ...], dict[str, int]]:
        """What a new worker must have, and the updates of which it needs only the number."""
        self._told[worker] = len(self._done)
        return tuple(self._needed), dict(self._skipped)

    def news(self, worker: str) -> tuple[int, ...]:
        """What is done since a worker was last told."""
        new = tuple(self._done[self._told[worker] :])
        self._told[worker] = len(self._done)
        return new

    def leave(self, worker: str) -> None:
        """A worker is gone."""
        del self._told[worker]

    def forget(self, changes: Register, finished: int) -> Iterator[Change]:
        """Forget what later changes have replaced for good; gives those replaced twice.

        A change of a batch that is not ``finished`` may be taken back, so it replaces nothing for
        good.
        """
        replaced: Counter[str] = Counter()
        kept: list[int] = []
        for number in reversed(self._needed):
            change = changes[number]
            order = change.order
            times = min(replaced[target] for target in order.targets)
            if times >= 1:
                change.shrink()
            if times >= 2 and not order.migrates:
                self._skipped.update(order.targets)
            else:
                kept.append(number)
            if times >= 2:
                if not change.small_in_log:
                    self._logged[number] = change
                yield change
            if change.is_kept(finished):
                replaced.update(order.targets)
        self._needed = kept[::-1]

    def forget_in_log(self, changes: Register, finished: int) -> Iterator[Change]:
        """Those whose functions no driver will need, not even for several undos."""
        every = {number: changes[number] for number in self._needed} | self._logged
        replaced: Counter[str] = Counter()
        for number in sorted(every, reverse=True):
            change = every[number]
            times = min(replaced[target] for target in change.order.targets)
            if number in self._logged and times >= LOGGED:
                change.small_in_log = True
                yield self._logged.pop(number)
            if change.is_kept(finished):
                replaced.update(change.order.targets)
