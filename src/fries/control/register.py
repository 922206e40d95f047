"""All changes of a flow: those that still matter whole, the others as a few words.

A flow that runs for months is changed many thousand times. Of a change that was taken back, or
that later ones have replaced for good, only its history is ever asked for again, so only that is
kept. Whoever holds its handle keeps the whole change.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from fries.control.changes import Change, Summary
from fries.protocol.controller import Phase

HAPPENED = (Phase.COMMITTED, Phase.DONE)


class Register:
    """Written by the control thread, read by anyone."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._whole: dict[int, Change] = {}
        self._past: list[Summary] = []
        self._updates: Counter[str] = Counter()
        """By operator, updates by past changes that have happened."""
        self._requested: Counter[str] = Counter()
        """By operator, updates by all changes but those that are closed and never happened."""
        self._lock = threading.Lock()
        for change in changes:
            self.add(change)

    def __contains__(self, number: int) -> bool:
        return number in self._whole

    def __getitem__(self, number: int) -> Change:
        """A change that still matters."""
        return self._whole[number]

    @property
    def whole(self) -> list[Change]:
        """The changes that still matter, oldest first."""
        with self._lock:
            return list(self._whole.values())

    def add(self, change: Change) -> None:
        """A change is requested."""
        with self._lock:
            self._whole[change.number] = change
            self._requested.update(change.order.targets)

    def close(self, number: int) -> None:
        """A change is over and no longer matters: keep its history only."""
        with self._lock:
            change = self._whole.pop(number)
            self._past.append(change.summary())
            if change.phase in HAPPENED:
                self._updates.update(change.order.targets)
            else:
                self._requested.subtract(change.order.targets)

    def history(self) -> list[Summary]:
        """All changes that were ever requested, oldest first."""
        with self._lock:
            every = [*self._past, *(change.summary() for change in self._whole.values())]
        return sorted(every, key=lambda one: one.number)

    def happened(self) -> list[Change]:
        """Those that still matter and were committed and not taken back, oldest first."""
        return [change for change in self.whole if change.phase in HAPPENED]

    def updates(self) -> Counter[str]:
        """By operator, how many updates were committed and not taken back."""
        with self._lock:
            counts = self._updates.copy()
            for change in self._whole.values():
                if change.phase in HAPPENED:
                    counts.update(change.order.targets)
        return counts

    def requested(self, operator: str) -> int:
        """How many updates of an operator were requested and not taken back."""
        return self._requested[operator]
