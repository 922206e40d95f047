"""All changes of a flow, what each batch begins with, and one rule of what may be forgotten.

A flow that runs for months is changed many thousand times. What a change leaves behind depends on
how often later ones have *replaced* it: a later change replaces it when it has all of its targets
and a batch with it is committed, so that it can no longer be taken back.

=====================  ===========================================================
replaced               what is kept
=====================  ===========================================================
never                  everything
once                   its migrations; its functions in the log, for an undo
twice                  its migrations and a line of history; without any, new
                       workers need only count it
:data:`LOGGED` times   the log lets its functions go, too
taken back             a line of history
=====================  ===========================================================

Whoever holds the handle of a change keeps the whole of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fries.change.model import Change, Summary

LOGGED: Final = 4
"""Versions of an operator whose functions the log keeps: so many but one can be taken back one
after the other by a driver that was started again."""


class Forgotten(NamedTuple):
    """What may be let go."""

    closed: tuple[Change, ...] = ()
    """Changes of which only history and migrations are left."""
    in_log: tuple[Change, ...] = ()
    """Those whose functions the log need not keep any more."""


class Changes:
    """Written by the machine, and read by others while that does nothing."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._whole: dict[int, Change] = {}
        """Those that still matter, by number."""
        self._past: dict[int, Summary] = {}
        self._updates: Counter[str] = Counter()
        """By operator, updates by past changes that have happened."""
        self._requested: Counter[str] = Counter()
        """By operator, updates by all changes but those that are closed and never happened."""
        self._done: list[int] = []
        """All changes that are done, in this order."""
        self._base: list[Change] = []
        """Those of them that still matter."""
        self._migrations: dict[int, bytes] = {}
        """By closed change, the migrations that are left of it, pickled: workers that come late
        need them for states that they have not touched since."""
        self._skipped: Counter[str] = Counter()
        """By operator, updates that have left no trace: a new worker needs only their number."""
        self._logged: dict[int, Change] = {}
        """Closed changes of which the log still has the functions."""
        self._told: dict[str, int] = {}
        """By worker, how many of those that are done it knows."""
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
        return list(self._whole.values())

    def add(self, change: Change) -> None:
        """A change is requested."""
        self._whole[change.number] = change
        self._requested.update(change.order.targets)

    def close(self, change: Change) -> None:
        """A change is over and no longer matters: keep its history only."""
        del self._whole[change.number]
        self._past[change.number] = change.summary()
        if change.happened:
            self._updates.update(change.order.targets)
        else:
            self._requested.subtract(change.order.targets)

    def tell_again(self, change: Change) -> None:
        """Something of a change that may be closed is known only now."""
        if change.number in self._past:
            self._past[change.number] = change.summary()

    def history(self) -> list[Summary]:
        """All changes that were ever requested, oldest first."""
        every = [*self._past.values(), *(change.summary() for change in self._whole.values())]
        return sorted(every, key=lambda one: one.number)

    def happened(self) -> list[Change]:
        """Those that still matter and were committed and not taken back, oldest first."""
        return [change for change in self.whole if change.happened]

    def updates(self) -> Counter[str]:
        """By operator, how many updates were committed and not taken back."""
        counts = self._updates.copy()
        for change in self._whole.values():
            if change.happened:
                counts.update(change.order.targets)
        return counts

    def requested(self, operator: str) -> int:
        """How many updates of an operator were requested and not taken back."""
        return self._requested[operator]

    # What every row of the next batch gets

    def add_to_base(self, change: Change) -> None:
        """A change is done."""
        self._base.append(change)
        self._done.append(change.number)

    def remove_from_base(self, change: Change) -> None:
        """A change is taken back, with the batch in which it took effect."""
        self._base.remove(change)
        self._done.remove(change.number)

    def welcome(self, worker: str) -> tuple[tuple[int, ...], dict[str, int]]:
        """What a new worker must have, oldest first, and updates that it need only count."""
        self._told[worker] = len(self._done)
        numbers = (*self._migrations, *(change.number for change in self._base))
        return tuple(sorted(numbers)), dict(self._skipped)

    def payload(self, number: int) -> tuple[memoryview, ...]:
        """What a worker must have of a change that has not been forgotten."""
        if number in self._migrations:
            return (memoryview(self._migrations[number]),)
        order = self._whole[number].order
        return memoryview(order.payload), *order.buffers

    def news(self, worker: str) -> tuple[int, ...]:
        """What is done since a worker was last told."""
        known, self._told[worker] = self._told[worker], len(self._done)
        return tuple(self._done[known:])

    def leave(self, worker: str) -> None:
        """A worker is gone."""
        del self._told[worker]

    def forget(self, finished: int) -> Forgotten:
        """Let go what later changes have replaced for good; see above for the rule.

        A change of a batch that is not ``finished`` may be taken back, so it replaces nothing.
        """
        closed = list(self._replaced_twice(finished))
        for change in closed:
            self.close(change)
        return Forgotten(tuple(closed), tuple(self._gone_from_log(finished)))

    def _replaced_twice(self, finished: int) -> Iterator[Change]:
        replaced: Counter[str] = Counter()
        kept: list[Change] = []
        closed: list[Change] = []
        for change in reversed(self._base):
            order = change.order
            times = min(replaced[target] for target in order.targets)
            if times >= 1:
                change.shrink()
            (closed if times >= 2 else kept).append(change)
            if change.is_kept(finished):
                replaced.update(order.targets)
        self._base = kept[::-1]
        for change in reversed(closed):
            if change.order.migrates:
                self._migrations[change.number] = change.order.payload
            else:
                self._skipped.update(change.order.targets)
            if not change.small_in_log:
                self._logged[change.number] = change
            yield change

    def _gone_from_log(self, finished: int) -> Iterator[Change]:
        replaced: Counter[str] = Counter()
        every = {**self._logged, **{change.number: change for change in self._base}}
        for number in sorted(every, reverse=True):
            change = every[number]
            times = min(replaced[target] for target in change.order.targets)
            if number in self._logged and times >= LOGGED:
                change.small_in_log = True
                yield self._logged.pop(number)
            if change.is_kept(finished):
                replaced.update(change.order.targets)
