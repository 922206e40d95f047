"""The paper's figures and tables, number by number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fries.graph import Emits, Graph
from fries.mcs import find_mcs
from fries.plan import Plan
from fries.schedulers import cover, epoch, fries, fries_unpruned, naive
from fries_lab.workloads import graphs

TABLE = [
    # flow, targets, components with heads in brackets, edges on the longest path
    ("w2", "J1", ["[J1]"], 0),
    ("w2", "J2", ["[J2]"], 0),
    ("w2", "J1 J3", ["[J1] J2 J3"], 2),
    ("w2", "J1 J4", ["[J1] J2 J3 J4"], 3),
    ("w2", "J3 J4", ["[J3] J4"], 1),
    ("w3", "J5", ["[J5]"], 0),
    ("w3", "J5 J6", ["[J5]", "[J6]"], 0),
    ("w3", "J5 J6 J7 J8", ["[J5] [J6] [J7] U1a U1b J8"], 3),
    ("w3", "J5 J6 J7 J9", ["[J5] [J6] [J7] U1a U1b J8 J9"], 4),
    ("w3", "J7 J8 J9", ["[J7] U1b J8 J9"], 3),
    ("w4", "F1 U2", ["[F1] U2"], 1),
    ("w4", "FD1", ["[U2] FD1"], 1),
    ("w4", "F2", ["[U2] FD1 LP FD2 MC F2"], 5),
]

PRUNING = [
    # targets, with pruning, without pruning, edges without pruning
    ("FD4", ["[FD4]"], ["[RE] F4 FD4"], 2),
    ("F3", ["[F3]"], ["[RE] FD3 S1 F3"], 3),
    ("F4", ["[F4]"], ["[RE] F4"], 1),
    ("FD3 FD4", ["[RE] FD3 F4 FD4"], ["[RE] FD3 F4 FD4"], 3),
    ("E1", ["[E1]"], ["[RE] FD3 S1 F3 F4 FD4 SJ E1"], 8),
]


def shown(plan: Plan) -> set[frozenset[str]]:
    """A plan's components as sets of names, heads in brackets."""
    return {
        frozenset(f"[{name}]" if name in part.heads else name for name in part.members)
        for part in plan.components
    }


def as_sets(components: list[str]) -> set[frozenset[str]]:
    return {frozenset(part.split()) for part in components}


def flow(name: str, workers: int = 1) -> Graph:
    graph = getattr(graphs, name)(workers)
    assert isinstance(graph, Graph)
    return graph


def edge_count(plan: Plan) -> int:
    return sum(len(part.edges) for part in plan.components)


# Section 5: the figure of the scope and of its covering sub-DAG


def test_scope_figure_covering_sub_dag() -> None:
    mcs = find_mcs(graphs.scope_figure(), {"C", "F", "G"})
    assert set(mcs.vertices) == set("CDEFG")
    assert {str(edge) for edge in mcs.edges} == {"C -> D", "C -> E", "D -> F", "E -> F"}


def test_scope_figure_components_and_heads() -> None:
    plan = fries(graphs.scope_figure(), {"C", "F", "G"})
    assert shown(plan) == as_sets(["[C] D E F", "[G]"])
    assert plan.heads == ("C", "G")
    assert plan.longest_path == 2
    first = plan.component_of("C")
    assert first is not None
    assert [str(edge) for edge in first.entries] == ["A -> C"]
    assert first.targets == ("C", "F")


def test_running_example_covers_the_two_operators_that_must_agree() -> None:
    assert shown(fries(graphs.running_example(), {"FM", "MC"})) == as_sets(["[FM] MC"])
    assert shown(fries(graphs.running_example(), {"FC", "MC"})) == as_sets(["[FC] FM MC"])
    assert shown(naive(graphs.running_example(), {"FM", "MC"})) == as_sets(["[FM]", "[MC]"])


def test_split_figure_needs_no_synchronisation() -> None:
    plan = fries(graphs.split_figure(), {"C", "D"})
    assert shown(plan) == as_sets(["[C]", "[D]"])
    assert shown(plan) == shown(naive(graphs.split_figure(), {"C", "D"}))


# Section 6: one-to-many operators, and pruning


def test_join_split_example() -> None:
    graph = graphs.join_split_example()
    assert shown(fries_unpruned(graph, {"FMX"})) == as_sets(["[J] SP FMX"])
    assert shown(fries(graph, {"FMX"})) == as_sets(["[J] SP FMX"]), "a Join is not prunable"


def test_join_split_example_with_algorithm_2_is_too_small() -> None:
    graph = graphs.join_split_example()
    (part,) = cover(graph, {"FMX"}, {"FMX"})
    assert (part.members, part.heads) == (("FMX",), ("FMX",))


def test_join_split_example_with_two_earliest_ancestors() -> None:
    """Section 6.2: if FMX and FMY were the one-to-many ones, U would have both as heads."""
    drawn = graphs.join_split_example()
    emits = {"J": Emits.ONE, "FMX": Emits.MANY, "FMY": Emits.MANY}
    operators = [replace(op, emits=emits.get(op.name, op.emits)) for op in drawn]
    assert shown(fries(Graph(operators, drawn.edges), {"U"})) == as_sets(["[FMX] [FMY] U"])


@pytest.mark.parametrize(
    ("case", "edge_wise", "uniqueness", "expected"),
    [
        ("I", True, True, ["[E]"]),
        ("I", True, False, ["[E]"]),
        ("I", False, True, ["[RE] C E"]),
        ("I", False, False, ["[RE] C E"]),
        ("II", True, True, ["[RE] C D E F"]),
        ("II", True, False, ["[RE] C D E F"]),
        ("II", False, True, ["[RE] C D E F"]),
        ("II", False, False, ["[RE] C D E F"]),
        ("III", True, True, ["[RE] C D X"]),
        ("III", True, False, ["[RE] C D X"]),
        ("III", False, True, ["[RE] C D X"]),
        ("III", False, False, ["[RE] C D X"]),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_replicate_figure(
    case: str, edge_wise: bool, uniqueness: bool, expected: list[str], workers: int
) -> None:
    graph, targets = graphs.replicate_cases(workers)[case]
    plan = fries(graph, targets, edge_wise_pruning=edge_wise, uniqueness_pruning=uniqueness)
    assert shown(plan) == as_sets(expected)


@pytest.mark.parametrize(
    ("edge_wise", "uniqueness", "expected"),
    [
        (True, True, ["[E]"]),
        (True, False, ["[RE] C D SJ E"]),
        (False, True, ["[E]"]),
        (False, False, ["[RE] C D SJ E"]),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_self_join_figure(
    edge_wise: bool, uniqueness: bool, expected: list[str], workers: int
) -> None:
    graph = graphs.self_join_figure(workers)
    plan = fries(graph, {"E"}, edge_wise_pruning=edge_wise, uniqueness_pruning=uniqueness)
    assert shown(plan) == as_sets(expected)


# Section 8: the workflows


def test_w1_has_one_operator_to_reconfigure() -> None:
    plan = fries(graphs.w1(40), {"FD"})
    assert shown(plan) == as_sets(["[FD]"])
    assert (plan.channels, plan.total_channels) == (0, 40 * 40 + 40)
    assert plan.longest_path == 0


@pytest.mark.parametrize(("name", "targets", "components", "longest"), TABLE)
@pytest.mark.parametrize("workers", [1, 40])
def test_components_of_the_experiments(
    name: str, targets: str, components: list[str], longest: int, workers: int
) -> None:
    plan = fries(flow(name, workers), targets.split())
    assert shown(plan) == as_sets(components)
    assert plan.longest_path == longest


@pytest.mark.parametrize(("name", "targets", "components", "longest"), TABLE)
def test_pruning_changes_nothing_without_replicate_or_self_join(
    name: str, targets: str, components: list[str], longest: int
) -> None:
    plan = fries_unpruned(flow(name), targets.split())
    assert (shown(plan), plan.longest_path) == (as_sets(components), longest)


@pytest.mark.parametrize(("targets", "pruned", "unpruned", "edges"), PRUNING)
@pytest.mark.parametrize("workers", [1, 40])
def test_pruning_in_w5(
    targets: str, pruned: list[str], unpruned: list[str], edges: int, workers: int
) -> None:
    graph = graphs.w5(workers)
    assert shown(fries(graph, targets.split())) == as_sets(pruned)
    plan = fries_unpruned(graph, targets.split())
    assert shown(plan) == as_sets(unpruned)
    assert edge_count(plan) == edges


def test_pruning_takes_the_edges_of_w5_e1_from_eight_to_zero() -> None:
    assert edge_count(fries_unpruned(graphs.w5(), {"E1"})) == 8
    assert edge_count(fries(graphs.w5(), {"E1"})) == 0


@pytest.mark.parametrize(
    ("targets", "edge_wise", "uniqueness", "expected"),
    [
        ("FD4", True, False, ["[FD4]"]),
        ("FD4", False, True, ["[RE] F4 FD4"]),
        ("E1", True, False, ["[RE] FD3 S1 F3 F4 FD4 SJ E1"]),
        ("E1", False, True, ["[E1]"]),
    ],
)
def test_which_rule_prunes_in_w5(
    targets: str, edge_wise: bool, uniqueness: bool, expected: list[str]
) -> None:
    plan = fries(
        graphs.w5(),
        targets.split(),
        edge_wise_pruning=edge_wise,
        uniqueness_pruning=uniqueness,
    )
    assert shown(plan) == as_sets(expected)


@pytest.mark.parametrize(
    ("workers", "total", "inside"),
    [(1, 5, 3), (4, 68, 48), (12, 588, 432), (20, 1_620, 1_200), (40, 6_440, 4_800)],
)
def test_channels_of_w2(workers: int, total: int, inside: int) -> None:
    graph = graphs.w2(workers)
    plan = fries(graph, {"J1", "J4"})
    assert (plan.total_channels, plan.channels) == (total, inside)
    assert epoch(graph, {"J1", "J4"}).channels == total


@pytest.mark.parametrize("name", ["w1", "w2", "w3", "w4", "w5"])
@pytest.mark.parametrize("workers", [1, 3])
def test_workflows_have_the_workers_asked_for(name: str, workers: int) -> None:
    graph = flow(name, workers)
    assert {op.workers for op in graph} == {workers}
    assert graph.sinks == ("sink",)
    assert graph.pipelined is graph
