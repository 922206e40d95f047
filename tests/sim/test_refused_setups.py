"""Simulations that cannot be run are refused, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from fries.errors import UnknownOperatorError
from fries.graph import Graph, Operator, paths
from fries.schedulers import fries, mini_batch
from fries_lab.errors import SimulationError
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.engine import Simulation
from fries_lab.sim.setup import Cost, Rate, Setup, Spread
from fries_lab.workloads.graphs import scope_figure, w1
from tests.sim.simulations import (
    outputs,
    settle,
    simulation,
    varied,
)

CONSTANT = Spread.CONSTANT

GRAPH = w1(2)
RATES = {"source": (Rate(10),)}


@pytest.mark.parametrize(
    "bad",
    [
        {"rates": {}},
        {"rates": {"source": ()}},
        {"rates": {"source": (Rate(0),)}},
        {"rates": {"source": (Rate(-1),)}},
        {"rates": {"source": (Rate(float("nan")),)}},
        {"rates": {"source": (Rate(float("inf")),)}},
        {"rates": {"source": (Rate(10, start=1.0),)}},
        {"rates": {"source": (Rate(10, start=float("nan")),)}},
        {"rates": {**RATES, "FD": (Rate(10),)}},
        {"rates": {"source": (Rate(10), Rate(20, start=5.0), Rate(30, start=2.0))}},
        {"weights": {"FD": [1.0]}},
        {"weights": {"FD": [1.0, 1.0, 1.0]}},
        {"weights": {"FD": [1.0, -1.0]}},
        {"weights": {"FD": [0.0, 0.0]}},
        {"weights": {"FD": []}},
        {"costs": {"FD": (Cost(-0.001),)}},
        {"costs": {"FD": (Cost(0.001), Cost(float("nan")))}},
        {"costs": {"FD": ()}},
        {"capacity": 0},
        {"capacity": -1},
        {"capacities": {"FD": 0}},
        {"slowdown": {("FD", 0): 0.0}},
        {"slowdown": {("FD", 2): 2.0}},
        {"batch_interval": 0.0},
        {"batch_interval": -1.0},
        {"checkpoint_interval": 0.0},
        {"checkpoint_interval": -0.5},
        {"checkpoint_interval": float("inf")},
        {"control_latency": -0.001},
        {"load_time": -1.0},
        {"restart_time": -1.0},
    ],
)
def test_a_setup_that_cannot_be_simulated_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SimulationError):
        Setup(**{"graph": GRAPH, "rates": RATES, **bad})


@pytest.mark.parametrize(
    "bad",
    [
        {"rates": {**RATES, "FX": (Rate(1),)}},
        {"costs": {"FX": (Cost(),)}},
        {"behaviours": {"FX": Behaviour()}},
        {"weights": {"FX": [1.0, 1.0]}},
        {"capacities": {"FX": 1}},
        {"slowdown": {("FX", 0): 2.0}},
    ],
)
def test_a_name_that_no_operator_has_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UnknownOperatorError, match="no operator named 'FX'"):
        Setup(**{"graph": GRAPH, "rates": RATES, **bad})


def test_a_source_without_a_rate_is_named() -> None:
    with pytest.raises(SimulationError, match="source 'B' has no rate"):
        Setup(scope_figure(), {"A": (Rate(1),)})


def test_there_is_no_trace_unless_asked_for() -> None:
    sim = Simulation(Setup(GRAPH, RATES))
    sim.run(1.0)
    with pytest.raises(SimulationError, match="trace=True"):
        sim.trace()


def test_the_mini_batch_scheduler_needs_mini_batches() -> None:
    sim = simulation(Setup(GRAPH, RATES), (0.5, mini_batch(GRAPH, ["FD"])))
    with pytest.raises(SimulationError, match="batch_interval"):
        sim.run(1.0)


def test_a_crash_is_simulated_in_pipelined_runs_only() -> None:
    sim = Simulation(Setup(GRAPH, RATES, batch_interval=1.0))
    sim.run(1.5)
    with pytest.raises(SimulationError, match="pipelined"):
        sim.recovery.crash()


def test_a_blocking_operator_is_refused_by_name() -> None:
    operators = [Operator("source", source=True), Operator("AGG", blocking=True), Operator("sink")]
    graph = Graph(operators, paths("source -> AGG -> sink"))
    with pytest.raises(SimulationError, match=r"'AGG' is blocking.*simulate graph\.pipelined"):
        Setup(graph, {"source": (Rate(1),)})
    regions = varied(graph.pipelined, tuples=5)
    sim = simulation(regions, (0.01, fries(graph, ["AGG", "sink"])))
    settle(sim, changes=1)
    assert {name: len(rows) for name, rows in outputs(sim).items()} == {"AGG": 5, "sink": 5}


@pytest.mark.parametrize(
    "bad",
    [
        {"fanout": -1},
        {"selectivity": -0.1},
        {"selectivity": 1.1},
        {"selectivity": float("nan")},
        {"joins": 0},
    ],
)
def test_a_behaviour_that_no_operator_has_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SimulationError, match="; give "):
        Behaviour(**bad)
    assert Behaviour(fanout=0).fanout == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"checkpoint_interval": 1.0}, "checkpoint_interval"),
        ({"batch_interval": 1.0}, "batch_interval"),
        ({"tuples": None}, "no most_tuples"),
    ],
)
def test_a_run_without_an_end_is_refused(options: dict[str, Any], reason: str) -> None:
    sim = Simulation(varied(GRAPH, **options))
    with pytest.raises(SimulationError, match=rf"never ends \({reason}\); give run an until"):
        sim.run()
    sim.run(0.1)
    assert sim.now == 0.1


def test_a_run_without_until_ends_with_the_last_tuple() -> None:
    sim = Simulation(varied(GRAPH, tuples=5))
    sim.run()
    assert all(len(done) == 10 for done in outputs(sim).values())


@pytest.mark.parametrize("moment", [float("nan"), float("inf")])
def test_moments_that_never_come_are_refused(moment: float) -> None:
    sim = Simulation(varied(GRAPH))
    with pytest.raises(SimulationError, match="no moment to run until"):
        sim.run(moment)
    with pytest.raises(SimulationError, match="no moment for a request"):
        sim.request(moment, fries(GRAPH, ["FD"]))


def test_a_source_has_a_rate_and_no_cost() -> None:
    source = GRAPH.sources[0]
    with pytest.raises(SimulationError, match="needs no cost"):
        Setup(GRAPH, RATES, costs={source: (Cost(0.1),)})


def test_a_request_in_the_past_is_refused() -> None:
    sim = Simulation(Setup(GRAPH, RATES))
    sim.run(2.0)
    with pytest.raises(SimulationError, match="in the past"):
        sim.request(1.0, fries(GRAPH, ["FD"]))
