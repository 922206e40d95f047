"""The paper's experiments on the simulator: its orderings hold, whatever the seed."""

from __future__ import annotations

import pytest

from fries_lab.bench import measure
from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.measure import Delays
from fries_lab.bench.pool import in_process
from fries_lab.bench.simulated import (
    DelayTable,
    Inference,
    PruningTable,
    simulate_w1,
    simulate_w2,
    simulate_w3,
    simulate_w4,
    simulate_w5,
)
from fries_lab.errors import SimulationError
from fries_lab.workloads import simulated as workloads
from fries_lab.workloads.simulated import FULL, QUICK

OTHER_SEED = 1
"""Whose tables only the complete matrix has."""
UNPRINTED = {"LP", "MC"}
"""Operators between the models of W4, which the paper does not name."""


@pytest.fixture(scope="module", params=[0, pytest.param(OTHER_SEED, marks=pytest.mark.complete)])
def w1(request: pytest.FixtureRequest) -> Inference:
    return simulate_w1(in_process, QUICK, request.param)


@pytest.fixture(scope="module", params=[0, pytest.param(OTHER_SEED, marks=pytest.mark.complete)])
def w5(request: pytest.FixtureRequest) -> PruningTable:
    return simulate_w5(in_process, QUICK, request.param)


@pytest.fixture(
    scope="module",
    params=[
        *((name, 0) for name in ("W2", "W3", "W4")),
        *(
            pytest.param((name, OTHER_SEED), marks=pytest.mark.complete)
            for name in ("W2", "W3", "W4")
        ),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def table(request: pytest.FixtureRequest) -> DelayTable:
    name, seed = request.param
    return {"W2": simulate_w2, "W3": simulate_w3, "W4": simulate_w4}[name](in_process, QUICK, seed)


def members(component: str) -> set[str]:
    """Operators of a printed component, heads with their brackets, U1 in one piece."""
    names = set(component.strip("{}").split(", ")) - UNPRINTED
    return {"U1" if name in ("U1a", "U1b") else name for name in names}


def test_fries_is_below_epoch_in_every_row(table: DelayTable) -> None:
    for row in table.rows:
        assert 0 < row.fries.mean < row.epoch.mean, row.targets


def test_components_are_the_papers(table: DelayTable) -> None:
    for row in table.rows:
        printed = [members(component) for component in row.paper.components]
        assert [members(component) for component in row.components] == printed
        assert row.longest_path == row.paper.longest_path


def test_longer_paths_take_fries_longer_in_w2() -> None:
    rows = {row.targets: row.fries.mean for row in simulate_w2(in_process, QUICK).rows}
    assert rows["J1",] * 2 < min(rows["J1", "J3"], rows["J1", "J4"])


def test_more_workers_delay_epoch_more_in_w2() -> None:
    rows = simulate_w2(in_process, QUICK).parallelism
    assert [row.workers for row in rows] == [1, 4]
    assert rows[0].epoch.mean < rows[1].epoch.mean
    for row in rows:
        assert row.fries.mean < row.epoch.mean
        assert (row.channels, row.channels_in_mcs) == (row.paper.total, row.paper.in_mcs)


def test_w4_is_slow_behind_the_models_only() -> None:
    first, second, third = simulate_w4(in_process, QUICK).rows
    assert first.fries.mean * 10 < second.fries.mean < third.fries.mean
    assert first.epoch.mean * 10 < second.epoch.mean < third.epoch.mean


def test_pruning_pays_wherever_it_applies(w5: PruningTable) -> None:
    for row in w5.rows:
        assert [members(part) for part in row.with_pruning] == [members(row.paper.with_pruning)]
        assert [members(part) for part in row.without_pruning] == [
            members(row.paper.without_pruning)
        ]
        if row.targets == ("FD3", "FD4"):
            assert row.pruned.mean == pytest.approx(row.unpruned.mean, rel=0.05)
        else:
            assert row.pruned.mean * 10 <= row.unpruned.mean, row.targets


def test_fries_stops_the_rise_of_latency_first(w1: Inference) -> None:
    runs = {run.scheduler: run for run in w1.surge}
    assert runs["fries"].peak < runs["epoch"].peak < runs["none"].peak
    assert runs["none"].final == pytest.approx(runs["none"].peak, rel=0.05)
    for ours, theirs in zip(runs["fries"].delays, runs["epoch"].delays, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours * 10 < theirs
    assert runs["none"].requests == runs["none"].delays == ()


def test_fries_makes_the_fewest_invalid_tuples(w1: Inference) -> None:
    none, epoch, fries = (run.count[-1] for run in w1.invalid)
    assert fries < epoch < none
    assert all(list(run.count) == sorted(run.count) for run in w1.invalid)


def test_rate_and_cost_delay_epoch_and_not_fries(w1: Inference) -> None:
    for points in (w1.by_rate, w1.by_cost):
        assert all(point.fries.mean < point.epoch.mean for point in points)
        assert points[-1].epoch.mean > 100 * points[0].epoch.mean
        assert points[-1].fries.mean < 3 * points[0].fries.mean


def test_w1_has_the_papers_capacity_and_sustains_its_first_rate() -> None:
    setup = workloads.w1_surge(FULL)
    weights = setup.weights["FD"]
    assert FULL.workers / workloads.INFERENCE == pytest.approx(1_600)
    assert sum(weights) == pytest.approx(FULL.workers)
    assert 1_600 / max(weights) > 1_000
    assert [setup.graph[name].workers for name in setup.graph.order] == [1, 40, 1]
    assert [rate.per_second for rate in setup.rates["source"]] == [1_000, 2_000, 9_000]


@pytest.mark.parametrize(("name", "target"), [("W2", "J1"), ("W4", "FD1"), ("W5", "F3")])
def test_results_depend_on_the_seed_only(name: str, target: str) -> None:
    once, again, other = (
        measure.delays(name, (target,), "fries_unpruned", QUICK.workers, QUICK, seed)
        for seed in (0, 0, 1)
    )
    assert once == again
    assert once != other


def test_a_reconfiguration_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PATIENCE", 0.5)
    with pytest.raises(SimulationError, match="epoch of F2 did not end in"):
        measure.delays("W4", ("F2",), "epoch", QUICK.workers, QUICK, 0)


def test_one_request_has_no_spread() -> None:
    assert Delays("fries", (0.5,)).spread == 0.0
    assert Delays("fries", (0.5, 1.5)).mean == 1.0


def test_the_papers_own_orderings() -> None:
    rows = (*paper.W2, *paper.W3, *paper.W4)
    assert all(row.fries_ms < row.epoch_ms for row in rows)
    assert all(row.pruned_ms < row.unpruned_ms for row in paper.W5)
    assert {table for tables in paper.READS.values() for table in tables} == {
        data.table for data in paper.DATASETS
    }
