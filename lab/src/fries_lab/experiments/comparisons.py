"""Whether the delays of one scheduler are lower than those of another: rank test and effect size.

The test is the exact Wilcoxon-Mann-Whitney test, ties included: if both schedulers were the same,
each way to deal the measurements out to them would be equally likely. It asks in how many of them
the rank sum is at least as far from its mean as the one that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fries_lab.experiments.estimates import Estimate, ratio

Verdict: TypeAlias = Literal["lower", "higher", "not distinguishable"]
Samples: TypeAlias = tuple[Sequence[float], Sequence[float]]
DOUBT: Final = "not distinguishable"
SIGNIFICANT: Final = 0.05
"""Chance, at most, that any verdict of a family is wrong where nothing differs (Holm)."""
NEGLIGIBLE: Final = 0.56
"""Share of pairs up to which a difference counts as none (Vargha and Delaney, 2000)."""
EXACT: Final = 200
"""Measurements of both, up to which all ways are counted; that takes a second at most."""
ENOUGH: Final = 30
"""Measurements of each scheduler where delays are compared."""
METHOD: Final = (
    "Intervals are 95 % bootstrap intervals of medians. Lower or higher is what the exact "
    "Wilcoxon-Mann-Whitney test says (two-sided, p < 0.05 after Holm's correction for all rows) if "
    "more than 56 % of pairs agree; not distinguishable does not mean equal: the interval of the "
    "ratio tells what is still possible."
)
"""How the results were compared, for readers."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Some delays beside others."""

    p: float
    """Of the rank test, corrected for all comparisons of its family."""
    below: float
    """Share of all pairs in which the first delay is the lower one; ties count half."""
    times: Estimate
    """The first median, as a multiple of the second one."""

    @property
    def verdict(self) -> Verdict:
        """What can be said of the first delays."""
        if self.p >= SIGNIFICANT or max(self.below, 1 - self.below) <= NEGLIGIBLE:
            return "not distinguishable"
        return "lower" if self.below > 0.5 else "higher"

    def __str__(self) -> str:
        pairs = f"below in {self.below:.0%} of pairs"
        return f"{self.verdict}: {self.times} times; {pairs}; p {_shown_p(self.p)}"


def compare(family: Mapping[str, Samples]) -> dict[str, Comparison]:
    """All comparisons of a table, by the name of their row."""
    raw = [rank_test(ours, theirs) for ours, theirs in family.values()]
    return {
        name: Comparison(p, share_below(ours, theirs), ratio(ours, theirs))
        for p, (name, (ours, theirs)) in zip(holm(raw), family.items(), strict=True)
    }


def told(family: Mapping[str, Comparison], who: str, whom: str) -> str:
    """In how many rows one scheduler is lower than another, and every row where it is not."""
    by_verdict: dict[Verdict, list[str]] = {"lower": [], "not distinguishable": [], "higher": []}
    for name, one in family.items():
        by_verdict[one.verdict].append(name)
    text = f"{who} is lower than {whom} in {_count(by_verdict.pop('lower'), family)}"
    for verdict, names in by_verdict.items():
        if names:
            word = "than it" if verdict == "higher" else "from it"
            text += f"; {verdict} {word} in {len(names)}: {', '.join(names)}"
    return f"{text}."


def _count(names: Sequence[str], family: Mapping[str, Comparison]) -> str:
    if len(names) == len(family):
        return "the only row" if len(names) == 1 else f"all {len(names)} rows"
    return f"{len(names)} of {len(family)} rows"


def rank_test(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The two-sided p of the Wilcoxon-Mann-Whitney test; exact but for very many measurements."""
    doubled = doubled_ranks([*ours, *theirs])
    if len(doubled) > EXACT:
        return normal_p(doubled, len(ours))
    counts = _rank_sums(doubled, len(ours))
    middle = len(ours) * (len(doubled) + 1)  # of the doubled sum
    sums = np.arange(len(counts))
    as_far = np.abs(sums - middle) >= abs(int(doubled[: len(ours)].sum()) - middle)
    return min(1.0, float(counts[as_far].sum() / counts.sum()))


def normal_p(doubled: NDArray[np.int64], chosen: int) -> float:
    """The same by the normal distribution that rank sums come close to, corrected for ties."""
    others = len(doubled) - chosen
    off = abs(int(doubled[:chosen].sum()) - chosen * (len(doubled) + 1))
    variance = chosen * others / (len(doubled) - 1) * float(doubled.var())
    return math.erfc(max(0, off - 1) / math.sqrt(2 * variance)) if variance else 1.0


def doubled_ranks(values: Sequence[float]) -> NDArray[np.int64]:
    """Twice the rank of each value: whole numbers, as those that are equal share their ranks."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    first = np.searchsorted(ordered, values, side="left")
    last = np.searchsorted(ordered, values, side="right")
    return np.asarray(first + last + 1, dtype=np.int64)


def _rank_sums(doubled: NDArray[np.int64], chosen: int) -> NDArray[np.float64]:
    """In how many ways so many of the ranks have each sum."""
    ways = np.zeros((chosen + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    last: NDArray[np.float64] = ways[chosen]
    return last


def pairs_needed(ours: int, theirs: int, comparisons: int) -> int | None:
    """How many pairs must agree before a verdict says that measurements differ.

    As Holm's correction has it for the clearest of some comparisons, and without ties. ``None``:
    there are too few measurements for any such verdict.
    """
    doubled = doubled_ranks(range(ours + theirs))
    counts = _rank_sums(doubled, ours)[::-1]  # the highest sum first: there all pairs agree
    counts = counts[np.flatnonzero(counts)[0] :: 2]
    p = 2 * np.cumsum(counts) / counts.sum() * comparisons
    enough = int((p < SIGNIFICANT).sum())
    return ours * theirs - enough + 1 if enough else None


def power(count: int, comparisons: int) -> str:
    """What so few runs by each scheduler can show: a large difference, and no small one."""
    runs, needed = f"{count} runs by each scheduler", pairs_needed(count, count, comparisons)
    if needed is None:
        return f"With {runs} the test cannot find any difference."
    return (
        f"With {runs} the test finds a difference only where about {needed} of {count**2} pairs "
        "agree, so not distinguishable says little."
    )


def share_below(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """In which share of all pairs ours is the lower one; ties count half."""
    ordered = np.sort(np.asarray(theirs, dtype=np.float64))
    above = len(ordered) - np.searchsorted(ordered, ours, side="right")
    not_below = len(ordered) - np.searchsorted(ordered, ours, side="left")
    return float((above + not_below).mean() / (2 * len(ordered)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the chance that any of several tests is wrong is kept."""
    corrected = [0.0] * len(ps)
    highest = 0.0
    for tested, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - tested) * ps[place]))
        corrected[place] = highest
    return corrected


def _shown_p(p: float) -> str:
    if p < 0.001:
        return "< 0.001"
    return f"= {p:.3f}"
