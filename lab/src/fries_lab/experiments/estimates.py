"""Medians of measurements, with their 95 % bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 4_000
"""Enough that the ends of an interval hardly move when it is drawn again."""
SEED: Final = 20_260
"""The same measurements give the same interval, whoever writes the page."""
LEAST: Final = 1e-3
"""What a median counts as at least where others are divided by it: there are delays of 0."""
ENDS: Final = (2.5, 97.5)
"""Percentiles of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; no interval where it comes from one measurement."""

    value: float
    low: float | None
    high: float | None
    count: int

    def __str__(self) -> str:
        value = shown(self.value)
        if self.low is None or self.high is None:
            return value
        return f"{value} [{shown(self.low)}, {shown(self.high)}]"


def estimate(values: Sequence[float]) -> Estimate:
    """The median of at least one value."""
    middle = float(np.median(values))
    if len(values) == 1:
        return Estimate(middle, None, None, 1)
    low, high = np.percentile(resampled_medians(values), ENDS)
    return Estimate(middle, float(low), float(high), len(values))


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """How many times as large the median of some values is as that of others."""
    middle = float(np.median(values)) / max(LEAST, float(np.median(others)))
    count = min(len(values), len(others))
    if count == 1:
        return Estimate(middle, None, None, 1)
    drawn = resampled_medians(values) / np.maximum(LEAST, resampled_medians(others, SEED + 1))
    low, high = np.percentile(drawn, ENDS)
    return Estimate(middle, float(low), float(high), count)


def resampled_medians(values: Sequence[float], seed: int = SEED) -> NDArray[np.float64]:
    """Medians of samples that are drawn from a sample, with replacement."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))  # in whatever order they were measured
    places = np.random.default_rng(seed).integers(len(ordered), size=(RESAMPLES, len(ordered)))
    medians: NDArray[np.float64] = np.median(ordered[places], axis=1)
    return medians


def shown(value: float) -> str:
    """A number with about three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
