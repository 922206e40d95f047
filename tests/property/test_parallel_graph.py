"""Section 7.2: planning on operators against planning on workers, each with its channels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths
from fries.mcs import (
    Component,
    find_components,
    find_mcs,
)
from fries.plan import Plan
from fries.schedulers import fries
from tests.property.oracles import (
    ahead_of,
    behind,
    digraph,
    earliest,
)
from tests.property.strategies import cases, funnel_cases, graphs

Case = tuple[Graph, frozenset[str]]

quick = settings(max_examples=150, deadline=None)
thorough = settings(max_examples=300, deadline=None)


@dataclass(frozen=True)
class Star:
    """The parallel dataflow G*, built: a vertex per worker, an edge per channel.

    A broadcast to several workers has a Replicate of its own behind each sending worker.
    """

    plan_on: Graph
    worker: dict[str, str]  # vertex -> the worker it is, or that it replicates for
    operator: dict[str, str]  # vertex -> operator of that worker
    replicates: frozenset[str]
    logical: dict[tuple[str, str], str]  # channel -> the logical edge it is a channel of


def workers_of(graph: Graph, name: str) -> list[str]:
    return [f"{name}#{i}" for i in range(graph[name].workers)]


def materialise(graph: Graph) -> Star:
    worker = {w: w for op in graph for w in workers_of(graph, op.name)}
    operator = {w: op.name for op in graph for w in workers_of(graph, op.name)}
    logical: dict[tuple[str, str], str] = {}
    replicates: list[str] = []
    for edge in graph.edges:
        senders, receivers = workers_of(graph, edge.source), workers_of(graph, edge.target)
        if edge.partitioning is Partitioning.FORWARD:
            logical |= dict.fromkeys(zip(senders, receivers, strict=True), str(edge))
        elif not graph.fans_out(edge):
            logical |= dict.fromkeys(itertools.product(senders, receivers), str(edge))
        else:
            for sender in senders:
                replicate = f"{sender}*{edge.target}"
                replicates.append(replicate)
                worker[replicate], operator[replicate] = sender, edge.source
                logical[sender, replicate] = str(edge)
                logical |= {(replicate, receiver): receiver for receiver in receivers}
    fed = {receiver for _, receiver in logical}
    vertices = [
        Operator(
            vertex,
            Emits.ONE_PER_EDGE if vertex in replicates else graph[operator[vertex]].emits,
            source=vertex not in fed,
        )
        for vertex in worker
    ]
    built = Graph(vertices, itertools.starmap(Edge, logical))
    return Star(built, worker, operator, frozenset(replicates), logical)


def plan_on_workers(
    graph: Graph, star: Star, targets: Collection[str], *, edge_wise: bool, uniqueness: bool
) -> tuple[Component, ...]:
    """Algorithm 4 on G*, vertex by vertex.

    A hash or range edge is one logical edge (a tuple takes one of its channels), and a
    unique operator is unique as a whole: its workers share the promise.
    """
    built = digraph(star.plan_on)
    goals = {vertex for t in targets for vertex in workers_of(graph, t)}
    leads = goals.union(*(ahead_of(built, goal) for goal in goals))
    unique = {op.name for op in graph if op.unique and op.name not in targets}

    def towards(vertex: str) -> list[str]:
        return [follower for follower in built.successors(vertex) if follower in leads]

    def pruned_edge_wise(vertex: str) -> bool:
        if star.plan_on[vertex].emits is Emits.MANY:
            return False
        return len({star.logical[vertex, follower] for follower in towards(vertex)}) == 1

    def pruned_by(vertex: str, funnel: str) -> bool:
        """No way from the vertex to a target, once the funnel's workers are taken out."""
        out = {*workers_of(graph, funnel)}
        if vertex in out or vertex in goals:
            return False
        rest = built.subgraph(leads - out)
        return not goals & behind(rest, vertex)

    kept = {
        vertex
        for vertex in leads
        if star.plan_on[vertex].emits is not Emits.ONE
        and towards(vertex)
        and not (edge_wise and pruned_edge_wise(vertex))
        and not (uniqueness and any(pruned_by(vertex, funnel) for funnel in unique))
    }
    covered = goals | earliest(built, kept)
    return find_components(star.plan_on, find_mcs(star.plan_on, covered), goals)


small = graphs(max_operators=6)
rules = st.tuples(st.booleans(), st.booleans())


def both_levels(
    case: Case, rule: tuple[bool, bool]
) -> tuple[Star, tuple[Component, ...], Plan, Callable[[Collection[str]], set[str]]]:
    """Plan on the workers and on the operators; the last part lifts operators to workers."""
    graph, targets = case
    cut = graph.pipelined
    star = materialise(cut)
    edge_wise, uniqueness = rule
    low = plan_on_workers(cut, star, targets, edge_wise=edge_wise, uniqueness=uniqueness)
    high = fries(graph, targets, edge_wise_pruning=edge_wise, uniqueness_pruning=uniqueness)
    return star, low, high, lambda names: {w for n in names for w in workers_of(graph, n)}


@thorough
@given(cases(small) | funnel_cases(small), rules)
def test_planning_on_operators_equals_planning_on_workers(
    case: Case, rule: tuple[bool, bool]
) -> None:
    star, low, high, lifted = both_levels(case, rule)
    assert {star.worker[vertex] for part in low for vertex in part.members} == lifted(high.members)
    assert {star.worker[head] for part in low for head in part.heads} == lifted(high.heads)
    check_union(star, low, high, lifted)
    for part in high.components:
        own = [other for other in low if star.operator[other.members[0]] in part.members]
        assert {star.worker[v] for other in own for v in other.members} == lifted(part.members)


def check_union(
    star: Star,
    low: tuple[Component, ...],
    high: Plan,
    lifted: Callable[[Collection[str]], set[str]],
) -> None:
    """Each component of workers lies inside one component of operators."""
    for part in low:
        inside = {star.worker[vertex] for vertex in part.members}
        assert sum(inside <= lifted(other.members) for other in high.components) == 1


@quick
@given(cases(graphs(max_operators=6, broadcast=False)), rules)
def test_channels_inside_a_plan_are_those_of_the_built_graph(
    case: Case, rule: tuple[bool, bool]
) -> None:
    _, low, high, _ = both_levels(case, rule)
    assert sum(len(part.edges) for part in low) == high.channels


def test_a_forward_chain_splits_into_a_component_per_worker() -> None:
    operators = [Operator(name, source=name == "S", workers=3) for name in ("S", "A", "B")]
    graph = Graph(operators, paths("S -> A -> B"))
    _, low, high, _ = both_levels((graph, frozenset({"A", "B"})), (True, True))
    assert [part.members for part in high.components] == [("A", "B")]
    assert {part.members for part in low} == {(f"A#{i}", f"B#{i}") for i in range(3)}


def test_a_shuffle_joins_all_workers_in_one_component() -> None:
    operators = [Operator(name, source=name == "S", workers=3) for name in ("S", "A", "B")]
    edges = [Edge("S", "A"), Edge("A", "B", Partitioning.HASH, ("merchant",))]
    _, low, _, _ = both_levels((Graph(operators, edges), frozenset({"A", "B"})), (True, True))
    assert [len(part.members) for part in low] == [6]


def test_only_the_replicate_of_a_broadcast_is_covered() -> None:
    """V sends a tuple either to all workers of B or to X, which needs no component with B."""
    operators = [Operator("V", source=True), Operator("B", workers=2), Operator("X")]
    edges = [Edge("V", "B", Partitioning.BROADCAST), Edge("V", "X")]
    star, low, high, _ = both_levels((Graph(operators, edges), frozenset("BX")), (True, True))
    assert [set(part.members) for part in high.components] == [{"V", "B"}, {"X"}]
    found = sorted(sorted(part.members) for part in low)
    assert found == [["B#0", "B#1", "V#0*B"], ["X#0"]]
    assert star.replicates == {"V#0*B"}
