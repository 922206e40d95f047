"""Means of a few measurements, with their 95 % confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's distribution for 1 to 30 degrees of freedom."""
BEYOND: Final = 2.04
"""For more degrees of freedom: a little too wide, never too narrow."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and half the width of its interval; ``None`` where one value gives none."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        mean = shown(self.mean)
        return mean if self.half is None else f"{mean} ± {shown(self.half)}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value."""
    count = len(values)
    if count == 1:
        return Estimate(values[0], None, 1)
    quantile = STUDENT[count - 2] if count - 2 < len(STUDENT) else BEYOND
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Estimate(statistics.fmean(values), half, count)


def shown(value: float) -> str:
    """A number with about three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
