"""Recorded data operations, as columns: what the runtime and the simulator leave behind.

A row says that an operator processed a tuple of some transaction, and how many
function updates of that operator had been applied by then: its version. Versions
hold the order of all conflicting operations, and nothing else of the schedule
matters to :mod:`fries.serializability`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fries.errors import ScheduleError

Integers = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Labels:
    """Names for people, all optional: without them everything is called by its number."""

    updates: tuple[str, ...] = ()
    """A name for each update."""
    transactions: tuple[str, ...] = ()
    """A name for each transaction id, if the ids are 0, 1, 2 and so on."""
    rows: tuple[str, ...] = ()
    """The name of the tuple of each row."""

    def update(self, number: int) -> str:
        """What an update is called: U1, U2 and so on by default."""
        return self.updates[number] if self.updates else f"U{number + 1}"

    def transaction(self, number: int) -> str:
        """What a transaction's source tuple is called."""
        return self.transactions[number] if self.transactions else str(number)

    def row(self, number: int) -> str:
        """What the tuple of a row is called; nothing if it has no name."""
        return self.rows[number] if self.rows else ""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Data operations in the order of recording, and the function updates around them.

    Each update maps the operators that it changed to the version that it made of them.
    A trace is complete: a version that no update made, other than the one that an
    operator began with, is refused.
    """

    transaction: Integers
    operator: Integers
    version: Integers
    operators: tuple[str, ...]
    updates: tuple[Mapping[str, int], ...] = ()
    labels: Labels = Labels()
    history: dict[int, list[int]] = field(init=False, repr=False)
    """For each updated operator (by its index), the updates in the order of versions."""
    oldest: npt.NDArray[np.int64] = field(init=False, repr=False)
    """The version that each operator began with."""

    def __post_init__(self) -> None:
        """Refuse columns that do not fit together, and order each operator's updates."""
        columns = (self.transaction, self.operator, self.version)
        if not all(map(_is_column, columns)) or len(set(map(len, columns))) > 1:
            raise ScheduleError(
                "the columns of a trace must be arrays of signed integers, and of one length"
            )
        if len(set(self.operators)) != len(self.operators):
            raise ScheduleError("two operators of a trace have one name; give each its own")
        if len(self) and not 0 <= self.operator.min() <= self.operator.max() < len(self.operators):
            raise ScheduleError(f"a trace of {len(self.operators)} operators has a row of another")
        self._check_labels()
        object.__setattr__(self, "history", self._order_updates())
        object.__setattr__(self, "oldest", self._find_oldest())

    def __len__(self) -> int:
        return len(self.transaction)

    def made(self, update: int, operator: int) -> int:
        """The version of an operator (by its index) that an update made."""
        return self.updates[update][self.operators[operator]]

    def _check_labels(self) -> None:
        """Refuse labels that leave something without a name."""
        labels = self.labels
        if len(labels.updates) not in (0, len(self.updates)):
            raise ScheduleError(f"there are {len(self.updates)} updates, but other labels for them")
        if len(labels.rows) not in (0, len(self)):
            raise ScheduleError(
                f"there are {len(self)} rows, but {len(labels.rows)} labels for them"
            )
        known = len(labels.transactions)
        if (
            known
            and len(self)
            and not 0 <= self.transaction.min() <= self.transaction.max() < known
        ):
            raise ScheduleError(f"{known} transactions have labels, and there are others")

    def _order_updates(self) -> dict[int, list[int]]:
        index = {name: number for number, name in enumerate(self.operators)}
        history: dict[int, list[int]] = {}
        for number, update in enumerate(self.updates):
            who = self.labels.update(number)
            if not isinstance(update, Mapping):
                raise ScheduleError(f"{who} is {update!r}; give versions by the names of operators")
            for name, version in update.items():
                if name not in index:
                    raise ScheduleError(f"{who} updates unknown {name!r}")
                if isinstance(version, bool) or not isinstance(version, int | np.integer):
                    raise ScheduleError(
                        f"{who} makes version {version!r} of {name!r}; give a whole number"
                    )
                history.setdefault(index[name], []).append(number)
        for operator, numbers in history.items():
            numbers.sort(key=lambda number: self.made(number, operator))
            versions = [self.made(number, operator) for number in numbers]
            if versions != list(range(versions[0], versions[0] + len(versions))):
                listed = ", ".join(map(str, versions))
                raise ScheduleError(
                    f"the updates of {self.operators[operator]} make the versions {listed}; "
                    "each update must make the next one"
                )
        return history

    def _find_oldest(self) -> npt.NDArray[np.int64]:
        """The first version of each operator; an unexpected version is refused."""
        size = len(self.operators)
        lowest = np.full(size, np.iinfo(np.int64).max)
        highest = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(lowest, self.operator, self.version.astype(np.int64))
        np.maximum.at(highest, self.operator, self.version.astype(np.int64))
        oldest = np.where(lowest <= highest, lowest, 0)
        newest = oldest.copy()
        for operator, numbers in self.history.items():
            oldest[operator] = self.made(numbers[0], operator) - 1
            newest[operator] = self.made(numbers[-1], operator)
        seen = lowest <= highest
        for stray in np.flatnonzero(seen & ((lowest < oldest) | (highest > newest))):
            version = lowest[stray] if lowest[stray] < oldest[stray] else highest[stray]
            raise ScheduleError(
                f"{self.operators[stray]} ran at version {version}, "
                "which no update of the trace makes or begins with"
            )
        return oldest


def _is_column(column: object) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "i"


class TraceBuilder:
    """Collects data operations on a hot path: three appends to flat arrays for each."""

    __slots__ = ("_operator", "_transaction", "_version", "operators")

    def __init__(self, operators: Iterable[str]) -> None:
        self.operators = tuple(operators)
        self._transaction = array("q")
        self._operator = array("i")
        self._version = array("i")

    def __len__(self) -> int:
        return len(self._version)

    def record(self, txn: int, operator: int, version: int) -> None:
        """Note that an operator (by its index) ran at a version for a transaction."""
        self._transaction.append(txn)
        self._operator.append(operator)
        self._version.append(version)

    def build(self, updates: Iterable[Mapping[str, int]], labels: Labels | None = None) -> Trace:
        """The trace so far, copied: recording may go on."""
        return Trace(
            transaction=np.array(self._transaction, dtype=np.int64),
            operator=np.array(self._operator, dtype=np.int32),
            version=np.array(self._version, dtype=np.int32),
            operators=self.operators,
            updates=tuple(dict(update) for update in updates),
            labels=labels or Labels(),
        )


def updates_of(changes: Iterable[Iterable[str]]) -> list[dict[str, int]]:
    """The version that each of several changes, given by its targets, makes of them."""
    made: Counter[str] = Counter()
    updates = []
    for targets in changes:
        names = tuple(targets)
        made.update(names)
        updates.append({name: made[name] for name in names})
    return updates
