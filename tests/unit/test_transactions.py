"""The paper's schedules S1 to S5, and schedules that are refused."""

from __future__ import annotations

import pickle

import pytest

from fries.errors import ScheduleError
from fries.serializability import Step, Tally, Vertex, check, trace_of
from fries.transactions import (
    DataTransaction,
    Operation,
    Schedule,
    Scope,
    StreamTuple,
    UpdateTransaction,
    conflict_equivalent,
    conflicting,
    mu,
    phi,
)

FC, FM, MC = phi("t", "FC"), phi("t", "FM"), phi("t", "MC")
T1 = DataTransaction.chain("T1", FC, FM, MC)
T2 = UpdateTransaction.of("U", "FM", "MC")

S1 = Schedule((T1, T2), (FC, mu("FM"), FM, mu("MC"), MC))
S2 = Schedule((T1, T2), (mu("FM"), mu("MC"), FC, FM, MC))
S3 = Schedule((T1, T2), (FC, FM, mu("FM"), mu("MC"), MC))

T3 = DataTransaction.chain("T3", phi("t1", "X"), phi("t1", "C"))
T4 = DataTransaction.chain("T4", phi("t2", "X"), phi("t2", "D"))
U = UpdateTransaction.of("U", "C", "D")
S4 = Schedule(
    (T3, T4, U),
    (
        phi("t1", "X"),
        mu("C"),
        phi("t1", "C"),
        phi("t2", "X"),
        mu("D"),
        phi("t2", "D"),
    ),
)


def one_to_many() -> Schedule:
    """S5; the paper's text calls the operator FMX, and its formula FD1."""
    receivers = ["FC", "J", "SP", "SP", "SP", "FMX", "FMX", "FMY", "U1", "U1", "U1"]
    names = ["t", *(f"t{number}" for number in range(1, 11))]
    tuples = [StreamTuple(*pair) for pair in zip(names, receivers, strict=True)]
    producers = [0, 1, 1, 1, 2, 3, 4, 5, 6, 7]
    derived = ((tuples[p], tuples[n]) for n, p in enumerate(producers, 1))
    transaction = DataTransaction("T5", Scope(tuples[0], tuple(derived)))
    data = [phi(item.name, item.receiver) for item in tuples]
    update = UpdateTransaction.of("U", "FMX")
    return Schedule((transaction, update), (*data[:6], mu("FMX"), *data[6:]))


def test_s1_is_serializable_and_conflict_equivalent_to_the_serial_s2() -> None:
    assert not S1.is_serial
    assert S2.is_serial
    assert conflict_equivalent(S1, S2)
    assert conflict_equivalent(S2, S1)
    verdict = check(S1)
    assert verdict.serializable
    assert verdict.atomic
    assert verdict.serial == (T2, T1)
    assert verdict.cycle == ()


def test_s3_is_not_serializable_and_the_witness_says_why() -> None:
    verdict = check(S3)
    assert not verdict.serializable
    assert not verdict.atomic
    assert verdict.serial is None
    assert str(verdict.contradiction) == "tuple t used FM old and MC new"
    assert verdict.contradiction is not None
    update, data = Vertex("update", 0), Vertex("data", 0)
    assert verdict.contradiction.steps == (
        Step(update, data, "MC", 2),
        Step(data, update, "FM", 1),
    )
    assert verdict.cycle == (T2, T1)
    assert not conflict_equivalent(S3, S2)
    assert not conflict_equivalent(S3, Schedule.serial((T1, T2)))


def test_s4_is_serializable_because_each_tuple_takes_one_path() -> None:
    verdict = check(S4)
    assert verdict.serial == (U, T3, T4)
    assert conflict_equivalent(S4, Schedule.serial((U, T3, T4)))
    assert verdict.tallies == (Tally("U", old=0, new=2, mixed=0, untouched=0),)


def test_s5_is_not_serializable_and_the_witness_names_both_tuples() -> None:
    verdict = check(one_to_many())
    assert not verdict.serializable
    assert str(verdict.contradiction) == "tuple t used FMX old (t5) and FMX new (t6)"


def test_serial_order_goes_by_first_operations_between_updates() -> None:
    late = DataTransaction.chain("late", phi("b", "X"), phi("b", "C"))
    early = DataTransaction.chain("early", phi("a", "X"), phi("a", "C"))
    old = DataTransaction.chain("old", phi("o", "C"))
    operations = (phi("o", "C"), phi("a", "X"), phi("b", "X"), mu("C"), phi("b", "C"))
    schedule = Schedule(
        (late, early, old, UpdateTransaction.of("U", "C")), (*operations, phi("a", "C"))
    )
    serial = check(schedule).serial
    assert serial is not None
    assert [transaction.name for transaction in serial] == ["old", "U", "early", "late"]


def test_scope_orders_tuples_by_derivation() -> None:
    a, b, c, d = (StreamTuple(name, name.upper()) for name in "abcd")
    scope = Scope(a, ((b, c), (a, b), (a, d)))
    assert scope.tuples == (a, b, d, c)
    assert scope.precedes(a, c)
    assert not scope.precedes(c, a)
    assert not scope.precedes(d, c)
    assert not scope.precedes(a, a)


def test_what_conflicts() -> None:
    assert conflicting(FM, mu("FM"))
    assert conflicting(mu("FM"), FM)
    assert conflicting(mu("FM", "U1"), mu("FM", "U2"))
    assert not conflicting(mu("FM"), mu("FM"))
    assert not conflicting(FC, mu("FM"))
    assert not conflicting(phi("a", "FM"), phi("b", "FM"))


def test_formal_objects_are_hashable_and_survive_pickling() -> None:
    assert len({S1, S2, S3, pickle.loads(pickle.dumps(S1))}) == 3
    assert pickle.loads(pickle.dumps(S1)).is_serial == S1.is_serial
    assert [str(operation) for operation in S1.operations[:2]] == ["φ(t, FC)", "μ(FM)"]
    assert str(mu("FM", "U2")) == "μ(FM, U2)"


def test_a_partial_order_needs_only_what_decides_conflicts() -> None:
    pairs = ((FM, mu("FM")), (mu("MC"), MC))
    schedule = Schedule((T1, T2), (mu("MC"), mu("FM"), MC, FM, FC), pairs)
    assert schedule.before(FC, mu("FM"))  # through the transaction's own order
    assert not schedule.before(FC, mu("MC"))
    assert not schedule.before(mu("MC"), FC)
    assert not schedule.is_serial
    assert conflict_equivalent(schedule, S3)
    assert str(check(schedule).contradiction) == "tuple t used FM old and MC new"


def test_a_partial_order_can_be_serial() -> None:
    pairs = ((mu("FM"), FC), (mu("MC"), FC))
    assert Schedule((T1, T2), S1.operations, pairs).is_serial


def test_schedules_of_other_transactions_are_not_equivalent() -> None:
    assert not conflict_equivalent(S1, S4)


@pytest.mark.parametrize(
    ("operations", "problem"),
    [
        ((FC, FM, MC, mu("FM")), "it lacks μ(MC)"),
        ((FC, FM, FM, MC, mu("FM"), mu("MC")), "it mentions φ(t, FM) twice"),
        ((FC, FM, MC, mu("FM"), mu("MC"), mu("X")), "μ(X) belongs to none of its transactions"),
        (
            (FM, FC, MC, mu("FM"), mu("MC")),
            "φ(t, FM) is before φ(t, FC), but t at FM is derived from t at FC",
        ),
    ],
)
def test_bad_sequences_are_refused(operations: tuple[Operation, ...], problem: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        Schedule((T1, T2), operations)
    assert refusal.value.problem == problem


@pytest.mark.parametrize(
    ("precedence", "problem"),
    [
        (((FM, mu("FM")),), "μ(MC) and φ(t, MC) conflict, but neither is before the other"),
        (
            ((FM, mu("FM")), (mu("FM"), MC), (MC, FM)),
            "its order is a circle: μ(FM) before φ(t, MC) before φ(t, FM) before μ(FM)",
        ),
        (((FC, FC),), "its order is a circle: φ(t, FC) before φ(t, FC)"),
        (
            ((MC, mu("MC")), (mu("MC"), FM)),
            "φ(t, MC) is before φ(t, FM), but t at MC is derived from t at FM",
        ),
        (((FM, mu("X")),), "its order mentions μ(X), which is not in it"),
    ],
)
def test_bad_partial_orders_are_refused(
    precedence: tuple[tuple[Operation, Operation], ...], problem: str
) -> None:
    with pytest.raises(ScheduleError) as refusal:
        Schedule((T1, T2), S1.operations, precedence)
    assert refusal.value.problem == problem


def test_two_transactions_that_wait_for_each_other_are_refused() -> None:
    pairs = ((phi("t1", "C"), phi("t2", "X")), (phi("t2", "D"), phi("t1", "X")))
    with pytest.raises(ScheduleError, match="its order is a circle"):
        Schedule((T3, T4), (*T3.operations, *T4.operations), pairs)


def test_two_unordered_updates_of_one_operator_are_refused() -> None:
    updates = (UpdateTransaction.of("U1", "A"), UpdateTransaction.of("U2", "A"))
    with pytest.raises(ScheduleError, match=r"μ\(A, U1\) and μ\(A, U2\) conflict"):
        Schedule(updates, (mu("A", "U1"), mu("A", "U2")), ())


def test_names_and_operations_belong_to_one_transaction() -> None:
    with pytest.raises(ScheduleError, match="two transactions are named T1"):
        Schedule((T1, T1), (FC, FM, MC))
    with pytest.raises(ScheduleError, match=r"two transactions contain φ\(t, FC\)"):
        Schedule((T1, DataTransaction.chain("T9", FC)), (FC, FM, MC))
    with pytest.raises(ScheduleError, match="updates no operator"):
        UpdateTransaction.of("U")


def test_scopes_that_are_no_trees_are_refused() -> None:
    a, b, c = (StreamTuple(name, "O") for name in "abc")
    with pytest.raises(ScheduleError, match="b at O is produced twice in the scope of a at O"):
        Scope(a, ((a, b), (a, c), (c, b)))
    with pytest.raises(ScheduleError, match="a at O is produced twice"):
        Scope(a, ((a, b), (b, a)))
    with pytest.raises(ScheduleError, match="b at O is not derived from the source tuple a at O"):
        Scope(a, ((b, c), (c, b)))


def test_a_schedule_becomes_the_trace_of_its_versions() -> None:
    recorded = trace_of(S3)
    assert recorded.operators == ("FC", "FM", "MC")
    assert recorded.version.tolist() == [0, 0, 1]
    assert recorded.updates == ({"FM": 1, "MC": 1},)
