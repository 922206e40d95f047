"""Is a history consistent? Conflict-serializability, with a witness either way.

Data operations conflict only with function updates, so all that matters of a data
transaction is which updates it ran before (it used an old version of one of their
operators) and which after (it used a new one). That is two bits for each update, and
the precedence graph shrinks to one over the updates: u comes before w if some
transaction ran after u and before w, or if both updated one operator, u first. A
million operations take a fraction of a second.

Two guarantees are told apart. A history is *atomic* if every reconfiguration by
itself is all or nothing for every transaction: the paper's definition, which knows
one function-update transaction. It is *serializable* if all transactions and all
updates together have one serial order, which says more when updates overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fries.precedence import (
    Bools,
    Sides,
    direct_order,
    order_through,
    shortest_circle,
    topological,
)
from fries.trace import Labels, Trace
from fries.transactions import (
    DataTransaction,
    Schedule,
    Transaction,
    UpdateOperation,
    UpdateTransaction,
)

SHOWN = 12  # updates listed when a verdict is printed; more would hide the headline


@dataclass(frozen=True, slots=True)
class Tally:
    """How the transactions of a trace met one update."""

    update: str
    old: int  # used only old versions of its operators
    new: int  # used only new versions
    mixed: int  # used both: the update was not atomic for them
    untouched: int  # used none of its operators

    def __str__(self) -> str:
        return (
            f"{self.update}: {self.old:,} all old, {self.new:,} all new, {self.mixed:,} mixed, "
            f"{self.untouched:,} untouched"
        )


@dataclass(frozen=True, slots=True)
class Vertex:
    """A transaction in the precedence graph: a data transaction's id or an update's number."""

    kind: Literal["data", "update"]
    id: int


@dataclass(frozen=True, slots=True)
class Step:
    """An edge of the precedence graph: two transactions conflict on an operator.

    ``row`` is the data operation among the two; two updates conflict without one.
    """

    before: Vertex
    after: Vertex
    operator: str
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A shortest circle in the precedence graph: why there is no serial order."""

    steps: tuple[Step, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, eq=False)
class SerialOrder:
    """A serial order of all transactions of a trace, as two columns."""

    ids: npt.NDArray[np.int64]
    """Ids of data transactions, and numbers of updates."""
    is_update: Bools
    """Which of them are updates."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the checker found, with the evidence."""

    transactions: int
    operations: int
    mixed: int
    """Transactions for which some update was not atomic."""
    tallies: tuple[Tally, ...]
    """Counts for each update."""
    contradiction: Contradiction | None
    _sides: Sides = field(repr=False)
    _order: tuple[int, ...] | None = field(repr=False)

    @property
    def serializable(self) -> bool:
        """Whether the whole history, with all its updates, has one serial order."""
        return self.contradiction is None

    @property
    def atomic(self) -> bool:
        """Whether each update by itself was all or nothing for every transaction."""
        return self.mixed == 0

    def serial_order(self) -> SerialOrder | None:
        """A conflict-equivalent serial order, computed when asked for; none if there is none.

        As in the proof of Lemma 1, a transaction stands right behind the last update
        that it ran after, and those between two updates go by their first operation.
        """
        if self._order is None:
            return None
        sides = self._sides
        place = np.zeros(len(sides.ids), dtype=np.int64)
        for number, update in enumerate(self._order, 1):
            place[sides.after(update)] = 2 * number
        updates = np.arange(len(self._order), dtype=np.int64)
        places = np.concatenate([place, 2 * updates + 1])
        firsts = np.concatenate([sides.first_rows, updates])
        sequence = np.lexsort((firsts, places))
        ids = np.concatenate([sides.ids, np.array(self._order, dtype=np.int64)])
        return SerialOrder(ids[sequence], sequence >= len(sides.ids))

    def __str__(self) -> str:
        """The verdict for people."""
        if self.contradiction is None:
            headline = "serializable"
        elif self.atomic:
            headline = f"not serializable, though each update is atomic: {self.contradiction}"
        else:
            headline = f"not atomic: {self.contradiction}"
        lines = [
            headline,
            f"  {self.operations:,} operations of {self.transactions:,} transactions, "
            f"{self.mixed:,} of them mixed",
            *(f"  {tally}" for tally in self.tallies[:SHOWN]),
        ]
        if len(self.tallies) > SHOWN:
            lines.append(f"  and {len(self.tallies) - SHOWN} more updates")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleVerdict(Verdict):
    """A verdict on a schedule, which can name its transactions."""

    schedule: Schedule

    @property
    def serial(self) -> tuple[Transaction, ...] | None:
        """The transactions in an order whose serial schedule is conflict-equivalent."""
        order = self.serial_order()
        if order is None:
            return None
        data, updates = _by_kind(self.schedule)
        columns = zip(order.is_update, order.ids, strict=True)
        return tuple(updates[n] if is_update else data[n] for is_update, n in columns)

    @property
    def cycle(self) -> tuple[Transaction, ...]:
        """The transactions that must each come before the next, and the last before the first."""
        if self.contradiction is None:
            return ()
        data, updates = _by_kind(self.schedule)
        heads = (step.before for step in self.contradiction.steps)
        return tuple(updates[h.id] if h.kind == "update" else data[h.id] for h in heads)


def check_trace(trace: Trace) -> Verdict:
    """Decide whether a recorded trace is atomic and serializable."""
    sides = Sides.of(trace)
    mixed, tallies = _count(sides)
    direct, through = direct_order(trace), order_through(sides)
    order = topological(direct | through)
    contradiction = None if order is not None else _contradict(sides, direct, through)
    return Verdict(len(sides.ids), len(trace), mixed, tallies, contradiction, sides, order)


def check(schedule: Schedule) -> ScheduleVerdict:
    """Decide whether a schedule is conflict-serializable."""
    found = check_trace(trace_of(schedule))
    return ScheduleVerdict(
        found.transactions,
        found.operations,
        found.mixed,
        found.tallies,
        found.contradiction,
        found._sides,
        found._order,
        schedule,
    )


def trace_of(schedule: Schedule) -> Trace:
    """What a run of the schedule would have recorded.

    All operations on an operator are ordered with its updates, so counting the updates
    gives each data operation its version, and each update the version that it makes.
    """
    data, updates = _by_kind(schedule)
    owner = {op: number for number, t in enumerate(data) for op in t.operations}
    number_of = {update.name: number for number, update in enumerate(updates)}
    index = {name: n for n, name in enumerate({op.operator: None for op in schedule.operations})}
    applied = dict.fromkeys(index, 0)
    makes: list[dict[str, int]] = [{} for _ in updates]
    rows: list[tuple[int, int, int]] = []
    names: list[str] = []
    for op in schedule.linear:
        if isinstance(op, UpdateOperation):
            applied[op.operator] += 1
            makes[number_of[op.update]][op.operator] = applied[op.operator]
        else:
            rows.append((owner[op], index[op.operator], applied[op.operator]))
            names.append(op.tuple.name)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    labels = Labels(
        updates=tuple(number_of),
        transactions=tuple(t.scope.source.name for t in data),
        rows=tuple(names),
    )
    return Trace(columns[0], columns[1], columns[2], tuple(index), tuple(makes), labels)


def _by_kind(schedule: Schedule) -> tuple[list[DataTransaction], list[UpdateTransaction]]:
    data = [t for t in schedule.transactions if isinstance(t, DataTransaction)]
    updates = [t for t in schedule.transactions if isinstance(t, UpdateTransaction)]
    return data, updates


def _count(sides: Sides) -> tuple[int, tuple[Tally, ...]]:
    """How many transactions are mixed in any update, and the tally of each update."""
    total = len(sides.ids)
    any_mixed = np.zeros(total, dtype=np.bool_)
    tallies = []
    for update in range(len(sides.trace.updates)):
        before, after = sides.before(update), sides.after(update)
        both = before & after
        any_mixed |= both
        old, new, mixed = (int(np.count_nonzero(side)) for side in (before, after, both))
        name = sides.trace.labels.update(update)
        untouched = total - old - new + mixed
        tallies.append(Tally(name, old - mixed, new - mixed, mixed, untouched))
    return int(np.count_nonzero(any_mixed)), tuple(tallies)


def _contradict(sides: Sides, direct: Bools, through: Bools) -> Contradiction:
    """Put transactions, operators and words to a shortest circle."""
    arcs = shortest_circle(direct, through)
    legs = [tuple(_leg(sides, *arc)) for arc in arcs]
    labels = sides.trace.labels
    if len(legs) == 1:
        sentence = _mixed_sentence(sides.trace, *legs[0])
    else:
        parts = [
            f"{labels.update(first)} before {labels.update(second)} ({_because(labels, leg)})"
            for (first, second, _), leg in zip(arcs, legs, strict=True)
        ]
        sentence = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return Contradiction(tuple(itertools.chain.from_iterable(legs)), sentence)


def _leg(sides: Sides, first: int, second: int, via: bool) -> Iterator[Step]:
    """The edges of the precedence graph behind one arc between updates."""
    trace = sides.trace
    start, end = Vertex("update", first), Vertex("update", second)
    if via:
        place = sides.find(sides.after(first) & sides.before(second))
        middle = Vertex("data", int(sides.ids[place]))
        new, old = sides.row(place, first, new=True), sides.row(place, second, new=False)
        yield Step(start, middle, trace.operators[trace.operator[new]], new)
        yield Step(middle, end, trace.operators[trace.operator[old]], old)
    else:
        shared = (name for name in trace.updates[first] if name in trace.updates[second])
        ordered = (n for n in shared if trace.updates[first][n] < trace.updates[second][n])
        yield Step(start, end, next(ordered))


def _mixed_sentence(trace: Trace, new: Step, old: Step) -> str:
    """Say how one transaction met both sides of one update."""
    labels = trace.labels
    who = labels.transaction(new.after.id)
    where = f" in {labels.update(new.before.id)}" if len(trace.updates) > 1 else ""
    used_old, used_new = f"{old.operator} old", f"{new.operator} new"
    if old.operator == new.operator and labels.rows:
        used_old += f" ({labels.row(old.row or 0)})"
        used_new += f" ({labels.row(new.row or 0)})"
    return f"tuple {who} used {used_old} and {used_new}{where}"


def _because(labels: Labels, leg: tuple[Step, ...]) -> str:
    """Say why one update comes before another."""
    if len(leg) == 1:
        return f"it updated {leg[0].operator} first"
    new, old = leg
    who = labels.transaction(new.after.id)
    return f"tuple {who} used {new.operator} new and {old.operator} old"
