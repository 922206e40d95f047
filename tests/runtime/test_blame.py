"""A version that fails is told of with the change that brought it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fries.errors import OperatorError
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Function, OperatorSpec, StageSpec
from fries.runtime.stage import Stage
from fries.runtime.state import KeyGroup
from tests.runtime.test_keyed_stage import (
    FROM_B,
    FROM_C,
    JOINED,
    SJ,
    TO_E,
    TO_F,
    Bench,
    E,
    aggregate,
    hashes,
    left,
    mark,
    process,
    right,
)
from tests.runtime.test_keyed_stage import rows as keyed_rows
from tests.runtime.test_stage import INNER, SOURCE, Script, chain, operator, pickled, rows

Row = dict[str, Any]


def broken(row: Row) -> Row:
    raise ZeroDivisionError(f"row {row['n']}")


def stuck(state: object, row: Row) -> tuple[object, Row]:
    raise ZeroDivisionError(f"{state} {row['n']}")


def lock(state: object, row: Row) -> tuple[object, Row]:  # noqa: ARG001
    return threading.Lock(), row


def unlucky(state: object) -> object:
    raise LookupError(f"no way from {state}")


def lucky(state: object) -> object:
    return state


def bad_result(state: object) -> Row:
    raise ZeroDivisionError(f"result of {state}")


def shipped(
    *specs: OperatorSpec,
    entries: Sequence[int] = (),
    migrations: Mapping[str, Function | None] | None = None,
) -> bytes:
    by_name = {spec.name: spec for spec in specs}
    return pickled(Shipped(by_name, migrations or {}, frozenset(entries)))


def blamed(script: Script) -> tuple[int, str]:
    """The change and the operator of the only failure."""
    ((change, error),) = script.failures
    return change, error.operator


# Operators without a state

BROKEN_B = replace(operator("B"), function=broken)


def run(configuration: Configuration, spec: StageSpec, epochs: list[int]) -> Script:
    script = Script()
    with pytest.raises(OperatorError) as caught:
        list(Stage(spec, configuration, script).run(SOURCE, rows(len(epochs), epochs)))
    assert script.failures[0][1] is caught.value, "told, and raised all the same"
    return script


def test_the_version_that_a_flow_was_built_with_is_change_0() -> None:
    _, spec = chain()
    script = run(Configuration([operator("A"), BROKEN_B]), spec, [0])
    assert blamed(script) == (0, "B")
    assert "row 0" in script.failures[0][1].problem


def test_a_version_in_transition_is_its_change() -> None:
    configuration, spec = chain()
    configuration.load(7, 3, shipped(BROKEN_B, entries=(INNER.number,)))
    configuration.switch(7)
    assert blamed(run(configuration, spec, [0])) == (7, "B")


def test_a_version_in_the_base_is_its_change() -> None:
    configuration, spec = chain()
    configuration.load(7, 3, shipped(BROKEN_B))
    configuration.begin([7])
    assert blamed(run(configuration, spec, [0])) == (7, "B")


def test_of_several_versions_in_transition_the_one_that_the_row_has() -> None:
    for epoch, change in ((2, 7), (6, 8)):
        configuration, spec = chain()
        configuration.load(7, 1, shipped(BROKEN_B))
        configuration.load(8, 2, shipped(BROKEN_B))
        assert blamed(run(configuration, spec, [epoch])) == (change, "B")


def test_a_change_in_transition_is_not_blamed_for_the_version_before_it() -> None:
    _, spec = chain()
    configuration = Configuration([operator("A"), BROKEN_B])
    configuration.load(7, 1, shipped(operator("B")))
    assert blamed(run(configuration, spec, [0, 2])) == (0, "B")


def test_a_change_is_not_blamed_for_operators_that_it_left_alone() -> None:
    _, spec = chain()
    configuration = Configuration([operator("A"), BROKEN_B])
    configuration.load(7, 1, shipped(operator("A"), entries=(0,)))
    configuration.switch(7)
    assert blamed(run(configuration, spec, [0])) == (0, "B")


def test_a_version_that_runs_is_known_with_its_change() -> None:
    configuration, spec = chain()
    configuration.load(7, 1, shipped(BROKEN_B))
    script = run(configuration, spec, [2])
    assert script.call == ("B", 7), "it has not returned"


# Keyed operators


def fold(bench: Bench, epochs: list[int], script: Script) -> None:
    chunk = keyed_rows([(n, n) for n in range(len(epochs))], epochs)
    stage = Stage(bench.stage_spec, bench.configuration, script)
    group = KeyGroup("F", bench.store)
    list(stage.run_group(bench.spec, TO_F, chunk, group, hashes(chunk)))


def failing_fold(bench: Bench, epochs: list[int]) -> Script:
    script = Script()
    with pytest.raises(OperatorError):
        fold(bench, epochs, script)
    return script


def with_states(spec: OperatorSpec | None = None) -> Bench:
    """A keyed stage that has the states of some keys, of version 0."""
    bench = Bench(spec)
    fold(bench, [0] * 4, Script())
    return bench


def test_a_fold_in_transition_is_its_change() -> None:
    bench = with_states()
    bench.configuration.load(7, 1, shipped(replace(process(), function=stuck)))
    assert blamed(failing_fold(bench, [0, 2])) == (7, "F")


def test_a_migration_that_raises_is_its_change() -> None:
    """Another worker wrote the states, or this one would have refused to load it."""
    bench = with_states()
    other = Bench()
    other.store = bench.store
    other.configuration.load(7, 1, shipped(process(), migrations={"F": unlucky}))
    script = failing_fold(other, [0, 2])
    assert blamed(script) == (7, "F")
    assert "no way from" in script.failures[0][1].problem


def test_a_migration_in_the_base_that_raises_is_its_change() -> None:
    bench = with_states()
    other = Bench()
    other.store = bench.store
    other.configuration.load(7, 1, shipped(process(), migrations={"F": unlucky}))
    other.configuration.begin([7])
    assert blamed(failing_fold(other, [0])) == (7, "F")


def late_by_two(migration: Function, transition: bool) -> Bench:
    """A worker with states of version 0, one change that migrates badly, and another that does not.

    Its states are of another worker, or it would have refused to load them.
    """
    bench = Bench()
    bench.store = with_states().store
    bench.configuration.load(7, 1, shipped(process(), migrations={"F": migration}))
    bench.configuration.load(8, 2, shipped(process(), migrations={"F": lucky}))
    if not transition:
        bench.configuration.begin([7, 8])
    return bench


@pytest.mark.parametrize("transition", [True, False])
def test_an_older_migration_that_raises_is_not_the_newest_change(transition: bool) -> None:
    bench = late_by_two(unlucky, transition)
    script = failing_fold(bench, [2 | 4 if transition else 0])
    assert blamed(script) == (7, "F")
    assert "no way from" in script.failures[0][1].problem


@pytest.mark.parametrize("transition", [True, False])
def test_a_fold_behind_migrations_of_others_is_its_change(transition: bool) -> None:
    bench = late_by_two(lucky, transition)
    bench.configuration.load(9, 3, shipped(replace(process(), function=stuck)))
    assert blamed(failing_fold(bench, [2 | 4 | 8 if transition else 8])) == (9, "F")


def test_the_migrations_that_a_flow_was_built_with_are_change_0() -> None:
    bench = with_states()
    spec = process()
    assert spec.keying is not None
    built = Bench(replace(spec, keying=replace(spec.keying, migrations=(unlucky,))))
    built.store = bench.store
    built.configuration.load(7, 1, shipped(built.spec))
    assert blamed(failing_fold(built, [2])) == (0, "F")


def test_a_change_is_told_whose_migration_fails_on_live_states() -> None:
    bench = late_by_two(unlucky, transition=False)
    with_states_of_0 = pickle.dumps({1: (0, 0, "state")})
    bench.configuration.sampled("F", with_states_of_0)
    with pytest.raises(OperatorError, match="change 7's migration fails on the live state"):
        bench.configuration.load(9, 3, shipped(process(), migrations={"F": lucky}))


def test_a_state_that_cannot_be_pickled_is_the_change_that_made_it() -> None:
    bench = with_states()
    bench.configuration.load(7, 1, shipped(replace(process(), function=lock)))
    script = failing_fold(bench, [0, 2])
    assert blamed(script) == (7, "F")
    assert "cannot be pickled" in script.failures[0][1].problem


def test_a_state_that_cannot_be_pickled_may_be_the_flows_own() -> None:
    assert blamed(failing_fold(Bench(replace(process(), function=lock)), [0])) == (0, "F")


def test_an_operator_behind_a_fold_is_blamed_for_itself() -> None:
    bench = with_states()
    bench.configuration.load(7, 1, shipped(process()))
    bench.configuration.load(8, 2, shipped(replace(mark(), function=broken)))
    assert blamed(failing_fold(bench, [2 | 4])) == (8, "M")


def total(spec: OperatorSpec, change: bytes | None, epochs: list[int]) -> Script:
    """A group of an aggregate, which fails."""
    configuration = Configuration([spec])
    if change is not None:
        configuration.load(7, 1, change)
    edge = EdgeSpec(1, "S", "A")
    stage_spec = StageSpec(1, (spec,), (edge, EdgeSpec(5, "A", "totals")))
    script, chunk = Script(), keyed_rows([(n, n) for n in range(len(epochs))], epochs)
    stage = Stage(stage_spec, configuration, script)
    with pytest.raises(OperatorError):
        list(stage.run_group(spec, edge, chunk, KeyGroup("A", None), hashes(chunk)))
    return script


def test_the_result_of_an_aggregate_is_the_change_that_its_state_came_to() -> None:
    new = replace(aggregate(), result=bad_result)
    script = total(aggregate(), shipped(new), [0, 2])
    assert blamed(script) == (7, "A")
    assert "result of" in script.failures[0][1].problem


def test_the_result_of_an_aggregate_may_be_the_flows_own() -> None:
    spec = replace(aggregate(), result=bad_result)
    assert blamed(total(spec, shipped(aggregate()), [0, 2])) == (0, "A")


def test_a_join_that_fails_is_nobodys_change() -> None:
    spec = StageSpec(1, (SJ, E), (FROM_B, FROM_C, TO_E, JOINED))
    script = Script()
    stage = Stage(spec, Configuration([SJ, E]), script)
    with pytest.raises(OperatorError, match="two tuples have the key 1"):
        list(stage.run_join(SJ, (FROM_B, left([1, 1])), (FROM_C, right([1]))))
    assert blamed(script) == (0, "SJ")


def test_what_goes_well_is_nobodys_failure() -> None:
    bench, script = with_states(), Script()
    bench.configuration.load(7, 1, shipped(process(), mark()))
    fold(bench, [0, 2], script)
    assert script.failures == []
    assert script.call is None
