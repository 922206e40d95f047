"""The planning algorithms against oracles written from the paper's definitions.

The oracles enumerate: sub-DAGs, paths, workers and channels. They share no code with
``fries.mcs`` but the graph, and are exponential, so the graphs are small.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.broadcasts import replicated
from fries.dominators import END, post_dominators
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
from fries.schedulers import SCHEDULERS, epoch, fries, fries_unpruned, naive
from fries_lab.workloads.graphs import w5
from tests.property.oracles import (
    ahead_of,
    all_paths,
    behind,
    digraph,
    earliest,
    edges_of,
    is_there_for_a_broadcast,
    members,
    one_to_many_ahead,
)
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
    for edge in within - set(part.edges):
        assert graph[edge.source].blocking or is_there_for_a_broadcast(graph, part, edge.source)


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
    copied = replicated(graph.pipelined)
    cut = copied.graph
    ancestors = one_to_many_ancestors(cut, targets)
    pruned = prune_edge_wise(cut, targets, ancestors) | prune_unique(cut, targets, ancestors)
    for plan, kept in (
        (fries_unpruned(graph, targets), ancestors),
        (fries(graph, targets), ancestors - pruned),
    ):
        for name in kept:
            part = plan.component_of(copied.senders.get(name, name))
            assert part is not None
            assert targets & behind(digraph(cut), name) <= set(part.members)


@thorough
@given(cases() | funnel_cases())
def test_heads_are_targets_or_earliest_ancestors(case: Case) -> None:
    """Lemma "hybrid-component-head": nothing kept that multiplies tuples is ahead of a head."""
    graph, targets = case
    copied = replicated(graph.pipelined)
    cut = copied.graph
    ancestors = one_to_many_ancestors(cut, targets)
    pruned = prune_edge_wise(cut, targets, ancestors) | prune_unique(cut, targets, ancestors)
    for plan, kept in (
        (fries_unpruned(graph, targets), ancestors),
        (fries(graph, targets), ancestors - pruned),
    ):
        earliest_kept = compute_earliest_ancestors(cut, kept)
        for head in plan.heads:
            assert head in targets | {copied.senders.get(name, name) for name in earliest_kept}
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
    """A broadcast leads to one receiver only: with its Replicate for an operator, as here."""
    graph, targets = case
    copied = replicated(graph)
    covered = set(targets)
    for target in targets:
        covered |= earliest(digraph(copied.graph), one_to_many_ahead(copied.graph, target))
    mcs = copied.contracted(find_mcs(copied.graph, covered))
    plan = fries_unpruned(graph, targets)
    assert (set(mcs.vertices), set(mcs.edges)) == (members(plan), edges_of(plan))


def test_an_operator_that_multiplies_beside_a_broadcast_is_a_head_of_its_own() -> None:
    """U broadcasts towards T1; towards T2 it is one-to-one, and J multiplies behind it."""
    operators = [
        Operator("U", source=True),
        Operator("X"),
        Operator("J", emits=Emits.MANY),
        Operator("T1", workers=2),
        Operator("T2"),
    ]
    broadcast = Edge("U", "T1", Partitioning.BROADCAST)
    graph = Graph(operators, [*paths("U -> X -> J -> T2"), broadcast])
    parts = fries_unpruned(graph, {"T1", "T2"}).components
    assert {part.members for part in parts} == {("U", "T1"), ("J", "T2")}


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


# What rule 2 is built on


@thorough
@given(cases(plain))
def test_post_dominators_are_on_all_paths_to_all_ends(case: Case) -> None:
    graph, ends = case
    built = digraph(graph)
    found = post_dominators(graph, ends)
    leads = set(ends).union(*(ahead_of(built, end) for end in ends))
    assert set(found) == leads
    for name in leads:
        chain = []
        while name != END:
            chain.append(name)
            name = found[name]
        first = chain[0]
        for other in graph.order:
            rest = built.subgraph(leads - {other})
            avoided = first in rest and bool(({first} | behind(rest, first)) & set(ends))
            assert (other in chain) == (not avoided and other in leads)
