"""Minimal covering sub-DAGs and what is built on them (sections 5.2, 6.2 and 6.3).

Everything here is a pure function of a graph and a set of target operators, in time linear in
the size of the graph (pruning by uniqueness: times its logarithm). Blocking operators cut the graph
before anything is covered, so callers pass :attr:`fries.graph.Graph.pipelined`; only a
component's entries are those of the whole graph, because what leaves a blocking operator enters a
component like anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import networkx as nx

from fries.dominators import post_dominators
from fries.graph import Edge, Emits, Graph


@dataclass(frozen=True, slots=True)
class SubDag:
    """Vertices and edges of a sub-DAG, in topological order."""

    vertices: tuple[str, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Component:
    """A maximal connected part of a covering sub-DAG.

    ``heads`` have no input edge inside the component: they get the fast control
    message. ``entries`` are the edges over which tuples come in from outside.
    """

    members: tuple[str, ...]
    edges: tuple[Edge, ...]
    heads: tuple[str, ...]
    entries: tuple[Edge, ...]
    targets: tuple[str, ...]

    @property
    def longest_path(self) -> int:
        """Edges on the longest path through the component."""
        depth = dict.fromkeys(self.members, 0)
        for edge in self.edges:  # topological by source, so depths are final when used
            depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
        return max(depth.values())


def find_mcs(graph: Graph, covered: Collection[str]) -> SubDag:
    """Algorithm 1: the minimal covering sub-DAG of a set of vertices.

    A vertex belongs to it if it is red (in the set, or behind one of them) and blue
    (in the set, or ahead of one of them).
    """
    wanted = {graph[name].name for name in covered}
    red = reaching(graph, wanted, forward=True)
    blue = reaching(graph, wanted, forward=False)
    vertices = tuple(name for name in graph.order if name in red and name in blue)
    return SubDag(vertices, _induced(graph, vertices))


def find_components(graph: Graph, mcs: SubDag, targets: Collection[str]) -> tuple[Component, ...]:
    """Algorithm 2: split a covering sub-DAG of a graph into components and find their heads."""
    undirected: nx.Graph[str] = nx.Graph()
    undirected.add_nodes_from(mcs.vertices)
    undirected.add_edges_from((edge.source, edge.target) for edge in mcs.edges)
    label = {
        name: number
        for number, part in enumerate(nx.connected_components(undirected))
        for name in part
    }
    members: dict[int, list[str]] = {}
    for name in mcs.vertices:
        members.setdefault(label[name], []).append(name)
    edges: dict[int, list[Edge]] = {number: [] for number in members}
    for edge in mcs.edges:
        edges[label[edge.source]].append(edge)
    wanted = frozenset(targets)
    return tuple(
        make_component(graph, names, edges[number], wanted) for number, names in members.items()
    )


def make_component(
    graph: Graph, members: Iterable[str], edges: Iterable[Edge], targets: Collection[str]
) -> Component:
    """Build a component from its members and edges; both in topological order."""
    names, inner = tuple(members), tuple(edges)
    inside = {(edge.source, edge.target) for edge in inner}
    fed = {edge.target for edge in inner}
    return Component(
        members=names,
        edges=inner,
        heads=tuple(name for name in names if name not in fed),
        entries=tuple(
            edge
            for name in names
            for edge in graph.inputs(name)
            if (edge.source, edge.target) not in inside
        ),
        targets=tuple(name for name in names if name in targets),
    )


def one_to_many_ancestors(graph: Graph, targets: Collection[str]) -> frozenset[str]:
    """The one-to-many operators with a path to some target (Algorithm 3, line 3).

    A broadcast to several workers counts as a Replicate behind the broadcasting
    worker (section 7.2); the control message for it goes to that worker.
    """
    leads = reaching(graph, set(targets), forward=False)
    ahead = {
        edge.source
        for name in leads
        for edge in graph.inputs(name)
        if graph[edge.source].emits is not Emits.ONE or graph.fans_out(edge)
    }
    return frozenset(ahead)


def compute_earliest_ancestors(graph: Graph, ancestors: Collection[str]) -> frozenset[str]:
    """Those of the given operators that have none of the others ahead of them.

    The paper computes this per target and joins the results. One computation for all targets
    gives the same covering sub-DAG: whatever lies ahead of an ancestor of a target is an ancestor
    of the same target. (Only with broadcasts can the set itself be smaller, by operators that lie
    inside that sub-DAG anyway.)
    """
    inside = set(ancestors)
    behind: set[str] = set()
    for name in graph.order:
        if any(e.source in inside or e.source in behind for e in graph.inputs(name)):
            behind.add(name)
    return frozenset(inside - behind)


def prune_edge_wise(
    graph: Graph, targets: Collection[str], ancestors: Collection[str]
) -> frozenset[str]:
    """Rule 1: the ancestors that send at most one tuple towards any target.

    Such an operator has one output edge that leads to targets, and puts at most one
    tuple on it per input tuple. The edge is the logical one: by hash or range it ends
    in many channels, of which a tuple takes one.
    """
    leads = reaching(graph, set(targets), forward=False)
    pruned = set()
    for name in ancestors:
        towards = [edge for edge in graph.outputs(name) if edge.target in leads]
        single = graph[name].emits is not Emits.MANY and not graph.fans_out(towards[0])
        if single and len(towards) == 1:
            pruned.add(name)
    return frozenset(pruned)


def prune_unique(
    graph: Graph, targets: Collection[str], ancestors: Collection[str]
) -> frozenset[str]:
    """Rule 2, corrected: the ancestors all of whose tuples funnel through one unique operator.

    The paper asks for some unique operator on each path to a target. Two paths with a
    unique operator each still deliver two tuples, to one target or to two (see
    ``docs/paper-map.md``), and a unique target may itself receive many. So there must be
    one unique operator, not a target, on every path to every target: a post-dominator.
    """
    goal = set(targets)
    funnels = {op.name for op in graph if op.unique and op.name not in goal}
    if not funnels:
        return frozenset()
    next_on_all_paths = post_dominators(graph, goal)
    funnelled: set[str] = set()
    for name in reversed(graph.order):
        after = next_on_all_paths.get(name)
        if after in funnels or after in funnelled:
            funnelled.add(name)
    return frozenset(funnelled & set(ancestors))


def reaching(graph: Graph, start: Collection[str], *, forward: bool) -> set[str]:
    """The given operators and all that lie behind (``forward``) or ahead of them."""
    marked = set(start)
    if forward:
        for name in graph.order:
            if any(edge.source in marked for edge in graph.inputs(name)):
                marked.add(name)
    else:
        for name in reversed(graph.order):
            if any(edge.target in marked for edge in graph.outputs(name)):
                marked.add(name)
    return marked


def _induced(graph: Graph, vertices: Collection[str]) -> tuple[Edge, ...]:
    """All edges between the given vertices, by topological order of their sources."""
    inside = set(vertices)
    return tuple(edge for name in vertices for edge in graph.outputs(name) if edge.target in inside)
