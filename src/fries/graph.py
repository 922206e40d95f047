"""The dataflow graph: named operators, the traits the schedulers need, and edges.

This is the paper's :math:`G = (V, E)` (section 2.1). A :class:`Graph` is
immutable and valid: whatever could not be planned on is refused when it is built,
with an error that names the culprit.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import networkx as nx

from fries.errors import (
    ArgumentError,
    CycleError,
    DuplicateEdgeError,
    DuplicateOperatorError,
    TraitError,
    UnknownOperatorError,
    UnreachableOperatorError,
)

Part = TypeVar("Part", "Operator", "Edge")


class Emits(enum.Enum):
    """How many (tuple, receiver) pairs an operator emits for one input tuple."""

    ONE = "one-to-one"
    """At most one pair: map, filter, union, join on a key."""
    MANY = "one-to-many"
    """Any number: unnest, join on non-key attributes."""
    ONE_PER_EDGE = "edge-wise one-to-one"
    """At most one tuple on each output edge: Replicate. One-to-many, but prunable."""


class Partitioning(enum.Enum):
    """How tuples on an edge choose among the workers of the receiving operator."""

    FORWARD = "forward"
    HASH = "hash"
    RANGE = "range"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Operator:
    """A named operator with the traits that decide how it can be reconfigured.

    ``unique`` promises at most one output tuple per data transaction (a Self-Join on
    the primary key), over all its workers: the tuples of a transaction must meet at one of
    them, which is the caller's to see to by the keys of its input edges. ``blocking`` says
    that nothing leaves before all input has arrived (aggregate, sort): it ends the data
    transactions of its input.
    """

    name: str
    emits: Emits = Emits.ONE
    unique: bool = False
    blocking: bool = False
    source: bool = False
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """A data edge between two operators; ``key`` names what a shuffle partitions by."""

    source: str
    target: str
    partitioning: Partitioning = Partitioning.FORWARD
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class Graph:
    """A validated, immutable DAG of operators."""

    def __init__(self, operators: Iterable[Operator], edges: Iterable[Edge]) -> None:
        self._operators: dict[str, Operator] = {}
        for operator in _all_of(Operator, operators):
            _check_operator_types(operator)
            if operator.name in self._operators:
                raise DuplicateOperatorError(operator.name)
            self._operators[operator.name] = operator
        self._edges: dict[tuple[str, str], Edge] = {}
        self._inputs: dict[str, list[Edge]] = {name: [] for name in self._operators}
        self._outputs: dict[str, list[Edge]] = {name: [] for name in self._operators}
        for edge in _all_of(Edge, edges):
            _check_edge_types(edge)
            self._add(edge)
        self._check_shape()
        for operator in self._operators.values():
            self._check_operator(operator)
        for edge in self._edges.values():
            self._check_edge(edge)

    def __getitem__(self, name: str) -> Operator:
        try:
            return self._operators[name]
        except (KeyError, TypeError):  # a list cannot be a key
            raise UnknownOperatorError(name, tuple(self._operators)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._operators

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def __len__(self) -> int:
        return len(self._operators)

    def __repr__(self) -> str:
        return f"<Graph of {len(self)} operators and {len(self._edges)} edges>"

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, in the order in which they were given."""
        return tuple(self._edges.values())

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the operators that read data from outside."""
        return tuple(op.name for op in self if op.source)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the operators without output edges."""
        return tuple(name for name, outputs in self._outputs.items() if not outputs)

    def edge(self, source: str, target: str) -> Edge:
        """The edge between two operators; a :class:`TraitError` if there is none."""
        found = self._edges.get((self[source].name, self[target].name))
        if found is None:
            raise TraitError(f"edge {source} -> {target}", "there is no such edge")
        return found

    def inputs(self, name: str) -> tuple[Edge, ...]:
        """Edges that arrive at an operator."""
        return tuple(self._inputs[self[name].name])

    def outputs(self, name: str) -> tuple[Edge, ...]:
        """Edges that leave an operator."""
        return tuple(self._outputs[self[name].name])

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The operators in a topological order that is the same in every run."""
        return tuple(nx.topological_sort(self._digraph(self._edges)))

    @cached_property
    def position(self) -> dict[str, int]:
        """Each operator's place in :attr:`order`."""
        return {name: place for place, name in enumerate(self.order)}

    @cached_property
    def pipelined(self) -> Graph:
        """The graph cut behind its blocking operators (section 7.1).

        What leaves a blocking operator begins a new data transaction, so a scheduler
        never synchronises across such an edge. The receivers become sources, and nothing
        is blocking any more: behind each operator that was, its region ends.
        """
        if not any(op.blocking for op in self):
            return self
        kept = [e for e in self._edges.values() if not self._operators[e.source].blocking]
        fed = {edge.target for edge in kept}
        operators = [replace(op, blocking=False, source=op.name not in fed) for op in self]
        return Graph(operators, kept)

    @cached_property
    def regions(self) -> tuple[frozenset[str], ...]:
        """The sub-dataflows between blocking operators, each free of blocking edges."""
        cut = self.pipelined
        digraph = cut._digraph(cut._edges)
        return tuple(frozenset(part) for part in nx.weakly_connected_components(digraph))

    def channels(self, edge: Edge) -> int:
        """How many worker-to-worker channels an edge has, without building them."""
        if edge.partitioning is Partitioning.FORWARD:
            return self[edge.source].workers
        return self[edge.source].workers * self[edge.target].workers

    def fans_out(self, edge: Edge) -> bool:
        """Whether an edge copies each tuple: a broadcast to more than one worker."""
        return edge.partitioning is Partitioning.BROADCAST and self[edge.target].workers > 1

    def _add(self, edge: Edge) -> None:
        for end in (edge.source, edge.target):
            if end not in self._operators:
                raise UnknownOperatorError(end, tuple(self._operators))
        if (edge.source, edge.target) in self._edges:
            raise DuplicateEdgeError(edge.source, edge.target)
        self._edges[edge.source, edge.target] = edge
        self._inputs[edge.target].append(edge)
        self._outputs[edge.source].append(edge)

    def _digraph(self, edges: Iterable[tuple[str, str]]) -> nx.DiGraph[str]:
        digraph: nx.DiGraph[str] = nx.DiGraph()
        digraph.add_nodes_from(self._operators)
        digraph.add_edges_from(edges)
        return digraph

    def _check_shape(self) -> None:
        digraph = self._digraph(self._edges)
        if not nx.is_directed_acyclic_graph(digraph):
            raise CycleError(tuple(step[0] for step in nx.find_cycle(digraph)))
        reached = set(self.sources)
        for name in self.order:
            if any(edge.source in reached for edge in self._inputs[name]):
                reached.add(name)
        lost = tuple(name for name in self._operators if name not in reached)
        if lost:
            raise UnreachableOperatorError(lost)

    def _check_operator(self, op: Operator) -> None:
        where = f"operator {op.name!r}"
        if not op.name:
            raise TraitError("an operator without a name", "give it a name")
        if op.workers < 1:
            raise TraitError(where, f"it has {op.workers} workers; it needs at least one")
        if op.source and self._inputs[op.name]:
            raise TraitError(
                where, f"it is a source and has the input {self._inputs[op.name][0]}; drop one"
            )
        if op.unique and op.emits is Emits.MANY:
            raise TraitError(
                where,
                "unique (at most one output per transaction) contradicts one-to-many; drop one",
            )
        if op.unique and op.emits is Emits.ONE_PER_EDGE and len(self._outputs[op.name]) > 1:
            raise TraitError(
                where,
                "unique (at most one output per transaction) contradicts a tuple on each of its "
                f"{len(self._outputs[op.name])} output edges; drop one",
            )

    def _check_edge(self, edge: Edge) -> None:
        where = f"edge {edge}"
        if self[edge.target].unique and self.fans_out(edge):
            raise TraitError(
                where,
                "a broadcast brings each transaction to all "
                f"{self[edge.target].workers} workers of {edge.target!r}, so it cannot be unique; "
                "partition by a key, or drop unique",
            )
        shuffled = edge.partitioning in (Partitioning.HASH, Partitioning.RANGE)
        if shuffled and not edge.key:
            raise TraitError(where, f"{edge.partitioning.value} partitioning needs a key")
        if edge.key and not shuffled:
            raise TraitError(where, f"{edge.partitioning.value} partitioning takes no key")
        here, there = self[edge.source].workers, self[edge.target].workers
        if edge.partitioning is Partitioning.FORWARD and here != there:
            raise TraitError(
                where,
                f"forward needs as many workers on both sides, not {here} and {there}; "
                "use hash, range or broadcast, or make them equal",
            )


def paths(
    *lines: str, partitioning: Partitioning = Partitioning.FORWARD, key: tuple[str, ...] = ()
) -> list[Edge]:
    """Edges from lines such as ``"A -> B -> C"``; an edge on several lines counts once."""
    found: dict[tuple[str, str], Edge] = {}
    for line in lines:
        names = [name.strip() for name in line.split("->")]
        if not all(names):
            raise ArgumentError(f"path {line!r}", "a name is missing; write it as in 'A -> B -> C'")
        for pair in itertools.pairwise(names):
            found[pair] = Edge(*pair, partitioning, key)
    return list(found.values())


def _all_of(kind: type[Part], given: object) -> list[Part]:
    """Several operators or edges, and nothing else."""
    what = f"the {kind.__name__.lower()}s of a graph"
    if not isinstance(given, Iterable):
        raise ArgumentError(what, f"they are {given!r}; give a list of them")
    found = list(given)
    for one in found:
        if not isinstance(one, kind):
            raise ArgumentError(what, f"one is {one!r}; give {kind.__name__}(...)")
    return found


def _check_operator_types(op: Operator) -> None:
    """Refuse fields of a wrong type: a text compares unequal to every trait, and silently."""
    where = f"operator {op.name!r}"
    _expect(where, "name", op.name, str, "a text")
    _expect(where, "emits", op.emits, Emits, "a member of Emits, such as Emits.MANY")
    _expect(where, "workers", op.workers, int, "a whole number")
    for trait in ("unique", "blocking", "source"):
        if not isinstance(value := getattr(op, trait), bool):
            raise ArgumentError(where, f"{trait} is {value!r}; give True or False")


def _check_edge_types(edge: Edge) -> None:
    """Refuse fields of a wrong type; a key that is one text would count as its letters."""
    where = f"edge {edge}"
    for end in (edge.source, edge.target):
        _expect(where, "an end", end, str, "the name of an operator")
    member = "a member of Partitioning, such as Partitioning.HASH"
    _expect(where, "partitioning", edge.partitioning, Partitioning, member)
    key: object = edge.key
    example = key if isinstance(key, str) else "user"
    wanted = f'a tuple of names, such as key=("{example}",)'
    _expect(where, "key", key, tuple, wanted)
    for name in edge.key:
        _expect(where, "key", name, str, wanted)


def _expect(where: str, field: str, value: object, kind: type, wanted: str) -> None:
    """Refuse a value that is not of a type; ``True`` is no number here."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ArgumentError(where, f"{field} is {value!r}; give {wanted}")
