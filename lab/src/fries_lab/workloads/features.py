"""What the models see of a payment, and of the payments before it.

A model judges a payment by the last few of its user, or of its merchant: ``STEPS`` vectors,
oldest first, with zeros in front where there are fewer. The running flow makes them one by
one, training makes millions at once; both are here, so that they stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fries_lab.workloads.payments import CHIP, ONLINE, SWIPE, USES

Floats: TypeAlias = NDArray[np.float32]
Vector: TypeAlias = tuple[float, ...]
"""A payment: its amount, whether by chip, swiped or online, and whether with an error."""

FEATURES: Final = 5
USER_STEPS: Final = 10
"""Payments that a user-based model sees (paper)."""
MERCHANT_STEPS: Final = 50
"""Payments that a merchant-based model sees (paper)."""
USUAL: Final = math.log(40.0)
"""Logarithm of the amount that becomes 0: what payments have in the middle."""


CENT: Final = 0.01
"""What an amount counts as at least. A refund counts by its size: models have seen none."""


def vector(payment: Mapping[str, Any]) -> Vector:
    """What a model sees of one payment, given as a row."""
    use = payment["use_chip"]
    return (
        math.log(max(abs(payment["amount"]), CENT)) - USUAL,
        float(use == USES[CHIP]),
        float(use == USES[SWIPE]),
        float(use == USES[ONLINE]),
        float(payment["errors"] is not None),
    )


def sequence(history: Iterable[Vector], steps: int) -> Floats:
    """A history of at most so many payments, newest last, as one input of a model."""
    made = np.zeros((1, steps, FEATURES), np.float32)
    past = list(history)
    if past:
        made[0, steps - len(past) :] = past
    return made


def vectors(rows: pa.Table) -> Floats:
    """What a model sees of many payments."""
    use = rows["use_chip"]
    columns = [
        np.log(np.maximum(np.abs(rows["amount"].to_numpy()), CENT)) - USUAL,
        *(pc.equal(use, pa.scalar(USES[kind])).to_numpy() for kind in (CHIP, SWIPE, ONLINE)),
        pc.is_valid(rows["errors"]).to_numpy(),
    ]
    return np.column_stack(columns).astype(np.float32)


def sequences(rows: pa.Table, key: str, steps: int) -> Floats:
    """For each of many payments in order of time, its sequence among those with the same key."""
    keys = rows[key].to_numpy()
    order = np.argsort(keys, kind="stable")
    sorted_keys, seen = keys[order], vectors(rows)[order]
    places = np.arange(len(keys))
    first = np.searchsorted(sorted_keys, sorted_keys)  # where the history of a key begins
    made = np.zeros((len(keys), steps, FEATURES), np.float32)
    for back in range(steps):
        has = places - back >= first
        made[order[has], steps - 1 - back] = seen[places[has] - back]
    return made


def auc(scores: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    """How often a fraud scores above an honest payment; a tie is half of it."""
    values, places = np.unique(scores, return_inverse=True)
    ends = np.cumsum(np.bincount(places, minlength=len(values)))
    ranks = ends - (np.bincount(places, minlength=len(values)) - 1) / 2
    frauds = int(truth.sum())
    above = ranks[places][truth].sum() - frauds * (frauds + 1) / 2
    return float(above / (frauds * (len(truth) - frauds)))
