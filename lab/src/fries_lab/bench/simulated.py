"""The paper's experiments on the simulator: each returns a plain record of its results.

Every simulation is a task of its own for a runner (:mod:`fries_lab.bench.pool`), so that the
rows of a table can run on several processes. Results depend on scale and seed only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from fries.plan import Plan, brackets
from fries.schedulers import fries, fries_unpruned
from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.measure import (
    NO_CHANGE,
    SETUPS,
    Delays,
    Invalid,
    Surge,
    delays,
    invalid,
    steady_delay,
    surge,
)
from fries_lab.bench.pool import Runner
from fries_lab.workloads.simulated import INFERENCE, Scale

SURGE_SCHEDULERS: Final = (NO_CHANGE, "epoch", "mini_batch", "restart", "fries")
INVALID_SCHEDULERS: Final = (NO_CHANGE, "epoch", "fries")
COSTS: Final = (0.025, 0.030, 0.035, 0.040, 0.045)
"""Seconds per tuple for FD; the paper lengthens the user's history from 10 to 50 payments."""
DEFAULT_RATE: Final = 1_000
"""Tuples per second of W1 unless something else is said (paper)."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Delays of W1's FD at one rate (tuples per second) and cost (seconds per tuple)."""

    rate: int
    cost: float
    fries: Delays
    epoch: Delays


@dataclass(frozen=True, slots=True)
class DelayRow:
    """One reconfiguration of W2, W3 or W4."""

    targets: tuple[str, ...]
    components: tuple[str, ...]
    longest_path: int
    fries: Delays
    epoch: Delays
    paper: paper.DelayNumbers


@dataclass(frozen=True, slots=True)
class PruningRow:
    """One reconfiguration of W5."""

    targets: tuple[str, ...]
    with_pruning: tuple[str, ...]
    without_pruning: tuple[str, ...]
    pruned: Delays
    unpruned: Delays
    paper: paper.PruningNumbers


@dataclass(frozen=True, slots=True)
class ParallelismRow:
    """The reconfiguration of {J1, J4} in W2 with some number of workers per operator."""

    workers: int
    channels: int
    channels_in_mcs: int
    fries: Delays
    epoch: Delays
    paper: paper.ChannelNumbers


@dataclass(frozen=True, slots=True)
class Inference:
    """W1: surge, invalid tuples, and delays against rate and cost."""

    surge: tuple[Surge, ...]
    invalid: tuple[Invalid, ...]
    by_rate: tuple[SweepPoint, ...]
    by_cost: tuple[SweepPoint, ...]


@dataclass(frozen=True, slots=True)
class DelayTable:
    """W2, W3 or W4: a table of reconfigurations; for W2 also against the worker number."""

    rows: tuple[DelayRow, ...]
    parallelism: tuple[ParallelismRow, ...] = ()


@dataclass(frozen=True, slots=True)
class PruningTable:
    """W5: Fries with and without pruning."""

    rows: tuple[PruningRow, ...]


Result: TypeAlias = Inference | DelayTable | PruningTable


def simulate_w1(run: Runner, scale: Scale, seed: int = 0) -> Inference:
    """Figures "throughput-compare", "wrong-tuples", and delays against rate and cost."""
    surges = run("W1 surge", [partial(surge, name, scale, seed) for name in SURGE_SCHEDULERS])
    wrong = run(
        "W1 invalid tuples", [partial(invalid, name, scale, seed) for name in INVALID_SCHEDULERS]
    )
    points = [
        *((rate, INFERENCE) for rate in paper.RATES),
        *((DEFAULT_RATE, cost) for cost in COSTS),
    ]
    found = run(
        "W1 rates and costs",
        [
            partial(steady_delay, name, rate, cost, scale, seed)
            for rate, cost in points
            for name in ("fries", "epoch")
        ],
    )
    sweep = [
        SweepPoint(*point, fries=new, epoch=old)
        for point, new, old in zip(points, found[::2], found[1::2], strict=True)
    ]
    rates = len(paper.RATES)
    return Inference(tuple(surges), tuple(wrong), tuple(sweep[:rates]), tuple(sweep[rates:]))


def simulate_w2(run: Runner, scale: Scale, seed: int = 0) -> DelayTable:
    """Table "reconf-op-and-mcs" for W2, and figure "parallelism-delay" with its channels."""
    rows = _delay_rows(run, "W2", paper.W2, scale, seed)
    targets = ("J1", "J4")
    counts = [numbers for numbers in paper.CHANNELS if numbers.workers <= scale.workers]
    found = run(
        "W2 worker numbers",
        [
            partial(delays, "W2", targets, name, numbers.workers, scale, seed)
            for numbers in counts
            for name in ("fries", "epoch")
        ],
    )
    plans = [fries(SETUPS["W2"](numbers.workers, seed).graph, targets) for numbers in counts]
    parallelism = (
        ParallelismRow(numbers.workers, plan.total_channels, plan.channels, new, old, numbers)
        for numbers, plan, new, old in zip(counts, plans, found[::2], found[1::2], strict=True)
    )
    return DelayTable(rows, tuple(parallelism))


def simulate_w3(run: Runner, scale: Scale, seed: int = 0) -> DelayTable:
    """Table "reconf-op-and-mcs" for W3."""
    return DelayTable(_delay_rows(run, "W3", paper.W3, scale, seed))


def simulate_w4(run: Runner, scale: Scale, seed: int = 0) -> DelayTable:
    """Table "one-to-many-exp"."""
    return DelayTable(_delay_rows(run, "W4", paper.W4, scale, seed))


def simulate_w5(run: Runner, scale: Scale, seed: int = 0) -> PruningTable:
    """Table "one-to-many-pruning-exp"."""
    graph = SETUPS["W5"](scale.workers, seed).graph
    found = run(
        "W5",
        [
            partial(delays, "W5", numbers.targets, name, scale.workers, scale, seed)
            for numbers in paper.W5
            for name in ("fries", "fries_unpruned")
        ],
    )
    rows = (
        PruningRow(
            numbers.targets,
            _components(fries(graph, numbers.targets)),
            _components(fries_unpruned(graph, numbers.targets)),
            pruned,
            unpruned,
            numbers,
        )
        for numbers, pruned, unpruned in zip(paper.W5, found[::2], found[1::2], strict=True)
    )
    return PruningTable(tuple(rows))


EXPERIMENTS: Final[dict[str, Callable[[Runner, Scale, int], Result]]] = {
    "W1": simulate_w1,
    "W2": simulate_w2,
    "W3": simulate_w3,
    "W4": simulate_w4,
    "W5": simulate_w5,
}


def _delay_rows(
    run: Runner, workflow: str, table: Sequence[paper.DelayNumbers], scale: Scale, seed: int
) -> tuple[DelayRow, ...]:
    graph = SETUPS[workflow](scale.workers, seed).graph
    found = run(
        workflow,
        [
            partial(delays, workflow, numbers.targets, name, scale.workers, scale, seed)
            for numbers in table
            for name in ("fries", "epoch")
        ],
    )
    plans = [fries(graph, numbers.targets) for numbers in table]
    return tuple(
        DelayRow(numbers.targets, _components(plan), plan.longest_path, new, old, numbers)
        for numbers, plan, new, old in zip(table, plans, found[::2], found[1::2], strict=True)
    )


def _components(plan: Plan) -> tuple[str, ...]:
    return tuple(brackets(component) for component in plan.components)
