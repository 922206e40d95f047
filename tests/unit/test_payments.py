"""Made-up payments: the same however they are cut, skewed, and with fraud that can be learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fries_lab.workloads.payments import (
    DDL,
    MAX_CARDS,
    REGIONS,
    SCHEMA,
    STATES,
    USER_SCHEMA,
    Payments,
    payments,
    per_user,
)

SMALL = Payments(seed=3, users=50, merchants=200, fraud_share=0.2)
MANY = 400_000


@pytest.fixture(scope="module")
def rows() -> pa.RecordBatch:
    """Many payments, as they are by default."""
    return payments(0, MANY)


def column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """One attribute as a numpy array."""
    values: NDArray[Any] = batch[name].to_numpy(zero_copy_only=False)
    return values


@given(first=st.integers(0, 2**40), counts=st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_rows_do_not_depend_on_how_they_are_cut(first: int, counts: list[int]) -> None:
    starts = [first + sum(counts[:i]) for i in range(len(counts))]
    parts = [payments(start, count, SMALL) for start, count in zip(starts, counts, strict=True)]
    whole = payments(first, sum(counts), SMALL)
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([whole])


def test_single_rows_are_those_of_the_default_range(rows: pa.RecordBatch) -> None:
    for row in (0, 1, 4_095, 99_999, MANY - 1):
        assert payments(row, 1) == rows.slice(row, 1)


def test_the_seed_decides(rows: pa.RecordBatch) -> None:
    assert payments(0, 1_000, Payments()) == rows.slice(0, 1_000)
    for seed in (1, -1, 2**70 + 5):
        other = payments(0, 1_000, Payments(seed=seed))
        assert np.mean(column(other, "user") == column(rows, "user")[:1_000]) < 0.05


def test_rows_stay_the_same_from_run_to_run() -> None:
    amounts = column(payments(1_000_000, 4), "amount")
    assert amounts.tolist() == [15.77, 118.95, 21.29, 2.68]


def test_schema_and_ddl_agree() -> None:
    spark = {
        pa.int64(): "long",
        pa.int32(): "int",
        pa.float64(): "double",
        pa.string(): "string",
        pa.bool_(): "boolean",
        pa.timestamp("us", tz="UTC"): "timestamp",
    }
    assert [text.split(" ") for text in DDL.split(", ")] == [
        [field.name, spark[field.type]] for field in SCHEMA
    ]


def test_payments_have_twelve_sound_attributes(rows: pa.RecordBatch) -> None:
    rows.validate(full=True)
    assert rows.schema == SCHEMA
    assert len(SCHEMA) == 12
    assert [name for name in SCHEMA.names if rows[name].null_count] == ["errors"]
    assert column(rows, "id").tolist() == list(range(MANY))
    assert np.all(np.diff(column(rows, "time")) > np.timedelta64(0))
    assert column(rows, "amount").min() >= 0.01
    assert set(column(rows, "card")) == set(range(MAX_CARDS))


def test_a_merchant_has_one_place_and_category(rows: pa.RecordBatch) -> None:
    places = pa.Table.from_batches([rows]).group_by(["merchant", "city", "state", "category"])
    assert len(places.aggregate([])) == len(pc.unique(rows["merchant"]))
    assert len(STATES) == REGIONS
    assert len(set(STATES)) == 50


@pytest.mark.parametrize("share", [0.0, 0.0012, 0.01, 0.3, 1.0])
def test_fraud_share_is_kept(share: float) -> None:
    fraud = column(payments(0, 200_000, Payments(fraud_share=share)), "is_fraud")
    assert fraud.mean() == pytest.approx(share, rel=0.25)


def test_skew_loads_workers_unevenly(rows: pa.RecordBatch) -> None:
    users = np.bincount(column(rows, "user"), minlength=20_000)
    workers = np.random.default_rng(0).integers(40, size=(20, len(users)))
    hottest = [np.bincount(worker_of, users).max() / (MANY / 40) for worker_of in workers]
    assert np.mean(hottest) == pytest.approx(62 / 35, abs=0.15), "as in the paper"


def test_few_merchants_get_most_payments(rows: pa.RecordBatch) -> None:
    merchants = np.sort(np.bincount(column(rows, "merchant"), minlength=100_000))
    assert merchants[-1] > 0.02 * MANY
    assert merchants[-1_000:].sum() > 0.4 * MANY
    assert np.count_nonzero(merchants) > 50_000


def test_amounts_of_fraud_are_unusual(rows: pa.RecordBatch) -> None:
    user, amount, fraud = (column(rows, name) for name in ("user", "amount", "is_fraud"))
    payments_of = np.bincount(user[~fraud], minlength=20_000)
    usual = np.bincount(user[~fraud], amount[~fraud], 20_000) / np.maximum(payments_of, 1)
    known = payments_of[user] >= 20
    ratio = amount[known] / usual[user[known]]
    fraud = fraud[known]
    assert ratio[~fraud].mean() == pytest.approx(1.0, abs=0.01)
    assert ratio[fraud].mean() > 2.0
    assert np.mean(ratio[fraud] < 0.15) > 5 * np.mean(ratio[~fraud] < 0.15), "the thief's trials"


def test_fraud_comes_in_bursts_on_one_card_in_one_state(rows: pa.RecordBatch) -> None:
    """The payment before a fraud, of the same user, is mostly fraud: a sequence tells it."""
    order = np.lexsort((column(rows, "id"), column(rows, "user")))
    user, card, state, fraud = (
        column(rows, name)[order] for name in ("user", "card", "state", "is_fraud")
    )
    same_user = user[1:] == user[:-1]
    both = same_user & fraud[1:] & fraud[:-1]
    assert both.sum() / (same_user & fraud[1:]).sum() > 0.6
    assert np.mean((card[1:] == card[:-1])[both]) > 0.8
    assert np.mean((state[1:] == state[:-1])[both]) > 0.8


def test_fraud_is_rarely_with_chip_and_often_with_errors(rows: pa.RecordBatch) -> None:
    fraud = column(rows, "is_fraud")
    chip = column(rows, "use_chip") == "Chip Transaction"
    failed = column(rows, "errors").astype(bool)
    assert chip[fraud].mean() < 0.1 < 0.4 < chip[~fraud].mean()
    assert failed[~fraud].mean() < 0.03 < 0.1 < failed[fraud].mean()


@given(order=st.permutations(range(8)))
@settings(deadline=None)
def test_per_user_keeps_every_payment_once_in_order_of_time(order: list[int]) -> None:
    table = pa.Table.from_batches([payments(40 * part, 40, SMALL) for part in order])
    grouped = per_user(table)
    grouped.validate(full=True)
    assert grouped.schema == USER_SCHEMA
    expected: dict[int, list[dict[str, Any]]] = {}
    for payment in payments(0, 320, SMALL).to_pylist():
        expected.setdefault(payment.pop("user"), []).append(payment)
    assert grouped.to_pylist() == [
        {"user": user, "payments": expected[user]} for user in sorted(expected)
    ]


def test_per_user_of_no_payments_is_empty() -> None:
    grouped = per_user(pa.Table.from_batches([], SCHEMA))
    assert grouped.schema == USER_SCHEMA
    assert len(grouped) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"users": 0},
        {"merchants": REGIONS - 1},
        {"interval": 0},
        {"fraud_share": 1.5},
        {"user_skew": 1.1},
        {"merchant_skew": -0.1},
    ],
)
def test_impossible_configurations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"payments need|fraud_share|skew"):
        Payments(**wrong)


def test_rows_before_the_first_are_refused() -> None:
    with pytest.raises(ValueError, match="count from 0"):
        payments(-1, 5)
    with pytest.raises(ValueError, match="count from 0"):
        payments(0, -5)


def test_the_smallest_world_works() -> None:
    tiny = Payments(users=1, merchants=REGIONS, fraud_share=0.5)
    assert set(column(payments(0, 100, tiny), "user")) == {0}
    assert len(payments(7, 0, tiny)) == 0
