"""Verdicts on recorded traces: both guarantees, counts, sentences; traces that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fries.errors import ScheduleError
from fries.serializability import Tally, check_trace
from fries.trace import Labels, Trace, TraceBuilder


def trace(
    rows: list[tuple[int, str, int]], *updates: dict[str, int], labels: Labels | None = None
) -> Trace:
    """A trace over the operators A, B, C and D."""
    builder = TraceBuilder("ABCD")
    for transaction, operator, version in rows:
        builder.record(transaction, "ABCD".index(operator), version)
    assert len(builder) == len(rows)
    return builder.build(updates, labels)


def test_updates_can_be_atomic_each_and_not_serializable_together() -> None:
    verdict = check_trace(
        trace([(1, "A", 1), (1, "B", 0), (2, "A", 0), (2, "B", 1)], {"A": 1}, {"B": 1})
    )
    assert verdict.atomic
    assert not verdict.serializable
    assert verdict.serial_order() is None
    assert verdict.mixed == 0
    assert verdict.contradiction is not None
    assert len(verdict.contradiction.steps) == 4
    assert str(verdict) == (
        "not serializable, though each update is atomic: U1 before U2 (tuple 1 used A new and "
        "B old) and U2 before U1 (tuple 2 used B new and A old)\n"
        "  4 operations of 2 transactions, 0 of them mixed\n"
        "  U1: 1 all old, 1 all new, 0 mixed, 0 untouched\n"
        "  U2: 1 all old, 1 all new, 0 mixed, 0 untouched"
    )


def test_updates_that_cross_are_a_circle_of_two_without_any_tuple() -> None:
    verdict = check_trace(trace([], {"A": 1, "B": 2}, {"A": 2, "B": 1}))
    assert verdict.atomic
    assert (
        str(verdict.contradiction)
        == "U1 before U2 (it updated A first) and U2 before U1 (it updated B first)"
    )


def test_a_mixed_tuple_is_named_before_updates_that_cross() -> None:
    crossing = ({"A": 1, "B": 2}, {"A": 2, "B": 1}, {"C": 1, "D": 1})
    verdict = check_trace(trace([(7, "C", 1), (7, "D", 0)], *crossing))
    assert not verdict.atomic
    assert str(verdict.contradiction) == "tuple 7 used D old and C new in U3"
    assert str(verdict).startswith("not atomic: tuple 7 used")


def test_the_tuple_that_was_recorded_first_is_named() -> None:
    rows = [(9, "A", 1), (3, "A", 0), (12, "A", 1), (3, "B", 1), (9, "B", 0), (12, "B", 0)]
    verdict = check_trace(trace(rows, {"A": 1, "B": 1}))
    assert verdict.mixed == 3
    assert str(verdict.contradiction) == "tuple 9 used B old and A new"


def test_a_longer_circle_is_walked_over_a_direct_conflict() -> None:
    updates = ({"A": 1}, {"B": 1, "D": 1}, {"C": 1, "D": 2})
    labels = Labels(updates=("first", "second", "third"))
    rows = [(4, "A", 1), (4, "B", 0), (5, "C", 1), (5, "A", 0)]
    verdict = check_trace(trace(rows, *updates, labels=labels))
    assert verdict.atomic
    assert verdict.contradiction is not None
    assert len(verdict.contradiction.steps) == 5
    assert str(verdict.contradiction) == (
        "first before second (tuple 4 used A new and B old), second before third (it updated D "
        "first) and third before first (tuple 5 used C new and A old)"
    )


def test_counts_of_a_trace() -> None:
    rows = [(1, "A", 0), (2, "A", 1), (3, "A", 0), (3, "B", 1), (4, "C", 0), (2, "B", 1)]
    verdict = check_trace(trace(rows, {"A": 1, "B": 1}, {"C": 1}))
    assert (verdict.transactions, verdict.operations, verdict.mixed) == (4, 6, 1)
    assert verdict.tallies == (
        Tally("U1", old=1, new=1, mixed=1, untouched=1),
        Tally("U2", old=1, new=0, mixed=0, untouched=3),
    )
    assert str(verdict.contradiction) == "tuple 3 used A old and B new in U1"


def test_serial_order_of_a_trace_is_given_as_columns() -> None:
    rows = [(30, "A", 1), (20, "D", 0), (10, "A", 0), (5, "A", 1)]
    order = check_trace(trace(rows, {"A": 1})).serial_order()
    assert order is not None
    assert order.ids.tolist() == [20, 10, 0, 30, 5]
    assert order.is_update.tolist() == [False, False, True, False, False]


def test_a_trace_may_begin_at_any_version() -> None:
    verdict = check_trace(trace([(1, "A", 5), (2, "A", 6), (3, "B", 9)], {"A": 6}))
    assert verdict.serializable
    assert verdict.tallies == (Tally("U1", old=1, new=1, mixed=0, untouched=1),)


def test_empty_traces_are_serializable() -> None:
    for updates in ((), ({"A": 1},)):
        verdict = check_trace(trace([], *updates))
        assert verdict.serializable
        order = verdict.serial_order()
        assert order is not None
        assert len(order.ids) == len(updates)
    assert check_trace(trace([(1, "A", 0), (1, "B", 0)])).serializable


def test_a_long_list_of_updates_is_shortened_for_people() -> None:
    updates = [{"A": version} for version in range(1, 41)]
    verdict = check_trace(trace([(1, "A", 17), (2, "A", 40)], *updates))
    assert verdict.serializable
    assert str(verdict).splitlines()[-1] == "  and 28 more updates"


@pytest.mark.parametrize(
    ("rows", "updates", "problem"),
    [
        ([(1, "A", 2)], [{"A": 1}], "A ran at version 2, which no update"),
        ([(1, "A", 0)], [{"A": 2}], "A ran at version 0, which no update"),
        ([(1, "B", 0), (1, "B", 1)], [{"A": 1}], "B ran at version 1, which no update"),
        ([], [{"A": 1}, {"A": 3}], "the updates of A make the versions 1, 3"),
        ([], [{"A": 1}, {"A": 1}], "the updates of A make the versions 1, 1"),
        ([], [{"Z": 1}], "U1 updates unknown 'Z'"),
        ([], [{"A": "1"}], "U1 makes version '1' of 'A'; give a whole number"),
        ([], [{"A": 1.0}], "U1 makes version 1.0 of 'A'; give a whole number"),
        ([], [{"A": None}], "U1 makes version None of 'A'; give a whole number"),
        ([], [{"A": True}], "U1 makes version True of 'A'; give a whole number"),
    ],
)
def test_incomplete_traces_are_refused(
    rows: list[tuple[int, str, int]], updates: list[dict[str, int]], problem: str
) -> None:
    with pytest.raises(ScheduleError, match=problem):
        trace(rows, *updates)


def test_updates_that_name_no_versions_are_refused() -> None:
    one = np.array([1])
    wrong: Any = ("A",)
    with pytest.raises(ScheduleError, match="U1 is 'A'; give versions by the names of operators"):
        Trace(one, one - 1, one, ("A",), wrong)


def test_columns_that_do_not_fit_are_refused() -> None:
    one, two = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with pytest.raises(ScheduleError, match="of one length"):
        Trace(one, two, one, ("A",))
    with pytest.raises(ScheduleError, match="a row of another"):
        Trace(one, one + 1, one, ("A",))
    with pytest.raises(ScheduleError, match="other labels"):
        Trace(one, one, one, ("A",), labels=Labels(updates=("U",)))
    with pytest.raises(ScheduleError, match="1 rows, but 2 labels"):
        Trace(one, one, one, ("A",), labels=Labels(rows=("a", "b")))
    with pytest.raises(ScheduleError, match="1 transactions have labels, and there are others"):
        Trace(one + 1, one, one, ("A",), labels=Labels(transactions=("a",)))


@pytest.mark.parametrize(
    "column", [[0], np.zeros(1), np.zeros((1, 1), dtype=np.int64), np.int64(0)]
)
def test_columns_that_are_not_arrays_of_integers_are_refused(column: Any) -> None:  # noqa: ANN401
    one = np.zeros(1, dtype=np.int64)
    for first, second, third in ((column, one, one), (one, column, one), (one, one, column)):
        with pytest.raises(ScheduleError, match="arrays of signed integers"):
            Trace(first, second, third, ("A",))


def test_two_operators_of_one_name_are_refused() -> None:
    with pytest.raises(ScheduleError, match="two operators of a trace have one name"):
        TraceBuilder("AA").build([])


def test_a_builder_may_go_on_after_building() -> None:
    builder = TraceBuilder(["A"])
    builder.record(1, 0, 0)
    first = builder.build([])
    builder.record(2, 0, 0)
    assert (len(first), len(builder.build([]))) == (1, 2)


@pytest.mark.parametrize("mixed", [0, 1, 777])
def test_a_hundred_thousand_operations(mixed: int) -> None:
    transactions, updates = 25_000, 20
    epochs = np.arange(transactions) * (updates + 1) // transactions
    versions = np.repeat(epochs[:, None], 4, axis=1)
    versions[1_000 : 1_000 + mixed, 3] += 1
    shuffled = np.random.default_rng(0).permutation(4 * transactions)
    verdict = check_trace(
        Trace(
            transaction=np.repeat(np.arange(transactions), 4)[shuffled],
            operator=np.tile(np.arange(4), transactions)[shuffled],
            version=versions.ravel()[shuffled],
            operators=tuple("ABCD"),
            updates=tuple(dict.fromkeys("ABCD", number + 1) for number in range(updates)),
        )
    )
    assert (verdict.operations, verdict.transactions) == (100_000, 25_000)
    assert verdict.mixed == mixed
    assert verdict.serializable == (mixed == 0)
    if order := verdict.serial_order():
        assert order.ids[order.is_update].tolist() == list(range(updates))
        assert np.all(np.diff(epochs[order.ids[~order.is_update]]) >= 0)
