"""What a graph refuses, what it promises, and the errors it refuses with."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

import pytest

from fries import errors
from fries.errors import (
    ArgumentError,
    CycleError,
    DuplicateEdgeError,
    DuplicateOperatorError,
    FriesError,
    GraphError,
    TraitError,
    UnknownOperatorError,
    UnreachableOperatorError,
)
from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths
from fries_lab.workloads.graphs import scope_figure, w2, w3


def source(name: str, workers: int = 1) -> Operator:
    return Operator(name, source=True, workers=workers)


def chain(*operators: Operator) -> Graph:
    """The given operators one behind the other, forward."""
    line = " -> ".join(op.name for op in operators)
    return Graph(operators, paths(line) if len(operators) > 1 else [])


# What is refused: the shape


def test_cycle_is_printed_as_a_path_back_to_its_start() -> None:
    operators = [source("S"), Operator("A"), Operator("B"), Operator("C")]
    with pytest.raises(CycleError) as caught:
        Graph(operators, paths("S -> A -> B -> C -> A"))
    assert set(caught.value.cycle) == {"A", "B", "C"}
    turns = [(*caught.value.cycle[i:], *caught.value.cycle[:i]) for i in range(3)]
    assert ("A", "B", "C") in turns
    first = caught.value.cycle[0]
    path = " -> ".join((*caught.value.cycle, first))
    assert str(caught.value) == f"the dataflow has a cycle: {path}; remove one of these edges"


def test_loop_on_one_operator_is_a_cycle() -> None:
    with pytest.raises(CycleError, match="A -> A"):
        Graph([source("S"), Operator("A")], paths("S -> A -> A"))


def test_cycle_names_only_the_operators_in_it() -> None:
    operators = [source("S"), *(Operator(name) for name in "ABCD")]
    with pytest.raises(CycleError) as caught:
        Graph(operators, paths("S -> A -> B -> C -> B", "C -> D"))
    assert set(caught.value.cycle) == {"B", "C"}


@pytest.mark.parametrize(("line", "missing"), [("S -> nope", "nope"), ("nope -> S", "nope")])
def test_edge_to_or_from_an_unknown_operator(line: str, missing: str) -> None:
    with pytest.raises(UnknownOperatorError) as caught:
        Graph([source("S")], paths(line))
    assert caught.value.name == missing
    assert caught.value.known == ("S",)
    assert str(caught.value) == "there is no operator named 'nope'; the operators are S"


def test_long_lists_in_messages_are_shortened() -> None:
    graph = Graph([source(f"o{i}") for i in range(15)], [])
    with pytest.raises(UnknownOperatorError, match=r"o0, .*, o11 and 3 more$"):
        graph["x"]


@pytest.mark.parametrize("ask", ["__getitem__", "inputs", "outputs"])
def test_asking_for_an_unknown_operator(ask: str) -> None:
    with pytest.raises(UnknownOperatorError, match="'nope'"):
        getattr(scope_figure(), ask)("nope")


def test_asking_for_an_edge_that_is_not_there() -> None:
    with pytest.raises(TraitError, match="edge A -> H: there is no such edge"):
        scope_figure().edge("A", "H")
    for names in (("A", "nope"), ("nope", "A")):
        with pytest.raises(UnknownOperatorError, match="'nope'"):
            scope_figure().edge(*names)


def test_duplicate_operator() -> None:
    with pytest.raises(DuplicateOperatorError, match="two operators are named 'S'"):
        Graph([source("S"), Operator("S")], [])


def test_duplicate_edge_even_with_another_partitioning() -> None:
    edges = [Edge("S", "A"), Edge("S", "A", Partitioning.HASH, ("user",))]
    with pytest.raises(DuplicateEdgeError, match="two edges S -> A") as caught:
        Graph([source("S"), Operator("A")], edges)
    assert (caught.value.source, caught.value.target) == ("S", "A")


def test_unreachable_operators_are_all_named() -> None:
    operators = [source("S"), Operator("A"), Operator("B"), Operator("C")]
    with pytest.raises(UnreachableOperatorError) as caught:
        Graph(operators, paths("S -> A", "B -> C"))
    assert caught.value.names == ("B", "C")
    assert "no source reaches B, C;" in str(caught.value)


def test_a_graph_without_a_source_is_unreachable() -> None:
    with pytest.raises(UnreachableOperatorError):
        Graph([Operator("A")], [])


# What is refused: the traits


@pytest.mark.parametrize(
    ("operators", "edges", "where", "problem"),
    [
        pytest.param([source("")], [], "without a name", "give it a name", id="no-name"),
        pytest.param([source("S", 0)], [], "operator 'S'", "0 workers", id="no-workers"),
        pytest.param([source("S", -1)], [], "operator 'S'", "-1 workers", id="minus-workers"),
        pytest.param(
            [source("S"), source("A")],
            paths("S -> A"),
            "operator 'A'",
            "a source and has the input S -> A",
            id="source-with-input",
        ),
        pytest.param(
            [Operator("S", emits=Emits.MANY, unique=True, source=True)],
            [],
            "operator 'S'",
            "contradicts one-to-many",
            id="unique-and-many",
        ),
        pytest.param(
            [
                Operator("S", emits=Emits.ONE_PER_EDGE, unique=True, source=True),
                Operator("A"),
                Operator("B"),
            ],
            paths("S -> A", "S -> B"),
            "operator 'S'",
            "each of its 2 output edges",
            id="unique-and-one-per-edge",
        ),
        pytest.param(
            [source("S", 2), Operator("A", workers=3)],
            paths("S -> A"),
            "edge S -> A",
            "forward needs as many workers on both sides, not 2 and 3",
            id="forward-mismatch",
        ),
        pytest.param(
            [source("S"), Operator("A")],
            paths("S -> A", partitioning=Partitioning.HASH),
            "edge S -> A",
            "hash partitioning needs a key",
            id="hash-without-key",
        ),
        pytest.param(
            [source("S"), Operator("A")],
            paths("S -> A", partitioning=Partitioning.RANGE),
            "edge S -> A",
            "range partitioning needs a key",
            id="range-without-key",
        ),
        pytest.param(
            [source("S"), Operator("A")],
            paths("S -> A", key=("user",)),
            "edge S -> A",
            "forward partitioning takes no key",
            id="forward-with-key",
        ),
        pytest.param(
            [source("S"), Operator("A")],
            paths("S -> A", partitioning=Partitioning.BROADCAST, key=("user",)),
            "edge S -> A",
            "broadcast partitioning takes no key",
            id="broadcast-with-key",
        ),
        pytest.param(
            [source("S"), Operator("A", unique=True, workers=2)],
            paths("S -> A", partitioning=Partitioning.BROADCAST),
            "edge S -> A",
            "brings each transaction to all 2 workers of 'A'",
            id="broadcast-to-unique",
        ),
    ],
)
def test_contradictory_traits(
    operators: list[Operator], edges: list[Edge], where: str, problem: str
) -> None:
    with pytest.raises(TraitError) as caught:
        Graph(operators, edges)
    assert where in caught.value.where
    assert problem in caught.value.problem
    assert str(caught.value) == f"{caught.value.where}: {caught.value.problem}"


@pytest.mark.parametrize(
    ("traits", "problem"),
    [
        ({"name": 7}, "operator 7: name is 7; give a text"),
        ({"emits": "one-to-many"}, "operator 'A': emits is 'one-to-many'; give a member of Emits"),
        ({"workers": 1.5}, "operator 'A': workers is 1.5; give a whole number"),
        ({"workers": True}, "operator 'A': workers is True; give a whole number"),
        ({"unique": "no"}, "operator 'A': unique is 'no'; give True or False"),
        ({"blocking": 0}, "operator 'A': blocking is 0; give True or False"),
        ({"source": None}, "operator 'A': source is None; give True or False"),
    ],
)
def test_operators_with_fields_of_a_wrong_type(traits: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(problem)):
        Graph([Operator(**{"name": "A", "source": True, **traits})], [])


@pytest.mark.parametrize(
    ("traits", "problem"),
    [
        ({"partitioning": "broadcast"}, "partitioning is 'broadcast'; give a member of"),
        ({"key": "city"}, """key is 'city'; give a tuple of names, such as key=("city",)"""),
        ({"key": ["user"]}, """give a tuple of names, such as key=("user",)"""),
        ({"key": (1,)}, """key is 1; give a tuple of names, such as key=("user",)"""),
        ({"target": 1}, "an end is 1; give the name of an operator"),
    ],
)
def test_edges_with_fields_of_a_wrong_type(traits: dict[str, Any], problem: str) -> None:
    edge = Edge(**{"source": "S", "target": "A", "partitioning": Partitioning.HASH, **traits})
    with pytest.raises(ArgumentError, match="edge S -> [A1]: .*" + re.escape(problem)):
        Graph([source("S"), Operator("A")], [edge])


@pytest.mark.parametrize(
    ("operators", "edges", "problem"),
    [
        (["S"], [], "the operators of a graph: one is 'S'; give Operator(...)"),
        (None, [], "the operators of a graph: they are None; give a list of them"),
        ([source("S")], [("S", "A")], "the edges of a graph: one is ('S', 'A'); give Edge(...)"),
        ([source("S")], Edge("S", "A"), "the edges of a graph: they are Edge("),
    ],
)
def test_a_graph_of_something_else(operators: Any, edges: Any, problem: str) -> None:  # noqa: ANN401
    with pytest.raises(ArgumentError, match=re.escape(problem)):
        Graph(operators, edges)


@pytest.mark.parametrize("name", [["A"], None, 5])
def test_what_is_no_name_names_no_operator(name: Any) -> None:  # noqa: ANN401
    with pytest.raises(UnknownOperatorError):
        Graph([source("S")], [])[name]


@pytest.mark.parametrize("length", [12, 13, 5_000])
def test_a_long_cycle_is_shortened(length: int) -> None:
    names = [f"o{number:06}" for number in range(length)]
    edges = [Edge(one, other) for one, other in zip(names, [*names[1:], names[0]], strict=True)]
    with pytest.raises(CycleError) as caught:
        Graph([source("S"), *map(Operator, names)], edges)
    assert len(caught.value.cycle) == length
    shown = str(caught.value).split(": ")[1].split("; ")[0].split(" -> ")
    assert len(shown) == (13 if length == 12 else 14)
    assert shown[0] == shown[-1]
    assert (f"({length - 12} more)" in shown) == (length > 12)


@pytest.mark.parametrize("line", ["A -> ", "-> A", "A -> -> B", ""])
def test_paths_with_a_name_missing(line: str) -> None:
    with pytest.raises(ArgumentError, match="a name is missing"):
        paths("A -> B", line)


def test_one_per_edge_may_be_unique_with_a_single_output() -> None:
    unique = Operator("S", emits=Emits.ONE_PER_EDGE, unique=True, source=True)
    assert chain(unique, Operator("A"))["S"].unique


@pytest.mark.parametrize(
    "partitioning", [Partitioning.HASH, Partitioning.RANGE, Partitioning.BROADCAST]
)
def test_other_partitionings_allow_different_worker_counts(partitioning: Partitioning) -> None:
    key = () if partitioning is Partitioning.BROADCAST else ("user",)
    operators = [source("S", 2), Operator("A", workers=3)]
    graph = Graph(operators, paths("S -> A", partitioning=partitioning, key=key))
    assert graph.channels(graph.edge("S", "A")) == 6


# What is promised


def test_reading_a_graph() -> None:
    graph = scope_figure()
    assert len(graph) == 8
    assert [op.name for op in graph] == ["A", "C", "D", "F", "H", "E", "B", "G"]
    assert repr(graph) == "<Graph of 8 operators and 8 edges>"
    assert "A" in graph
    assert "Z" not in graph
    assert 1 not in graph
    assert graph["C"] == Operator("C")
    assert graph.sources == ("A", "B")
    assert graph.sinks == ("H",)
    assert [str(edge) for edge in graph.inputs("F")] == ["D -> F", "E -> F"]
    assert [str(edge) for edge in graph.outputs("C")] == ["C -> D", "C -> E"]
    assert graph.edge("B", "G") == Edge("B", "G")
    assert len(graph.edges) == 8


def test_an_operator_alone_and_an_empty_graph() -> None:
    alone = chain(source("S"))
    assert (alone.sources, alone.sinks, alone.order) == (("S",), ("S",), ("S",))
    assert alone.regions == (frozenset({"S"}),)
    empty = Graph([], [])
    assert (len(empty), empty.order, empty.regions) == (0, (), ())


def test_paths_counts_an_edge_on_several_lines_once() -> None:
    assert paths("A -> B -> C", "B->C", " A ->  D") == [
        Edge("A", "B"),
        Edge("B", "C"),
        Edge("A", "D"),
    ]
    assert paths() == []


def test_order_is_topological_and_position_its_inverse() -> None:
    graph = w3()
    for edge in graph.edges:
        assert graph.position[edge.source] < graph.position[edge.target]
    assert sorted(graph.order) == sorted(op.name for op in graph)
    assert [graph.position[name] for name in graph.order] == list(range(len(graph)))


def test_order_depends_on_the_given_order_only() -> None:
    assert scope_figure().order == scope_figure().order
    assert scope_figure().order == ("A", "B", "C", "G", "D", "E", "F", "H")


def test_everything_printed_is_the_same_under_every_hash_seed() -> None:
    program = (
        "from fries.schedulers import SCHEDULERS\n"
        "from fries_lab.workloads.graphs import w3, w5\n"
        "for graph, targets in ((w3(), {'J5', 'J6', 'J7'}), (w5(), {'FD3', 'FD4', 'E1'})):\n"
        "    print(graph.order, [sorted(region) for region in graph.regions])\n"
        "    for plan in SCHEDULERS.values():\n"
        "        print(plan(graph, targets), plan(graph, targets).to_dot())\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert "J9" in printed.pop()


def test_without_blocking_operators_the_pipelined_graph_is_the_graph() -> None:
    graph = scope_figure()
    assert graph.pipelined is graph
    assert graph.regions == (frozenset("ABCDEFGH"),)


def test_a_blocking_operator_cuts_behind_itself() -> None:
    graph = chain(source("S"), Operator("A"), Operator("B", blocking=True), Operator("C"))
    cut = graph.pipelined
    assert [str(edge) for edge in cut.edges] == ["S -> A", "A -> B"]
    assert cut.sources == ("S", "C")
    assert not cut["B"].blocking, "its region ends there"
    assert graph.regions == (frozenset({"S", "A", "B"}), frozenset({"C"}))
    assert graph.sources == ("S",), "the graph itself is as it was"
    assert cut.pipelined is cut


def test_a_receiver_with_a_pipelined_input_left_stays_fed() -> None:
    operators = [source("S"), Operator("B", blocking=True), Operator("C"), Operator("D")]
    graph = Graph(operators, paths("S -> B -> C -> D", "S -> C"))
    assert graph.pipelined.sources == ("S",)
    assert graph.regions == (frozenset({"S", "B", "C", "D"}),)


@pytest.mark.parametrize(
    "behind",
    [
        Operator("C", emits=Emits.MANY, blocking=True, workers=3),
        Operator("C", emits=Emits.ONE_PER_EDGE, unique=True, workers=3),
    ],
)
def test_the_cut_keeps_every_other_trait(behind: Operator) -> None:
    operators = [source("S", 3), Operator("B", blocking=True, workers=3), behind]
    graph = Graph(operators, paths("S -> B -> C"))
    assert graph.pipelined["C"] == dataclasses.replace(behind, source=True, blocking=False)


def test_a_blocking_sink_has_nothing_to_cut() -> None:
    graph = chain(source("S"), Operator("B", blocking=True))
    assert graph.pipelined.edges == graph.edges
    assert graph.pipelined["B"] == Operator("B")


def test_each_branch_behind_a_blocking_operator_is_a_region() -> None:
    operators = [source("S"), Operator("B", blocking=True), Operator("C"), Operator("D")]
    graph = Graph(operators, paths("S -> B -> C", "B -> D"))
    assert graph.regions == (frozenset({"S", "B"}), frozenset({"C"}), frozenset({"D"}))


def test_blocking_sources_and_blocking_neighbours() -> None:
    operators = [
        Operator("S", blocking=True, source=True),
        Operator("B", blocking=True),
        Operator("C"),
    ]
    graph = Graph(operators, paths("S -> B -> C"))
    assert graph.pipelined.edges == ()
    assert graph.regions == (frozenset("S"), frozenset("B"), frozenset("C"))


@pytest.mark.parametrize(
    ("partitioning", "key", "expected"),
    [
        (Partitioning.FORWARD, (), 4),
        (Partitioning.HASH, ("user",), 16),
        (Partitioning.RANGE, ("user",), 16),
        (Partitioning.BROADCAST, (), 16),
    ],
)
def test_channels_of_an_edge(
    partitioning: Partitioning, key: tuple[str, ...], expected: int
) -> None:
    operators = [source("S", 4), Operator("A", workers=4)]
    graph = Graph(operators, paths("S -> A", partitioning=partitioning, key=key))
    assert graph.channels(graph.edge("S", "A")) == expected


def test_channels_are_counted_and_not_built() -> None:
    workers = 1_000_000
    graph = w2(workers)
    total = sum(graph.channels(edge) for edge in graph.edges)
    assert total == 4 * workers**2 + workers


@pytest.mark.parametrize("receivers", [1, 2])
@pytest.mark.parametrize("partitioning", list(Partitioning))
def test_only_a_broadcast_to_several_workers_fans_out(
    partitioning: Partitioning, receivers: int
) -> None:
    key = ("user",) if partitioning in (Partitioning.HASH, Partitioning.RANGE) else ()
    senders = receivers if partitioning is Partitioning.FORWARD else 3
    operators = [source("S", senders), Operator("A", workers=receivers)]
    graph = Graph(operators, paths("S -> A", partitioning=partitioning, key=key))
    expected = partitioning is Partitioning.BROADCAST and receivers > 1
    assert graph.fans_out(graph.edge("S", "A")) is expected


# The errors themselves


def error_classes(base: type[FriesError] = FriesError) -> Iterator[type[FriesError]]:
    """Every error of Fries, found by walking the tree."""
    if base.__module__.startswith("fries"):
        yield base
    for below in base.__subclasses__():
        yield from error_classes(below)


def sample(hint: object) -> object:
    """Some value of a field's type."""
    if hint in (str, object):
        return 'it\'s "x"'
    if hint is bool:
        return True
    if hint is int:
        return 7
    if hint is float:
        return 1.5
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return (sample(arguments[0]), sample(arguments[0]))
    if origin is tuple:
        return tuple(sample(argument) for argument in arguments)
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if origin in (UnionType, typing.Union):
        return sample(arguments[0])
    raise AssertionError(f"tell this test how to make a {hint}")


def build(kind: type[FriesError]) -> FriesError:
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {f.name: sample(hints[f.name]) for f in dataclasses.fields(kind)}
    return kind(**fields)


def values(error: FriesError) -> dict[str, object]:
    return {field.name: getattr(error, field.name) for field in dataclasses.fields(error)}


@pytest.mark.parametrize("kind", [*error_classes()], ids=lambda kind: str(kind.__name__))
def test_errors_survive_pickling_and_copying(kind: type[FriesError]) -> None:
    error = build(kind)
    copies = [
        pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for again in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert values(again) == values(error)
        assert str(again) == str(error)


@pytest.mark.parametrize("kind", [*error_classes()], ids=lambda kind: str(kind.__name__))
def test_errors_show_their_fields_in_the_message(kind: type[FriesError]) -> None:
    error = build(kind)
    assert str(error)
    for value in values(error).values():
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        for part in parts if isinstance(parts, tuple) else (parts,):
            assert str(part) in str(error) or repr(part) in str(error)


def test_the_drawn_error_tree_is_the_real_one() -> None:
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^[\s|]*(\+-- )?(\w+Error)\b", line)
        if not found:
            continue
        column, name = found.start(2), found.group(2)
        while above and above[-1][0] >= column:
            above.pop()
        drawn[name] = above[-1][1] if above else "Exception"
        above.append((column, name))
    own = [kind for kind in error_classes() if kind.__module__ == errors.__name__]
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in own}


def test_one_base_catches_all_refusals_of_a_graph() -> None:
    with pytest.raises(GraphError):
        Graph([Operator("A")], [])
    with pytest.raises(FriesError):
        Graph([source("A"), source("A")], [])
