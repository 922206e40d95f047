"""Walks through a small dataflow: every interleaving, or a random one.

States that interleavings share are visited once, and the number of interleavings
(schedules) is counted exactly without walking each of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from fries.serializability import Verdict, check_trace
from fries.trace import Trace, TraceBuilder, updates_of
from fries_lab.errors import SimulationError
from fries_lab.sim.model import Model, Operation, Scenario, State

MOST_STATES: Final = 2_000_000
"""States after which an exploration gives up, before it eats all memory."""


@dataclass
class Exploration:
    """What all interleavings of a scenario came to."""

    states: int = 0
    """Distinct states."""
    schedules: int = 0
    """Interleavings: paths from the first state to a last one."""
    outcomes: int = 0
    """Distinct histories of which version processed which tuple where."""
    violations: list[Verdict] = field(default_factory=list)
    """Verdicts of the outcomes that are not serializable."""
    deadlocks: int = 0
    """States with work left and nothing possible."""
    mixed_checkpoints: int = 0
    """Last states with a complete checkpoint of half a change."""

    @property
    def consistent(self) -> bool:
        """Whether every interleaving is serializable and ends."""
        return not self.violations and not self.deadlocks


def explore(scenario: Scenario, most_states: int = MOST_STATES) -> Exploration:
    """Visit every interleaving of a scenario."""
    model = Model(scenario)
    found = Exploration()
    histories: dict[frozenset[Operation], None] = {}  # in the order of discovery
    count: dict[State, int] = {}
    stack: list[tuple[State, list[State] | None]] = [(model.initial, None)]
    while stack:
        state, successors = stack.pop()
        if successors is not None:
            count[state] = sum(count[after] for after in successors)
            continue
        if state in count:
            continue
        successors = [model.apply(state, action) for action in model.actions(state)]
        if successors:
            stack.append((state, successors))
            stack.extend((after, None) for after in successors if after not in count)
        else:
            count[state] = 1
            found.deadlocks += not model.finished(state)
            found.mixed_checkpoints += model.mixed_checkpoint(state)
            histories[state.history] = None
        if len(count) > most_states:
            raise SimulationError(
                f"more than {most_states:,} states; explore fewer tuples, workers or operators"
            )
    found.states = len(count)
    found.schedules = count[model.initial]
    found.outcomes = len(histories)
    verdicts = (check_trace(_trace(scenario, history)) for history in histories)
    found.violations = [verdict for verdict in verdicts if not verdict.serializable]
    return found


def random_walk(scenario: Scenario, seed: int) -> State:
    """One interleaving, chosen at random; the state at its end."""
    model = Model(scenario)
    choose = random.Random(seed)
    state = model.initial
    while actions := list(model.actions(state)):
        state = model.apply(state, choose.choice(actions))
    if not model.finished(state):
        raise SimulationError("the dataflow is stuck with work left: a deadlock")
    return state


def judge(scenario: Scenario, state: State) -> Verdict:
    """Whether what happened up to a state is serializable."""
    return check_trace(_trace(scenario, state.history))


def _trace(scenario: Scenario, history: frozenset[Operation]) -> Trace:
    """A history as a trace for the checker."""
    builder = TraceBuilder(scenario.graph.order)
    for txn, operator, version in sorted(history):
        builder.record(txn, scenario.graph.position[operator], version)
    return builder.build(updates_of(plan.targets for plan in scenario.plans))
