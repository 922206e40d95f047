"""The plan of every scheduler on small graphs, and how plans are printed and drawn."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from fries.errors import (
    EmptyUpdateError,
    PlanError,
    UnknownOperatorError,
    UnknownSchedulerError,
    UsageError,
)
from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths
from fries.mcs import find_mcs
from fries.plan import CommitPoint, Plan, Propagation, brackets
from fries.schedulers import (
    SCHEDULERS,
    Scheduler,
    cover,
    epoch,
    fries,
    fries_unpruned,
    mini_batch,
    multi_version,
    naive,
    restart,
    scheduler,
)
from fries_lab.workloads.graphs import (
    join_split_example,
    running_example,
    scope_figure,
    self_join_figure,
    w2,
    w5,
)

EVERY = sorted(SCHEDULERS)


def shown(plan: Plan) -> list[str]:
    return [brackets(part) for part in plan.components]


def source(name: str, workers: int = 1) -> Operator:
    return Operator(name, source=True, workers=workers)


def blocked() -> Graph:
    """S -> A -> B | C -> D -> T and S2 -> C, where B blocks; and B | E on its own."""
    operators = [
        source("S"),
        Operator("A", emits=Emits.MANY),
        Operator("B", blocking=True),
        source("S2"),
        Operator("C"),
        Operator("D", emits=Emits.MANY),
        Operator("T"),
        Operator("E"),
    ]
    return Graph(operators, paths("S -> A -> B -> C -> D -> T", "S2 -> C", "B -> E"))


def broadcasting(receivers: int, *, emits: Emits = Emits.ONE) -> Graph:
    """S -> A -> B -> T, where A broadcasts to the workers of B."""
    operators = [
        source("S"),
        Operator("A", emits=emits),
        Operator("B", workers=receivers),
        Operator("T", workers=receivers),
    ]
    edges = [*paths("S -> A", "B -> T"), Edge("A", "B", Partitioning.BROADCAST)]
    return Graph(operators, edges)


# Each scheduler's plan


@pytest.mark.parametrize(
    ("name", "commit", "propagation"),
    [
        ("fries", CommitPoint.NOW, Propagation.MARKERS),
        ("fries_unpruned", CommitPoint.NOW, Propagation.MARKERS),
        ("epoch", CommitPoint.NOW, Propagation.MARKERS),
        ("multi_version", CommitPoint.NOW, Propagation.TAGS),
        ("naive", CommitPoint.NOW, Propagation.MARKERS),
        ("mini_batch", CommitPoint.NEXT_BATCH, Propagation.MARKERS),
        ("restart", CommitPoint.RESTART, Propagation.MARKERS),
    ],
)
def test_commit_point_and_propagation(
    name: str, commit: CommitPoint, propagation: Propagation
) -> None:
    graph = running_example()
    plan = scheduler(name)(graph, {"MC", "FM"})
    assert plan.scheduler == name
    assert plan.graph is graph
    assert plan.targets == ("FM", "MC"), "targets come in topological order"
    assert (plan.commit, plan.propagation) == (commit, propagation)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fries", ["{[C], D, E, F}", "{[G]}"]),
        ("fries_unpruned", ["{[C], D, E, F}", "{[G]}"]),
        ("epoch", ["{[A], [B], C, G, D, E, F, H}"]),
        ("multi_version", ["{[A], C, D, E, F}", "{[B], G}"]),
        ("naive", ["{[C]}", "{[G]}", "{[F]}"]),
        ("mini_batch", ["{[A], [B], C, G, D, E, F, H}"]),
        ("restart", ["{[A], [B], C, G, D, E, F, H}"]),
    ],
)
def test_components_on_the_scope_figure(name: str, expected: list[str]) -> None:
    assert shown(scheduler(name)(scope_figure(), {"C", "F", "G"})) == expected


def test_the_table_of_schedulers_names_each_by_its_function() -> None:
    expected = {
        "fries": fries,
        "fries_unpruned": fries_unpruned,
        "epoch": epoch,
        "multi_version": multi_version,
        "naive": naive,
        "mini_batch": mini_batch,
        "restart": restart,
    }
    assert expected == SCHEDULERS
    assert all(scheduler(name) is function for name, function in expected.items())


def test_a_plan_says_which_rules_it_used() -> None:
    graph = w5()
    assert fries(graph, {"E1"}, edge_wise_pruning=False).scheduler == "fries"
    assert fries(graph, {"E1"}, uniqueness_pruning=False).scheduler == "fries"
    plain = fries(graph, {"E1"}, edge_wise_pruning=False, uniqueness_pruning=False)
    assert plain.scheduler == fries_unpruned(graph, {"E1"}).scheduler == "fries_unpruned"


def test_one_to_many_target_is_its_own_head() -> None:
    assert shown(fries(join_split_example(), {"J"})) == ["{[J]}"]
    assert shown(fries(join_split_example(), {"J", "FMX"})) == ["{[J], SP, FMX}"]


def test_earliest_of_two_one_to_many_operators_is_the_head() -> None:
    operators = [source("S"), *(Operator(name, emits=Emits.MANY) for name in "AB"), Operator("T")]
    graph = Graph(operators, paths("S -> A -> B -> T"))
    assert shown(fries(graph, {"T"})) == ["{[A], B, T}"]


def test_pruning_the_earliest_makes_the_next_one_the_head() -> None:
    operators = [
        source("S"),
        Operator("RE", emits=Emits.ONE_PER_EDGE),
        Operator("J", emits=Emits.MANY),
        Operator("T"),
        Operator("O"),
    ]
    graph = Graph(operators, paths("S -> RE -> J -> T", "RE -> O"))
    assert shown(fries_unpruned(graph, {"T"})) == ["{[RE], J, T}"]
    assert shown(fries(graph, {"T"})) == ["{[J], T}"]


def test_a_source_can_be_a_target_and_a_head() -> None:
    assert shown(fries(running_example(), {"source", "FM"})) == ["{[source], FC, FM}"]
    operators = [Operator("S", emits=Emits.MANY, source=True), Operator("T")]
    assert shown(fries(Graph(operators, paths("S -> T")), {"T"})) == ["{[S], T}"]


def test_entries_are_the_edges_from_outside() -> None:
    (part,) = fries(scope_figure(), {"D", "H"}).components
    assert brackets(part) == "{[D], F, H}"
    assert [str(edge) for edge in part.entries] == ["C -> D", "E -> F", "G -> H"]
    assert part.targets == ("D", "H")
    (first, second) = naive(running_example(), {"FM", "MC"}).components
    assert [str(edge) for edge in (*first.entries, *second.entries)] == ["FC -> FM", "FM -> MC"]


def test_longest_path_when_a_late_head_has_a_short_way() -> None:
    operators = [source("S1"), source("S2"), *(Operator(name) for name in "PQXABT")]
    graph = Graph(operators, paths("S1 -> P -> Q -> X -> T", "S2 -> A -> B -> T"))
    plan = fries(graph, {"A", "X", "T"})
    assert set(plan.heads) == {"A", "X"}
    assert graph.position["X"] > graph.position["B"]
    assert plan.longest_path == 2


def test_cover_is_algorithm_2_on_the_given_operators() -> None:
    parts = cover(scope_figure(), {"C", "F", "G"}, {"F"})
    assert [brackets(part) for part in parts] == ["{[C], D, E, F}", "{[G]}"]
    assert [part.targets for part in parts] == [("F",), ()]


# What cannot be planned


@pytest.mark.parametrize("name", EVERY)
def test_unknown_operator(name: str) -> None:
    with pytest.raises(UnknownOperatorError, match="no operator named 'nope'"):
        scheduler(name)(running_example(), {"FM", "nope"})


@pytest.mark.parametrize("name", EVERY)
def test_empty_update(name: str) -> None:
    with pytest.raises(EmptyUpdateError, match="name at least one operator") as caught:
        scheduler(name)(running_example(), [])
    assert isinstance(caught.value, PlanError)


@pytest.mark.parametrize("name", EVERY)
def test_one_text_is_not_taken_as_its_letters(name: str) -> None:
    with pytest.raises(UsageError, match=r"not one text: \['CD'\]"):
        scheduler(name)(scope_figure(), "CD")


@pytest.mark.parametrize("name", EVERY)
def test_targets_that_are_none_or_no_names(name: str) -> None:
    wrong: Any = None
    with pytest.raises(UsageError, match="they are None; give a list or a mapping of names"):
        scheduler(name)(scope_figure(), wrong)
    wrong = [["C"]]
    with pytest.raises(UnknownOperatorError):
        scheduler(name)(scope_figure(), wrong)


def test_an_unknown_operator_cannot_be_covered() -> None:
    with pytest.raises(UnknownOperatorError, match="there is no operator named 'nope'"):
        find_mcs(scope_figure(), {"C", "nope"})


def test_unknown_scheduler() -> None:
    with pytest.raises(UnknownSchedulerError) as caught:
        scheduler("chi")
    assert caught.value.name == "chi"
    assert caught.value.known == tuple(SCHEDULERS)
    assert "there is no scheduler 'chi'; choose one of fries, " in str(caught.value)


@pytest.mark.parametrize("name", EVERY)
def test_a_name_given_twice_counts_once(name: str) -> None:
    plan = scheduler(name)(running_example(), ["MC", "FM", "MC"])
    assert plan.targets == ("FM", "MC")


# Blocking operators cut plans into regions


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        ("fries", "B C", ["{[A], B}", "{[C]}"]),
        ("fries", "A T", ["{[A]}", "{[D], T}"]),
        ("fries", "T E", ["{[E]}", "{[D], T}"]),
        ("fries_unpruned", "B C", ["{[A], B}", "{[C]}"]),
        ("epoch", "T", ["{[S2], C, D, T}"]),
        ("epoch", "A", ["{[S], A, B}"]),
        ("epoch", "A E", ["{[S], A, B}", "{[E]}"]),
        ("multi_version", "T", ["{[S2], C, D, T}"]),
        ("multi_version", "A C", ["{[S], A}", "{[S2], C}"]),
        ("naive", "B C", ["{[B]}", "{[C]}"]),
        ("mini_batch", "B", ["{[S], A, B}"]),
        ("restart", "B T", ["{[S], A, B}", "{[S2], C, D, T}"]),
    ],
)
def test_no_component_crosses_a_blocking_operator(
    name: str, targets: str, expected: list[str]
) -> None:
    plan = scheduler(name)(blocked(), targets.split())
    assert sorted(shown(plan)) == sorted(expected)


def test_what_lies_ahead_of_a_blocking_operator_is_no_ancestor() -> None:
    graph = blocked()
    assert graph["A"].emits is Emits.MANY
    assert shown(fries(graph, {"C"})) == ["{[C]}"]
    assert shown(fries(graph, {"B"})) == ["{[A], B}"]


def test_a_blocking_operators_own_fan_out_does_not_count() -> None:
    operators = [source("S"), Operator("B", emits=Emits.MANY, blocking=True), Operator("T")]
    assert shown(fries(Graph(operators, paths("S -> B -> T")), {"T"})) == ["{[T]}"]


def test_channels_behind_a_blocking_operator_still_count_in_the_total() -> None:
    plan = epoch(blocked(), {"A"})
    assert (plan.channels, plan.total_channels) == (2, len(blocked().edges))


# A broadcast is an added Replicate behind the broadcasting worker


@pytest.mark.parametrize("plan", [fries, fries_unpruned])
def test_broadcast_to_several_workers_makes_the_sender_the_head(
    plan: Scheduler,
) -> None:
    assert shown(plan(broadcasting(3), {"T"})) == ["{[A], B, T}"]
    assert shown(plan(broadcasting(3), {"B"})) == ["{[A], B}"]


@pytest.mark.parametrize("plan", [fries, fries_unpruned])
def test_broadcast_to_one_worker_does_not(plan: Scheduler) -> None:
    assert shown(plan(broadcasting(1), {"T"})) == ["{[T]}"]


def test_broadcast_behind_or_beside_the_target_does_not() -> None:
    assert shown(fries(broadcasting(3), {"A"})) == ["{[A]}"]
    assert shown(fries(broadcasting(3), {"S"})) == ["{[S]}"]
    operators = [source("S"), Operator("A"), Operator("T"), Operator("B", workers=2)]
    edges = [*paths("S -> A -> T"), Edge("A", "B", Partitioning.BROADCAST)]
    assert shown(fries(Graph(operators, edges), {"T"})) == ["{[T]}"]


def test_what_leads_to_the_target_beside_a_broadcast_is_not_covered() -> None:
    operators = [source("S"), Operator("P"), Operator("X"), Operator("T", workers=2)]
    copies = Edge("P", "T", Partitioning.BROADCAST)
    keyed = Edge("X", "T", Partitioning.HASH, ("user",))
    graph = Graph(operators, [*paths("S -> P -> X"), copies, keyed])
    (part,) = fries(graph, {"T"}).components
    assert (part.members, part.heads, part.edges) == (("P", "T"), ("P",), (copies,))
    assert part.entries == (graph.edge("S", "P"), keyed)
    assert shown(fries(graph, {"X", "T"})) == ["{[P], [X], T}"]


@pytest.mark.parametrize(("receivers", "expected"), [(1, "{[T]}"), (2, "{[A], B, T}")])
def test_a_replicate_that_broadcasts_is_pruned_for_one_receiver_only(
    receivers: int, expected: str
) -> None:
    graph = broadcasting(receivers, emits=Emits.ONE_PER_EDGE)
    assert shown(fries(graph, {"T"})) == [expected]
    assert shown(fries_unpruned(graph, {"T"})) == ["{[A], B, T}"]


def test_a_replicate_is_pruned_when_its_broadcast_leads_elsewhere() -> None:
    operators = [
        source("S"),
        Operator("RE", emits=Emits.ONE_PER_EDGE),
        Operator("T"),
        Operator("B", workers=2),
    ]
    edges = [*paths("S -> RE -> T"), Edge("RE", "B", Partitioning.BROADCAST)]
    assert shown(fries(Graph(operators, edges), {"T"})) == ["{[T]}"]
    assert shown(fries(Graph(operators, edges), {"T", "B"})) == ["{[RE], T, B}"]


def test_a_unique_operator_that_broadcasts_prunes_what_is_ahead_and_becomes_the_head() -> None:
    drawn = self_join_figure()
    operators = [Operator("E", workers=2) if op.name == "E" else op for op in drawn]
    edges = [
        Edge("SJ", "E", Partitioning.BROADCAST) if edge.source == "SJ" else edge
        for edge in drawn.edges
    ]
    assert shown(fries(Graph(operators, edges), {"E"})) == ["{[SJ], E}"]


def test_a_broadcast_can_be_funnelled_by_a_unique_operator() -> None:
    operators = [
        source("S"),
        Operator("B", workers=2),
        Operator("SJ", unique=True),
        Operator("T"),
    ]
    edges = [
        Edge("S", "B", Partitioning.BROADCAST),
        Edge("B", "SJ", Partitioning.HASH, ("transaction_id",)),
        Edge("SJ", "T"),
    ]
    assert shown(fries(Graph(operators, edges), {"T"})) == ["{[T]}"]
    assert shown(fries(Graph(operators, edges), {"SJ"})) == ["{[S], B, SJ}"]


# Reading a plan


def test_members_heads_and_component_of() -> None:
    plan = fries(scope_figure(), {"C", "F", "G"})
    assert plan.members == ("C", "D", "E", "F", "G")
    assert plan.heads == ("C", "G")
    first, second = plan.components
    assert plan.component_of("E") is first
    assert plan.component_of("G") is second
    assert plan.component_of("H") is None


def test_plan_as_text() -> None:
    assert str(fries(w2(40), {"J4", "J1"})) == (
        "fries: update J1, J4 at once\n"
        "  components     1\n"
        "    1. {[J1], J2, J3, J4}, longest path 3\n"
        "  longest path   3\n"
        "  channels       4,800 of 6,440"
    )
    assert str(mini_batch(scope_figure(), {"G"})).startswith(
        "mini_batch: update G at the next mini-batch boundary\n"
    )
    assert str(fries(scope_figure(), {"C", "F", "G"})).splitlines()[1:4] == [
        "  components     2",
        "    1. {[C], D, E, F}, longest path 2",
        "    2. {[G]}, longest path 0",
    ]
    assert "after a stop and a restart" in str(restart(scope_figure(), {"G"}))


# Drawing a plan: Graphviz and Mermaid are not needed to check the text


def nasty() -> Graph:
    """Names with everything that needs escaping: quotes, backslashes, braces, keywords."""
    names = ['say "hi"', "back\\slash", "{brace", "end", "a -> b", "ends with \\"]
    operators = [source(names[0]), *(Operator(name) for name in names[1:])]
    edges = [Edge(a, b) for a, b in itertools.pairwise(names)]
    return Graph(operators, edges)


DOT_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def dot_name(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def read_dot(text: str) -> tuple[list[str], list[tuple[str, str, bool]], str]:
    """The nodes, the edges (and whether they are red) and what is left without strings."""
    nodes, edges = [], []
    for line in text.splitlines():
        strings = DOT_STRING.findall(line)
        bare = DOT_STRING.sub("@", line).strip()
        if bare.startswith("@ -> @"):
            edges.append((dot_name(strings[0]), dot_name(strings[1]), "color=red" in bare))
        elif bare.startswith("@"):
            nodes.append(dot_name(strings[0]))
    return nodes, edges, DOT_STRING.sub("@", text)


@pytest.mark.parametrize(
    ("graph", "targets"),
    [
        (scope_figure(), {"C", "F", "G"}),
        (w5(4), {"FD3", "FD4"}),
        (blocked(), {"B", "T", "E"}),
        (nasty(), {"back\\slash", "end"}),
    ],
    ids=["scope", "w5", "blocked", "nasty"],
)
@pytest.mark.parametrize("name", EVERY)
def test_dot_has_every_operator_and_edge_once(name: str, graph: Graph, targets: set[str]) -> None:
    plan = scheduler(name)(graph, targets)
    nodes, edges, bare = read_dot(plan.to_dot())
    assert sorted(nodes) == sorted(op.name for op in graph)
    red = {(e.source, e.target) for part in plan.components for e in part.edges}
    assert edges == [(e.source, e.target, (e.source, e.target) in red) for e in graph.edges]
    assert bare.count("{") == bare.count("}") == 1 + len(plan.components)
    assert bare.count("[") == bare.count("]")
    assert '"' not in bare
    assert bare.startswith("digraph plan {\n")
    assert bare.endswith("\n}")
    assert [f"cluster_{i} " in bare for i in range(len(plan.components))].count(False) == 0


def test_dot_marks_targets_heads_and_component_edges() -> None:
    text = fries(scope_figure(), {"C", "F"}).to_dot()
    assert '    "C" [style=filled, fillcolor="#ff9999", penwidth=3];' in text
    assert '    "F" [style=filled, fillcolor="#ff9999"];' in text
    assert '    "D";' in text
    assert '  "H";' in text
    assert '  "C" -> "D" [color=red];' in text
    assert '  "A" -> "C";' in text


def test_dot_escapes_quotes_and_backslashes() -> None:
    text = naive(nasty(), {'say "hi"'}).to_dot()
    assert '"say \\"hi\\""' in text
    assert '"back\\\\slash"' in text
    assert '"ends with \\\\";' in text


@pytest.mark.parametrize(
    ("graph", "targets"),
    [(scope_figure(), {"C", "F", "G"}), (blocked(), {"B", "T"}), (nasty(), {"end"})],
    ids=["scope", "blocked", "nasty"],
)
@pytest.mark.parametrize("name", EVERY)
def test_mermaid_has_every_operator_and_edge_once(
    name: str, graph: Graph, targets: set[str]
) -> None:
    plan = scheduler(name)(graph, targets)
    lines = plan.to_mermaid().splitlines()
    assert lines[0] == "flowchart LR"
    declared = [re.fullmatch(r'\s+(n\d+)\["([^"]*)"\]', line) for line in lines]
    ids = {m.group(2).replace("#quot;", '"'): m.group(1) for m in declared if m}
    assert sorted(ids) == sorted(op.name for op in graph)
    assert len([m for m in declared if m]) == len(set(ids.values())) == len(graph)
    arrows = [line.strip() for line in lines if "-->" in line]
    assert arrows == [f"{ids[edge.source]} --> {ids[edge.target]}" for edge in graph.edges]
    opened = [line for line in lines if line.startswith("  subgraph ")]
    assert len(opened) == lines.count("  end") == len(plan.components)
    for kind, names in (("target", plan.targets), ("head", plan.heads)):
        assert f"  class {','.join(ids[name] for name in names)} {kind}" in lines


def test_mermaid_escapes_quotes() -> None:
    assert '["say #quot;hi#quot;"]' in naive(nasty(), {"end"}).to_mermaid()
