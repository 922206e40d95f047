"""What the schedulers must know of a flow's operators: traits, from kinds and edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from fries.graph import Edge, Emits, Graph, Operator, Partitioning
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec

Operators: TypeAlias = Mapping[str, OperatorSpec]
Edges: TypeAlias = Sequence[EdgeSpec]
OUTSIDE: Final = ""
"""Where the rows of a source come from."""


def graph_of(
    operators: Operators,
    edges: Edges,
    sources: tuple[str, ...],
    outputs: tuple[str, ...],
) -> Graph:
    """Operators with the traits that the schedulers need."""
    nodes = [
        _traits(
            spec,
            [edge.branch for edge in edges if edge.source == spec.name],
            is_source=name in sources,
            multiplied=_is_multiplied(name, operators, edges),
        )
        for name, spec in operators.items()
    ]
    lines = [_line(edge, operators.get(edge.target)) for edge in edges if edge.source != OUTSIDE]
    return Graph([*nodes, *map(Operator, outputs)], lines)


def _traits(
    spec: OperatorSpec, branches: list[int], *, is_source: bool, multiplied: bool
) -> Operator:
    """An operator with its traits; used more than once, it replicates its rows.

    A join gives one row per source tuple only if no tuple was multiplied before it.
    """
    emits = Emits.ONE_PER_EDGE if len(set(branches)) < len(branches) else Emits.ONE
    if _gives_many(spec):
        emits = Emits.MANY
    return Operator(
        spec.name,
        emits,
        unique=spec.kind is Kind.JOIN and emits is Emits.ONE and not multiplied,
        blocking=spec.kind is Kind.AGGREGATE,
        source=is_source,
    )


def _gives_many(spec: OperatorSpec) -> bool:
    return spec.kind is Kind.FLAT_MAP or spec.many


def upstream(name: str, operators: Operators, edges: Edges) -> Iterator[str]:
    """Operators that the transactions of an operator have passed: back to where they began."""
    waiting, seen = [name], {name}
    while waiting:
        target = waiting.pop()
        for edge in edges:
            if edge.target == target and edge.source in operators and edge.source not in seen:
                seen.add(edge.source)
                yield edge.source
                if operators[edge.source].kind is not Kind.AGGREGATE:
                    waiting.append(edge.source)


def _is_multiplied(name: str, operators: Operators, edges: Edges) -> bool:
    """Whether several rows of one source tuple may come to an operator over one edge."""
    return any(
        _gives_many(operators[before]) or _unites_copies(before, operators, edges)
        for before in upstream(name, operators, edges)
    )


def _unites_copies(name: str, operators: Operators, edges: Edges) -> bool:
    """Whether an operator is a union of streams that a replicate had taken apart."""
    inputs = [edge.source for edge in edges if edge.target == name and edge.source in operators]
    if operators[name].kind is not Kind.PASS or len(inputs) < 2:
        return False
    met: set[str] = set()
    for source in inputs:
        behind = {source, *upstream(source, operators, edges)}
        if any(_replicates(common, edges) for common in met & behind):
            return True
        met |= behind
    return False


def _replicates(name: str, edges: Edges) -> bool:
    branches = [edge.branch for edge in edges if edge.source == name]
    return len(set(branches)) < len(branches)


def _line(edge: EdgeSpec, target: OperatorSpec | None) -> Edge:
    if target is None or target.keying is None or not target.keying.columns:
        return Edge(edge.source, edge.target)
    return Edge(edge.source, edge.target, Partitioning.HASH, target.keying.columns)
