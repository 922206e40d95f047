"""Experiments on W1 without Spark: when rows are due, curves, and reports on made-up parts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from rich.console import Console

from fries import Flow
from fries_lab.errors import ExperimentError
from fries_lab.experiments import invalid, surge, sweeps
from fries_lab.experiments.curves import Curve, counted, windowed
from fries_lab.experiments.experiment import Experiment, Report
from fries_lab.experiments.inference import CAPACITY, Costly, Running, scaled
from fries_lab.experiments.lab import Lab
from fries_lab.experiments.profiles import QUICK
from fries_lab.experiments.schedule import BEGIN, Pace, Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def made_up_surge(scheduler: str, number: int = 1) -> dict[str, Any]:
    """Runs of a scheduler differ a little, so that a median and an interval can be told."""
    off = 0.01 * number
    height = {"none": 9.0, "fries": 2.0, "epoch": 4.0, "mini_batch": 3.0, "restart": 5.0}
    delays = {"none": [], "fries": [0.02 + off, 0.03], "restart": [6.0 + off, None]}
    return {
        "seconds": [0.0, 299.0, 300.0, 301.0],  # what came before the first request is left out
        "values": [99.0, 1.0 + off, height[scheduler] + off, None],
        "requested": [] if scheduler == "none" else [100.0, 290.0],
        "delays": delays.get(scheduler, [2.0 + off, 3.0]),
        "rates": [[0.0, 625.0], [15.0, 1_250.0], [30.0, 5_625.0]],
        "limit": 7_500,
        "rows": 900,
        "scheduled": 1_000,
        "mixed": 0,
    }


def made_up_surges() -> dict[str, Any]:
    return named(surge.EXPERIMENT, made_up_surge)


def made_up_invalid(scheduler: str, number: int = 1) -> dict[str, Any]:
    count = {"none": 800.0, "epoch": 500.0, "fries": 200.0}[scheduler] + number
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


def named(experiment: Experiment, make: Callable[[str, int], dict[str, Any]]) -> dict[str, Any]:
    """Made-up findings of all runs, by the names of their parts."""
    names = [part.name for part in experiment.parts(QUICK)][1:]
    runs = [(name, *name.rsplit("-", 1)) for name in names]
    return {name: make(scheduler, int(number)) for name, scheduler, number in runs}


def made_up_sweep(slow: float) -> dict[str, Any]:
    many = [n / 30 for n in range(30)]
    return {
        "delays_ms": {
            "fries": [20.0 + n for n in many],
            "epoch": [slow * (500.0 + 100 * n) for n in many],
        },
        "rate": 300.0,
        "cost_ms": 1.0,
        "batch_seconds": 1.5,
        "mixed": 0,
    }


def reported(experiment: Experiment, found: dict[str, Any]) -> Report:
    """The report; its figure can be drawn, and no part is missing."""
    assert [part.name for part in experiment.parts(QUICK)] == [CAPACITY, *found]
    report = experiment.report(QUICK, {CAPACITY: CAPACITIES, **found})
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    return report


def drawn(experiment: Experiment, report: Report) -> Figure:
    """The figure; no legend lies over data."""
    pytest.importorskip("matplotlib")
    assert experiment.figure is not None
    figure = experiment.figure(report)
    assert all(axes.get_legend() is None for axes in figure.axes)
    return figure


def test_requests_of_the_surge_come_at_the_same_seconds_whatever_the_scheduler() -> None:
    runs = [surge.moments(number, 0.1) for number in range(1, 9)]
    assert runs == [surge.moments(number, 0.1) for number in range(1, 9)]
    assert len({first for first, _ in runs}) == 8, "another time in each run"
    assert all(4.0 <= first < 5.5 and 14.0 <= second < 15.5 for first, second in runs)


def test_a_surge_of_which_fries_is_the_best_in_everything() -> None:
    verdict = reported(surge.EXPERIMENT, made_up_surges()).verdict
    best = "Fries is lower than epoch, lower than mini-batch, lower than restart."
    assert f"Delay of the first change: {best}" in verdict
    assert f"Area under the latency curve from then on: {best}" in verdict
    assert "The paper's order, Fries below epochs in both, was found." in verdict
    assert "had not ended when their run did: restart 5." in verdict
    assert "Too slow for its rate on this machine: user_tree." in verdict
    assert "Other settings gave another order" in verdict
    assert "epoch 0.92 and mini-batch 0.92 in one trial" in verdict


def test_a_surge_that_cannot_be_told_apart_is_not_as_in_the_paper() -> None:
    found = made_up_surges()
    for number in range(1, 6):
        found[f"epoch-{number}"]["values"] = found[f"fries-{number}"]["values"]
    verdict = reported(surge.EXPERIMENT, found).verdict
    assert "Fries is not distinguishable from epoch, lower than mini-batch" in verdict
    assert "in both, was NOT found." in verdict
    assert (
        "With 5 runs by each scheduler the test finds a difference only where about 24 of 25"
        in (verdict)
    )


def test_a_surge_of_few_runs_says_that_nothing_can_be_found() -> None:
    found = {name: one for name, one in made_up_surges().items() if int(name[-1]) < 4}
    verdict = surge.EXPERIMENT.report(QUICK, {CAPACITY: CAPACITIES, **found}).verdict
    assert "With 3 runs by each scheduler the test cannot find any difference." in verdict


def test_a_surge_in_which_fries_is_late_is_not_as_in_the_paper() -> None:
    found = made_up_surges()
    for number in range(1, 6):
        found[f"fries-{number}"]["delays"][0] = 3.0 + number
    verdict = reported(surge.EXPERIMENT, found).verdict
    assert "first change: Fries is higher than epoch, higher than mini-batch" in verdict
    assert "in both, was NOT found." in verdict


def test_a_change_that_ends_after_its_run_is_told() -> None:
    found = made_up_surges()
    found["epoch-2"]["delays"][1] = 11.5  # asked for at 290, and the run ends at 301
    verdict = reported(surge.EXPERIMENT, found).verdict
    assert "had not ended when their run did: epoch 1, restart 5." in verdict


def test_a_change_that_had_not_ended_took_the_rest_of_its_run_at_least() -> None:
    latency, _, capacities = reported(surge.EXPERIMENT, made_up_surges()).tables
    by_name = {row[0]: row for row in latency.rows}
    assert by_name["restart"][4] == "11.0 [11.0, 11.0]"
    assert by_name["no reconfiguration"][2:5] == ["1", "-", "-"]
    assert by_name["Fries"][2] == "5"
    assert capacities.rows[2][-1] == "no: 89% of it"


def test_gaps_of_the_surge_are_gaps_and_runs_are_lines() -> None:
    figure = drawn(surge.EXPERIMENT, reported(surge.EXPERIMENT, made_up_surges()))
    assert "latency" in figure.get_suptitle()
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels)[1] == "Fries (5 runs)"
    curves = [line for line in panels["epoch (5 runs)"].lines if np.size(line.get_xdata()) == 4]
    assert len(curves) == 5
    assert all(np.isnan(np.asarray(line.get_ydata())[-1]) for line in curves)


def test_a_request_that_comes_late_is_an_error() -> None:
    class Still:
        """A flow whose query runs."""

        name = "W1"
        query = None

    run = Running(cast(Flow, Still()), Path(), time.time() - 10)
    with pytest.raises(ExperimentError, match=r"request of second 5\.0 would come 5\.\d s late"):
        run.change_at(5.0, lambda state, row: (state, row), "fries")


def test_report_on_invalid_rows() -> None:
    report = reported(invalid.EXPERIMENT, named(invalid.EXPERIMENT, made_up_invalid))
    assert (
        "share of invalid rows is lower than that with epochs (as in the paper): 0.404 ["
        in report.verdict
    )
    assert "Without a change it was higher than in any other run." in report.verdict
    assert "2,111 and 2,237 in another" in report.verdict
    none, epoch, fries = report.tables[0].rows
    assert (none[3], epoch[3], fries[3]) == ("83%", "49%", "18%")
    assert fries[5:9] == ["5", "203 [201, 205]", "20.3 [20.1, 20.5]", "5.00"]
    figure = drawn(invalid.EXPERIMENT, report)
    assert len(figure.axes[0].lines) == 11, "one without a change, and five by each scheduler"


def test_invalid_rows_that_are_no_fewer_are_told() -> None:
    found = named(invalid.EXPERIMENT, made_up_invalid)
    for number in range(1, 6):
        found[f"fries-{number}"]["values"] = [0.0, 500.0 + number]
    verdict = reported(invalid.EXPERIMENT, found).verdict
    assert "is not distinguishable from that with epochs (in the paper it is lower)" in verdict
    assert "the test finds a difference only where about 23 of 25 pairs agree" in verdict
    found["epoch-3"]["values"] = [0.0, 900.0]
    verdict = reported(invalid.EXPERIMENT, found).verdict
    assert "NOT below the run without a change in every run: epoch." in verdict


def test_the_last_version_of_a_run_comes_before_its_end() -> None:
    shifts = [invalid.shifted(number, 0.1) for number in range(1, 30)]
    assert len(set(shifts)) == 29
    last = (invalid.CHANGES[-1] * 50 + 20) * 0.1
    assert all(last + shift < 30 for shift in shifts)


@pytest.mark.parametrize("experiment", [sweeps.BY_RATE, sweeps.BY_COST])
def test_report_on_a_sweep(experiment: Experiment) -> None:
    names = [part.name for part in experiment.parts(QUICK)][1:]
    found = {name: made_up_sweep(slow) for slow, name in enumerate(names, 1)}
    report = reported(experiment, found)
    assert "The delay of Fries is lower than that of epochs in all 3 rows." in report.verdict
    assert "the delay of epoch is 3.00 [" in report.verdict
    assert "the delay of Fries is 1.00 [" in report.verdict
    assert "grows, and so it does here" in report.verdict
    figure = drawn(experiment, report)
    low, _ = figure.axes[0].get_ylim()
    assert low < 20


@pytest.mark.parametrize("experiment", [sweeps.BY_RATE, sweeps.BY_COST])
def test_a_sweep_that_does_not_grow_is_not_the_papers(experiment: Experiment) -> None:
    names = [part.name for part in experiment.parts(QUICK)][1:]
    found = {name: made_up_sweep(0.03) for name in names}
    verdict = reported(experiment, found).verdict
    assert (
        "The delay of Fries is lower than that of epochs in 0 of 3 rows; higher than it in 3"
        in verdict
    )
    assert "which was NOT found here" in verdict
