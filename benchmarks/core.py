"""How fast the pure core is: planning, checking, simulating. ``make bench-core`` runs it.

Each row is the best of several runs in this process, so that rows can be compared.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fries.graph import Edge, Emits, Graph, Operator, Partitioning
from fries.schedulers import epoch, fries, fries_unpruned, multi_version
from fries.serializability import check_trace
from fries.trace import Trace
from fries_lab.sim.engine import Simulation
from fries_lab.sim.explore import explore
from fries_lab.sim.model import Scenario
from fries_lab.sim.setup import Cost, Rate, Setup
from fries_lab.workloads.graphs import running_example, w2

OUT = Path("out/bench-core.json")


@dataclass(frozen=True)
class Row:
    """One measured thing."""

    what: str
    seconds: float
    per_second: float | None = None
    unit: str = ""


def best(action: Callable[[], object], runs: int = 5) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def random_dag(operators: int, edges: int, seed: int = 0) -> Graph:
    """A random dataflow with all kinds of operators; every operator can be reached."""
    choose = random.Random(seed)
    kinds = [Emits.ONE] * 8 + [Emits.MANY, Emits.ONE_PER_EDGE]
    nodes = [Operator("0", source=True)]
    for number in range(1, operators):
        emits = choose.choice(kinds)
        unique = emits is Emits.ONE and choose.random() < 0.05
        nodes.append(Operator(str(number), emits, unique=unique))
    pairs = {(choose.randrange(number), number) for number in range(1, operators)}
    while len(pairs) < edges:
        first, second = sorted(choose.sample(range(operators), 2))
        pairs.add((first, second))
    return Graph(nodes, (Edge(str(a), str(b)) for a, b in sorted(pairs)))


def unique_chain(operators: int) -> Graph:
    """A chain in which operators that give many are followed by ones that give one."""
    kinds = [(Emits.MANY, False), (Emits.ONE, True), (Emits.ONE, False)]
    nodes = [
        Operator(str(number), kinds[number % 3][0], unique=kinds[number % 3][1], source=not number)
        for number in range(operators)
    ]
    return Graph(nodes, (Edge(str(n - 1), str(n)) for n in range(1, operators)))


def planning() -> list[Row]:
    """Plans on a large graph, and on a small one with very many workers."""
    size, edges = 10_000, 30_000
    graph = random_dag(size, edges)
    graph.order  # noqa: B018 - computed once per graph, not per plan
    targets = random.Random(1).sample([op.name for op in graph], 10)
    many = random.Random(2).sample([op.name for op in graph], 1000)
    chain = unique_chain(size)
    chained = [str(number) for number in range(2, size, 7)]
    wide = w2(10_000)
    build = best(lambda: random_dag(size, edges), 3)
    label = f"DAG of {size:,} operators, {edges:,} edges"
    return [
        Row(f"build and validate: {label}", build),
        Row(f"fries, 10 targets: {label}", best(lambda: fries(graph, targets))),
        Row(f"fries, 1,000 targets: {label}", best(lambda: fries(graph, many))),
        Row(
            f"fries, {len(chained):,} targets: chain of {size:,} operators, a third of them unique",
            best(lambda: fries(chain, chained)),
        ),
        Row(f"fries_unpruned, 10 targets: {label}", best(lambda: fries_unpruned(graph, targets))),
        Row(f"epoch, 10 targets: {label}", best(lambda: epoch(graph, targets))),
        Row(f"multi_version, 10 targets: {label}", best(lambda: multi_version(graph, targets))),
        Row(
            f"fries J1, J4 of W2 with 10,000 workers each ({_wide_channels(wide):,} channels)",
            best(lambda: fries(wide, ["J1", "J4"]).channels),
        ),
    ]


def checking(operations: int = 1_000_000) -> list[Row]:
    """The checker on recorded traces of a million operations."""
    rows = []
    for updates in (1, 20):
        trace = consistent_trace(operations, updates)
        seconds = best(partial(check_trace, trace))
        verdict = check_trace(trace)
        if not verdict.serializable:
            raise AssertionError("the generated trace is consistent by construction")
        what = f"check a trace of {operations:,} operations, {updates} reconfigurations"
        rows.append(Row(what, seconds, operations / seconds, "operations/s"))
    return rows


def consistent_trace(operations: int, updates: int, operators: int = 5) -> Trace:
    """Transactions of one operation per operator; each update cuts them all at one point."""
    transactions = operations // operators
    txn = np.repeat(np.arange(transactions, dtype=np.int64), operators)
    operator = np.tile(np.arange(operators, dtype=np.int32), transactions)
    version = (txn * (updates + 1) // transactions).astype(np.int32)
    shuffled = np.random.default_rng(0).permutation(len(txn))
    names = tuple(f"O{number}" for number in range(operators))
    made = tuple(dict.fromkeys(names, number + 1) for number in range(updates))
    return Trace(txn[shuffled], operator[shuffled], version[shuffled], names, made)


def simulating(seconds: float = 60.0) -> list[Row]:
    """The discrete-event simulator on W1 at the paper's scale, and the explorer."""
    shuffle = Partitioning.HASH
    graph = Graph(
        [Operator("source", source=True), Operator("FD", workers=40), Operator("sink")],
        [Edge("source", "FD", shuffle, ("user",)), Edge("FD", "sink", shuffle, ("user",))],
    )
    setup = Setup(graph, {"source": (Rate(1000),)}, {"FD": (Cost(0.025),)}, trace=True)
    simulation = Simulation(setup)
    took = best(lambda: simulation.run(simulation.now + seconds), 3)
    done = sum(len(worker.txns) for worker in simulation.workers) / 3
    events = simulation.events / 3
    example = running_example()
    scenario = Scenario(example, (epoch(example, ["FM", "MC"]),), tuples=6)
    exploring = best(lambda: explore(scenario), 2)
    found = explore(scenario)
    return [
        Row(
            f"simulate {seconds:.0f} s of W1 ({done:,.0f} data operations)",
            took,
            events / took,
            "events/s",
        ),
        Row(
            f"explore {found.schedules:,} schedules of the running example",
            exploring,
            found.states / exploring,
            "states/s",
        ),
    ]


def _wide_channels(graph: Graph) -> int:
    return sum(graph.channels(edge) for edge in graph.edges)


def main() -> None:
    """Run everything, print a table, keep a JSON record."""
    rows = [*planning(), *checking(), *simulating()]
    table = Table("what", "ms", "throughput", title="core benchmarks")
    for row in rows:
        throughput = f"{row.per_second:,.0f} {row.unit}" if row.per_second else ""
        table.add_row(row.what, f"{row.seconds * 1000:,.2f}", throughput)
    Console(width=120).print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
