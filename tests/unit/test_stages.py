"""Where the exchanges are: stage numbers, the edges of each stage, and how stages are told."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings

from fries.graph import Edge, Emits, Graph
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec
from fries.stages import Exchange, PhysicalFlow, PhysicalStage, explained, physical
from fries.traits import OUTSIDE, graph_of
from fries_lab.workloads.graphs import running_example, self_join_figure, w1, w2, w3, w4, w5
from tests.property.strategies import graphs


@dataclass(frozen=True)
class Laid:
    """A flow as users build it, and its stages."""

    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeSpec, ...]
    outputs: tuple[str, ...]

    @functools.cached_property
    def flow(self) -> PhysicalFlow:
        """Its stages."""
        return physical(self.operators, self.edges)

    @functools.cached_property
    def graph(self) -> Graph:
        """The dataflow as the schedulers see it."""
        sources = tuple(edge.target for edge in self.edges if edge.source == OUTSIDE)
        by_name = {spec.name: spec for spec in self.operators}
        return graph_of(by_name, list(self.edges), sources, self.outputs)

    def explained(self, groups: int = 64) -> str:
        """Its stages for people."""
        return explained("test", self.flow, self.graph, groups)


def columns(name: str) -> pa.Schema:
    """A schema that says whose it is."""
    return pa.schema({name: pa.int64()})


def laid(graph: Graph, kinds: dict[str, Kind] | None = None) -> Laid:
    """A graph as a flow: its sinks are outputs, and what is shuffled to has a key."""
    outputs = [name for name in graph.sinks if name not in graph.sources]
    operators = []
    for name in graph.order:
        if name in outputs:
            continue
        keys = [edge.key for edge in graph.inputs(name) if edge.key]
        kind = (kinds or {}).get(name, Kind.PROCESS if keys else Kind.MAP)
        keying = Keying(keys[0]) if keys else None
        operators.append(OperatorSpec(name, kind, columns(name), keying=keying))
    pairs = [(OUTSIDE, name) for name in graph.sources]
    pairs += [(edge.source, edge.target) for edge in graph.edges]
    pairs += [(name, f"{name} out") for name in graph.sinks if name not in outputs]
    edges = tuple(EdgeSpec(number, *pair) for number, pair in enumerate(pairs))
    ends = {edge.target for edge in edges} - {spec.name for spec in operators}
    return Laid(tuple(operators), edges, tuple(sorted(ends)))


def staged(flow: PhysicalFlow) -> list[list[str]]:
    return [[spec.name for spec in stage.spec.operators] for stage in flow.stages]


def shown(edges: tuple[EdgeSpec, ...]) -> list[str]:
    return [f"{edge.source} -> {edge.target}" for edge in edges]


LOOKUPS = dict.fromkeys((f"J{number}" for number in range(1, 10)), Kind.LOOKUP)


@pytest.mark.parametrize(
    ("graph", "stages"),
    [
        (running_example, [["source"], ["FC"], ["FM", "MC"]]),
        (w1, [["source"], ["FD"]]),
        (w2, [["source"], ["J1"], ["J2"], ["J3"], ["J4"]]),
        (
            w3,
            [["web", "catalog", "store"], ["J5", "J6", "J7", "U1a", "U1b"], ["J8"], ["J9"]],
        ),
        (w4, [["source", "F1", "U2"], ["FD1", "LP"], ["FD2", "MC", "F2"]]),
        (w5, [["source", "RE", "F4"], ["FD3", "FD4"], ["S1", "F3"], ["SJ", "E1"]]),
        (self_join_figure, [["source", "RE", "C", "D"], ["SJ"]]),
    ],
)
def test_the_stages_of_the_papers_flows(
    graph: Callable[[], Graph], stages: list[list[str]]
) -> None:
    flow = laid(graph()).flow
    assert [sorted(names) for names in staged(flow)] == [sorted(names) for names in stages]


def test_a_stage_with_only_lookups_needs_no_key_groups() -> None:
    stages = laid(w2(), LOOKUPS).flow.stages
    assert [stage.exchange for stage in stages] == [Exchange.NONE] + [Exchange.SHUFFLED] * 4
    mixed = laid(w2(), {**LOOKUPS, "J3": Kind.AGGREGATE}).flow.stages
    assert mixed[3].exchange is Exchange.GROUPED
    assert mixed[2].exchange is Exchange.SHUFFLED


@pytest.mark.parametrize("kind", [Kind.PROCESS, Kind.AGGREGATE, Kind.JOIN])
def test_one_operator_that_needs_all_rows_of_a_key_makes_its_stage_grouped(kind: Kind) -> None:
    stages = laid(w3(), {**LOOKUPS, "J6": kind}).flow.stages
    assert [stage.exchange for stage in stages] == [
        Exchange.NONE,
        Exchange.GROUPED,
        Exchange.SHUFFLED,
        Exchange.SHUFFLED,
    ]


def test_edges_that_enter_and_leave_a_stage() -> None:
    flow = laid(w5()).flow
    assert [shown(stage.incoming) for stage in flow.stages] == [
        [" -> source"],
        ["RE -> FD3", "F4 -> FD4"],
        ["FD3 -> S1", "FD4 -> SJ"],
        ["F3 -> SJ", "FD4 -> SJ"],
    ]
    assert [shown(stage.leaving) for stage in flow.stages] == [
        ["RE -> FD3", "F4 -> FD4"],
        ["FD3 -> S1", "FD4 -> SJ"],
        ["F3 -> SJ", "FD4 -> SJ"],
        ["E1 -> sink"],
    ]
    assert shown(flow.outputs) == ["E1 -> sink"]


def test_an_edge_that_skips_a_stage_is_carried_through_it() -> None:
    stage = laid(w5()).flow.stages[2]
    (passing,) = [edge for edge in stage.incoming if edge in stage.leaving]
    assert shown((passing,)) == ["FD4 -> SJ"]
    assert passing in stage.spec.edges
    assert stage.keyed(passing) is None


def test_the_key_of_an_incoming_edge_is_that_of_its_operator() -> None:
    stage = laid(w5()).flow.stages[2]
    keyed = [stage.keyed(edge) for edge in stage.incoming]
    assert [spec and spec.name for spec in keyed] == ["S1", None]


def test_an_edge_that_ends_at_an_operator_without_a_key_has_none() -> None:
    """A union behind a keyed branch and a branch that has no key."""
    specs = [
        OperatorSpec("S", Kind.PASS, columns("S")),
        OperatorSpec("F", Kind.PROCESS, columns("S"), keying=Keying(("S",))),
        OperatorSpec("U", Kind.PASS, columns("S")),
    ]
    pairs = [(OUTSIDE, "S"), ("S", "F"), ("F", "U"), ("S", "U"), ("U", "output")]
    flow = physical(specs, [EdgeSpec(n, *pair) for n, pair in enumerate(pairs)])
    assert staged(flow) == [["S"], ["F", "U"]]
    assert shown(flow.stages[1].incoming) == ["S -> F", "S -> U"]
    assert [flow.stages[1].keyed(edge) for edge in flow.stages[1].incoming] == [specs[1], None]


def test_a_flow_without_keys_is_one_stage() -> None:
    keyless = Graph(w4(), [Edge(edge.source, edge.target) for edge in w4().edges])
    (stage,) = laid(keyless).flow.stages
    assert stage.exchange is Exchange.NONE
    assert len(stage.spec.operators) == len(keyless) - 1


def test_columns_of_an_edge_are_those_of_its_source() -> None:
    made = laid(w5())
    for edge in made.edges:
        whose = edge.target if edge.source == OUTSIDE else edge.source
        assert made.flow.schemas[edge.number] == columns(whose)


# Random flows


def longest(made: Laid, name: str) -> int:
    """The most keyed operators on any way from a source to an operator, both included."""
    keyed = {spec.name for spec in made.operators if spec.keying is not None}
    before = [edge.source for edge in made.edges if edge.target == name]
    ways = [longest(made, source) for source in before if source != OUTSIDE]
    return max(ways, default=0) + (name in keyed)


FLOWS = graphs(parallel=False, broadcast=False, unique=False).map(laid)


@given(FLOWS)
@settings(deadline=None)
def test_a_stage_number_is_the_longest_way_in_exchanges(made: Laid) -> None:
    numbers = {
        spec.name: stage.number for stage in made.flow.stages for spec in stage.spec.operators
    }
    assert numbers == {name: longest(made, name) for name in numbers}


@given(FLOWS)
@settings(deadline=None)
def test_stages_are_one_line_and_hold_every_operator_once(made: Laid) -> None:
    stages = made.flow.stages
    assert [stage.number for stage in stages] == list(range(len(stages)))
    names = [name for stage in staged(made.flow) for name in stage]
    assert sorted(names) == sorted(spec.name for spec in made.operators)
    assert all(staged(made.flow)), "no stage is empty"
    for before, after in itertools.pairwise(stages):
        assert before.leaving == after.incoming, "what leaves a stage enters the next one"
    assert made.flow.outputs == stages[-1].leaving
    assert set(shown(made.flow.outputs)) == {
        f"{edge.source} -> {edge.target}" for edge in made.edges if edge.target in made.outputs
    }


@given(FLOWS)
@settings(deadline=None)
def test_every_edge_begins_once_and_ends_once(made: Laid) -> None:
    for edge in made.edges:
        begins = [s.number for s in made.flow.stages if _has(s, edge.source)]
        ends = [s.number for s in made.flow.stages if _has(s, edge.target)]
        first = begins[0] if begins else -1
        last = ends[0] if ends else len(made.flow.stages)
        for stage in made.flow.stages:
            assert (edge in stage.incoming) == (first < stage.number <= last)
            assert (edge in stage.leaving) == (first <= stage.number < last)
            assert (edge in stage.spec.edges) == (first <= stage.number <= last)
    assert {edge for stage in made.flow.stages for edge in stage.spec.edges} == set(made.edges)


@given(FLOWS)
@settings(deadline=None)
def test_operators_of_a_stage_are_in_topological_order(made: Laid) -> None:
    for stage in made.flow.stages:
        places = {spec.name: place for place, spec in enumerate(stage.spec.operators)}
        for edge in made.edges:
            if edge.source in places and edge.target in places:
                assert places[edge.source] < places[edge.target]
                assert stage.keyed(edge) is None, "a key needs an exchange"


def _has(stage: PhysicalStage, name: str) -> bool:
    return any(spec.name == name for spec in stage.spec.operators)


# For people


def test_explained_names_what_runs_where_and_what_is_exchanged() -> None:
    kinds = {"source": Kind.PASS, "RE": Kind.PASS, "SJ": Kind.JOIN, "F3": Kind.FILTER}
    assert laid(w5(), kinds).explained(groups=32).splitlines() == [
        "flow test: 4 stages, one Spark plan",
        "  sources: source",
        "  stage 0: one Python process runs",
        "    source (pass, one-to-one)",
        "    RE (pass, edge-wise one-to-one)",
        "    F4 (map, one-to-one)",
        "  exchange in 32 key groups: RE -> FD3 by user; F4 -> FD4 by merchant",
        "  stage 1: one Python process runs",
        "    FD3 (process, one-to-one, state per key)",
        "    FD4 (process, one-to-one, state per key)",
        "  exchange in 32 key groups: FD3 -> S1 by transaction_id",
        "  stage 2: one Python process runs",
        "    S1 (process, one-to-one, state per key)",
        "    F3 (filter, one-to-one)",
        "    (FD4 -> SJ passes through)",
        "  exchange in 32 key groups: F3 -> SJ by transaction_id; FD4 -> SJ by transaction_id",
        "  stage 3: one Python process runs",
        "    SJ (join, one-to-one, unique per tuple)",
        "    E1 (map, one-to-one)",
        "  output: E1 -> sink",
    ]


def test_explained_tells_lookups_aggregates_and_several_sources() -> None:
    kinds = {**LOOKUPS, "U1a": Kind.FLAT_MAP, "J9": Kind.AGGREGATE}
    lines = laid(w3(), kinds).explained().splitlines()
    assert "  sources: web, catalog, store" in lines
    assert "  exchange: U1b -> J8 by sold_item_sk" in lines, "no key groups for a lookup"
    assert "    J8 (lookup, one-to-one)" in lines
    assert "    U1a (flat_map, one-to-many)" in lines
    assert "    J9 (aggregate, one-to-one, blocking)" in lines


# Traits for the schedulers


def branched(kinds: dict[str, Kind], *, many: bool = False) -> Graph:
    """S -> the given operators, one after the other -> RE -> B and C -> SJ -> output."""
    line = {"S": Kind.PASS, **kinds, "RE": Kind.PASS}
    branches = {"B": Kind.MAP, "C": Kind.MAP, "SJ": Kind.JOIN}
    specs = {
        name: OperatorSpec(
            name,
            kind,
            columns("k"),
            keying=Keying(("k",)) if kind in (Kind.PROCESS, Kind.AGGREGATE, Kind.JOIN) else None,
            many=many and name in kinds,
        )
        for name, kind in {**line, **branches}.items()
    }
    pairs = [(OUTSIDE, "S"), *itertools.pairwise(line)]
    pairs += [("RE", "B"), ("RE", "C"), ("B", "SJ"), ("C", "SJ"), ("SJ", "output")]
    edges = [EdgeSpec(number, *pair) for number, pair in enumerate(pairs)]
    return graph_of(specs, edges, ("S",), ("output",))


@pytest.mark.parametrize(
    ("kinds", "many", "unique"),
    [
        ({}, False, True),
        ({"A": Kind.MAP, "F": Kind.FILTER}, False, True),
        ({"M": Kind.FLAT_MAP}, False, False),
        ({"M": Kind.FLAT_MAP, "A": Kind.MAP}, False, False),
        ({"J": Kind.LOOKUP}, False, True),
        ({"J": Kind.LOOKUP}, True, False),
        ({"P": Kind.PROCESS}, False, True),
        ({"P": Kind.PROCESS}, True, False),
        ({"M": Kind.FLAT_MAP, "G": Kind.AGGREGATE}, False, True),
        ({"G": Kind.AGGREGATE, "M": Kind.FLAT_MAP}, False, False),
    ],
    ids=lambda value: (
        " ".join(kind.value for kind in value.values()) or "nothing"
        if isinstance(value, dict)
        else str(value)
    ),
)
def test_a_join_is_unique_if_nothing_has_multiplied_its_tuples(
    kinds: dict[str, Kind], many: bool, unique: bool
) -> None:
    """An aggregate begins transactions anew, so what came before it does not count."""
    graph = branched(kinds, many=many)
    assert graph["SJ"].unique == unique
    assert not any(graph[name].unique for name in graph.order if name != "SJ")


def test_a_join_that_is_used_twice_is_not_unique() -> None:
    specs = {
        "S": OperatorSpec("S", Kind.PASS, columns("k")),
        "A": OperatorSpec("A", Kind.MAP, columns("k")),
        "SJ": OperatorSpec("SJ", Kind.JOIN, columns("k"), keying=Keying(("k",))),
    }
    pairs = [(OUTSIDE, "S"), ("S", "A"), ("S", "SJ"), ("A", "SJ"), ("SJ", "one"), ("SJ", "two")]
    edges = [EdgeSpec(number, *pair) for number, pair in enumerate(pairs)]
    graph = graph_of(specs, edges, ("S",), ("one", "two"))
    assert graph["SJ"].emits is Emits.ONE_PER_EDGE
    assert not graph["SJ"].unique


def test_an_aggregate_without_a_key_is_exchanged_without_one() -> None:
    specs = {
        "S": OperatorSpec("S", Kind.PASS, columns("k")),
        "A": OperatorSpec("A", Kind.AGGREGATE, columns("k"), keying=Keying(())),
    }
    pairs = [(OUTSIDE, "S"), ("S", "A"), ("A", "output")]
    edges = [EdgeSpec(number, *pair) for number, pair in enumerate(pairs)]
    graph = graph_of(specs, edges, ("S",), ("output",))
    assert graph["A"].blocking
    assert [edge.key for edge in graph.edges] == [(), ()]
    assert physical(list(specs.values()), edges).stages[1].exchange is Exchange.GROUPED
