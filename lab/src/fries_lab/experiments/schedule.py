"""When the rows of a source are due: pure arithmetic, for the source that follows a clock.

The source is like the paper's: it makes rows at scheduled rates, and when the buffer in front of
the query is full, it is held back, and makes no more until the next micro-batch takes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fries_lab.errors import ExperimentError

Offset: TypeAlias = dict[str, Any]
"""How far the source is: as Spark keeps it, as JSON."""
BEGIN: Final[Offset] = {"row": 0, "due": 0, "clock": None}
"""Rows that were taken, rows of the schedule that are past (more, if the source was held back),
and when the clock was started, in seconds since 1970."""


@dataclass(frozen=True)
class Schedule:
    """Rows per second, each from some second on: ``[(0, 1_000), (100, 2_000)]``."""

    rates: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        begins = [begin for begin, _ in self.rates]
        if not begins or begins[0] != 0 or any(np.diff(begins) <= 0):
            raise ExperimentError(f"schedule {self.rates}", "it must begin at 0 and go forward")
        if any(not 0 < rate < math.inf for _, rate in self.rates):
            raise ExperimentError(f"schedule {self.rates}", "rates must be above 0")

    def due(self, seconds: float) -> int:
        """How many rows are due in the first so many seconds."""
        begins, rates, counts = self._steps()
        step = max(0, int(np.searchsorted(begins, seconds, side="right")) - 1)
        return max(0, math.floor(float(counts[step] + (seconds - begins[step]) * rates[step])))

    def moments(self, first: int, count: int) -> NDArray[np.float64]:
        """When so many rows are due, from row ``first`` on, counted from 0."""
        begins, rates, counts = self._steps()
        reached = np.arange(first + 1, first + count + 1, dtype=np.float64)
        step = np.searchsorted(counts, reached, side="left") - 1
        moments: NDArray[np.float64] = begins[step] + (reached - counts[step]) / rates[step]
        return moments

    def _steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """When each rate begins, the rate, and how many rows were due before."""
        begins, rates = (np.array(column, dtype=np.float64) for column in zip(*self.rates))  # noqa: B905
        before = np.cumsum(np.diff(begins) * rates[:-1])
        return begins, rates, np.concatenate([[0.0], before])


class Slice(NamedTuple):
    """Rows of a micro-batch for one task."""

    row: int
    due: int
    """Which row of the schedule the first one is."""
    size: int
    clock: float | None
    """``None``: these rows are to warm up, and the clock does not run yet."""


@dataclass(frozen=True)
class Pace:
    """How rows are made and taken."""

    schedule: Schedule
    payments: int
    """Row n has the attributes of payment n modulo this."""
    partitions: int
    """Tasks that read a micro-batch."""
    warm: int = 0
    """Rows of the first micro-batch, before the clock is started: workers start and import."""
    limit: int | None = None
    """Most rows of a micro-batch: the buffer after which the source is held back."""
    pulled: bool = False
    """Whether a source that is held back makes rows as late as it can: just before they are
    taken, and not as soon as there is room for them."""

    def __post_init__(self) -> None:
        least = min(self.payments, self.partitions, 1 if self.limit is None else self.limit)
        if least < 1 or self.warm < 0:
            raise ExperimentError(f"pace {self}", "payments, partitions and limit are 1 at least")

    def taken(self, start: Offset, now: float) -> Offset:
        """The end of a micro-batch that begins now."""
        if start["row"] < self.warm:
            return {**start, "row": self.warm}
        if start["clock"] is None:
            return {**start, "clock": now}
        due = max(start["due"], self.schedule.due(now - start["clock"]))
        rows = due - start["due"] if self.limit is None else min(due - start["due"], self.limit)
        return {"row": start["row"] + rows, "due": due, "clock": start["clock"]}

    def slices(self, start: Offset, end: Offset) -> list[Slice]:
        """The rows of a micro-batch, for its tasks."""
        count = end["row"] - start["row"]
        bounds = [count * number // self.partitions for number in range(self.partitions + 1)]
        clock = None if start["row"] < self.warm else end["clock"]
        due = end["due"] - count if self.pulled and clock is not None else start["due"]
        return [
            Slice(start["row"] + first, due + first, last - first, clock)
            for first, last in itertools.pairwise(bounds)
        ]
