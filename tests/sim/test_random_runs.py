"""Random dataflows, reconfigurations, buffers and crashes in simulated time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fries.graph import Graph
from fries.schedulers import scheduler
from fries_lab.sim.engine import Simulation
from tests.property.strategies import cases, graphs
from tests.sim.simulations import (
    Crashed,
    outputs,
    settle,
    simulation,
    transactions,
    varied,
    verdict,
)

parallel = graphs(max_operators=4, unique=False, blocking=False)
joined = graphs(max_operators=5, parallel=False, blocking=False)  # where unique can be kept
dataflows = cases(st.one_of(parallel, joined))
names = st.sampled_from(["fries", "fries_unpruned", "epoch", "multi_version", "restart"])
buffers = st.integers(1, 4)
seeds = st.integers(0, 1000)
moments = st.floats(0.0, 0.03, allow_nan=False)
places = st.integers(0, 300)

quick = settings(deadline=None, max_examples=60)  # a busy machine is no failure


@quick
@given(dataflows, names, buffers, seeds, st.lists(moments, min_size=1, max_size=3))
def test_any_reconfiguration_of_any_dataflow(
    case: tuple[Graph, frozenset[str]], name: str, capacity: int, seed: int, times: list[float]
) -> None:
    graph, targets = case
    plan = scheduler(name)(graph, targets)
    setup = varied(graph, tuples=5, capacity=capacity, seed=seed, restart_time=0.01)
    undisturbed = Simulation(setup)
    settle(undisturbed)
    sim = simulation(setup, *((time, plan) for time in times))
    settle(sim, changes=len(times))
    assert verdict(sim).serializable
    assert sim.recovery.consistent()
    for operator in graph.order:
        assert transactions(sim, operator) == transactions(undisturbed, operator)


@quick
@given(
    dataflows,
    names,
    buffers,
    seeds,
    st.booleans(),
    st.sampled_from([None, 0.006, 0.02]),
    st.lists(places, min_size=1, max_size=3),
)
def test_any_crash_of_any_reconfiguration(
    case: tuple[Graph, frozenset[str]],
    name: str,
    capacity: int,
    seed: int,
    logging: bool,
    interval: float | None,
    crashes: list[int],
) -> None:
    graph, targets = case
    setup = varied(
        graph,
        tuples=4,
        capacity=capacity,
        seed=seed,
        logging=logging,
        checkpoint_interval=interval,
        restart_time=0.01,
    )
    plan = scheduler(name)(graph, targets)
    whole = simulation(setup, (0.01, plan))
    steps = settle(whole, changes=1)
    sim = simulation(setup, (0.01, plan))
    for place in crashes:
        run = Crashed(sim, place % (steps + 1))
    run.check(outputs(whole))
