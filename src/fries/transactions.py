"""Transactions and schedules: the paper's definition of consistency (section 4.2).

Processing one source tuple, with everything derived from it, is a data transaction;
a reconfiguration is a function-update transaction. A :class:`Schedule` says in which
order their operations ran. It is consistent if it is conflict-serializable, which
:mod:`fries.serializability` decides.

The paper's schedules hold one function-update transaction. Ours may hold several,
because an engine can have several in transition: two updates of the same operator
conflict as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import networkx as nx

from fries.errors import ScheduleError

_Item = TypeVar("_Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class StreamTuple:
    """A tuple on its way to the operator that will process it.

    The paper lets the output of a one-to-one operator keep the name of its input, so
    it takes the name and the receiver together to tell two tuples apart.
    """

    name: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.name} at {self.receiver}"


@dataclass(frozen=True, slots=True)
class Scope:
    """A source tuple with everything derived from it, ordered by derivation.

    ``produced`` holds a pair for each derived tuple: the one whose processing produced
    it, and the tuple itself. Each tuple has one producer, so a scope is a tree.
    """

    source: StreamTuple
    produced: tuple[tuple[StreamTuple, StreamTuple], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not a tree below the source tuple."""
        seen = {self.source}
        for _, child in self.produced:
            if child in seen:
                raise ScheduleError(f"{child} is produced twice in the scope of {self.source}")
            seen.add(child)
        lost = seen.difference(self.tuples)
        if lost:
            culprit = min(lost, key=lambda item: (item.name, item.receiver))
            raise ScheduleError(f"{culprit} is not derived from the source tuple {self.source}")

    @property
    def tuples(self) -> tuple[StreamTuple, ...]:
        """The tuples of the scope, each after the one it was derived from."""
        children: dict[StreamTuple, list[StreamTuple]] = {}
        for parent, child in self.produced:
            children.setdefault(parent, []).append(child)
        found = [self.source]
        for item in found:  # grows while it is read: breadth first
            found.extend(children.get(item, ()))
        return tuple(found)

    def precedes(self, first: StreamTuple, second: StreamTuple) -> bool:
        """Whether the second tuple is derived from the first, directly or not."""
        producer = {child: parent for parent, child in self.produced}
        while (ancestor := producer.get(second)) is not None:
            if ancestor == first:
                return True
            second = ancestor
        return False


@dataclass(frozen=True, slots=True)
class DataOperation:
    """The processing of a tuple by its receiving operator: φ(t, o)."""

    tuple: StreamTuple

    @property
    def operator(self) -> str:
        """The operator that processes the tuple."""
        return self.tuple.receiver

    def __str__(self) -> str:
        return f"φ({self.tuple.name}, {self.tuple.receiver})"


@dataclass(frozen=True, slots=True)
class UpdateOperation:
    """An operator's switch to its new configuration: μ(o), as a part of one update."""

    operator: str
    update: str = "U"

    def __str__(self) -> str:
        return f"μ({self.operator})" if self.update == "U" else f"μ({self.operator}, {self.update})"


Operation = DataOperation | UpdateOperation


def phi(name: str, operator: str) -> DataOperation:
    """φ(t, o), as short to write as in the paper."""
    return DataOperation(StreamTuple(name, operator))


def mu(operator: str, update: str = "U") -> UpdateOperation:
    """μ(o), as short to write as in the paper."""
    return UpdateOperation(operator, update)


@dataclass(frozen=True, slots=True)
class DataTransaction:
    """The data operations of a scope, in the order of the scope."""

    name: str
    scope: Scope

    @classmethod
    def chain(cls, name: str, first: DataOperation, *rest: DataOperation) -> DataTransaction:
        """A transaction whose operations follow one another, as behind one-to-one operators."""
        tuples = [operation.tuple for operation in (first, *rest)]
        return cls(name, Scope(first.tuple, tuple(itertools.pairwise(tuples))))

    @property
    def operations(self) -> tuple[DataOperation, ...]:
        """All operations, each after those that it depends on."""
        return tuple(DataOperation(item) for item in self.scope.tuples)

    @property
    def order(self) -> tuple[tuple[DataOperation, DataOperation], ...]:
        """The direct dependencies; their transitive closure is the partial order."""
        return tuple((DataOperation(a), DataOperation(b)) for a, b in self.scope.produced)


@dataclass(frozen=True, slots=True)
class UpdateTransaction:
    """A function-update transaction: one reconfiguration, its operations without an order."""

    name: str
    operators: frozenset[str]

    def __post_init__(self) -> None:
        """Refuse an update of nothing."""
        if not self.operators:
            raise ScheduleError(f"the function update {self.name} updates no operator")

    @classmethod
    def of(cls, name: str, *operators: str) -> UpdateTransaction:
        """The update of the given operators."""
        return cls(name, frozenset(operators))

    @property
    def operations(self) -> tuple[UpdateOperation, ...]:
        """All operations, by the operators' names."""
        return tuple(UpdateOperation(name, self.name) for name in sorted(self.operators))


Transaction = DataTransaction | UpdateTransaction


@dataclass(frozen=True, slots=True)
class Schedule:
    """All operations of some transactions, with a partial order.

    ``operations`` is the order itself, unless ``precedence`` gives pairs of operations
    of which the first ran before the second; then only these pairs, what follows from
    them, and the transactions' own orders count. A schedule is valid: the order has no
    circle, keeps that of each data transaction, and decides between any two operations
    that conflict.
    """

    transactions: tuple[Transaction, ...]
    operations: tuple[Operation, ...]
    precedence: tuple[tuple[Operation, Operation], ...] | None = None
    _index: dict[Operation, int] = field(init=False, repr=False, compare=False)
    _later: dict[Operation, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is not a schedule, and close the order transitively."""
        self._check_operations()
        index = {operation: place for place, operation in enumerate(self.operations)}
        object.__setattr__(self, "_index", index)
        pairs = self.precedence
        if pairs is None:
            pairs = tuple(itertools.pairwise(self.operations))
        for operation in itertools.chain.from_iterable(pairs):
            if operation not in index:
                raise ScheduleError(f"its order mentions {operation}, which is not in it")
        self._close(pairs)
        own = [
            pair for t in self.transactions if isinstance(t, DataTransaction) for pair in t.order
        ]
        for first, second in own:
            if self.before(second, first):
                raise ScheduleError(
                    f"{second} is before {first}, but {second.tuple} is derived from {first.tuple}"
                )
        self._close((*pairs, *own))
        for a, b in _conflicting_pairs(self.operations):
            if not self.before(a, b) and not self.before(b, a):
                raise ScheduleError(f"{a} and {b} conflict, but neither is before the other")

    @classmethod
    def serial(cls, transactions: Iterable[Transaction]) -> Schedule:
        """The serial schedule that runs the transactions one after another."""
        order = tuple(transactions)
        return cls(order, tuple(op for transaction in order for op in transaction.operations))

    def before(self, first: Operation, second: Operation) -> bool:
        """Whether the first operation ran before the second."""
        return bool(self._later[first] >> self._index[second] & 1)

    @property
    def is_serial(self) -> bool:
        """Whether of any two transactions one ran entirely before the other."""
        return all(
            self._entirely_before(a, b) or self._entirely_before(b, a)
            for a, b in itertools.combinations(self.transactions, 2)
        )

    @property
    def linear(self) -> tuple[Operation, ...]:
        """One total order of the operations that keeps the schedule's order."""
        later = self._later
        return tuple(sorted(self.operations, key=lambda op: -later[op].bit_count()))

    def conflicts(self) -> Iterator[tuple[Operation, Operation]]:
        """All pairs of conflicting operations, the earlier one first."""
        for a, b in _conflicting_pairs(self.operations):
            yield (a, b) if self.before(a, b) else (b, a)

    def _entirely_before(self, first: Transaction, second: Transaction) -> bool:
        mask = sum(1 << self._index[operation] for operation in second.operations)
        return all(self._later[operation] & mask == mask for operation in first.operations)

    def _check_operations(self) -> None:
        """Each operation of each transaction is there, and once."""
        wanted: list[Operation] = [op for t in self.transactions for op in t.operations]
        for name in _repeated(transaction.name for transaction in self.transactions):
            raise ScheduleError(f"two transactions are named {name}")
        for operation in _repeated(wanted):
            raise ScheduleError(f"two transactions contain {operation}")
        for operation in _repeated(self.operations):
            raise ScheduleError(f"it mentions {operation} twice")
        known, given = set(wanted), set(self.operations)
        for operation in self.operations:
            if operation not in known:
                raise ScheduleError(f"{operation} belongs to none of its transactions")
        for operation in wanted:
            if operation not in given:
                raise ScheduleError(f"it lacks {operation}")

    def _close(self, pairs: Iterable[tuple[Operation, Operation]]) -> None:
        """Set what comes after each operation, as bits, to the transitive closure of pairs."""
        digraph: nx.DiGraph[Operation] = nx.DiGraph()
        digraph.add_nodes_from(self.operations)
        digraph.add_edges_from(pairs)
        if not nx.is_directed_acyclic_graph(digraph):
            circle = [step[0] for step in nx.find_cycle(digraph)]
            listed = " before ".join(str(operation) for operation in (*circle, circle[0]))
            raise ScheduleError(f"its order is a circle: {listed}")
        later = dict.fromkeys(self.operations, 0)
        for operation in reversed(list(nx.topological_sort(digraph))):
            for follower in digraph.successors(operation):
                later[operation] |= later[follower] | 1 << self._index[follower]
        object.__setattr__(self, "_later", later)


def conflicting(a: Operation, b: Operation) -> bool:
    """Whether the order of two operations matters: one operator, and an update among them.

    Data operations never conflict, and neither does an operation with itself.
    """
    if isinstance(a, DataOperation) and isinstance(b, DataOperation):
        return False
    return a.operator == b.operator and a != b


def conflict_equivalent(s1: Schedule, s2: Schedule) -> bool:
    """Whether two schedules of the same transactions order all conflicts in the same way."""
    if set(s1.transactions) != set(s2.transactions):
        return False
    return all(s2.before(a, b) for a, b in s1.conflicts())


def _conflicting_pairs(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Each conflicting pair once, without comparing data operations with each other."""
    at: dict[str, tuple[list[Operation], list[Operation]]] = {}
    for operation in operations:
        updates, data = at.setdefault(operation.operator, ([], []))
        (data if isinstance(operation, DataOperation) else updates).append(operation)
    for updates, data in at.values():
        yield from itertools.combinations(updates, 2)
        yield from itertools.product(updates, data)


def _repeated(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items that have occurred before."""
    seen: set[_Item] = set()
    for item in items:
        if item in seen:
            yield item
        seen.add(item)
