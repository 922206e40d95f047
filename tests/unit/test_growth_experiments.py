"""Reports of the experiments beyond the paper, from made-up parts."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fries.runtime.audit import Use
from fries.schedulers import fries
from fries_lab.bench import paper_numbers as paper
from fries_lab.experiments import alternatives, answers, growth, watched
from fries_lab.experiments.profiles import PAPER, QUICK
from fries_lab.workloads import graphs


def point(fries_ms: float, late_ms: float, mixed: int = 0, spread: float = 1.0) -> dict[str, Any]:
    return {
        "fries": [fries_ms + spread * n / 30 for n in range(30)],
        "mini_batch": [late_ms + n / 30 for n in range(30)],
        "asking": [1.0, 1.0],
        "switching": [2.0, 2.0],
        "batch_seconds": 1.0,
        "processes": 2,
        "transactions": 1_000,
        "mixed": mixed,
    }


def points(**special: dict[str, Any]) -> dict[str, Any]:
    made = {part.name: point(8, 500) for part in growth.parts(QUICK)}
    return {**made, **{name.replace("_", "-"): one for name, one in special.items()}}


def test_a_flat_delay_is_called_flat() -> None:
    found = points(**{"seconds-1": point(9, 6_000)})
    verdict = growth.report(QUICK, found).verdict
    assert "value: it is flat in workers (1.00 [" in verdict
    assert "seconds (1.12 [" in verdict
    assert "may be" not in verdict
    assert "grows with" not in verdict
    assert "A change at a boundary takes 12.0 [" in verdict
    assert verdict.endswith("half of a change: 0.")


def test_a_delay_that_grows_is_not_hidden() -> None:
    report = growth.report(QUICK, points(workers_40=point(800, 900, mixed=3)))
    assert "it grows with workers (94.4 [" in report.verdict
    assert report.verdict.endswith("half of a change: 3.")


def test_a_delay_that_may_be_flat_or_not_is_told() -> None:
    report = growth.report(QUICK, points(workers_40=point(2, 900, spread=50)))
    assert "it may be flat or not in workers (" in report.verdict


def test_growth_has_a_row_for_each_point_and_a_panel_for_each_question() -> None:
    report = growth.report(QUICK, points())
    assert [len(table.rows) for table in report.tables] == [3, 2, 2, 2, 3]
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    pytest.importorskip("matplotlib")
    figure = growth.figure(report)
    panels = figure.get_axes()
    assert [axes.get_xlabel() for axes in panels] == [s.label for s in growth.sweeps(QUICK)]
    assert all(axes.get_title().startswith("against") for axes in panels)
    assert all(axes.get_yscale() == "log" for axes in panels)
    assert len(figure.legends) == 1


@pytest.mark.parametrize("sweep", growth.sweeps(PAPER), ids=lambda sweep: sweep.name)
def test_only_the_length_changes_how_long_a_micro_batch_takes(sweep: growth.Sweep) -> None:
    for value in sweep.values:
        chain = growth.chain_of(sweep.name, value)
        slept = chain.cost * chain.rows / chain.workers
        assert slept == pytest.approx(chain.seconds)
        assert sweep.name == "seconds" or chain.seconds == pytest.approx(growth.SHORT)


def test_channels_are_those_of_the_paper() -> None:
    for row in paper.CHANNELS:
        plan = fries(graphs.w2(row.workers), ("J1", "J4"))
        assert (plan.total_channels, plan.channels) == (row.total, row.in_mcs)
    last = growth.channels([2, 40]).rows
    assert last == [["2", "18", "12", "-", "-"], ["40", "6,440", "4,800", "6,440", "4,800"]]


def test_an_answer_is_the_same_in_any_order() -> None:
    one, other = (1, "a", Decimal("2.50"), None), (2, "b", Decimal("2.5"), None)
    assert answers.digest([one, other]) == answers.digest([other, one])
    assert answers.digest([one]) != answers.digest([(1, "a", Decimal("2.51"), None)])
    assert answers.digest([one]) != answers.digest([one, one])
    assert answers.digest([(1, "a", Decimal("2.500"), None)]) == answers.digest([one])


def answered(**special: dict[str, Any]) -> dict[str, Any]:
    others = {"DuckDB": "same", "Spark SQL": "same", "rows": 44}
    found: dict[str, Any] = {f"{name}-others": others for name in answers.QUERY}
    for run in answers.RUNS:
        found[run.name] = {
            "rows": 44, "digest": "same", "changes": 6 if run.changed else 0, "seconds": 8.0,
            "transactions": 1_000, "mixed": 0,
        }  # fmt: skip
    return {**found, **{name.replace("_", "-"): one for name, one in special.items()}}


def test_equal_answers_are_said_to_be_equal() -> None:
    report = answers.report(QUICK, answered())
    assert "all 8 runs are equal" in report.verdict
    assert "24 changes" in report.verdict
    assert all(row[3:5] == ["yes", "yes"] for row in report.tables[0].rows)


def test_a_wrong_answer_is_a_no_in_table_and_verdict() -> None:
    wrong = {**answered()["W3-fused-changed"], "digest": "other"}
    report = answers.report(QUICK, answered(W3_fused_changed=wrong))
    assert "NO: W3-fused-changed differ" in report.verdict
    assert [row[3:5] for row in report.tables[0].rows].count(["NO", "NO"]) == 1


def ways(*delays: float) -> dict[str, Any]:
    """What the ways have found."""
    return {
        part.name: {
            "delays_ms": [ms + n / 30 for n in range(30)],
            "batch_seconds": 0.8,
            "rows_per_second": [1_500.0 + n for n in range(16)],
        }
        for part, ms in zip(alternatives.parts(QUICK), delays, strict=True)
    }


def test_a_report_of_ways_compares_fries_with_each() -> None:
    report = alternatives.report(QUICK, ways(10, 2_000, 1_500, 2_500))
    assert "Fries takes 10.5 [" in report.verdict
    assert "It is lower than stop and restart (0.0070 [" in report.verdict
    assert "times the rate of plain Spark (not distinguishable)" in report.verdict
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    pytest.importorskip("matplotlib")
    assert "measured" in alternatives.figure(report).get_suptitle()


def test_delays_of_nothing_are_shown_as_such() -> None:
    """When a request comes between two micro-batches, no row is processed by the old version."""
    found = ways(10, 2_000, 1_500, 2_500)
    found["fries"]["delays_ms"] = [0.0] * 30
    report = alternatives.report(QUICK, found)
    assert "Fries takes 0 [0, 0] ms. It is lower than Fries, mini_batch (0 [0, 0] times)." in (
        report.verdict
    )
    pytest.importorskip("matplotlib")
    (axes,) = alternatives.figure(report).axes
    assert axes.get_xlim()[0] < 0 < axes.get_xlim()[1]


def test_ways_that_are_as_fast_or_faster_are_told() -> None:
    found = ways(10, 10.01, 2, 2_500)
    found["fries"]["rows_per_second"] = [1_000.0 + n for n in range(16)]
    verdict = alternatives.report(QUICK, found).verdict
    assert "It is not distinguishable from Fries, mini_batch." in verdict
    assert "It is higher than stop and restart" in verdict
    assert "times the rate of plain Spark (lower)" in verdict


def test_a_watched_function_keeps_a_log_of_each_copy(tmp_path: Path) -> None:
    old = watched.Watched(tmp_path, 0, 0.0)
    assert old({"value": 7}) == {"value": 7, "version": 0}
    copy = pickle.loads(pickle.dumps(old))
    copy({"value": 8})
    (tmp_path / "1-begun.use").touch()  # its first row is under way
    used = watched.uses(tmp_path)
    assert len(list(tmp_path.glob("0-*.use"))) == 2
    assert list(used) == [0]
    assert used[0].first <= used[0].last


def test_a_delay_ends_with_the_last_row_by_any_older_version() -> None:
    used = {0: Use(0.0, 10.5), 1: Use(10.4, 20.0), 2: Use(23.0, 30.0)}
    asked = {1: 10.0, 2: 21.0}
    assert watched.delays(asked, used, until_new=False) == pytest.approx([0.5, 0.0])
    assert watched.delays(asked, used, until_new=True) == pytest.approx([0.5, 2.0])
