"""Keyed operators by themselves: folds, results of aggregates, and the join of two branches."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError
from fries.runtime.buckets import Key
from fries.runtime.chunks import Chunk
from fries.runtime.functions import Output
from fries.runtime.keyed import join, keys_of, make_fold, results
from fries.runtime.spec import Function, Keying, Kind, OperatorSpec
from fries.runtime.state import KeyGroup
from tests.runtime.test_columns import schema

Row = dict[str, Any]
ROWS = schema(k=pa.string(), n=pa.int64())


def batch_of(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "n": n} for k, n in rows], schema=ROWS)


def process(
    function: Function, *, initial: object = None, many: bool = False, key: tuple[str, ...] = ("k",)
) -> OperatorSpec:
    keying = Keying(key, initial=initial)
    return OperatorSpec("op", Kind.PROCESS, ROWS, function, keying=keying, many=many)


def unchanged(version: int, state: Any) -> Any:  # noqa: ANN401
    """A migration that must not be needed."""
    raise AssertionError((version, state))


def group_of(*batches: pa.RecordBatch, key: tuple[str, ...] = ("k",)) -> KeyGroup:
    """A group without states, for the keys of some batches."""
    keys = [one for batch in batches for one in keys_of(key, batch)]
    group = KeyGroup("op", None)
    group.load(keys, np.zeros(len(keys), dtype=np.int64))
    return group


def states(group: KeyGroup) -> dict[Key, Any]:
    return {key: state for key, (_, state, _) in group.entries()}


def folded(spec: OperatorSpec, batch: pa.RecordBatch) -> tuple[Output, dict[Key, Any]]:
    """What a fold gives for rows, and the states that it leaves."""
    assert spec.keying is not None
    group = group_of(batch, key=spec.keying.columns)
    return make_fold(spec)(batch, group, 0, unchanged), states(group)


def running_sum(state: int, row: Row) -> tuple[int, Row]:
    total = state + row["n"]
    return total, {**row, "n": total}


def test_the_key_of_a_row_is_a_value_or_a_tuple() -> None:
    batch = batch_of(("a", 1), (None, 2))
    assert keys_of(("k",), batch) == ["a", None]
    assert keys_of(("n", "k"), batch) == [(1, "a"), (2, None)]
    assert keys_of((), batch) == [(), ()]


@given(st.lists(st.tuples(st.sampled_from("abc") | st.none(), st.integers(-9, 9)), max_size=20))
@settings(deadline=None)
def test_each_key_has_a_state_of_its_own(rows: list[tuple[str | None, int]]) -> None:
    output, left = folded(process(running_sum, initial=0), batch_of(*rows))
    totals: dict[str | None, int] = defaultdict(int)
    expected = []
    for key, number in rows:
        totals[key] += number
        expected.append({"k": key, "n": totals[key]})
    assert output.batch.to_pylist() == expected
    assert output.parents is None, "one for one, in order"
    assert left == totals


def test_all_rows_share_one_state_if_there_is_no_key() -> None:
    output, left = folded(process(running_sum, initial=0, key=()), batch_of(("a", 1), ("b", 2)))
    assert output.batch.to_pydict()["n"] == [1, 3]
    assert left == {(): 3}


def test_a_row_of_none_drops_the_tuple_but_not_the_state() -> None:
    def only_every_second(state: int, row: Row) -> tuple[int, Row | None]:
        return state + 1, row if state % 2 else None

    rows = batch_of(("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5))
    output, left = folded(process(only_every_second, initial=0), rows)
    assert output.batch.to_pydict()["n"] == [2, 5]
    assert output.parents is not None
    assert output.parents.tolist() == [1, 4]
    assert left == {"a": 4, "b": 1}


def test_a_function_that_drops_everything_still_gives_its_columns() -> None:
    output, _ = folded(process(lambda state, row: (1, None)), batch_of(("a", 1)))
    assert output.batch.schema == ROWS
    assert output.batch.num_rows == 0
    assert output.parents is not None
    assert output.parents.tolist() == []


def test_a_function_may_give_many_rows() -> None:
    def repeat(state: int, row: Row) -> tuple[int, list[Row]]:
        return state + 1, [row] * row["n"]

    output, left = folded(process(repeat, initial=0, many=True), batch_of(("a", 2), ("b", 0)))
    assert output.batch.to_pylist() == [{"k": "a", "n": 2}] * 2
    assert output.parents is not None
    assert output.parents.tolist() == [0, 0]
    assert left == {"a": 1, "b": 1}


def test_many_rows_may_be_as_many_as_came_in_and_of_other_parents() -> None:
    spec = process(lambda state, row: (None, [row] * row["n"]), many=True)
    output, _ = folded(spec, batch_of(("a", 0), ("b", 2)))
    assert output.batch.to_pydict()["k"] == ["b", "b"]
    assert output.parents is not None
    assert output.parents.tolist() == [1, 1]


def test_a_state_of_none_is_forgotten() -> None:
    def until_three(state: int, row: Row) -> tuple[int | None, Row]:
        return (None if state == 2 else state + 1), {**row, "n": state}

    output, left = folded(process(until_three, initial=0), batch_of(*[("a", 0)] * 3, ("b", 0)))
    assert output.batch.to_pydict()["n"] == [0, 1, 2, 0]
    assert left == {"b": 1}
    output, left = folded(process(until_three, initial=0), batch_of(*[("a", 0)] * 4))
    assert output.batch.to_pydict()["n"] == [0, 1, 2, 0], "it begins anew"


@pytest.mark.parametrize("initial", [[], Counter(), defaultdict(list)])
def test_an_initial_state_is_not_shared_between_keys(initial: Any) -> None:  # noqa: ANN401
    def remember(state: Any, row: Row) -> tuple[Any, Row]:  # noqa: ANN401
        if isinstance(state, list):
            state.append(row["n"])
        else:
            state[row["n"]] = row["n"]
        return state, {**row, "n": len(state)}

    spec = process(remember, initial=initial)
    fold = make_fold(spec)
    for _ in range(2):  # the second time on another group
        rows = batch_of(("a", 1), ("b", 2), ("a", 3), ("c", 4))
        made = fold(rows, group_of(rows), 0, unchanged)
        assert made.batch.to_pydict()["n"] == [1, 1, 2, 1]
    assert len(initial) == 0


def test_an_initial_state_may_be_of_a_class_that_came_with_a_closure() -> None:
    """Its module cannot be imported, so it cannot be pickled by name."""

    class Tally:
        def __init__(self) -> None:
            self.rows = 0

    def count(state: Tally, row: Row) -> tuple[Tally, Row]:
        state.rows += 1
        return state, {**row, "n": state.rows}

    output, left = folded(process(count, initial=Tally()), batch_of(("a", 0), ("b", 0), ("a", 0)))
    assert output.batch.to_pydict()["n"] == [1, 1, 2]
    assert {key: state.rows for key, state in left.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize("returned", [None, 7, (1,), (1, {}, 3), [1, {"k": "a", "n": 1}], "ab"])
def test_a_function_must_return_a_state_and_a_row(returned: object) -> None:
    spec = process(lambda state, row: returned)
    with pytest.raises(OperatorError, match=r"'op' failed: it must return \(state, row\), not "):
        folded(spec, batch_of(("a", 1)))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda state, row: (1, 7), "must return rows as dicts, not 7"),
        (lambda state, row: (1, {"k": "a"}), r"returned the columns \['k'\], declared are"),
        (lambda state, row: (1, {**row, "more": 1}), r"returned the columns \['k', 'more', 'n'\]"),
    ],
)
def test_rows_that_were_not_declared_are_refused(function: Function, problem: str) -> None:
    with pytest.raises(OperatorError, match=f"'op' failed: it {problem}"):
        folded(process(function), batch_of(("a", 1)))


def test_many_rows_must_be_a_list_of_them() -> None:
    with pytest.raises(OperatorError, match="'NoneType' object is not iterable"):
        folded(process(lambda state, row: (1, None), many=True), batch_of(("a", 1)))
    with pytest.raises(OperatorError, match="must return rows as dicts, not 'k'"):
        folded(process(lambda state, row: (1, row), many=True), batch_of(("a", 1)))


def test_a_value_of_a_wrong_type_names_the_operator() -> None:
    with pytest.raises(OperatorError, match="'op' failed: it returned 'text' for the column 'n'"):
        folded(process(lambda state, row: (1, {"k": "a", "n": "text"})), batch_of(("a", 1)))
    with pytest.raises(OperatorError, match="'op' failed: it returned 'text' for the column 'n'"):
        results(aggregate(max, lambda total: {"n": "text"}), {"a": 1})


def test_a_failure_names_the_row() -> None:
    spec = process(lambda state, row: (None, {**row, "n": 6 // row["n"]}))
    with pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        folded(spec, batch_of(("a", 1), ("b", 0), ("c", 0)))
    assert caught.value.operator == "op"
    assert caught.value.row == "{'k': 'b', 'n': 0}"
    assert "integer division" in caught.value.story


def test_a_state_is_migrated_once_for_each_key_that_is_touched() -> None:
    rows = batch_of(("a", 1), ("b", 2), ("a", 3), ("new", 4))
    group = group_of(rows, batch_of(("idle", 0)))
    for key in ("a", "b", "idle"):
        group.put(key, 2, 10)
    migrated: list[tuple[int, int]] = []

    def add_a_hundred(version: int, state: int) -> int:
        migrated.append((version, state))
        return state + 100

    output = make_fold(process(running_sum, initial=0))(rows, group, 5, add_a_hundred)
    assert output.batch.to_pydict()["n"] == [111, 112, 114, 104]
    assert migrated == [(2, 10), (2, 10), (0, 0)], "the last is the initial state of a new key"
    versions = {key: version for key, (version, _, _) in group.entries()}
    assert versions == {"a": 5, "b": 5, "idle": 2, "new": 5}


def test_an_initial_state_is_of_the_version_that_the_flow_was_built_with() -> None:
    """It is migrated from there on; without one there is nothing to migrate."""
    rows = batch_of(("a", 1))
    asked: list[int] = []

    def note(version: int, state: int) -> int:
        asked.append(version)
        return state

    keying = Keying(("k",), initial=5, migrations=(abs, abs))
    fold = make_fold(replace(process(running_sum), keying=keying))
    assert fold(rows, group_of(rows), 4, note).batch.to_pydict()["n"] == [6]
    assert fold(rows, group_of(rows), 2, note).batch.to_pydict()["n"] == [6]
    assert asked == [2]
    count = make_fold(process(lambda state, row: ((state or 0) + 1, row)))
    count(rows, group_of(rows), 4, unchanged)


def test_a_migration_that_fails_names_the_row_that_needed_it() -> None:
    rows = batch_of(("a", 1))
    group = group_of(rows)
    group.put("a", 0, {"old": 1})
    fold = make_fold(process(running_sum))
    with pytest.raises(OperatorError, match="KeyError") as caught:
        fold(rows, group, 1, lambda version, state: state["new"])
    assert caught.value.row == "{'k': 'a', 'n': 1}"


def aggregate(
    function: Function, result: Function | None = None, key: tuple[str, ...] = ("k",)
) -> OperatorSpec:
    keying = Keying(key, initial=0)
    return OperatorSpec("op", Kind.AGGREGATE, ROWS, function, keying=keying, result=result)


def test_an_aggregate_gives_nothing_before_its_end() -> None:
    output, left = folded(
        aggregate(lambda total, row: total + row["n"]), batch_of(("a", 1), ("b", 2), ("a", 3))
    )
    assert output.batch.num_rows == 0
    assert output.parents is not None
    assert left == {"a": 4, "b": 2}


def test_results_are_key_columns_and_what_the_state_makes() -> None:
    with_result = aggregate(max, lambda total: {"n": total * 2})
    assert results(with_result, {"a": 1, None: 2}).to_pylist() == [
        {"k": "a", "n": 2},
        {"k": None, "n": 4},
    ]
    assert results(aggregate(max), {"a": {"n": 7}}).to_pylist() == [{"k": "a", "n": 7}]


def test_results_of_no_key_and_of_several_key_columns() -> None:
    alone = aggregate(max, lambda total: {"k": "all", "n": total}, key=())
    assert results(alone, {(): 3}).to_pylist() == [{"k": "all", "n": 3}]
    both = aggregate(max, lambda total: {}, key=("n", "k"))
    assert results(both, {(1, "a"): 3}).to_pylist() == [{"k": "a", "n": 1}]
    assert results(both, {}).schema == ROWS


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "failed: its result must be a dict of columns, not 5"),
        (lambda state: [state], r"failed: its result must be a dict of columns, not \[5\]"),
        (lambda state: {"m": 1}, r"failed: it returned the columns \['k', 'm'\]"),
        (lambda state: {"n": state / 0}, "failed on 5: ZeroDivisionError"),
    ],
)
def test_results_that_were_not_declared_are_refused(result: Function | None, problem: str) -> None:
    with pytest.raises(OperatorError, match=f"^operator 'op' {problem}"):
        results(aggregate(max, result), {"a": 5})


LEFT = schema(id=pa.int64(), day=pa.string(), l=pa.string())
RIGHT = schema(l=pa.string(), id=pa.int64(), day=pa.string(), r=pa.string())
BOTH = pa.schema([*LEFT, RIGHT.field("r")])


def half(columns: pa.Schema, ids: list[int | None], epochs: list[int] | None = None) -> Chunk:
    """Rows whose values say where they come from; their transaction is their id."""
    side = "l" if columns is LEFT else "r"
    rows = [{"id": n, "day": "mon", "l": f"{side}{n}", "r": f"r{n}"} for n in ids]
    wanted = [{name: row[name] for name in columns.names} for row in rows]
    batch = pa.RecordBatch.from_pylist(wanted, schema=columns)
    masks = [0] * len(ids) if epochs is None else epochs
    txns = np.array([-1 if n is None else n for n in ids], dtype=np.int64)
    return Chunk(batch, np.array(masks, dtype=np.int64), txns)


def pairing(*key: str) -> OperatorSpec:
    return OperatorSpec("SJ", Kind.JOIN, BOTH, keying=Keying(key or ("id",)))


def test_a_join_pairs_the_rows_of_a_key() -> None:
    pairs = join(pairing(), half(LEFT, [1, 2, 3]), half(RIGHT, [3, 1, 2]))
    assert pairs.batch.schema == BOTH
    assert pairs.batch.to_pylist() == [
        {"id": n, "day": "mon", "l": f"l{n}", "r": f"r{n}"} for n in (1, 2, 3)
    ]


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9), unique=True))
@settings(deadline=None)
def test_a_half_that_the_other_branch_dropped_is_dropped(left: list[int], right: list[int]) -> None:
    for key in (("id",), ("day", "id")):
        pairs = join(pairing(*key), half(LEFT, [*left]), half(RIGHT, [*right]))
        assert pairs.batch.to_pydict()["id"] == [n for n in left if n in right]
        assert pairs.batch.to_pydict()["r"] == [f"r{n}" for n in left if n in right]


def test_null_joins_nothing_however_often_it_comes() -> None:
    left, right = half(LEFT, [None, 1, None]), half(RIGHT, [None, None, 1])
    assert join(pairing(), left, right).batch.to_pydict()["id"] == [1]
    assert join(pairing("day", "id"), left, right).batch.to_pydict()["id"] == [1]


@pytest.mark.parametrize(("left", "right"), [([1, 2, 1], [1]), ([1], [2, 2])])
def test_a_key_that_comes_twice_in_a_branch_is_refused(left: list[int], right: list[int]) -> None:
    twice = 1 if len(left) > 1 else 2
    with pytest.raises(OperatorError, match=f"'SJ' failed: two tuples have the key {twice}"):
        join(pairing(), half(LEFT, [*left]), half(RIGHT, [*right]))


def test_a_pair_has_passed_every_marker_that_one_of_its_halves_has() -> None:
    pairs = join(pairing(), half(LEFT, [1, 2, 3], [0, 4, 1]), half(RIGHT, [3, 2, 1], [2**62, 4, 8]))
    assert pairs.epochs.tolist() == [8, 4, 1 | 2**62]


def test_a_pair_belongs_to_the_transaction_of_its_halves() -> None:
    pairs = join(pairing(), half(LEFT, [5, 6, 7]), half(RIGHT, [7, 6]))
    assert pairs.txns is not None
    assert pairs.txns.tolist() == [6, 7]
    untold = Chunk.fresh(half(LEFT, [5]).batch)
    assert join(pairing(), untold, half(RIGHT, [5])).txns is None


def test_a_key_that_pairs_different_tuples_is_refused() -> None:
    """It is told if transactions are known, as in audit mode."""
    left, right = half(LEFT, [5, 6, 7]), half(RIGHT, [7, 6])
    mixed = Chunk(right.batch, right.epochs, np.array([7, 8]))
    with pytest.raises(OperatorError, match="'SJ' failed: its key pairs different tuples; join on"):
        join(pairing(), left, mixed)
    alone = Chunk(left.batch, left.epochs, np.array([9, 6, 7]))
    assert len(join(pairing(), alone, right)) == 2, "a half that is dropped may be of any"


def test_a_state_that_is_put_into_a_row_is_kept_as_it_was() -> None:
    def history(state: list[int], row: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        state.append(row["n"])
        return state, {"k": row["k"], "all": state}

    schema = pa.schema([("k", pa.string()), ("all", pa.list_(pa.int64()))])
    spec = replace(process(history, initial=[]), schema=schema)
    output, _ = folded(spec, batch_of(("a", 1), ("a", 2), ("b", 3), ("a", 4)))
    assert [row["all"] for row in output.batch.to_pylist()] == [[1], [1, 2], [3], [1, 2, 4]]
