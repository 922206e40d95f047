"""The epoch arithmetic of a worker: which rows are stamped for a change, and what a stamp means.

Every row carries a 64-bit mask. A change in transition has a bit of it: set means that the row
entered the change's component after the switch, and every member obeys. Changes in the base of a
batch apply to all its rows and need no bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class InTransition(NamedTuple):
    """A change that a worker has loaded, and that is not in its base."""

    bit: int
    """Its bit of the mask, as a number with just that bit set."""
    targets: frozenset[str]
    entries: frozenset[int]
    """Edges over which rows enter its components."""


class Epochs:
    """The changes that a worker has loaded, and which rows get which.

    Loading and forgetting replace the table, so that rows may go on meanwhile in another thread.
    """

    def __init__(self) -> None:
        self.loaded: dict[int, InTransition] = {}
        self._switched: set[int] = set()
        self._pinned: set[int] | None = None
        """What a task that must go as before has switched to, whatever the worker has since."""

    def load(self, change: int, what: InTransition) -> None:
        """A change is ready for use."""
        self.loaded = {**self.loaded, change: what}

    def switch(self, change: int) -> None:
        """Stamp rows that enter the change's components from now on."""
        self._switched.add(change)

    def drop(self, change: int) -> None:
        """Forget a change: it was aborted, or is part of the base."""
        self.loaded = {number: one for number, one in self.loaded.items() if number != change}

    def adopt(self, change: int) -> None:
        """A change is part of the base: it needs no stamp any more."""
        self.drop(change)
        self._switched.discard(change)

    def begin(self, base: Iterable[int], pinned: Iterable[int] | None) -> list[int]:
        """A task begins; gives the changes that are to be adopted, oldest first.

        ``pinned`` are the changes that it must begin with, if it is a repetition.
        """
        self._pinned = None if pinned is None else set(pinned)
        return sorted(set(base) & self.loaded.keys())

    def pin(self, change: int) -> None:
        """In a repetition: here the task had switched to a change."""
        assert self._pinned is not None
        self._pinned.add(change)

    @property
    def repeats(self) -> bool:
        """Whether the task at hand must go as it went before."""
        return self._pinned is not None

    @property
    def _effective(self) -> set[int]:
        return self._switched if self._pinned is None else self._pinned

    def bits_of(self, operator: str) -> int:
        """The bits that decide which version of an operator a row gets; 0: all rows get one."""
        bits = 0
        for one in self.loaded.values():
            if operator in one.targets:
                bits |= one.bit
        return bits

    def changes(self, bits: int) -> list[int]:
        """The changes in transition that some bits stand for."""
        return [change for change, one in self.loaded.items() if one.bit & bits]

    def bits(self, changes: Iterable[int]) -> int:
        """The bits of some changes in transition."""
        bits = 0
        for change in changes:
            bits |= self.loaded[change].bit
        return bits

    def stamp_on(self, edge: int) -> int:
        """The bits to set on rows that come in over an edge."""
        bits = 0
        switched = self._effective
        for change, one in self.loaded.items():
            if change in switched and edge in one.entries:
                bits |= one.bit
        return bits

    def stamping(self, edges: Iterable[int]) -> frozenset[int]:
        """The changes whose bits are set on rows that come in over some edges."""
        loaded = self.loaded
        return frozenset(
            change
            for change in self._effective
            if change in loaded and not loaded[change].entries.isdisjoint(edges)
        )

    def applied(self, operator: str, mask: int) -> list[int]:
        """The changes of an operator in transition that a row has, oldest first."""
        return [
            change
            for change, one in sorted(self.loaded.items())
            if operator in one.targets and mask & one.bit
        ]
