"""Broadcasts as the planner sees them: a Replicate behind each broadcasting operator (section 7.2).

A broadcast copies a tuple to all workers of one receiver. The sender's other output edges are
not concerned, so a Replicate of its own stands between the sender and the receiver while a covering
sub-DAG is found. Its control message goes to the sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fries.graph import Edge, Emits, Graph, Operator
from fries.mcs import SubDag


@dataclass(frozen=True, slots=True)
class Replicated:
    """A graph with an operator more on each edge that copies tuples."""

    plain: Graph
    """Without them."""
    graph: Graph
    senders: Mapping[str, str]
    """By added operator, whose tuples it copies."""

    def contracted(self, mcs: SubDag) -> SubDag:
        """A sub-DAG of the plain graph: added operators are their senders."""
        names = {self.senders.get(name, name) for name in mcs.vertices}
        edges = [
            self.plain.edge(self.senders.get(edge.source, edge.source), edge.target)
            for edge in mcs.edges
            if edge.target not in self.senders
        ]
        place = self.plain.position
        return SubDag(
            tuple(sorted(names, key=place.__getitem__)),
            tuple(sorted(edges, key=lambda edge: place[edge.source])),
        )


def replicated(graph: Graph) -> Replicated:
    """Put a Replicate on each edge that copies tuples."""
    added: list[Operator] = []
    edges: list[Edge] = []
    senders: dict[str, str] = {}
    for edge in graph.edges:
        if not graph.fans_out(edge):
            edges.append(edge)
            continue
        name = _unused(graph, f"{edge.source}\0{edge.target}")
        senders[name] = edge.source
        added.append(Operator(name, Emits.ONE_PER_EDGE, workers=graph[edge.source].workers))
        edges += [Edge(edge.source, name), Edge(name, edge.target, edge.partitioning)]
    return Replicated(graph, Graph([*graph, *added], edges) if added else graph, senders)


def _unused(graph: Graph, name: str) -> str:
    while name in graph:
        name += "\0"
    return name
