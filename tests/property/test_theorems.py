"""The paper's theorems, on random interleavings of random dataflows.

The theorem of section 5.3 is about dataflows of one-to-one operators, that of section 6.2
about all others, and the lemmas of section 4.2 are about epochs. Pruning (section 6.3) and
parallel workers (section 7.2) come without proofs, and so do the tags of the Spark engine.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import pytest
from hypothesis import Phase, assume, find, given, note, settings
from hypothesis import strategies as st

from fries.graph import Edge, Emits, Graph, Operator, Partitioning
from fries.mcs import compute_earliest_ancestors, one_to_many_ancestors
from fries.plan import Plan, Propagation
from fries.schedulers import (
    Scheduler,
    cover,
    epoch,
    fries,
    fries_unpruned,
    multi_version,
    naive,
)
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.explore import judge, random_walk
from fries_lab.sim.model import Action, Item, Model, Scenario, State
from tests.property.oracles import is_there_for_a_broadcast
from tests.property.strategies import graphs, target_sets

MOST_OPERATIONS: Final = 120
"""Data operations of a walk, at most: beyond that walks get slow, not more telling."""

WALKS: Final = 2
"""Random walks of each case and scheduler: walking is cheaper than drawing a dataflow."""

walks = settings(max_examples=80, deadline=None)
many_walks = settings(max_examples=150, deadline=None)
seeds = st.integers(0, 2**32 - 1)


class Case(NamedTuple):
    """A dataflow with what its operators do, and the operators to update."""

    graph: Graph
    targets: frozenset[str]
    behaviours: dict[str, Behaviour]
    tuples: int

    def scenario(self, *plans: Plan) -> Scenario:
        """The case with its changes."""
        return Scenario(self.graph, plans, self.tuples, self.behaviours)


def honest(graph: Graph) -> Graph:
    """The same graph with at most two workers per operator, and true to its traits.

    A unique operator keeps its promise only if all tuples of a transaction meet at one of
    its workers, so tuples go there by hash.
    """
    operators = [dataclasses.replace(op, workers=min(op.workers, 2)) for op in graph]
    scattered = {op.name for op in operators if op.unique and op.workers > 1}
    edges = [
        Edge(edge.source, edge.target, Partitioning.HASH, ("transaction_id",))
        if edge.target in scattered
        else edge
        for edge in graph.edges
    ]
    return Graph(operators, edges)


def most_operations(graph: Graph, behaviours: dict[str, Behaviour]) -> int:
    """An upper bound of the data operations for one tuple per source worker."""
    received = {name: graph[name].workers if graph[name].source else 0 for name in graph.order}
    for name in graph.order:
        fanout = behaviours[name].fanout if graph[name].emits is Emits.MANY else 1
        for edge in graph.outputs(name):
            copies = graph[edge.target].workers if graph.fans_out(edge) else 1
            received[edge.target] += received[name] * fanout * copies
    return sum(received.values())


@st.composite
def behaviours_of(draw: st.DrawFn, op: Operator) -> Behaviour:
    """What an operator does, as far as it matters for its traits."""
    return Behaviour(
        fanout=draw(st.integers(2, 3)) if op.emits is Emits.MANY else 2,
        selectivity=draw(st.sampled_from([1.0, 1.0, 0.7])),
        joins=draw(st.integers(1, 2)) if op.unique else 1,
    )


@st.composite
def cases(draw: st.DrawFn, dataflows: st.SearchStrategy[Graph]) -> Case:
    """A dataflow that is small enough to walk, with targets and behaviours."""
    graph = draw(dataflows.map(honest))
    behaviours = {op.name: draw(behaviours_of(op)) for op in graph}
    operations = most_operations(graph, behaviours)
    assume(operations <= MOST_OPERATIONS)
    tuples = draw(st.integers(1, min(3, MOST_OPERATIONS // operations)))
    targets = draw(st.frozensets(st.sampled_from(graph.order), min_size=1, max_size=3))
    return Case(graph, targets, behaviours, tuples)


def replicating(graph: Graph) -> Graph:
    """The same graph with every one-to-many operator a Replicate, which may be pruned."""
    many = {op.name for op in graph if op.emits is Emits.MANY}
    operators = [
        dataclasses.replace(op, emits=Emits.ONE_PER_EDGE) if op.name in many else op for op in graph
    ]
    return Graph(operators, graph.edges)


flows = partial(graphs, min_operators=4, max_operators=6)
any_flow = flows()
one_to_one = flows(one_to_many=False, broadcast=False)
FLOWS: Final = {
    "all traits": any_flow,
    "replicating": flows(blocking=False).map(replicating),
    "broadcasting": flows(one_to_many=False),
}


def algorithm_2(graph: Graph, updates: frozenset[str]) -> Plan:
    """The scheduler for one-to-one operators: what covers the targets, and no more."""
    targets = tuple(name for name in graph.order if name in updates)
    return Plan("algorithm 2", graph, targets, cover(graph, targets, targets))


def tagged(plan: Plan) -> Plan:
    """A plan carried out as the Spark engine does it: tuples are stamped at the entries."""
    return dataclasses.replace(plan, propagation=Propagation.TAGS)


def with_tags(scheduler: Scheduler) -> Scheduler:
    return lambda graph, updates: tagged(scheduler(graph, updates))


CONSISTENT: Final[dict[str, Scheduler]] = {
    "fries": fries,
    "fries, edge-wise rule alone": partial(fries, uniqueness_pruning=False),
    "fries, uniqueness rule alone": partial(fries, edge_wise_pruning=False),
    "fries_unpruned": fries_unpruned,
    "epoch": epoch,
    "multi_version": multi_version,
    "fries, tags": with_tags(fries),
    "fries, edge-wise rule alone, tags": with_tags(partial(fries, uniqueness_pruning=False)),
    "fries, uniqueness rule alone, tags": with_tags(partial(fries, edge_wise_pruning=False)),
    "fries_unpruned, tags": with_tags(fries_unpruned),
    "epoch, tags": with_tags(epoch),
}


def check(scenario: Scenario, seed: int) -> None:
    """Walk to the end, which a deadlock would prevent, and judge what happened."""
    note("\n".join(f"{plan} by {plan.propagation.value}" for plan in scenario.plans))
    for turn in range(WALKS):
        state = random_walk(scenario, seed + turn)
        assert all(change.tagged for change in state.controller.changes), "a change is not over"
        verdict = judge(scenario, state)
        assert verdict.serializable, str(verdict)


# The theorems


@pytest.mark.parametrize("kind", FLOWS)
@many_walks
@given(data=st.data(), seed=seeds)
def test_every_schedule_is_serializable_and_ends(kind: str, data: st.DataObject, seed: int) -> None:
    """Section 6.2, with pruning, parallel workers, broadcasts and blocking operators."""
    case = data.draw(cases(FLOWS[kind]))
    for scheduler in CONSISTENT.values():
        check(case.scenario(scheduler(case.graph, case.targets)), seed)


@many_walks
@given(case=cases(one_to_one), seed=seeds)
def test_algorithm_2_is_enough_for_one_to_one_operators(case: Case, seed: int) -> None:
    """Section 5.3."""
    plan = algorithm_2(case.graph, case.targets)
    check(case.scenario(plan), seed)
    check(case.scenario(tagged(plan)), seed)


# The lemmas behind them


def steps(scenario: Scenario, seed: int) -> Iterator[tuple[Model, State, Action]]:
    """The steps of a random walk, each with the state before it."""
    model = Model(scenario)
    choose = random.Random(seed)
    state = model.initial
    while actions := list(model.actions(state)):
        action = choose.choice(actions)
        yield model, state, action
        state = model.apply(state, action)


def data_operation(model: Model, state: State, action: Action) -> tuple[int, str, Edge | None]:
    """Transaction, operator and edge of the tuple that a step processes; -1 if none."""
    if action.kind == "emit":
        operator = model.topology.workers[action.where].operator
        return state.pending[action.where][0], operator, None
    if action.kind == "take":
        edge = model.topology.channels[action.where].edge
        message = state.channels[action.where][0]
        return message.txn if isinstance(message, Item) else -1, edge.target, edge
    return -1, "", None


@walks
@given(case=cases(any_flow), seed=seeds)
def test_a_transaction_meets_one_component_and_enters_it_once(case: Case, seed: int) -> None:
    """The lemmas of section 6.2, without pruning: they are why a tuple's entry decides."""
    plan = fries_unpruned(case.graph, case.targets)
    senders = {
        head
        for part in plan.components
        for head in part.heads
        if is_there_for_a_broadcast(case.graph, part, head)
    }
    met: dict[int, set[int]] = {}
    entered: dict[int, list[object]] = {}
    for model, state, action in steps(case.scenario(plan), seed):
        txn, operator, edge = data_operation(model, state, action)
        component = plan.component_of(operator) if txn >= 0 else None
        if component is None or operator in senders:
            continue  # of a sender only its Replicate belongs to the component
        met.setdefault(txn, set()).add(plan.components.index(component))
        ways = entered.setdefault(txn, [])
        copied = edge is not None and edge.source in senders and edge not in ways
        if edge is None or edge not in component.edges or copied:
            ways.append(edge)
    assert all(len(numbers) == 1 for numbers in met.values())
    assert all(len(ways) == 1 for ways in entered.values())


@walks
@given(case=cases(any_flow))
def test_each_component_has_a_target_and_each_target_a_component(case: Case) -> None:
    """The first lemmas of sections 5.3 and 6.2."""
    for scheduler in CONSISTENT.values():
        plan = scheduler(case.graph, case.targets)
        assert all(part.targets for part in plan.components)
        assert {name for part in plan.components for name in part.targets} == case.targets


# What a change comes to


def in_order(scenario: Scenario, *kinds: str) -> State:
    """The walk that always does what comes first in ``kinds``."""
    model = Model(scenario)
    state = model.initial
    while actions := list(model.actions(state)):
        state = model.apply(state, min(actions, key=lambda action: kinds.index(action.kind)))
    return state


@walks
@given(case=cases(any_flow))
def test_a_change_is_for_all_that_comes_later_and_for_nothing_that_came_before(case: Case) -> None:
    """Serializability alone would allow a change that never happens."""
    for scheduler in CONSISTENT.values():
        scenario = case.scenario(scheduler(case.graph, case.targets))
        changed_first = in_order(scenario, "deliver", "drain", "take", "emit")
        changed_last = in_order(scenario, "take", "emit", "deliver", "drain")
        for state, version in ((changed_first, 1), (changed_last, 0)):
            used = {op.version for op in state.history if op.operator in case.targets}
            assert used <= {version}


# Two changes


@walks
@given(case=cases(any_flow), seed=seeds)
def test_two_changes_of_the_same_components_have_one_serial_order(case: Case, seed: int) -> None:
    for scheduler in CONSISTENT.values():
        plan = scheduler(case.graph, case.targets)
        check(case.scenario(plan, plan), seed)


@walks
@given(data=st.data(), case=cases(any_flow), seed=seeds)
def test_of_two_changes_each_is_atomic(data: st.DataObject, case: Case, seed: int) -> None:
    """One serial order is not promised: see ``tests/sim/test_explore.py``."""
    others = data.draw(target_sets(case.graph))
    for scheduler in CONSISTENT.values():
        plans = scheduler(case.graph, case.targets), scheduler(case.graph, others)
        scenario = case.scenario(*plans)
        verdict = judge(scenario, random_walk(scenario, seed))
        assert verdict.atomic, str(verdict)


# The tests' own power: what is inconsistent is caught


class Seeded(NamedTuple):
    """A case with the seed of a walk."""

    case: Case
    seed: int


def violates(scheduler: Callable[[Graph, frozenset[str]], Plan], found: Seeded) -> bool:
    """Whether the walk of a case is inconsistent under a scheduler."""
    scenario = found.case.scenario(scheduler(found.case.graph, found.case.targets))
    return not judge(scenario, random_walk(scenario, found.seed)).serializable


def literal_pruning(graph: Graph, updates: frozenset[str]) -> Plan:
    """Fries with rule 2 as the paper has it: some unique operator on each path to each target.

    Without such an operator on the way, an ancestor must be covered; rule 1 is left out.
    """
    cut = graph.pipelined
    exposed = set(updates - {op.name for op in cut if op.unique})
    for name in reversed(cut.order):  # from here a target is reached past no unique operator
        leads = any(edge.target in exposed for edge in cut.outputs(name))
        if leads and not cut[name].unique:
            exposed.add(name)
    copying = one_to_many_ancestors(cut, updates)
    kept = {a for a in copying if any(edge.target in exposed for edge in cut.outputs(a))}
    covered = {*updates, *compute_earliest_ancestors(cut, kept)}
    targets = tuple(name for name in graph.order if name in updates)
    return Plan("literal", graph, targets, cover(graph, covered, targets))


hunt = settings(
    max_examples=2_000, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


@pytest.mark.parametrize(
    ("scheduler", "dataflows"),
    [
        (naive, one_to_one),
        (naive, any_flow),
        (algorithm_2, any_flow),
        (literal_pruning, FLOWS["replicating"]),
    ],
    ids=["naive, one-to-one", "naive", "algorithm 2, one-to-many", "the paper's second rule"],
)
def test_inconsistent_schedulers_are_caught(
    scheduler: Callable[[Graph, frozenset[str]], Plan], dataflows: st.SearchStrategy[Graph]
) -> None:
    walks_of = st.builds(Seeded, cases(dataflows), seeds)
    found = find(walks_of, partial(violates, scheduler), settings=hunt)
    assert violates(scheduler, found)
    for consistent in CONSISTENT.values():
        assert not violates(consistent, found)
