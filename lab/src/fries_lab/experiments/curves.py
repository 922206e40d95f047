"""Curves over time: means in sliding windows, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fries_lab.errors import ExperimentError

Values: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True)
class Curve:
    """A value at each of some moments; ``None`` where nothing is known."""

    seconds: Sequence[float]
    values: Sequence[float | None]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Curve:
        """A curve that was kept as JSON."""
        return cls(found["seconds"], found["values"])

    @property
    def known(self) -> tuple[Values, Values]:
        """Moments and values where there is one."""
        pairs = [
            (second, value)
            for second, value in zip(self.seconds, self.values, strict=True)
            if value is not None
        ]
        if not pairs:
            raise ExperimentError("curve", "it has no value at all")
        moments, values = np.array(pairs, dtype=np.float64).T
        return moments, values

    @property
    def peak(self) -> float:
        """The highest value."""
        return float(self.known[1].max())

    @property
    def final(self) -> float:
        """The last value."""
        return float(self.known[1][-1])

    @property
    def area(self) -> float:
        """What lies under it; a gap is a straight line, and before the first value it is flat."""
        moments, values = self.known
        return float(np.trapezoid(np.interp(self.seconds, moments, values), self.seconds))

    def since(self, moment: float) -> Curve:
        """Its part from a moment on."""
        pairs = zip(self.seconds, self.values, strict=True)
        seconds, values = zip(*(pair for pair in pairs if pair[0] >= moment), strict=True)
        return Curve(seconds, values)

    def aged(self) -> Curve:
        """Of latencies: when nothing arrives any more, what has not arrived grows older.

        Without, a query that is down at the end would look better than one that works.
        """
        moments, values = self.known
        last, latency = float(moments[-1]), float(values[-1])
        return Curve(
            self.seconds,
            [
                value if second <= last else round(latency + second - last, 4)
                for second, value in zip(self.seconds, self.values, strict=True)
            ],
        )


def windowed(moments: Values, values: Values, end: float, window: float, step: float) -> Curve:
    """Mean of the values whose moments lie in the window before each step."""
    order = np.argsort(moments, kind="stable")
    moments, sums = moments[order], np.concatenate([[0.0], np.cumsum(values[order])])
    ends = np.arange(1, round(end / step) + 1) * step
    last = np.searchsorted(moments, ends, side="right")
    first = np.searchsorted(moments, ends - window, side="right")
    means = [
        round(float(sums[high] - sums[low]) / int(high - low), 4) if high > low else None
        for low, high in zip(first, last, strict=True)
    ]
    return Curve([round(float(one), 4) for one in ends], means)


def counted(moments: Values, end: float, step: float) -> Curve:
    """How many moments there were until each step."""
    ends = np.arange(0, round(end / step) + 1) * step
    counts = np.searchsorted(np.sort(moments), ends, side="right")
    return Curve([round(float(one), 4) for one in ends], [float(one) for one in counts])
