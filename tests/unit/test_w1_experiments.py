"""Experiments on W1 without Spark: when rows are due, curves, and reports on made-up parts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fries.errors import ExperimentError
from fries.experiments import invalid, surge, sweeps
from fries.experiments.curves import Curve, counted, windowed
from fries.experiments.experiment import Experiment, Report
from fries.experiments.inference import CAPACITY, Costly, scaled
from fries.experiments.lab import Lab
from fries.experiments.profiles import QUICK
from fries.experiments.schedule import BEGIN, Pace, Schedule

RISING = Schedule([(0, 10), (2, 100)])
CAPACITIES = {"user_lstm": 1_000.0, "user_lstm_small": 3_000.0, "user_tree": 5_000.0}


def test_rows_are_due_at_their_rates() -> None:
    assert [RISING.due(second) for second in (-1, 0, 0.1, 1.99, 2, 2.5)] == [0, 0, 1, 19, 20, 70]
    assert RISING.moments(0, 2) == pytest.approx([0.1, 0.2])
    assert RISING.moments(19, 3) == pytest.approx([2.0, 2.01, 2.02])
    assert RISING.moments(5, 0).size == 0


def test_moments_are_the_inverse_of_what_is_due() -> None:
    for row, moment in enumerate(RISING.moments(0, 200)):
        assert RISING.due(moment + 1e-9) == row + 1


@pytest.mark.parametrize("rates", [[], [(1, 10)], [(0, 10), (0, 20)], [(0, 0)], [(0, -1)]])
def test_impossible_schedules_are_refused(rates: list[tuple[float, float]]) -> None:
    with pytest.raises(ExperimentError, match="schedule"):
        Schedule(rates)


def test_impossible_paces_are_refused() -> None:
    with pytest.raises(ExperimentError, match="1 at least"):
        Pace(RISING, payments=0, partitions=1)
    with pytest.raises(ExperimentError, match="1 at least"):
        Pace(RISING, payments=1, partitions=1, limit=0)


def test_the_clock_starts_when_workers_are_warm() -> None:
    pace = Pace(RISING, payments=5, partitions=2, warm=3, limit=30)
    warm = pace.taken(BEGIN, 1_000.0)
    assert warm == {"row": 3, "due": 0, "clock": None}
    started = pace.taken(warm, 1_007.0)
    assert started == {"row": 3, "due": 0, "clock": 1_007.0}
    one = pace.taken(started, 1_008.0)
    assert one == {"row": 13, "due": 10, "clock": 1_007.0}
    assert pace.taken(one, 1_008.0) == one
    held_back = pace.taken(one, 1_009.5)
    assert held_back == {"row": 43, "due": 70, "clock": 1_007.0}


def test_slices_have_every_row_once() -> None:
    pace = Pace(RISING, payments=5, partitions=3, warm=2)
    offsets = [BEGIN]
    for now in (5.0, 6.0, 6.5, 7.25, 8.75):
        offsets.append(pace.taken(offsets[-1], now))
    slices = [one for start, end in itertools.pairwise(offsets) for one in pace.slices(start, end)]
    rows = [one.row + number for one in slices for number in range(one.size)]
    assert rows == list(range(offsets[-1]["row"]))
    due = [one.due + n for one in slices if one.clock is not None for n in range(one.size)]
    assert due == list(range(offsets[-1]["due"]))
    assert all(one.clock is None for one in slices[:3])


def test_rows_that_are_pulled_are_the_newest() -> None:
    start = {"row": 40, "due": 10, "clock": 0.0}
    end = {"row": 60, "due": 110, "clock": 0.0}
    early, late = (
        Pace(RISING, 5, 1, limit=20, pulled=pulled).slices(start, end)[0].due
        for pulled in (False, True)
    )
    assert (early, late) == (10, 90)


def test_windows_slide() -> None:
    moments, values = np.array([0.5, 1.5, 1.6, 4.0]), np.array([1.0, 3.0, 5.0, 2.0])
    curve = windowed(moments, values, end=4.0, window=2.0, step=1.0)
    assert curve == Curve([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 4.0, 2.0])
    assert windowed(moments, values, 3.0, 1.0, 1.0).values == [1.0, 4.0, None]


def test_what_is_said_of_a_curve() -> None:
    curve = Curve([1.0, 2.0, 3.0, 4.0], [1.0, 5.0, None, 3.0])
    assert (curve.peak, curve.final) == (5.0, 3.0)
    assert curve.area == pytest.approx(3.0 + 8.0)
    assert Curve([0.0, *curve.seconds], [None, *curve.values]).area == pytest.approx(12.0)
    assert Curve([1.0, 2.0, 4.0], [None, 5.0, None]).aged().values == [None, 5.0, 7.0]
    with pytest.raises(ExperimentError, match="no value"):
        _ = Curve([1.0], [None]).peak
    assert counted(np.array([0.5, 0.6, 2.0]), 2.0, 1.0) == Curve([0.0, 1.0, 2.0], [0.0, 2.0, 3.0])


def test_a_part_of_a_repetition_is_shared_out() -> None:
    calls = []

    def inference(state: object, row: dict[str, Any]) -> tuple[object, dict[str, Any]]:
        calls.append(row["id"])
        return state, row

    function = Costly("user_tree", 1.4)
    function._inference = inference  # type: ignore[assignment]
    for number in range(20):
        assert function((), {"id": number}) == ((), {"id": number})
    assert len(calls) == 28


def test_rates_need_a_capacity() -> None:
    assert scaled(2_000, 800) == 1_000
    with pytest.raises(ExperimentError, match="capacity"):
        scaled(2_000, 0)


def test_a_part_that_is_needed_must_have_run(tmp_path: Path) -> None:
    lab = Lab(QUICK, tmp_path, tmp_path, Console(quiet=True))
    with pytest.raises(ExperimentError, match="needs its part 'capacity' first"):
        lab.found(CAPACITY)


def test_a_curve_from_a_moment_on() -> None:
    curve = Curve([1.0, 2.0, 3.0], [9.0, None, 4.0]).since(2.0)
    assert (list(curve.seconds), list(curve.values)) == ([2.0, 3.0], [None, 4.0])


def made_up_surge(scheduler: str) -> dict[str, Any]:
    height = {"none": 9.0, "fries": 2.0, "epoch": 4.0, "mini_batch": 3.0, "restart": 5.0}
    delays = {"none": [], "fries": [0.02, 0.03], "restart": [6.0, None]}
    return {
        "seconds": [0.0, 299.0, 300.0, 301.0],  # what came before the first request is left out
        "values": [99.0, 1.0, height[scheduler], None],
        "requested": [],
        "delays": delays.get(scheduler, [2.0, 3.0]),
        "rates": [[0.0, 625.0], [15.0, 1_250.0], [30.0, 5_625.0]],
        "limit": 7_500,
        "rows": 900,
        "scheduled": 1_000,
        "mixed": 0,
    }


def made_up_invalid(scheduler: str) -> dict[str, Any]:
    count = {"none": 800.0, "epoch": 500.0, "fries": 200.0}[scheduler]
    return {
        "seconds": [0.0, 1.0],
        "values": [0.0, count],
        "rows": 1_000,
        "rate": 2_500.0,
        "limit": 4_500,
        "batch_seconds": 5.0,
        "cost": 0.002,
        "delays": [0.1],
        "mixed": 0,
    }


def made_up_sweep(slow: float) -> dict[str, Any]:
    return {
        "delays_ms": {"fries": [20.0, 30.0], "epoch": [500.0 * slow, 700.0 * slow]},
        "rate": 300.0,
        "cost_ms": 1.0,
        "batch_seconds": 1.5,
        "mixed": 0,
    }


def reported(experiment: Experiment, found: dict[str, Any]) -> Report:
    """The report; its figure can be drawn, and no part is missing."""
    assert [part.name for part in experiment.parts(QUICK)] == [CAPACITY, *found]
    report = experiment.report(QUICK, {CAPACITY: CAPACITIES, **found})
    assert experiment.figure is not None
    assert experiment.figure(report).axes[0].get_legend() is not None
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    return report


def test_report_on_the_surge() -> None:
    found = {name: made_up_surge(name) for name in surge.SCHEDULERS}
    report = reported(surge.EXPERIMENT, found)
    assert "Fries applied the first change soonest (0.0200 s)" in report.verdict
    assert "Too slow for its rate on this machine: user_tree." in report.verdict
    latency, capacities = report.tables
    by_name = {row[0]: row for row in latency.rows}
    assert by_name["restart"][6:] == ["6.00, not ended", "5.00", "5.00", "2.29", "90%", "0"]
    assert capacities.rows[2][-1] == "no: 89% of it"
    found["fries"]["delays"][0] = 3.0
    assert "another scheduler" in reported(surge.EXPERIMENT, found).verdict


def test_report_on_invalid_rows() -> None:
    found = {name: made_up_invalid(name) for name in invalid.SCHEDULERS}
    report = reported(invalid.EXPERIMENT, found)
    assert "no reconfiguration > epoch > Fries" in report.verdict
    assert "2.5 times as many" in report.verdict
    none, epoch, fries = report.tables[0].rows
    assert (none[3], epoch[3], fries[3]) == ("83%", "49%", "18%")
    assert fries[5:] == ["200", "20%", "5.00", "0.400", "0"]
    found["fries"]["values"] = [0.0, 600.0]
    assert "The order is not" in reported(invalid.EXPERIMENT, found).verdict


@pytest.mark.parametrize("experiment", [sweeps.BY_RATE, sweeps.BY_COST])
def test_report_on_a_sweep(experiment: Experiment) -> None:
    names = [part.name for part in experiment.parts(QUICK)][1:]
    found = {name: made_up_sweep(slow) for slow, name in enumerate(names, 1)}
    report = reported(experiment, found)
    assert "The delay of Fries is less than that of epochs (24.0 times less" in report.verdict
    assert "grows 3.00 times, more than that of Fries" in report.verdict
