"""Tables of delays from made-up parts: what the verdicts say, and that they say what is wrong."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from fries.experiments import choke
from fries.experiments.delay_tables import NAIVE, PRUNED, TPCDS, UNNEST, W2, W4, lines, parts
from fries.experiments.experiment import Bench, Experiment
from fries.experiments.profiles import QUICK
from fries.experiments.queries import Kind, Trial, one_in_each
from fries.experiments.workflows import Workflow
from fries.workloads import graphs

STAGES = {"F1": 0, "U2": 0, "FD1": 1, "LP": 1, "FD2": 2, "MC": 2, "F2": 2}
DELAYS = {"fries": 5.0, "epoch": 900.0, "mini_batch": 1000.0, "restart": 4000.0, NAIVE: 4.0}


def w4_parts(**delays: float) -> dict[str, Any]:
    """What the parts of W4 have found."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, value in {**DELAYS, **delays}.items():
        rows = [W4.targets[0]] if name == "restart" else W4.targets
        found[name] = {",".join(targets): [value, value + 1, value - 1] for targets in rows}
    simulated = {",".join(targets): {"fries": 3.0, "epoch": 300.0} for targets in W4.targets}
    return {
        "simulated": {"W4": simulated},
        "W4-fused": {
            "delays_ms": found,
            "mixed": {**dict.fromkeys(DELAYS, 0), NAIVE: 17},
            "transactions": 12_345,
            "batch_seconds": 2.0,
            "edges_ms": {},
            "stages": STAGES,
        },
    }


def test_a_table_has_paper_simulation_and_measurements() -> None:
    report = UNNEST.report(QUICK, w4_parts())
    table = report.tables[0].markdown()
    assert "| F1, U2 | {[F1], U2} | 1 | 69 / 151 | 3 / 300 | 5.00 ± 2.48 |" in table
    assert "no other scheduler is below Fries in any of the 3 rows" in report.verdict
    assert "12,345 transactions found 0 mixed by the consistent schedulers, and 17 by naive" in (
        report.verdict
    )
    assert "200 to 200 times as long as Fries" in report.verdict


def test_a_row_where_fries_is_slower_is_named() -> None:
    verdict = UNNEST.report(QUICK, w4_parts(fries=5000.0)).verdict
    assert "In 0 of 3 rows" in verdict
    assert "W4 {F1, U2} fused (by epoch, mini-batch, restart)" in verdict


def test_equal_rows_over_an_exchange_are_explained() -> None:
    verdict = UNNEST.report(QUICK, w4_parts(fries=900.5)).verdict
    assert "equal in W4 {FD1} fused, W4 {F2} fused: these components reach over" in verdict
    assert "in W4 {F1, U2} fused: there all heads are in the stage of the sources" in verdict
    assert "a stage of Spark begins when the one before has ended" in verdict


def test_a_mixed_transaction_of_a_consistent_scheduler_is_told() -> None:
    found = w4_parts()
    found["W4-fused"]["mixed"]["epoch"] = 3
    assert "found 3 mixed by the consistent" in UNNEST.report(QUICK, found).verdict


def test_lines_know_over_how_many_stages_a_component_reaches() -> None:
    made = lines([W4], w4_parts())
    assert [line.stages for line in made] == [1, 2, 3]
    assert [line.at_source for line in made] == [True, False, False]


@pytest.mark.parametrize("experiment", [TPCDS, UNNEST, PRUNED])
def test_there_is_a_query_for_each_layout(experiment: Experiment) -> None:
    names = [part.name for part in experiment.parts(QUICK)]
    expected = {
        "tpcds": ["simulated", "W2-fused", "W2-exchanged", "W3-fused", "W3-exchanged"],
        "unnest": ["simulated", "W4-fused"],
        "pruning": ["simulated", "W5-fused", "W5-exchanged"],
    }
    assert names == expected[experiment.name]


def test_simulated_delays_are_those_of_the_simulator() -> None:
    (simulated,) = (part for part in parts([W2], QUICK) if part.name == "simulated")
    found = simulated.run(cast(Bench, None))  # it needs no Spark
    assert set(found["W2"]) == {"J1", "J2", "J1,J3", "J1,J4", "J3,J4"}
    assert all(one["fries"] < one["epoch"] for one in found["W2"].values())


def test_changes_come_in_a_random_order_with_restarts_last() -> None:
    kinds = [Kind("restart", ("A",), 2), Kind("fries", ("A",), 7, 3), Kind("epoch", ("B",), 3)]
    trial = Trial(cast(Workflow, None), "fused", kinds, seed=1)  # it is not run
    order = trial.order()
    assert [kind.scheduler for kind in order[-2:]] == ["restart", "restart"]
    assert sorted(kind.count for kind in order if kind.scheduler == "fries") == [1, 3, 3]
    assert [kind.count for kind in order if kind.scheduler != "fries"] == [1] * 5
    assert [kind.scheduler for kind in order] != sorted(kind.scheduler for kind in order)
    assert order == trial.order()


def test_moments_are_spread_over_a_micro_batch() -> None:
    moments = one_in_each(random.Random(3), 8)
    assert [int(8 * moment) for moment in moments] == list(range(8))
    assert moments != one_in_each(random.Random(4), 8)


def test_choke_points_leave_out_edges_inside_a_stage() -> None:
    part = {
        "edges_ms": {
            "F1 -> U2": [0.1, 0.2],
            "U2 -> FD1": [900.0, 950.0],
            "LP -> FD2": [20.0, 30.0],
        },
        "stages": STAGES,
        "mixed": {"epoch": 0},
        "batch_seconds": 2.0,
    }
    report = choke.report(QUICK, {"W4": part})
    table = report.tables[0].markdown()
    assert "| W4 | F1 -> U2 |  | N/A (one stage) |" in table
    assert "| W4 | U2 -> FD1 | about 140 s | 925 ± 318 |" in table
    assert "W4 U2 -> FD1" in report.verdict


def test_every_operator_with_a_version_is_in_the_graph() -> None:
    made = {"W2": graphs.w2, "W3": graphs.w3, "W4": graphs.w4, "W5": graphs.w5}
    for name, operators in choke.OPERATORS.items():
        assert set(operators) <= set(made[name](1).order)
