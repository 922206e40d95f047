"""Every interleaving of a small scenario, or random ones of a large one."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fries.errors import FriesError
from fries_lab.errors import SimulationError
from fries_lab.world.choices import actions as actions_of
from fries_lab.world.keys import key_of
from fries_lab.world.process import BrokenError
from fries_lab.world.scenario import Fault, Scenario
from fries_lab.world.world import Action, World

MOST_STATES: Final = 2_000_000
"""States after which an exploration gives up, before it eats all memory."""
MOST_STEPS: Final = 10_000
"""Of one random walk: more would be a world that goes round in circles."""


@dataclass
class Violation:
    """Something that must never happen, and how it came to it."""

    problem: str
    actions: list[Action]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {_told(a)}" for number, a in enumerate(self.actions, 1))
        return f"{self.problem}\n{steps}"


@dataclass
class Found:
    """What an exploration has come to."""

    states: int = 0
    transitions: int = 0
    ends: int = 0
    """States in which nothing more can happen."""
    violation: Violation | None = None
    _parents: dict[int, tuple[int, Action]] = field(default_factory=dict, repr=False)


def explore(scenario: Scenario, most_states: int = MOST_STATES) -> Found:
    """Visit every state that a scenario can come to, until something is wrong."""
    found = Found()
    world = World(scenario)
    first = key_of(world)
    seen = {first}
    stack = [(first, pickle.dumps(world))]
    while stack:
        key, frozen = stack.pop()
        world = pickle.loads(frozen)
        actions = actions_of(world)
        found.states += 1
        if not any(not isinstance(action[0], Fault) for action in actions):
            found.ends += 1
            if problem := _problem(world.end):
                found.violation = _violation(found, key, problem)
                return found
        for action in actions:
            after: World = pickle.loads(frozen)
            found.transitions += 1
            if problem := _problem(lambda: after.take(action)):  # noqa: B023 - called at once
                found.violation = _violation(found, key, problem, action)
                return found
            new = key_of(after)
            if new not in seen:
                seen.add(new)
                found._parents[new] = key, action
                stack.append((new, pickle.dumps(after)))
        if len(seen) > most_states:
            raise SimulationError(f"more than {most_states:,} states; explore a smaller scenario")
    return found


def walk(scenario: Scenario, seed: int) -> Violation | None:
    """One random interleaving to its end; what was wrong, if something was."""
    choose, world, steps = random.Random(seed), World(scenario), list[Action]()
    while len(steps) < MOST_STEPS:
        actions = actions_of(world)
        usual = [action for action in actions if not isinstance(action[0], Fault)]
        if not usual:
            problem = _problem(world.end)
            return Violation(problem, steps) if problem else None
        wrong = actions[len(usual) :]
        if wrong and choose.random() < scenario.fault_rate:
            usual = wrong
        elif scenario.slow_log and choose.random() < 0.9:
            usual = [action for action in usual if action[0] != "log"] or usual
        action = choose.choice(usual)
        steps.append(action)
        if problem := _problem(lambda: world.take(action)):  # noqa: B023 - called at once
            return Violation(problem, steps)
    return Violation("it never ends", steps)


def _problem(what: Callable[[], None]) -> str:
    """What goes wrong if something is done; nothing if it does not."""
    try:
        what()
    except BrokenError as broken:
        return str(broken)
    except (FriesError, AssertionError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _violation(found: Found, key: int, problem: str, *last: Action) -> Violation:
    actions = [*last]
    while key in found._parents:
        key, action = found._parents[key]
        actions.append(action)
    return Violation(problem, actions[::-1])


def _told(action: Action) -> str:
    return " ".join(map(str, action))
