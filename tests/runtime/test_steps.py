"""What brings a state from one version to the next, and what a change that is taken back leaves."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fries.runtime.keyed import MigrationError
from fries.runtime.steps import Step, through

State = tuple[int, ...]


def push(number: int, state: State) -> State:
    return (*state, number)


def pop(number: int, state: State) -> State:
    assert state[-1] == number, "taken back out of turn"
    return state[:-1]


def fails(state: State) -> State:
    raise LookupError(f"no way from {state}")


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Changes that migrate, that do not, and that take the newest one back that is in place."""
    steps: list[Step] = []
    chain: list[Step] = []
    for number, what in enumerate(draw(st.lists(st.sampled_from(["new", "keep", "undo"]))), 1):
        if what == "undo" and chain:
            last = chain.pop()
            back = None if last.migrate is None else partial(pop, last.change)
            steps.append(Step(number, back, last.change))
        else:
            made = Step(number, partial(push, number) if what == "new" else None)
            chain.append(made)
            steps.append(made)
    return steps


@given(histories(), st.data())
def test_a_state_of_any_version_comes_to_what_all_steps_make_of_it(
    steps: list[Step], data: st.DataObject
) -> None:
    written = data.draw(st.integers(0, len(steps)))
    states: list[State] = [(0,)]
    for step in steps:
        states.append(states[-1] if step.migrate is None else step.migrate(states[-1]))
    assert through(steps[written:], states[written]) == states[-1]


@given(histories(), histories())
def test_what_was_taken_back_is_not_gone_through(before: list[Step], between: list[Step]) -> None:
    """Nor what was built on it and taken back with it."""
    bad = 1000
    inner = [one._replace(change=one.change + bad) for one in _closed(between)]
    inner = [one._replace(undoes=one.undoes and one.undoes + bad) for one in inner]
    steps = [*before, Step(bad, fails), *inner, Step(2 * bad, fails, bad)]
    assert through(steps, (0,)) == through(before, (0,))
    with pytest.raises(MigrationError) as caught:
        through(steps[:-1], (0,))
    assert caught.value.change == bad


def _closed(steps: list[Step]) -> list[Step]:
    """A history, and the changes that take all of it back."""
    made = list(steps)
    left: list[Step] = []
    for step in steps:
        left = left[:-1] if step.undoes else [*left, step]
    for number, step in enumerate(reversed(left), len(steps) + 1):
        back = None if step.migrate is None else partial(pop, step.change)
        made.append(Step(number, back, step.change))
    return made


def test_a_change_that_takes_an_undo_back_is_gone_through() -> None:
    steps = [Step(1, partial(push, 1)), Step(2, partial(pop, 1), 1), Step(3, partial(push, 1), 2)]
    assert through(steps, ()) == (1,)
    assert through(steps[1:], (1,)) == (1,)
