"""What the oracles of the planning algorithms share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx

from fries.graph import Edge, Emits, Graph
from fries.mcs import Component
from fries.plan import Plan


def digraph(graph: Graph) -> nx.DiGraph[str]:
    built: nx.DiGraph[str] = nx.DiGraph()
    built.add_nodes_from(op.name for op in graph)
    built.add_edges_from((edge.source, edge.target) for edge in graph.edges)
    return built


def ahead_of(graph: nx.DiGraph[str], name: str) -> set[str]:
    return set(nx.ancestors(graph, name))


def behind(graph: nx.DiGraph[str], name: str) -> set[str]:
    return set(nx.descendants(graph, name))


def all_paths(graph: nx.DiGraph[str], start: str, end: str) -> Iterator[tuple[str, ...]]:
    """Every path, including the one of a single vertex."""
    if start == end:
        yield (start,)
        return
    for follower in graph.successors(start):
        for rest in all_paths(graph, follower, end):
            yield (start, *rest)


def copies(graph: Graph, name: str, leads: Collection[str]) -> bool:
    """Whether an operator can send several tuples for one, on edges into ``leads``."""
    towards = [edge for edge in graph.outputs(name) if edge.target in leads]
    many = graph[name].emits is not Emits.ONE
    return bool(towards) and (many or any(graph.fans_out(edge) for edge in towards))


def one_to_many_ahead(graph: Graph, target: str) -> set[str]:
    """Algorithm 3, line 3, for one target."""
    ahead = ahead_of(digraph(graph), target)
    return {name for name in ahead if copies(graph, name, ahead | {target})}


def earliest(graph: nx.DiGraph[str], names: set[str]) -> set[str]:
    """computeEarliestAncestors: those that have none of the others ahead of them."""
    return {name for name in names if not ahead_of(graph, name) & names}


def members(plan: Plan) -> set[str]:
    return set(plan.members)


def edges_of(plan: Plan) -> set[Edge]:
    return {edge for part in plan.components for edge in part.edges}


def is_there_for_a_broadcast(graph: Graph, part: Component, name: str) -> bool:
    """Whether an operator belongs to a component for some of its output edges only."""
    outputs = [edge for edge in part.edges if edge.source == name]
    return name in part.heads and bool(outputs) and all(map(graph.fans_out, outputs))
