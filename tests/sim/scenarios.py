"""Small dataflows whose every interleaving is explored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fries.graph import Emits, Graph, Operator, paths
from fries.plan import Plan, Propagation
from fries.schedulers import (
    Scheduler,
    cover,
    fries,
    multi_version,
    scheduler,
)
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.explore import explore
from fries_lab.sim.model import Action, Model, Scenario, State
from fries_lab.workloads.graphs import (
    join_split_example,
    running_example,
)

FAN = {"J": Behaviour(fanout=3)}
JOIN = {"SJ": Behaviour(joins=2)}
W5_TARGETS = ("FD4", "F3", "F4", "FD3 FD4", "E1")


def flow(*lines: str, unique: Collection[str] = (), blocking: Collection[str] = ()) -> Graph:
    """A dataflow of single workers; RE replicates, and what nothing flows into is a source."""
    edges = paths(*lines)
    fed = {edge.target for edge in edges}
    operators = [
        Operator(
            name,
            emits=Emits.ONE_PER_EDGE if name == "RE" else Emits.ONE,
            unique=name in unique,
            blocking=name in blocking,
            source=name not in fed,
        )
        for name in dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    ]
    return Graph(operators, edges)


def algorithm_2(graph: Graph, targets: Collection[str]) -> Plan:
    """The plan that ignores one-to-many operators: what covers the targets, and no more."""
    return Plan("algorithm 2", graph, tuple(targets), cover(graph, targets, targets))


def tagged(plan: Plan) -> Plan:
    """A plan carried out as the Spark engine does it: tuples are stamped at the entries."""
    return replace(plan, propagation=Propagation.TAGS)


def running(name: str, tuples: int) -> Scenario:
    graph = running_example()
    return Scenario(graph, (scheduler(name)(graph, ["FM", "MC"]),), tuples)


def join_split(plan: Scheduler, tuples: int) -> Scenario:
    graph = join_split_example()
    return Scenario(graph, (plan(graph, ["FMX"]),), tuples, FAN)


def one_behind_the_other(tuples: int) -> Scenario:
    """A change by markers that overlaps a tagged one and so waits until that has drained."""
    graph = running_example()
    plans = (multi_version(graph, ["MC"]), fries(graph, ["FM", "MC"]))
    return Scenario(graph, plans, tuples)


def sentences(scenario: Scenario) -> set[str]:
    """Why the violations of a scenario are violations."""
    return {str(verdict.contradiction) for verdict in explore(scenario).violations}


def commits_first(scenario: Scenario) -> State:
    """The interleaving in which all changes are complete before the first tuple."""
    model = Model(scenario)
    state = model.initial
    while actions := sorted(model.actions(state), key=_data_last):
        state = model.apply(state, actions[0])
    return state


def _data_last(action: Action) -> tuple[int, int]:
    return ["deliver", "drain", "take", "emit"].index(action.kind), action.where


def checkpointed(graph: Graph, targets: str, *, guard: bool, late: bool = False) -> Scenario:
    plan = fries(graph, targets.split())
    return Scenario(graph, (plan,), 0, checkpoints=1, guard=guard, late=late)


TWO_ARMS = flow("A -> C -> E", "B -> D -> E")
