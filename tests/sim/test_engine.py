"""The data path in simulated time: determinism, buffers, routing, costs, rates, metrics."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fries.change.model import Phase
from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths
from fries.schedulers import Scheduler, epoch, fries, multi_version, scheduler
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.engine import Simulation
from fries_lab.sim.metrics import Latencies
from fries_lab.sim.setup import Cost, Rate, Setup, Spread
from fries_lab.workloads.graphs import running_example, scope_figure, split_figure, w1, w2, w4, w5
from tests.sim.simulations import (
    operations,
    outputs,
    queues,
    settle,
    simulation,
    transactions,
    varied,
    verdict,
)

CONSTANT = Spread.CONSTANT


# Determinism


def everything(sim: Simulation) -> tuple[object, ...]:
    """All that a run leaves behind."""
    return sim.metrics, operations(sim), sim.events, sim.now


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version", "restart"])
@pytest.mark.parametrize("logging", [False, True])
def test_the_same_setup_gives_the_same_run(name: str, logging: bool) -> None:
    graph = w5(2)
    plan = scheduler(name)(graph, ["FD3", "FD4"])

    def run(seed: int) -> Simulation:
        setup = varied(
            graph,
            tuples=40,
            seed=seed,
            logging=logging,
            checkpoint_interval=0.05,
            restart_time=0.1,
        )
        sim = simulation(setup, (0.1, plan))
        settle(sim, changes=1)
        return sim

    first = run(7)
    assert everything(run(7)) == everything(first)
    assert everything(run(8)) != everything(first)
    assert outputs(run(8)) == outputs(first)  # chance decides when, not what


def test_two_crashed_runs_are_the_same_too() -> None:
    graph = running_example(2)

    def run() -> Simulation:
        setup = varied(graph, logging=True, checkpoint_interval=0.02)
        sim = simulation(setup, (0.03, fries(graph, ["FM", "MC"])))
        sim.at(0.04, sim.recovery.crash)
        sim.at(0.05, sim.recovery.crash)
        settle(sim, changes=1)
        return sim

    first = run()
    assert first.metrics.crashes == 2
    assert everything(run()) == everything(first)


def test_constant_costs_leave_nothing_to_chance() -> None:
    runs = []
    for seed in (1, 2):
        sim = Simulation(varied(running_example(2), spread=CONSTANT, seed=seed))
        settle(sim)
        runs.append(everything(sim))
    assert runs[0] == runs[1]


def test_stepping_and_running_are_the_same() -> None:
    graph = running_example(2)
    stepped, run = (simulation(varied(graph), (0.03, epoch(graph, ["FC", "MC"]))) for _ in range(2))
    while stepped.step(1.0):
        pass
    run.run(0.02)
    assert run.now == 0.02
    run.run(1.0)
    assert run.now == 1.0
    assert everything(stepped)[:3] == everything(run)[:3]


# The data path


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_tuple_reaches_the_sink_exactly_once(workers: int) -> None:
    sim = Simulation(varied(running_example(workers), tuples=50))
    settle(sim)
    for name in sim.setup.graph.order:
        assert transactions(sim, name) == list(range(50 * workers))
    assert sum(sim.metrics.latencies.count) == 50 * workers


@pytest.mark.parametrize("name", ["none", "epoch", "fries"])
def test_channels_are_first_in_first_out(name: str) -> None:
    """Also when markers block some of them: senders and receivers agree on the order."""
    graph = running_example(3)
    changes = [] if name == "none" else [(0.1, scheduler(name)(graph, ["FC", "MC"]))]
    sim = simulation(varied(graph, rate=400, tuples=60, capacity=4), *changes)
    settle(sim, len(changes))
    done = {worker: [txn for txn, _ in rows] for worker, rows in operations(sim).items()}
    compared = 0
    for sender, receiver in queues(sim):
        shared = set(done[sender]) & set(done[receiver])
        in_order = [txn for txn in done[sender] if txn in shared]
        assert in_order == [txn for txn in done[receiver] if txn in shared]
        compared += len(shared)
    assert compared == 4 * 3 * 60  # each tuple went over one channel of each edge


def test_no_channel_holds_more_than_its_capacity() -> None:
    graph = w5(2)
    setup = varied(
        graph,
        rate=2000,
        tuples=60,
        costs={"S1": (Cost(0.01, Spread.EXPONENTIAL),)},
        capacity=3,
        capacities={"FD4": 1, "S1": 7},
    )
    sim = simulation(setup, (0.02, epoch(graph, ["FD3", "E1"])))
    most: Counter[str] = Counter()
    while sim.step():
        for (_, receiver), length in queues(sim).items():
            operator = receiver.rsplit("#", 1)[0]
            most[operator] = max(most[operator], length)
    assert most["FD4"] == 1
    assert most["S1"] == 7
    assert most["FD3"] == 3
    assert max(most[name] for name in graph.order if name not in ("FD4", "S1")) == 3
    assert outputs(sim) == {"sink": list(range(120))}


def test_back_pressure_slows_the_source_down() -> None:
    """100 tuples a second come out of FD, and as many go in; the buffer is all that waits."""
    sim = Simulation(
        varied(w1(), rate=1000, cost=0, costs={"FD": (Cost(0.01),)}, capacity=20, tuples=None)
    )
    sim.run(10.0)
    assert len(transactions(sim, "sink")) == pytest.approx(1000, abs=2)
    assert len(transactions(sim, "source")) == pytest.approx(1000 + 20, abs=3)
    assert sim.metrics.latencies.window(10, 5) == pytest.approx(0.01 * (20 + 2), abs=0.011)


def test_without_back_pressure_latency_grows() -> None:
    sim = Simulation(
        varied(w1(), rate=200, cost=0, costs={"FD": (Cost(0.01),)}, capacity=100_000, tuples=None)
    )
    sim.run(10.0)
    latencies = sim.metrics.latencies
    assert latencies.window(1, 1) == pytest.approx(0.25, abs=0.02)
    assert latencies.window(10, 1) == pytest.approx(4.75, abs=0.05)
    assert len(transactions(sim, "source")) == pytest.approx(2000, abs=2)


def test_back_pressure_goes_through_several_operators() -> None:
    setup = varied(
        w2(), rate=1000, cost=0.001, costs={"J4": (Cost(0.05),)}, capacity=2, tuples=None
    )
    sim = Simulation(setup)
    sim.run(5.0)
    assert len(transactions(sim, "J4")) == pytest.approx(100, abs=2)
    assert len(transactions(sim, "source")) <= 100 + 4 * (2 + 2) + 2


@pytest.mark.parametrize("fanout", [0, 1, 3])
def test_one_to_many_fans_out(fanout: int) -> None:
    sim = Simulation(varied(w4(2), behaviours={"U2": Behaviour(fanout=fanout)}, tuples=10))
    settle(sim)
    assert transactions(sim, "U2") == list(range(20))
    assert outputs(sim)["sink"] == sorted(list(range(20)) * fanout)


def test_an_operator_with_two_outputs_chooses_one_of_them() -> None:
    sim = Simulation(varied(split_figure(), tuples=200, rate=2000, cost=0.0001))
    settle(sim)
    parts = outputs(sim)
    assert sorted(parts["C"] + parts["D"]) == list(range(200))
    assert len(parts["C"]) == pytest.approx(100, abs=35)


def test_replicate_copies_and_a_unique_join_makes_one_again() -> None:
    sim = Simulation(varied(w5(3), tuples=20))
    settle(sim)
    everyone = list(range(60))
    for name in ("RE", "FD3", "F3", "F4", "FD4", "E1", "sink"):
        assert transactions(sim, name) == everyone
    assert transactions(sim, "SJ") == sorted(everyone * 2)
    joined = [[txn for txn, _ in rows] for name, rows in operations(sim).items() if "SJ" in name]
    for mine, others in itertools.combinations(joined, 2):
        assert not set(mine) & set(others)  # both halves meet at one worker


def test_selectivity_is_a_share_of_the_tuples_and_always_the_same_ones() -> None:
    passed = []
    for seed in (1, 2):
        behaviours = {"F1": Behaviour(selectivity=0.25), "U2": Behaviour(fanout=1)}
        sim = Simulation(
            varied(w4(), behaviours=behaviours, tuples=1000, rate=1e4, cost=0.0001, seed=seed)
        )
        settle(sim)
        passed.append(outputs(sim)["sink"])
    assert passed[0] == passed[1]
    assert len(passed[0]) == pytest.approx(250, abs=50)


def test_weights_are_the_shares_of_workers() -> None:
    setup = varied(w1(4), tuples=500, rate=1e4, cost=0.0001, weights={"FD": [0, 1, 2, 5]})
    sim = Simulation(setup)
    settle(sim)
    counts = [len(operations(sim)[f"FD#{index}"]) for index in range(4)]
    assert counts[0] == 0
    assert counts == pytest.approx([0, 250, 500, 1250], rel=0.15)
    assert outputs(sim)["sink"] == list(range(2000))


def test_a_straggler_is_slower_by_its_factor() -> None:
    latencies: set[float] = set()

    def look(now: float, operator: str, born: float, version: int) -> None:
        assert version == 0
        if operator == "sink":
            latencies.add(round(now - born, 6))

    graph = Graph(
        [Operator("source", source=True), Operator("FD", workers=2), Operator("sink")],
        [
            Edge("source", "FD", Partitioning.HASH, ("user",)),
            Edge("FD", "sink", Partitioning.HASH, ("user",)),
        ],
    )
    slowdown = {("FD", 1): 5.0}
    setup = varied(graph, rate=5, cost=0, costs={"FD": (Cost(0.01),)}, slowdown=slowdown)
    sim = simulation(setup, probe=look)
    settle(sim)
    assert latencies == {0.01, 0.05}


@pytest.mark.parametrize("slowdown", [1.0, 4.0])
def test_costs_are_drawn_around_their_mean(slowdown: float) -> None:
    latencies: list[float] = []

    def look(now: float, operator: str, born: float, _: int) -> None:
        if operator == "sink":
            latencies.append(now - born)

    setup = varied(
        w1(),
        rate=1,
        cost=0,
        costs={"FD": (Cost(0.01, Spread.EXPONENTIAL),)},
        slowdown={("FD", 0): slowdown},
        tuples=500,
    )
    simulation(setup, probe=look).run(600.0)
    mean = 0.01 * slowdown
    assert sum(latencies) / 500 == pytest.approx(mean, rel=0.15)
    assert sum(latency > mean for latency in latencies) / 500 == pytest.approx(0.37, abs=0.06)


def test_rates_change_over_time() -> None:
    setup = Setup(w1(), {"source": (Rate(8), Rate(128, start=1.0), Rate(16, start=2.0))})
    births: Counter[int] = Counter()

    def look(now: float, operator: str, born: float, _: int) -> None:
        if operator == "source":
            assert born == now
            births[int(born)] += 1

    sim = Simulation(setup, look)
    sim.run(2.999)
    assert [births[second] for second in range(3)] == [8, 128, 16]


def test_the_cost_depends_on_the_version() -> None:
    graph = w1()
    costs = {"FD": (Cost(0.02), Cost(0.002))}
    sim = simulation(varied(graph, rate=20, cost=0, costs=costs), (0.28, fries(graph, ["FD"])))
    sim.run(0.28)
    assert sim.metrics.latencies.mean == pytest.approx(0.02)
    before = sum(sim.metrics.latencies.total)
    counted = sum(sim.metrics.latencies.count)
    settle(sim, changes=1)
    more = sum(sim.metrics.latencies.count) - counted
    assert sum(sim.metrics.latencies.total) - before == pytest.approx(0.002 * more)


def broadcasting(workers: int) -> Graph:
    """A source whose tuples all go to every worker of B."""
    return Graph(
        [
            Operator("A", source=True),
            Operator("B", workers=workers),
            Operator("C", workers=workers),
        ],
        [Edge("A", "B", Partitioning.BROADCAST), Edge("B", "C", Partitioning.FORWARD)],
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_broadcast_reaches_all_workers(workers: int) -> None:
    graph = broadcasting(workers)
    sim = simulation(varied(graph, rate=500, tuples=30), (0.03, fries(graph, ["B", "C"])))
    settle(sim, changes=1)
    for index in range(workers):
        for name in ("B", "C"):
            assert [txn for txn, _ in operations(sim)[f"{name}#{index}"]] == list(range(30))
    assert verdict(sim).serializable


def test_a_dataflow_of_one_operator() -> None:
    graph = Graph([Operator("A", source=True)], [])
    sim = simulation(varied(graph, tuples=5), (0.011, fries(graph, ["A"])))
    settle(sim, changes=1)
    assert operations(sim) == {"A#0": [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]}
    assert sim.metrics.latencies.mean == 0.0


def test_two_sources_number_their_transactions_apart() -> None:
    sim = Simulation(varied(scope_figure(), tuples=10))
    settle(sim)
    assert transactions(sim, "A") == list(range(0, 20, 2))
    assert transactions(sim, "B") == list(range(1, 20, 2))
    assert transactions(sim, "F") == list(range(0, 20, 2))
    assert outputs(sim) == {"H": list(range(20))}


def test_one_per_edge_and_many_on_the_same_way() -> None:
    graph = Graph(
        [
            Operator("S", source=True),
            Operator("R", emits=Emits.ONE_PER_EDGE),
            Operator("M", emits=Emits.MANY),
            Operator("X"),
        ],
        paths("S -> R -> M -> X", "R -> X"),
    )
    sim = Simulation(varied(graph, behaviours={"M": Behaviour(fanout=4)}, tuples=5))
    settle(sim)
    assert outputs(sim) == {"X": sorted(list(range(5)) * 5)}


# Metrics


def test_windows_of_latencies() -> None:
    latencies = Latencies()
    assert latencies.mean == 0.0
    assert latencies.window(10) is None
    for now, latency in ((0.5, 1.0), (0.9, 3.0), (2.0, 8.0)):
        latencies.add(now, latency)
    assert latencies.count == [2, 0, 1]
    assert latencies.total == [4.0, 0.0, 8.0]
    assert latencies.mean == 4.0
    assert latencies.window(1) == 2.0
    assert latencies.window(2, length=1) is None
    assert latencies.window(3, length=1) == 8.0
    assert latencies.window(3) == 4.0
    assert latencies.window(60) is None


@pytest.mark.parametrize("plan_of", [fries, epoch, multi_version])
def test_there_is_no_delay_before_the_change_is_everywhere(plan_of: Scheduler) -> None:
    graph = running_example(2)
    plan = plan_of(graph, ["FM", "MC"])
    sim = simulation(varied(graph, rate=400, tuples=50), (0.05, plan))
    targets = {worker for worker in operations(sim) if worker[:2] in plan.targets}
    assert len(targets) == 4
    unfinished = 0
    while sim.step():
        if not sim.metrics.changes:
            continue
        record = sim.metrics.changes[0]
        if plan_of is multi_version:
            finished = record.phase is Phase.DONE
        else:
            finished = targets <= record.switched.keys()
        assert (record.delay is not None) == finished
        unfinished += not finished
    assert unfinished > 5
    assert sim.metrics.changes[0].delay is not None
    assert sim.metrics.changes[0].delay > 0


def test_the_delay_ends_when_the_last_target_switches() -> None:
    graph = running_example()
    sim = simulation(varied(graph, rate=400, tuples=50), (0.05, epoch(graph, ["FM", "MC"])))
    settle(sim, changes=1)
    record = sim.metrics.changes[0]
    assert record.requested == 0.05
    assert record.number == 1
    order = [record.switched[f"{name}#0"] for name in graph.order]
    assert order == sorted(order)
    assert record.delay == pytest.approx(record.switched["MC#0"] - 0.05)
    assert record.done == pytest.approx(record.switched["sink#0"] + sim.setup.control_latency)


@pytest.mark.parametrize("name", ["fries", "epoch", "multi_version", "restart"])
def test_the_probe_sees_every_operation_and_its_version(name: str) -> None:
    graph = running_example()
    seen: list[tuple[float, str, int]] = []

    def look(now: float, operator: str, born: float, version: int) -> None:
        assert 0.0 <= born <= now
        seen.append((now, operator, version))

    setup = varied(graph, tuples=40, restart_time=0.1)
    sim = simulation(setup, (0.05, scheduler(name)(graph, ["FM", "MC"])), probe=look)
    settle(sim, changes=1)
    times = [now for now, _, _ in seen]
    assert times == sorted(times)
    for operator in graph.order:
        versions = [version for _, where, version in seen if where == operator]
        assert versions == [version for _, version in operations(sim)[f"{operator}#0"]]
        changed = operator in ("FM", "MC")
        assert set(versions) == ({0, 1} if changed else {0})
        assert versions == sorted(versions)
    record = sim.metrics.changes[0]
    assert record.delay is not None
    last_old = max(now for now, where, version in seen if where == "MC" and version == 0)
    assert last_old <= record.requested + record.delay
