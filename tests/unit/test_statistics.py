"""The statistics of the results: against brute force and theory, and what they must keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries_lab.experiments.comparisons import (
    SIGNIFICANT,
    compare,
    doubled_ranks,
    holm,
    normal_p,
    pairs_needed,
    rank_test,
    share_below,
    told,
)
from fries_lab.experiments.estimates import estimate, ratio, resampled_medians, shown

SMALL = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)
"""Few values, so that many are equal."""
DELAYS = st.lists(st.floats(0.01, 1e6), min_size=2, max_size=40)


def by_hand(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The test by its definition: all ways to deal the values out."""
    values = [*ours, *theirs]
    ranks = [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]
    middle = len(ours) * (len(values) + 1) / 2
    sums = [sum(some) for some in itertools.combinations(ranks, len(ours))]
    found = abs(sum(ranks[: len(ours)]) - middle)
    return sum(abs(one - middle) >= found for one in sums) / len(sums)


@given(SMALL, SMALL)
def test_the_rank_test_is_what_its_definition_says(ours: list[float], theirs: list[float]) -> None:
    assert rank_test(ours, theirs) == pytest.approx(by_hand(ours, theirs))
    assert rank_test(theirs, ours) == pytest.approx(by_hand(ours, theirs))


def test_the_rank_test_has_the_published_values() -> None:
    """A textbook example, and the smallest p that five against five can have."""
    assert rank_test([19, 22, 16, 29, 24], [20, 11, 17, 12]) == pytest.approx(14 / 126)
    assert rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)


@pytest.mark.parametrize("digits", [9, 1], ids=["no ties", "many ties"])
def test_large_samples_are_those_of_the_normal_distribution(digits: int) -> None:
    chance = np.random.default_rng(1)
    ours = [round(one, digits) for one in chance.normal(0, 1, 70)]
    theirs = [round(one, digits) for one in chance.normal(0.2, 1, 50)]
    ranks = doubled_ranks([*ours, *theirs])
    assert rank_test(ours, theirs) == pytest.approx(normal_p(ranks, 70), rel=0.05)
    assert rank_test(2 * ours, 2 * theirs) < rank_test(ours, theirs)
    assert rank_test([1.0] * 150, [1.0] * 150) == 1.0


def test_no_difference_is_found_in_no_difference_one_time_in_twenty() -> None:
    chance = np.random.default_rng(2)
    ps = [rank_test(list(chance.random(8)), list(chance.random(8))) for _ in range(1_000)]
    found = sum(p < SIGNIFICANT for p in ps)
    assert 20 <= found <= 70


@given(SMALL, SMALL)
def test_the_share_of_pairs_is_counted(ours: list[float], theirs: list[float]) -> None:
    pairs = [(x < y) + (x == y) / 2 for x in ours for y in theirs]
    assert share_below(ours, theirs) == pytest.approx(sum(pairs) / len(pairs))


def test_ranks_that_are_equal_are_shared() -> None:
    assert doubled_ranks([5.0, 1.0, 5.0, 9.0]).tolist() == [5, 2, 5, 8]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_asks_the_smallest_most_and_keeps_the_order(ps: list[float]) -> None:
    corrected = holm(ps)
    ordered = sorted(zip(ps, corrected, strict=True))
    assert ordered[0][1] == pytest.approx(min(1.0, len(ps) * ordered[0][0]))
    assert all(p <= new <= 1 for p, new in ordered)
    assert [new for _, new in ordered] == sorted(new for _, new in ordered)


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


@given(DELAYS)
@settings(max_examples=50)
def test_a_median_is_inside_its_interval_and_that_among_the_values(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(float(np.median(values)))
    assert min(values) <= found.low <= found.value * (1 + 1e-12)
    assert found.value * (1 - 1e-12) <= found.high <= max(values)
    assert estimate(values[::-1]) == found, "whatever order they come in"
    assert ratio(values, values).value == 1.0


def test_the_bootstrap_of_a_median_is_the_binomial_one() -> None:
    """Of 2k + 1 values, a resample's median is at most the i-th if k + 1 of its draws are."""
    count, drawn = 9, resampled_medians(list(range(9)))
    for place in range(count):
        share = (place + 1) / count
        expected = sum(
            math.comb(count, many) * share**many * (1 - share) ** (count - many)
            for many in range(count // 2 + 1, count + 1)
        )
        assert (drawn <= place).mean() == pytest.approx(expected, abs=0.03)


def test_ninety_five_intervals_of_a_hundred_hold_the_truth() -> None:
    chance = np.random.default_rng(3)
    found = [estimate(list(chance.lognormal(3, 1, 30))) for _ in range(300)]
    hits = sum((one.low or 0) <= math.exp(3) <= (one.high or 0) for one in found)
    assert 270 <= hits <= 297


def test_one_value_has_no_interval() -> None:
    assert str(estimate([0.5])) == "0.500"
    assert str(ratio([1.0], [2.0])) == "0.500"
    assert str(estimate([1.0, 2.0, 2.0, 2.0, 4.0])) == "2.00 [1.00, 4.00]"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (0.01234, "0.0123")],
)
def test_numbers_are_shown_with_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_a_verdict_is_lower_higher_or_not_distinguishable() -> None:
    low, high = [float(n) for n in range(30)], [float(n) for n in range(100, 130)]
    mixed = [float(n) + 0.5 for n in range(30)]
    found = compare({"a": (low, high), "b": (high, low), "c": (low, mixed)})
    assert [one.verdict for one in found.values()] == ["lower", "higher", "not distinguishable"]
    assert [one.below for one in found.values()] == pytest.approx([1.0, 0.0, 0.517], abs=0.001)
    assert str(found["b"]).startswith("higher: 7.90 [")
    assert str(found["b"]).endswith("times; below in 0% of pairs; p < 0.001")


def test_a_verdict_is_corrected_for_its_family() -> None:
    ours, theirs = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert compare({"alone": (ours, theirs)})["alone"].verdict == "lower"
    many = {str(n): (ours, theirs) for n in range(7)}
    assert compare(many)["0"].verdict == "not distinguishable"


@pytest.mark.parametrize(("ours", "theirs", "pairs"), [(4, 4, None), (5, 5, 24), (4, 6, 24)])
def test_so_many_pairs_must_agree_as_among_all_ways_to_mix_both(
    ours: int, theirs: int, pairs: int | None
) -> None:
    values = [float(one) for one in range(ours + theirs)]
    found = []
    for some in itertools.combinations(values, ours):
        rest = [one for one in values if one not in some]
        if 3 * rank_test(some, rest) < SIGNIFICANT:
            below = round(share_below(some, rest) * ours * theirs)
            found.append(max(below, ours * theirs - below))
    assert min(found, default=None) == pairs_needed(ours, theirs, 3) == pairs


def test_a_tiny_difference_is_none_however_sure() -> None:
    ours = [float(n % 10) for n in range(400)]
    theirs = [value + (1.0 if n % 8 == 0 else 0.0) for n, value in enumerate(ours)]
    (found,) = compare({"row": (ours, theirs)}).values()
    assert found.below < 0.56
    assert found.verdict == "not distinguishable"


def test_all_rows_that_are_not_lower_are_named() -> None:
    low, high = [1.0] * 30, [2.0] * 30
    every = compare({"a": (low, high), "b": (low, high)})
    assert told(every, "Fries", "epoch") == "Fries is lower than epoch in all 2 rows."
    some = compare({"a": (low, high), "b": (low, low), "c": (high, low), "d": (low, low)})
    assert told(some, "Fries", "epoch") == (
        "Fries is lower than epoch in 1 of 4 rows; not distinguishable from it in 2: b, d; "
        "higher than it in 1: c."
    )
