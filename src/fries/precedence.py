"""The precedence graph of a trace, shrunk to one over its updates; at numpy's speed.

Data transactions never conflict with each other, so on any circle of the precedence
graph each of them stands between two updates (or between an update and itself). It is
enough to know of each transaction which updates it ran before and which after.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fries.trace import Trace

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Which updates each transaction of a trace ran before, and which after.

    One bit for each update and side, packed into words: a column of words holds one
    word of every transaction. The first bits are "before", the second half is "after".
    """

    trace: Trace
    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.intp]  # the rows of the trace, those of a transaction together
    starts: npt.NDArray[np.intp]  # where each transaction's rows begin
    words: tuple[npt.NDArray[np.uint64], ...]

    @classmethod
    def of(cls, trace: Trace) -> Sides:
        """Join the bits of each transaction's rows."""
        rows = np.argsort(trace.transaction, kind="stable")
        grouped = trace.transaction[rows]
        begins = np.ones(len(trace), dtype=np.bool_)
        begins[1:] = grouped[1:] != grouped[:-1]
        starts = np.flatnonzero(begins)
        codes, table = _bits(trace)
        codes = codes[rows]
        words = tuple(np.bitwise_or.reduceat(column[codes], starts) for column in table)
        return cls(trace, grouped[starts].astype(np.int64), rows, starts, words)

    @property
    def first_rows(self) -> npt.NDArray[np.intp]:
        """Where each transaction was first recorded."""
        return self.rows[self.starts]

    def before(self, update: int) -> Bools:
        """Which transactions used an old version."""
        return self._bit(update)

    def after(self, update: int) -> Bools:
        """Which transactions used a new version."""
        return self._bit(len(self.trace.updates) + update)

    def before_any(self, chosen: Bools) -> Bools:
        """Which updates some of the chosen transactions ran before."""
        joined = np.array([np.bitwise_or.reduce(word[chosen]) for word in self.words], dtype="<u8")
        bits = np.unpackbits(joined.view(np.uint8), bitorder="little")
        return bits[: len(self.trace.updates)].astype(np.bool_)

    def find(self, chosen: Bools) -> int:
        """The chosen transaction that was recorded first, by its place among the ids."""
        places = np.flatnonzero(chosen)
        return int(places[np.argmin(self.first_rows[places])])

    def row(self, place: int, update: int, *, new: bool) -> int:
        """The first row of a transaction with a new (or old) version of an update."""
        for row in self.rows[self.starts[place] :]:  # returns before the next transaction
            operator = int(self.trace.operator[row])
            if update in self.trace.history.get(operator, ()):
                used = self.trace.version[row] >= self.trace.made(update, operator)
                if used == new:
                    return int(row)
        raise AssertionError("a transaction has no row for its own side")

    def _bit(self, number: int) -> Bools:
        bit: Bools = (self.words[number // 64] & np.uint64(1 << number % 64)) != 0
        return bit


def direct_order(trace: Trace) -> Bools:
    """Which updates come before which because they updated one operator in that order."""
    earlier = np.zeros((len(trace.updates), len(trace.updates)), dtype=np.bool_)
    for updates in trace.history.values():
        for first, second in itertools.combinations(updates, 2):
            earlier[first, second] = True
    return earlier


def order_through(sides: Sides) -> Bools:
    """Which updates come before which because a transaction ran after one and before the other."""
    size = len(sides.trace.updates)
    rows = [sides.before_any(sides.after(update)) for update in range(size)]
    return np.array(rows, dtype=np.bool_).reshape(size, size)


def topological(earlier: Bools) -> tuple[int, ...] | None:
    """The updates in an order that keeps every precedence; none if they form a circle."""
    waits_for = earlier.sum(axis=0)
    order: list[int] = []
    for _ in range(len(earlier)):
        ready = np.flatnonzero(waits_for == 0)
        if not len(ready):
            return None
        order.append(int(ready[0]))
        waits_for -= earlier[ready[0]]
        waits_for[ready[0]] = -1  # placed
    return tuple(order)


def shortest_circle(direct: Bools, through: Bools) -> list[tuple[int, int, bool]]:
    """The arcs of a shortest circle over the updates, each with whether a transaction is on it.

    ``walks[n]`` tells which updates a walk of n edges of the precedence graph connects: an
    arc through a transaction counts two, a direct one counts one. Among circles of two, a
    transaction that met both sides of one update comes first: it says more to people.
    """
    mixed = np.flatnonzero(through.diagonal())
    if len(mixed):
        return [(int(mixed[0]), int(mixed[0]), True)]
    walks = [np.eye(len(direct), dtype=np.bool_), direct]
    while not walks[-1].diagonal().any():
        walks.append(_compose(walks[-2], through) | _compose(walks[-1], direct))
    start = here = int(np.flatnonzero(walks[-1].diagonal())[0])
    left = len(walks) - 1
    arcs: list[tuple[int, int, bool]] = []
    while left:
        via = walks[left - 2][start] & through[:, here] if left > 1 else np.zeros(0, np.bool_)
        by = via if via.any() else walks[left - 1][start] & direct[:, here]
        previous = int(np.flatnonzero(by)[0])
        arcs.append((previous, here, by is via))
        here, left = previous, left - (2 if by is via else 1)
    return arcs[::-1]


def _compose(first: Bools, second: Bools) -> Bools:
    """Which updates two relations connect one after the other; floats, because they are fast."""
    return (first.astype(np.float32) @ second.astype(np.float32)) > 0


def _bits(trace: Trace) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.uint64]]]:
    """A code for each row's operator and version, and the words of bits for each code."""
    count = len(trace.updates)
    sizes = [len(trace.history.get(number, ())) + 1 for number in range(len(trace.operators))]
    bases = np.cumsum([0, *sizes])
    width = -(-max(2 * count, 1) // 64) * 64
    bits = np.zeros((bases[-1], width), dtype=np.bool_)
    for operator, updates in trace.history.items():
        for age, made in itertools.product(range(len(updates) + 1), range(len(updates))):
            bits[bases[operator] + age, updates[made] + (count if made < age else 0)] = True
    table = np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    codes = (bases[:-1] - trace.oldest)[trace.operator] + trace.version
    return codes, list(np.ascontiguousarray(table.T))
