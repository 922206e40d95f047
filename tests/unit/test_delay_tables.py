"""Tables of delays from made-up parts: what the verdicts say, and that they say what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fries_lab.experiments import choke
from fries_lab.experiments.delay_tables import (
    NAIVE,
    PRUNED,
    TPCDS,
    UNNEST,
    W2,
    W4,
    W5,
    Flows,
    lines,
    merged,
    parts,
    shared_out,
)
from fries_lab.experiments.experiment import Bench, Experiment
from fries_lab.experiments.profiles import QUICK
from fries_lab.experiments.queries import Kind, Trial
from fries_lab.experiments.workflows import Workflow
from fries_lab.workloads import graphs

STAGES = {"F1": 0, "U2": 0, "FD1": 1, "LP": 1, "FD2": 2, "MC": 2, "F2": 2}
STAGES5 = {"RE": 0, "F4": 0, "FD3": 1, "FD4": 1, "S1": 2, "F3": 2, "SJ": 3, "E1": 3}
DELAYS = {"fries": 5.0, "epoch": 900.0, "mini_batch": 1000.0, "restart": 4000.0, NAIVE: 4.0}
ONE_WAY = "fries_unpruned"


def around(value: float) -> list[float]:
    """Thirty measurements."""
    return [value * (1 + (number - 14.5) / 100) for number in range(30)]


def part_of(flows: Flows, stages: dict[str, int], delays: dict[str, float]) -> dict[str, Any]:
    """What a query has found."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, value in delays.items():
        rows = [flows.targets[0]] if name in ("restart", "mini_batch", NAIVE) else flows.targets
        found[name] = {",".join(targets): around(value) for targets in rows}
    return {
        "delays_ms": found,
        "mixed": {**dict.fromkeys(delays, 0), NAIVE: 17},
        "transactions": 12_345,
        "batch_seconds": 2.0,
        "edges_ms": {},
        "stages": stages,
    }


def w4_parts(**delays: float) -> dict[str, Any]:
    """What the parts of W4 have found."""
    simulated = {",".join(targets): {"fries": 3.0, "epoch": 300.0} for targets in W4.targets}
    part = part_of(W4, STAGES, {**DELAYS, **delays})
    return {"simulated": {"W4": simulated}, "W4-fused-1": part}


def w5_parts() -> dict[str, Any]:
    """What the parts of W5 have found: pruning helps wherever it changes the plan."""
    simulated = {",".join(targets): {"fries": 3.0, ONE_WAY: 300.0} for targets in W5.targets}
    part = part_of(W5, STAGES5, {**DELAYS, ONE_WAY: 700.0})
    part["delays_ms"][ONE_WAY]["FD3,FD4"] = around(5.1)
    return {"simulated": {"W5": simulated}, "W5-exchanged-1": part}


def test_a_table_has_paper_simulation_and_measurements() -> None:
    report = UNNEST.report(QUICK, w4_parts())
    table = report.tables[0].markdown()
    assert "| F1, U2 | {[F1], U2} | 1 | 69 / 151 | 3 / 300 | 5.00 [4.75, 5.25] |" in table
    assert "| lower: 0.0056 [0.0052, 0.0060] times; below in 100% of pairs; p < 0.001 |" in table
    assert "12,345 transactions found 0 mixed by the consistent schedulers, and 17 by naive" in (
        report.verdict
    )


def test_a_row_is_lower_in_all_rows_or_the_verdict_does_not_say_so() -> None:
    assert "Fries is lower than that of epochs in all 3 rows. In the paper" in (
        UNNEST.report(QUICK, w4_parts()).verdict
    )
    found = w4_parts()
    found["W4-fused-1"]["delays_ms"]["epoch"]["FD1"] = around(4.0)
    verdict = UNNEST.report(QUICK, found).verdict
    assert "in 2 of 3 rows; higher than it in 1: W4 {FD1} fused." in verdict


def test_every_row_that_is_not_distinguishable_is_named_with_what_it_has_in_common() -> None:
    verdict = UNNEST.report(QUICK, w4_parts(epoch=5.1)).verdict
    assert (
        "Fries is lower than that of epochs in 0 of 3 rows; not distinguishable from it in 3:"
        in verdict
    )
    assert "W4 {F1, U2} fused, W4 {FD1} fused, W4 {F2} fused." in verdict
    assert "no way to go; they are W4 {F1, U2} fused." in verdict
    assert "whoever stamped them; they are W4 {FD1} fused, W4 {F2} fused." in verdict


def test_the_boundary_is_compared_as_well() -> None:
    verdict = UNNEST.report(QUICK, w4_parts()).verdict
    assert "Fries is lower than that of the mini-batch boundary in all 3 rows." in verdict
    assert "(rows: 1), the boundary takes 200 times as long" in verdict
    slow = UNNEST.report(QUICK, w4_parts(fries=5000.0)).verdict
    assert "lower than that of the mini-batch boundary in 0 of 3 rows; higher than it in 3" in slow
    assert "the boundary takes" not in slow


def test_a_mixed_transaction_of_a_consistent_scheduler_is_told() -> None:
    found = w4_parts()
    found["W4-fused-1"]["mixed"]["epoch"] = 3
    assert "found 3 mixed by the consistent" in UNNEST.report(QUICK, found).verdict


def test_pruning_has_a_verdict_and_a_control() -> None:
    verdict = PRUNED.report(QUICK, w5_parts()).verdict
    assert "Pruning makes components smaller in 4 of 5 rows." in verdict
    assert "the pruned plan is lower than that of the unpruned one in all 4 rows." in verdict
    assert "With the same plan in both (W5 {FD3, FD4} exchanged) the delays are not" in verdict


def test_pruning_that_does_not_help_is_told() -> None:
    found = w5_parts()
    found["W5-exchanged-1"]["delays_ms"][ONE_WAY]["F4"] = around(5.1)
    found["W5-exchanged-1"]["delays_ms"][ONE_WAY]["E1"] = around(2.0)
    verdict = PRUNED.report(QUICK, found).verdict
    assert "the pruned plan is lower than that of the unpruned one in 2 of 4 rows" in verdict
    assert "not distinguishable from it in 1: W5 {F4} exchanged" in verdict
    assert "higher than it in 1: W5 {E1} exchanged." in verdict


def test_equal_plans_that_differ_are_a_warning() -> None:
    found = w5_parts()
    found["W5-exchanged-1"]["delays_ms"][ONE_WAY]["FD3,FD4"] = around(3.0)
    verdict = PRUNED.report(QUICK, found).verdict
    assert "WARNING: with the same plan in both, the delays differ as well" in verdict
    assert "(W5 {FD3, FD4} exchanged is higher)" in verdict


@pytest.mark.parametrize(("experiment", "made"), [(UNNEST, w4_parts), (PRUNED, w5_parts)])
def test_a_figure_has_a_point_for_each_row_and_whole_whiskers(
    experiment: Experiment, made: Callable[[], dict[str, Any]]
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.container import ErrorbarContainer

    assert experiment.figure is not None
    figure = experiment.figure(experiment.report(QUICK, made()))
    assert figure.get_suptitle().startswith(experiment.title)
    (axes,) = figure.axes
    assert axes.get_legend() is None, "it stands below"
    assert len(figure.legends) == 1
    low, high = axes.get_xlim()
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        _, _, (bars,) = container.lines
        ends = [point[0] for bar in bars.get_segments() for point in bar]
        assert low < min(ends) <= max(ends) < high


def test_lines_know_over_how_many_stages_a_component_reaches() -> None:
    made = lines([W4], merged([W4], w4_parts()))
    assert [line.stages for line in made] == [1, 2, 3]
    assert [line.at_source for line in made] == [True, False, False]


@pytest.mark.parametrize("experiment", [TPCDS, UNNEST, PRUNED])
def test_there_is_a_query_for_each_layout(experiment: Experiment) -> None:
    names = [part.name for part in experiment.parts(QUICK)]
    expected = {
        "tpcds": ["W2-fused", "W2-exchanged", "W3-exchanged"],
        "unnest": ["W4-fused"],
        "pruning": ["W5-exchanged"],
    }[experiment.name]
    assert names == ["simulated", *(f"{one}-{n}" for n in (1, 2) for one in expected)]


@given(count=st.integers(0, 99), rounds=st.integers(1, 9))
def test_changes_are_shared_out_among_rounds(count: int, rounds: int) -> None:
    shares = [shared_out(count, rounds, number) for number in range(1, rounds + 1)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


def test_rounds_are_put_together() -> None:
    found = w4_parts()
    found["W4-fused-2"] = part_of(W4, STAGES, {**DELAYS, "fries": 7.0})
    both = merged([W4], found)["W4-fused"]
    assert sorted(both["delays_ms"]["fries"]["FD1"]) == sorted([*around(5.0), *around(7.0)])
    assert both["mixed"][NAIVE] == 34
    assert both["transactions"] == 24_690


def test_simulated_delays_are_those_of_the_simulator() -> None:
    (simulated,) = (part for part in parts([W2], QUICK) if part.name == "simulated")
    found = simulated.run(cast(Bench, None))  # it needs no Spark
    assert set(found["W2"]) == {"J1", "J2", "J1,J3", "J1,J4", "J3,J4"}
    assert all(one["fries"] < one["epoch"] for one in found["W2"].values())


def test_changes_come_one_by_one_in_a_random_order_with_restarts_last() -> None:
    kinds = [Kind("restart", ("A",), 2), Kind("fries", ("A",), 7), Kind("epoch", ("B",), 3)]
    trial = Trial(cast(Workflow, None), "fused", kinds, seed=1)  # it is not run
    order = trial.order()
    assert [kind.scheduler for kind in order[-2:]] == ["restart", "restart"]
    assert all(kind.count == 1 for kind in order)
    assert Counter(kind.scheduler for kind in order) == {"restart": 2, "fries": 7, "epoch": 3}
    assert [kind.scheduler for kind in order] != sorted(kind.scheduler for kind in order)
    assert order == trial.order()


def choke_part(**edges: float) -> dict[str, Any]:
    medians = {"F1 -> U2": 0.2, "U2 -> FD1": 900.0, "LP -> FD2": 20.0}
    medians |= {name.replace("_", " -> "): value for name, value in edges.items()}
    return {
        "edges_ms": {edge: around(value) for edge, value in medians.items()},
        "stages": STAGES,
        "mixed": {"epoch": 0},
        "batch_seconds": 2.0,
    }


def test_choke_points_tell_edges_inside_a_stage_apart() -> None:
    report = choke.report(QUICK, {"W4": choke_part()})
    table = report.tables[0].markdown()
    assert "| W4 | F1 -> U2 | inside a stage |  | 0.200 [" in table
    assert "| W4 | U2 -> FD1 | over an exchange | about 140 s | 900 [" in table
    assert "longest: W4 U2 -> FD1 (one that the paper names)." in report.verdict
    assert "the largest median is 0.200 ms" in report.verdict
    pytest.importorskip("matplotlib")
    assert [axes.get_title("left") for axes in choke.figure(report).axes] == ["W4"]


def test_choke_points_that_are_near_each_other_are_all_named() -> None:
    verdict = choke.report(QUICK, {"W4": choke_part(LP_FD2=901.0)}).verdict
    assert "W4 LP -> FD2, not distinguishable from U2 -> FD1 (one that the paper" in verdict


def test_a_choke_point_that_is_not_the_papers_is_told() -> None:
    part = choke_part(FD1_FD2=2_000.0)
    verdict = choke.report(QUICK, {"W4": part}).verdict
    assert "W4 FD1 -> FD2 (NOT the paper's: U2 -> FD1, LP -> FD2)" in verdict


def test_every_operator_with_a_version_is_in_the_graph() -> None:
    made = {"W2": graphs.w2, "W3": graphs.w3, "W4": graphs.w4, "W5": graphs.w5}
    for name, operators in choke.OPERATORS.items():
        assert set(operators) <= set(made[name](1).order)
