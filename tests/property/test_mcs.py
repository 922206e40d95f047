"""The planning algorithms against oracles written from the paper's definitions.

The oracles enumerate: sub-DAGs, paths, workers and channels. They share no code with
``fries.mcs`` but the graph, and are exponential, so the graphs are small.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths
from fries.mcs import (
    Component,
    compute_earliest_ancestors,
    find_components,
    find_mcs,
    one_to_many_ancestors,
    prune_edge_wise,
    prune_unique,
)
from fries.plan import Plan
from fries.schedulers import SCHEDULERS, epoch, fries, fries_unpruned, naive
from fries.workloads.graphs import w5
from tests.property.strategies import cases, funnel_cases, graphs

Case = tuple[Graph, frozenset[str]]

quick = settings(max_examples=150, deadline=None)
thorough = settings(max_examples=300, deadline=None)

plain = graphs(
    max_operators=5,
    parallel=False,
    one_to_many=False,
    unique=False,
    blocking=False,
    broadcast=False,
)
unblocked = graphs(blocking=False)
unblocked_no_broadcast = graphs(blocking=False, broadcast=False)
one_to_one = graphs(one_to_many=False, blocking=False, broadcast=False)
funnelled = funnel_cases(graphs(min_operators=4, blocking=False))


# Helpers of the oracles


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


# Definition of the MCS, and Lemma 1


def smallest_covering(graph: Graph, covered: Collection[str]) -> tuple[set[str], set[Edge]]:
    """Enumerate all sub-DAGs that satisfy conditions 1 and 2; the unique minimal one."""
    built, vertices, edges = digraph(graph), list(graph.order), list(graph.edges)
    place = {name: 1 << i for i, name in enumerate(vertices)}
    edge_bit = {(e.source, e.target): 1 << i for i, e in enumerate(edges)}
    ends = [place[e.source] | place[e.target] for e in edges]
    wanted = [(sum(place[name] for name in covered), 0)]  # condition 1
    for start, end in itertools.permutations(covered, 2):  # condition 2
        wanted.extend(
            (sum(place[v] for v in path), sum(edge_bit[pair] for pair in itertools.pairwise(path)))
            for path in all_paths(built, start, end)
        )
    satisfying = []
    for chosen_edges in range(1 << len(edges)):
        needed = 0
        for i, both in enumerate(ends):
            if chosen_edges >> i & 1:
                needed |= both
        satisfying += [
            (chosen, chosen_edges)
            for chosen in range(1 << len(vertices))
            if chosen & needed == needed
            and all(v & chosen == v and e & chosen_edges == e for v, e in wanted)
        ]
    least, least_edges = min(satisfying, key=lambda s: s[0].bit_count() + s[1].bit_count())
    assert all(v & least == least and e & least_edges == least_edges for v, e in satisfying)
    return (
        {name for name in vertices if place[name] & least},
        {e for i, e in enumerate(edges) if least_edges >> i & 1},
    )


@settings(max_examples=100, deadline=None)
@given(cases(plain))
def test_find_mcs_is_the_unique_minimal_covering_sub_dag(case: Case) -> None:
    graph, covered = case
    mcs = find_mcs(graph, covered)
    assert (set(mcs.vertices), set(mcs.edges)) == smallest_covering(graph, covered)


@quick
@given(cases(one_to_one))
def test_find_mcs_is_all_that_lies_on_paths_between_targets(case: Case) -> None:
    """The same from Definition 2 alone, on larger graphs."""
    graph, covered = case
    built = digraph(graph)
    between = [p for a in covered for b in covered for p in all_paths(built, a, b)]
    mcs = find_mcs(graph, covered)
    assert set(mcs.vertices) == {name for path in between for name in path}
    steps = {pair for path in between for pair in itertools.pairwise(path)}
    assert {(edge.source, edge.target) for edge in mcs.edges} == steps
    assert len(set(mcs.vertices)) == len(mcs.vertices)
    assert list(mcs.vertices) == [name for name in graph.order if name in set(mcs.vertices)]


# Components: Lemmas 2 to 6


@quick
@given(cases())
def test_components_are_the_connected_parts(case: Case) -> None:
    graph, covered = case
    cut = graph.pipelined
    mcs = find_mcs(cut, covered)
    parts = find_components(graph, mcs, covered)
    undirected = digraph(Graph([], [])).to_undirected()
    undirected.add_nodes_from(mcs.vertices)
    undirected.add_edges_from((edge.source, edge.target) for edge in mcs.edges)
    assert {frozenset(part.members) for part in parts} == {
        frozenset(part) for part in nx.connected_components(undirected)
    }
    assert sorted(str(e) for part in parts for e in part.edges) == sorted(map(str, mcs.edges))
    for part in parts:
        check_component(graph, part, covered)


def check_component(graph: Graph, part: Component, targets: Collection[str]) -> None:
    """Heads, entries and targets; what comes from a blocking operator enters, too."""
    inside = set(part.members)
    inner = digraph(Graph([], []))
    inner.add_nodes_from(part.members)
    inner.add_edges_from((edge.source, edge.target) for edge in part.edges)
    assert set(part.heads) == {name for name in inside if not inner.in_degree(name)}
    assert part.longest_path == nx.dag_longest_path_length(inner)
    assert set(part.targets) == inside & set(targets)
    into = {edge for name in inside for edge in graph.inputs(name)}
    assert set(part.entries) == into - set(part.edges)
    within = {edge for edge in into if edge.source in inside}
    assert {edge for edge in within if not graph[edge.source].blocking} == set(part.edges)


@thorough
@given(cases(), st.sampled_from(sorted(SCHEDULERS)))
def test_every_plan_covers_its_targets_in_disjoint_components(case: Case, name: str) -> None:
    graph, targets = case
    plan = SCHEDULERS[name](graph, targets)
    assert len(members(plan)) == len(plan.members), "no operator in two components"
    assert targets <= members(plan)
    assert all(part.targets for part in plan.components), "each component has a target"
    assert set(plan.targets) == targets
    assert plan.channels <= plan.total_channels
    position = graph.position
    assert list(plan.targets) == sorted(targets, key=position.__getitem__)
    for edge in edges_of(plan):
        assert not graph[edge.source].blocking, "nothing is synchronised across a blocking edge"
    for part in plan.components:
        assert sum(part.members[0] in region for region in graph.regions) == 1
        assert any(set(part.members) <= region for region in graph.regions)
    if plan.scheduler != "naive":
        for part in plan.components:
            check_component(graph, part, targets)


@quick
@given(cases())
def test_the_listing_order_of_operators_and_edges_decides_nothing(case: Case) -> None:
    graph, targets = case
    other = Graph(reversed([*graph]), reversed(graph.edges))
    for schedule in SCHEDULERS.values():
        one, two = schedule(graph, targets), schedule(other, targets)
        assert edges_of(one) == edges_of(two)
        assert {(frozenset(p.members), frozenset(p.heads)) for p in one.components} == {
            (frozenset(p.members), frozenset(p.heads)) for p in two.components
        }


@quick
@given(cases(one_to_one))
def test_a_chain_of_operators_meets_at_most_one_component(case: Case) -> None:
    """Lemma "hybrid-component": a tuple takes a path, in a one-to-one dataflow."""
    graph, targets = case
    plan = fries(graph, targets)
    built = digraph(graph)
    for start, end in itertools.product(graph.sources, graph.sinks):
        for path in all_paths(built, start, end):
            met = {part.members for part in plan.components if set(path) & set(part.members)}
            assert len(met) <= 1


@quick
@given(cases(one_to_one))
def test_without_one_to_many_operators_all_variants_are_algorithm_2(case: Case) -> None:
    graph, targets = case
    mcs = find_mcs(graph, targets)
    for plan in (fries(graph, targets), fries_unpruned(graph, targets)):
        assert members(plan) == set(mcs.vertices)
        assert set(plan.heads) <= targets


@thorough
@given(cases() | funnel_cases())
def test_targets_behind_a_kept_one_to_many_operator_share_its_component(case: Case) -> None:
    """Lemma "hybrid-component-extended", with and without pruning."""
    graph, targets = case
    cut = graph.pipelined
    ancestors = one_to_many_ancestors(cut, targets)
    pruned = prune_edge_wise(cut, targets, ancestors) | prune_unique(cut, targets, ancestors)
    for plan, kept in (
        (fries_unpruned(graph, targets), ancestors),
        (fries(graph, targets), ancestors - pruned),
    ):
        for name in kept:
            part = plan.component_of(name)
            assert part is not None
            assert targets & behind(digraph(cut), name) <= set(part.members)


@thorough
@given(cases() | funnel_cases())
def test_heads_are_targets_or_earliest_ancestors(case: Case) -> None:
    """Lemma "hybrid-component-head": nothing kept that multiplies tuples is ahead of a head."""
    graph, targets = case
    cut = graph.pipelined
    ancestors = one_to_many_ancestors(cut, targets)
    pruned = prune_edge_wise(cut, targets, ancestors) | prune_unique(cut, targets, ancestors)
    for plan, kept in (
        (fries_unpruned(graph, targets), ancestors),
        (fries(graph, targets), ancestors - pruned),
    ):
        for head in plan.heads:
            assert head in targets | compute_earliest_ancestors(cut, kept)
            assert not ahead_of(digraph(cut), head) & kept


# Algorithm 3: one-to-many ancestors, per target as in the paper and at once as here


@thorough
@given(cases(unblocked))
def test_one_to_many_ancestors_are_those_of_each_target(case: Case) -> None:
    graph, targets = case
    per_target = set[str]().union(*(one_to_many_ahead(graph, target) for target in targets))
    assert one_to_many_ancestors(graph, targets) == per_target


@thorough
@given(cases(unblocked_no_broadcast))
def test_earliest_ancestors_equal_the_loop_over_targets(case: Case) -> None:
    graph, targets = case
    covered = set(targets)
    for target in targets:
        covered |= earliest(digraph(graph), one_to_many_ahead(graph, target))
    ours = compute_earliest_ancestors(graph, one_to_many_ancestors(graph, targets))
    assert covered == targets | ours


@thorough
@given(cases(unblocked))
def test_the_loop_over_targets_gives_the_same_plan_with_broadcasts(case: Case) -> None:
    """A broadcast may lead to one target only, so the sets can differ; the MCS cannot."""
    graph, targets = case
    covered = set(targets)
    for target in targets:
        covered |= earliest(digraph(graph), one_to_many_ahead(graph, target))
    assert set(find_mcs(graph, covered).vertices) == members(fries_unpruned(graph, targets))


def test_where_the_loop_over_targets_differs_in_its_set_only() -> None:
    """U broadcasts towards T1; towards T2 it is one-to-one, and J multiplies behind it."""
    operators = [
        Operator("U", source=True),
        Operator("J", emits=Emits.MANY),
        Operator("T1", workers=2),
        Operator("T2"),
    ]
    graph = Graph(operators, [*paths("U -> J -> T2"), Edge("U", "T1", Partitioning.BROADCAST)])
    built, targets = digraph(graph), {"T1", "T2"}
    assert earliest(built, one_to_many_ahead(graph, "T1")) == {"U"}
    assert earliest(built, one_to_many_ahead(graph, "T2")) == {"J"}
    assert compute_earliest_ancestors(graph, one_to_many_ancestors(graph, targets)) == {"U"}
    assert set(find_mcs(graph, {"U", "J", *targets}).vertices) == {"U", "J", "T1", "T2"}
    assert members(fries_unpruned(graph, targets)) == {"U", "J", "T1", "T2"}


# Algorithm 4: pruning


def edge_wise_literally(graph: Graph, targets: Collection[str], name: str, target: str) -> bool:
    """The paper's rule 1 for one ancestor and one target."""
    built = digraph(graph)

    def leads(edge: Edge, goals: Collection[str]) -> bool:
        return bool(({edge.target} | behind(built, edge.target)) & set(goals))

    connected = [edge for edge in graph.outputs(name) if leads(edge, targets)]
    one_tuple = graph[name].emits is not Emits.MANY and not any(map(graph.fans_out, connected))
    return one_tuple and len(connected) == 1 and leads(connected[0], {target})


@thorough
@given(cases(unblocked))
def test_edge_wise_pruning_equals_the_papers_rule_for_each_target(case: Case) -> None:
    graph, targets = case
    ours = prune_edge_wise(graph, targets, one_to_many_ancestors(graph, targets))
    for target in targets:
        ahead = one_to_many_ahead(graph, target)
        literally = {n for n in ahead if edge_wise_literally(graph, targets, n, target)}
        assert literally == ours & ahead


@thorough
@given(cases(unblocked_no_broadcast))
def test_the_scheduler_with_rule_1_equals_algorithm_4_target_by_target(case: Case) -> None:
    graph, targets = case
    covered = set(targets)
    for target in targets:
        ahead = one_to_many_ahead(graph, target)
        kept = {n for n in ahead if not edge_wise_literally(graph, targets, n, target)}
        covered |= earliest(digraph(graph), kept)
    plan = fries(graph, targets, uniqueness_pruning=False)
    assert members(plan) == set(find_mcs(graph, covered).vertices)


def funnels(graph: Graph, targets: Collection[str], name: str) -> set[str]:
    """Unique operators, no targets, strictly inside every path to every target."""
    built = digraph(graph)
    inside = [set(p[1:-1]) for target in targets for p in all_paths(built, name, target)]
    unique = {op.name for op in graph if op.unique and op.name not in targets}
    return unique.intersection(*inside) if inside else set()


@thorough
@given(cases(unblocked) | funnelled)
def test_uniqueness_pruning_needs_one_funnel_on_all_paths(case: Case) -> None:
    graph, targets = case
    ancestors = one_to_many_ancestors(graph, targets)
    expected = {name for name in ancestors if funnels(graph, targets, name)}
    assert prune_unique(graph, targets, ancestors) == expected


def unique_literally(graph: Graph, name: str, target: str) -> bool:
    """The paper's rule 2 for one ancestor and one target: a unique operator on each path."""
    found = all_paths(digraph(graph), name, target)
    return all(any(graph[step].unique for step in path[1:]) for path in found)


@quick
@given(funnelled)
def test_uniqueness_pruning_never_prunes_more_than_the_paper(case: Case) -> None:
    graph, targets = case
    for name in prune_unique(graph, targets, one_to_many_ancestors(graph, targets)):
        for target in targets & behind(digraph(graph), name):
            assert unique_literally(graph, name, target)


@thorough
@given(cases() | funnel_cases())
def test_pruned_plans_are_never_larger(case: Case) -> None:
    graph, targets = case
    whole = fries_unpruned(graph, targets)
    first = fries(graph, targets, uniqueness_pruning=False)
    second = fries(graph, targets, edge_wise_pruning=False)
    both = fries(graph, targets)
    for small, large in ((first, whole), (second, whole), (both, first), (both, second)):
        assert members(small) <= members(large)
        assert edges_of(small) <= edges_of(large)
        assert small.longest_path <= large.longest_path
        assert small.channels <= large.channels
        for part in small.components:
            assert any(set(part.members) <= set(other.members) for other in large.components)
    assert members(naive(graph, targets)) <= members(both)
    assert members(whole) <= members(epoch(graph, targets))


# The paper's literal rule 2 is wrong: where we keep RE


def two_funnels() -> Graph:
    operators = [
        Operator("RE", emits=Emits.ONE_PER_EDGE, source=True),
        Operator("C"),
        Operator("D"),
        Operator("O1", unique=True),
        Operator("O2", unique=True),
        Operator("X"),
    ]
    return Graph(operators, paths("RE -> C -> O1 -> X", "RE -> D -> O2 -> X"))


def test_a_unique_operator_on_each_of_two_paths_lets_two_tuples_through() -> None:
    graph = two_funnels()
    assert unique_literally(graph, "RE", "X"), "the paper's rule would prune RE"
    assert prune_unique(graph, {"X"}, {"RE"}) == frozenset()
    (part,) = fries(graph, {"X"}).components
    assert part.heads == ("RE",)
    assert set(part.members) == {"RE", "C", "D", "O1", "O2", "X"}


def test_a_unique_operator_ahead_of_each_of_two_targets_lets_two_tuples_through() -> None:
    shared = [op for op in two_funnels() if op.name != "X"]
    operators = [*shared, Operator("T1"), Operator("T2")]
    graph = Graph(operators, paths("RE -> C -> O1 -> T1", "RE -> D -> O2 -> T2"))
    targets = {"T1", "T2"}
    assert all(unique_literally(graph, "RE", target) for target in targets)
    assert prune_unique(graph, targets, {"RE"}) == frozenset()
    (part,) = fries(graph, targets).components
    assert part.heads == ("RE",)
    assert set(part.members) == {"RE", "C", "D", "O1", "O2", "T1", "T2"}
    assert [p.members for p in fries(graph, {"T1"}).components] == [("T1",)]


def test_a_unique_target_still_receives_several_tuples() -> None:
    graph = w5()
    assert unique_literally(graph, "RE", "SJ"), "SJ itself is on each path"
    assert prune_unique(graph, {"SJ"}, {"RE"}) == frozenset()
    (part,) = fries(graph, {"SJ"}).components
    assert part.heads == ("RE",)
    assert set(part.members) == {"RE", "FD3", "S1", "F3", "F4", "FD4", "SJ"}
    (part,) = fries(graph, {"SJ", "E1"}).components
    assert part.heads == ("RE",)


def test_a_second_funnel_behind_a_unique_target_does_not_help() -> None:
    operators = [
        Operator("RE", emits=Emits.MANY, source=True),
        Operator("T", unique=True),
        Operator("O", unique=True),
        Operator("X"),
    ]
    graph = Graph(operators, paths("RE -> T -> O -> X"))
    assert [p.heads for p in fries(graph, {"X"}).components] == [("X",)]
    assert [p.heads for p in fries(graph, {"T", "X"}).components] == [("RE",)]


# Section 7.2: the parallel graph


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


def broadcast_alone(graph: Graph) -> Graph:
    """Hash where an operator with several output edges would broadcast."""
    edges = [
        Edge(edge.source, edge.target, Partitioning.HASH, ("user",))
        if edge.partitioning is Partitioning.BROADCAST and len(graph.outputs(edge.source)) > 1
        else edge
        for edge in graph.edges
    ]
    return Graph(graph, edges)


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
@given(cases(small.map(broadcast_alone)) | funnel_cases(small.map(broadcast_alone)), rules)
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


@thorough
@given(cases(small) | funnel_cases(small), rules)
def test_planning_on_operators_is_never_finer_than_on_workers(
    case: Case, rule: tuple[bool, bool]
) -> None:
    """With several output edges, of which some broadcast, the Replicate is finer."""
    star, low, high, lifted = both_levels(case, rule)
    assert {star.worker[vertex] for part in low for vertex in part.members} <= lifted(high.members)
    check_union(star, low, high, lifted)


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


def test_where_planning_on_operators_is_coarser() -> None:
    """V sends a tuple either to all workers of B or to X: only its Replicate must be a head."""
    operators = [Operator("V", source=True), Operator("B", workers=2), Operator("X")]
    edges = [Edge("V", "B", Partitioning.BROADCAST), Edge("V", "X")]
    star, low, high, _ = both_levels((Graph(operators, edges), frozenset("BX")), (True, True))
    assert [set(part.members) for part in high.components] == [{"V", "B", "X"}]
    found = sorted(sorted(part.members) for part in low)
    assert found == [["B#0", "B#1", "V#0*B"], ["X#0"]]
    assert star.replicates == {"V#0*B"}
