"""The trained models: one view of payments in flows and in training, and fraud is found."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fries_lab.workloads.features import FEATURES, auc, sequence, sequences, vector, vectors
from fries_lab.workloads.models import STEPS, TRAINED, Inference, Model, trained
from fries_lab.workloads.payments import Payments, payments

SMALL = Payments(seed=3, users=20, merchants=64, fraud_share=0.1)
ROWS = pa.Table.from_batches([payments(0, 300, SMALL)])
FIRST_UNSEEN = 800_000
"""Payments from here on were neither trained on nor used for the record."""


def test_rows_and_batches_look_the_same_to_a_model() -> None:
    expected = np.array([vector(row) for row in ROWS.to_pylist()], np.float32)
    np.testing.assert_allclose(vectors(ROWS), expected, rtol=1e-6)
    assert expected.shape == (300, FEATURES)


@pytest.mark.parametrize(("key", "steps"), [("user", 10), ("merchant", 50)])
def test_sequences_are_the_last_payments_of_a_key(key: str, steps: int) -> None:
    history: dict[Any, list[Any]] = defaultdict(list)
    expected = []
    for row in ROWS.to_pylist():
        history[row[key]].append(vector(row))
        expected.append(sequence(history[row[key]][-steps:], steps))
    np.testing.assert_allclose(sequences(ROWS, key, steps), np.concatenate(expected), rtol=1e-6)


def test_a_short_history_is_padded_in_front() -> None:
    made = sequence([(1.0,) * FEATURES], 3)
    assert made[0, :, 0].tolist() == [0.0, 0.0, 1.0]
    assert not sequence([], 3).any()


def test_auc_counts_pairs_and_halves_ties() -> None:
    scores = np.array([0.1, 0.5, 0.5, 0.9])
    assert auc(scores, np.array([False, False, True, True])) == 0.875
    assert auc(scores, np.array([True, True, False, False])) == 0.125


@pytest.mark.parametrize(
    ("name", "least"),
    [("user_lstm", 0.9), ("user_lstm_small", 0.9), ("user_tree", 0.88), ("merchant_lstm", 0.88)],
)
def test_models_find_fraud_that_they_have_not_seen(name: str, least: float) -> None:
    count, judged = 150_000, 10_000
    rows = pa.Table.from_batches([payments(FIRST_UNSEEN, count)])
    model = trained(name)
    inputs = sequences(rows, json_of(name)["key"], model.steps)[-judged:]
    scores = np.concatenate([model(part) for part in np.array_split(inputs, 20)])
    assert scores.shape == (judged,)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert auc(scores, rows["is_fraud"].to_numpy()[-judged:]) > least


def json_of(name: str) -> dict[str, Any]:
    record = json.loads((TRAINED / "record.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = record["models"][name]
    return found


@pytest.mark.parametrize("name", STEPS)
def test_the_record_fits_the_files(name: str) -> None:
    content = (TRAINED / f"{name}.onnx").read_bytes()
    assert json_of(name)["bytes"] == len(content) < 3_000_000
    assert json_of(name)["steps"] == STEPS[name]
    assert f"`{name}`" in (TRAINED / "README.md").read_text(encoding="utf-8")


def test_a_model_travels_as_bytes_without_its_session() -> None:
    model = trained("user_tree")
    inputs = sequences(ROWS, "user", model.steps)
    expected = model(inputs)
    sent = pickle.dumps(model)
    assert len(sent) < 15_000
    np.testing.assert_array_equal(pickle.loads(sent)(inputs), expected)
    assert pickle.dumps(pickle.loads(sent)) == sent


def test_inference_keeps_the_last_payments_and_fills_a_column() -> None:
    model = trained("user_lstm_small")
    infer = Inference(model, "p_user")
    mine = ROWS.filter(pa.compute.equal(ROWS["user"], pa.scalar(0)))
    state: tuple[Any, ...] = ()
    found = []
    for row in mine.to_pylist():
        state, made = infer(state, row)
        assert {**made, "p_user": None} == {**row, "p_user": None}
        found.append(made["p_user"])
        assert len(state) <= model.steps
    np.testing.assert_allclose(found, model(sequences(mine, "user", model.steps)), atol=1e-6)
    assert len(found) > model.steps


def test_a_broken_model_is_refused_when_it_is_first_asked() -> None:
    with pytest.raises(Exception, match=r"(?i)protobuf|parse|invalid"):
        Model(b"not a network", 10)(np.zeros((1, 10, FEATURES), np.float32))
