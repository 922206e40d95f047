"""Records of measured delays: means, intervals, and how many steps there will be."""

from __future__ import annotations

import pytest

from fries.bench import live_tables
from fries.bench.live_tables import QUICK, summary


def test_a_summary_has_milliseconds_a_mean_and_its_interval() -> None:
    found = summary([0.001, 0.002, 0.003])
    assert found["delays_ms"] == [1.0, 2.0, 3.0]
    assert found["mean_ms"] == 2.0
    assert found["ci95_ms"] == pytest.approx(4.303 * 1.0 / 3**0.5, abs=0.01)


def test_one_delay_has_no_interval_and_many_have_a_narrow_one() -> None:
    assert summary([0.5]) == {"delays_ms": [500.0], "mean_ms": 500.0, "ci95_ms": None}
    many = summary([0.001, 0.003] * 50)
    assert many["ci95_ms"] == pytest.approx(2.04 * 1.005 / 10, abs=0.006)


def test_steps_count_every_change() -> None:
    assert live_tables.steps("tpcds_delays", QUICK) == 10 * 4 * 2 * QUICK.requests
    assert live_tables.steps("pruning", QUICK) == 5 * 2 * 2 * QUICK.requests
