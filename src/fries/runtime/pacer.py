"""How many rows a chunk should have: enough to pay for a call, few enough to switch soon.

A chunk costs a fixed part (the calls of functions over batches, a request, what the stage itself
does) and a part for each row. Both are fitted to the chunks of late, so the sizes must differ: from
time to time a chunk is shorter than it could be. A chunk takes a few milliseconds; it is longer
where the fixed part would otherwise take more than :data:`LOSS` of the throughput.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

TARGET_SECONDS: Final = 0.003
"""How long one chunk should take: the price of a switch, beside which polling costs little."""
HURRY: Final = 5
"""How much shorter chunks are while a commit is about to come: it is seen within a millisecond,
and at other times chunks can be long enough to cost nothing."""
LOSS: Final = 0.07
"""Of the throughput of whole batches: so much may be given away for an earlier switch. With what
the pacer itself costs (shorter chunks, wrong guesses) it stays below a tenth."""
UNSURE: Final = 0.1
"""Of the time of a short chunk: so much of what looks like a fixed part may be an accident."""
GROWTH: Final = 8
"""How many times as long as the longest chunk so far the next one may be, while rows are cheap."""
PROBE_EVERY: Final = 64
"""Chunks after which one of another size is tried: its fixed part is lost once more."""
SURPRISE: Final = 2.0
"""How many times as long as expected a chunk may take until its costs are doubted."""
BELIEVED: Final = 3
"""Surprises in a row until they are no accident."""
JITTER_SECONDS: Final = 0.0005
"""So much longer is no surprise, however short the chunk: threads take turns."""
DEARER: Final = 1.5
"""A shorter chunk that took so many times longer was held up by something else."""
KEPT: Final = 5
"""Chunks of one order of size that are remembered; their median counts."""
TRUSTED: Final = 4
"""Chunks that it takes to believe that rows are cheap though chunks are long."""
MOST_KNOWN: Final = 100
"""Sets of versions of which a worker remembers the costs."""
STALE: Final = 8 * PROBE_EVERY
"""Chunks after which a size that did not come again is forgotten."""


class Seen(NamedTuple):
    """A chunk that was measured."""

    rows: int
    seconds: float


class Fit(NamedTuple):
    """What a chunk of n rows costs: ``fixed + n * row`` seconds."""

    fixed: float
    row: float

    def seconds(self, rows: float) -> float:
        """Of a chunk."""
        return self.fixed + self.row * rows

    def rows_in(self, seconds: float) -> float:
        """How many rows can be done in some time; below one if it is too short for any."""
        left = seconds - self.fixed
        if left <= 0.0:
            return 0.0
        return left / self.row if self.row else math.inf


class Costs:
    """What chunks of some versions of the operators of a stage cost, from those of late."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[Seen]] = {}
        """By order of size (powers of two)."""
        self._last: dict[int, int] = {}
        """By order of size, the number of the chunk that came last."""
        self._fit: Fit | None = None
        self._doubted: list[Seen] = []
        """Chunks in a row that took much longer than expected."""
        self.count = 0
        """Chunks that were measured."""
        self.largest = Seen(0, 0.0)
        """Of the sizes that are remembered."""
        self.smallest = self.largest
        """Of them, too."""
        self.trusted = 0
        """Chunks since the costs were last doubted and found to be others."""

    @property
    def fit(self) -> Fit | None:
        """What is known; ``None`` before the first chunk."""
        return self._fit

    @property
    def sizes(self) -> int:
        """How many orders of size are remembered; with one alone, the parts cannot be told."""
        return len(self._seen)

    @property
    def doubted(self) -> Seen | None:
        """The last chunk, if it took much longer than expected: the next one should be short."""
        return self._doubted[-1] if self._doubted else None

    def add(self, chunk: Seen) -> None:
        """Learn from a chunk: a long one is believed when shorter ones confirm it."""
        self.count += 1
        least, most = self._expected(chunk.rows)
        if chunk.seconds > self._surprising(chunk.rows, most):
            self._doubted.append(chunk)
            if len(self._doubted) < BELIEVED:
                return
            self._forget()
            for earlier in self._doubted[:-1]:
                self._keep(earlier)
        elif SURPRISE * chunk.seconds + JITTER_SECONDS < least:
            self._forget()
        self._doubted = []
        self._keep(chunk)

    def _surprising(self, rows: int, expected: float) -> float:
        """From which time on a chunk does not fit what is known.

        After a doubted one: if its time is nearer to what would then be true than to what was.
        """
        if self.doubted is None or self._fit is None:
            return SURPRISE * expected + JITTER_SECONDS
        fixed = min(self._fit.fixed, self.doubted.seconds)
        doubted = fixed + (self.doubted.seconds - fixed) * rows / self.doubted.rows
        return math.sqrt(expected * doubted)

    def _expected(self, rows: int) -> tuple[float, float]:
        """Between which times a chunk should take; of a far longer one than others nobody knows."""
        if self._fit is None or rows > 2 * self.largest.rows:
            return 0.0, math.inf
        if self.sizes > 1:
            return self._fit.seconds(rows), self._fit.seconds(rows)
        times = self.largest.seconds, self.largest.seconds * rows / self.largest.rows
        return min(times), max(times)

    def _forget(self) -> None:
        self._seen, self._last, self.trusted = {}, {}, 0

    def _keep(self, chunk: Seen) -> None:
        order = chunk.rows.bit_length()
        self._seen.setdefault(order, deque(maxlen=KEPT)).append(chunk)
        self._last[order] = self.count
        self.trusted += 1
        points = {one: _median(seen) for one, seen in self._seen.items()}
        for one, point in list(points.items()):
            stale = self.count - self._last[one] > STALE
            if stale or (one < order and point.seconds > DEARER * chunk.seconds):
                del points[one], self._seen[one], self._last[one]
        self.largest = max(points.values())
        self._fit = fitted(list(points.values()))
        self.smallest = min(points.values())


def _median(seen: Iterable[Seen]) -> Seen:
    """The chunk that took the median time for a row."""
    ranked = sorted(seen, key=lambda chunk: chunk.seconds / chunk.rows)
    return ranked[len(ranked) // 2]


def fitted(points: list[Seen]) -> Fit:
    """The fixed part and that of a row, neither below zero, by least squares of relative errors."""
    inverse = [1.0 / max(point.seconds, 1e-9) for point in points]
    scaled = [point.rows * one for point, one in zip(points, inverse, strict=True)]
    ones, rows = sum(inverse), sum(scaled)
    ones2, rows2 = sum(one * one for one in inverse), sum(one * one for one in scaled)
    both = sum(map(float.__mul__, inverse, scaled))
    most = ones2 * rows2
    if len(points) > 1 and (apart := most - both * both) > 1e-9 * most:
        fixed = (ones * rows2 - rows * both) / apart
        row = (rows * ones2 - ones * both) / apart
        if fixed >= 0.0 and row >= 0.0:
            return Fit(fixed, row)
        if row < 0.0:
            return Fit(ones / ones2, 0.0)
    return Fit(0.0, rows / rows2)


class Pacer:
    """Chooses the size of chunks.

    It begins with one row, because the first function may take seconds for it, and grows step by
    step. What it has learned of some versions is kept for the next task that uses them.
    """

    def __init__(
        self,
        known: dict[Hashable, Costs] | None = None,
        versions: Hashable = None,
        within: float | None = None,
    ) -> None:
        self._known = {} if known is None else known
        self._within = within
        self.use(versions)

    def use(self, versions: Hashable) -> None:
        """From now on rows get these versions; new ones may be slower, so begin with one row."""
        self._costs = self._known.setdefault(versions, Costs())
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def next(self, left: int, hurried: bool) -> int:
        """Rows of the next chunk, if so many are left of a batch; in a hurry it is short."""
        costs, fit = self._costs, self._costs.fit
        if fit is None:
            return 1
        wanted = self._wanted(fit, left)
        if hurried:
            wanted = max(1.0, min(wanted, _in_a_hurry(fit, wanted)))
        if costs.doubted is not None:
            wanted = min(wanted, costs.doubted.rows / GROWTH)
        elif costs.sizes == 1 or costs.count % PROBE_EVERY == 0:
            wanted = self._probe(wanted)
        return max(1, min(left, int(wanted), self._most(fit)))

    def measured(self, rows: int, seconds: float) -> None:
        """Learn from a chunk."""
        if rows:
            self._costs.add(Seen(rows, seconds))

    def _wanted(self, fit: Fit, left: int) -> float:
        """As many rows as fit into the time, or as the loss requires; all chunks equally long."""
        if self._within is not None:
            rows = fit.rows_in(self._within)
        else:
            fixed = max(fit.fixed - UNSURE * self._costs.smallest.seconds, 1e-9)
            pieces = 1.0 + LOSS / (1.0 - LOSS) * (1.0 + left * fit.row / fixed)
            rows = max(fit.rows_in(TARGET_SECONDS), left / math.floor(pieces))
        if rows >= left:
            return left
        return max(1.0, math.ceil(left / math.ceil(left / max(rows, 1.0))))

    def _probe(self, wanted: float) -> float:
        """Another size, to tell the fixed part from that of a row: a shorter one if it can be."""
        largest = self._costs.largest.rows
        if self._costs.sizes == 1:
            if not largest / 4 < wanted < largest * 4:
                return wanted  # is another one anyway
            return largest / 4 if largest >= 4 else 1 if largest > 1 else 2
        if wanted >= 4:
            return wanted / 4
        return wanted if wanted > 1 else 2

    def _most(self, fit: Fit) -> int:
        """No longer than what is known by some factor; a small one while rows may be expensive."""
        rows, seconds = self._costs.largest
        told = self._costs.trusted >= TRUSTED and fit.row * rows < seconds / 4
        cheap = told or seconds <= TARGET_SECONDS
        return rows * (GROWTH if cheap and self._within is None else 2)


def _in_a_hurry(fit: Fit, wanted: float) -> float:
    """Rows of a short chunk. One that costs more for its call than for its rows is short enough."""
    worth = fit.fixed / fit.row if fit.row else math.inf
    return max(fit.rows_in(TARGET_SECONDS / HURRY), min(worth, wanted))
