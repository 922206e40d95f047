"""Single simulations, each a pure function of its arguments: what the process pool runs."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fries.plan import Plan
from fries.schedulers import scheduler
from fries_lab.errors import SimulationError
from fries_lab.sim.engine import Simulation
from fries_lab.sim.metrics import ChangeRecord
from fries_lab.sim.setup import Setup
from fries_lab.workloads import simulated as workloads
from fries_lab.workloads.simulated import Scale

PATIENCE: Final = 10_000.0
"""Simulated seconds after which a reconfiguration that never ends is an error, not a hang."""
INTERVAL: Final = 10.0
"""Simulated seconds between two requests (paper)."""
WINDOW: Final = 10
"""Simulated seconds that a point of the surge figure averages over (paper)."""
BATCH: Final = 5.0
"""Simulated seconds of a mini-batch, for the scheduler that needs them."""
NO_CHANGE: Final = "none"
"""Stands for a run without reconfiguration where a scheduler's name is expected."""

VERSION_PERIOD: Final = 50
"""Seconds between two versions of W1's source (paper)."""
VERSION_LAG: Final = 20
"""Seconds until the operator's version is told to follow (paper)."""
VERSIONS_END: Final = 300
"""Seconds for which invalid tuples are counted (paper)."""

SETUPS: Final[dict[str, Callable[[int, int], Setup]]] = {
    "W2": workloads.w2,
    "W3": workloads.w3,
    "W4": workloads.w4,
    "W5": workloads.w5,
}
"""How to set a workflow up, by workers per operator and seed."""
WARM_UP: Final = {"W1": 120.0, "W2": 20.0, "W3": 30.0, "W4": 60.0, "W5": 40.0}
"""Simulated seconds before the first request; 120 and 20 are the paper's."""
GROWING: Final = {"W4", "W5"}
"""Here queues grow all the time. Requests come at fixed moments, three of them, and do not
wait for each other, so that every scheduler meets the same queues."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one plan, a request each, in simulated seconds."""

    scheduler: str
    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean delay."""
        return statistics.fmean(self.seconds)

    @property
    def spread(self) -> float:
        """Standard deviation; 0 for a single request."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Surge:
    """W1 under a surge, with one scheduler."""

    scheduler: str
    seconds: tuple[int, ...]
    latency: tuple[float | None, ...]
    """Mean end-to-end latency of the tuples of the last window, ``None`` if there were none."""
    requests: tuple[float, ...]
    delays: tuple[float | None, ...]

    @property
    def peak(self) -> float:
        """The highest point of the curve."""
        return max(value for value in self.latency if value is not None)

    @property
    def final(self) -> float | None:
        """Where the curve ends."""
        return self.latency[-1]


@dataclass(frozen=True, slots=True)
class Invalid:
    """Invalid tuples of W1 over time, with one scheduler."""

    scheduler: str
    seconds: tuple[int, ...]
    count: tuple[int, ...]
    """Tuples so far whose version was not the operator's."""


def delays(
    workflow: str, targets: tuple[str, ...], name: str, workers: int, scale: Scale, seed: int
) -> Delays:
    """Delays of a reconfiguration of W2 to W5."""
    setup = SETUPS[workflow](workers, seed)
    plan = scheduler(name)(setup.graph, targets)
    first, gap = WARM_UP[workflow] * scale.time, INTERVAL * scale.time
    if workflow in GROWING:
        moments = [first + gap * i for i in range(min(3, scale.requests))]
        return Delays(name, _at_moments(setup, plan, moments))
    return Delays(name, _in_turn(setup, plan, first, gap, scale.requests))


@lru_cache(maxsize=64)
def steady_delay(name: str, rate: float, cost: float, scale: Scale, seed: int) -> Delays:
    """The delay of W1's FD after a while at one rate and cost; one request, as in the paper."""
    setup = workloads.w1_steady(scale, seed, rate=rate, cost=cost)
    plan = scheduler(name)(setup.graph, ["FD"])
    return Delays(name, _at_moments(setup, plan, [WARM_UP["W1"] * scale.time]))


@lru_cache(maxsize=64)
def surge(name: str, scale: Scale, seed: int) -> Surge:
    """Latency over time while the rate rises twice and the model is made cheaper twice."""
    batches = BATCH * scale.time if name == "mini_batch" else None
    sim = Simulation(workloads.w1_surge(scale, seed, batches))
    moments = tuple(moment * scale.time for moment in workloads.SURGE_REQUESTS)
    if name != NO_CHANGE:
        plan = scheduler(name)(sim.setup.graph, ["FD"])
        for moment in moments:
            sim.request(moment, plan)
    end = round(workloads.SURGE_END * scale.time)
    sim.run(end)
    window = max(1, round(WINDOW * scale.time))
    seconds = range(window, end + 1)
    latency = (sim.metrics.latencies.window(second, window) for second in seconds)
    made = tuple(change.delay for change in sim.metrics.changes)
    return Surge(name, tuple(seconds), tuple(latency), moments if made else (), made)


@lru_cache(maxsize=64)
def invalid(name: str, scale: Scale, seed: int) -> Invalid:
    """Count the tuples whose version (by birth) is not the version of the FD they meet."""
    period, end = VERSION_PERIOD * scale.time, round(VERSIONS_END * scale.time)
    wrong: Counter[int] = Counter()

    def probe(now: float, operator: str, born: float, version: int) -> None:
        if operator == "FD" and version != int(born / period):
            wrong[int(now) + 1] += 1

    sim = Simulation(workloads.w1_invalid(scale, seed), probe)
    if name != NO_CHANGE:
        plan = scheduler(name)(sim.setup.graph, ["FD"])
        for change in range(1, VERSIONS_END // VERSION_PERIOD):
            sim.request(change * period + VERSION_LAG * scale.time, plan)
    sim.run(end)
    seconds = range(end + 1)
    return Invalid(name, tuple(seconds), tuple(itertools.accumulate(wrong[s] for s in seconds)))


def _in_turn(setup: Setup, plan: Plan, first: float, gap: float, count: int) -> tuple[float, ...]:
    """Delays of requests that come every ``gap`` seconds, but only when the last one is done."""
    sim = Simulation(setup)
    moment = first
    for _ in range(count):
        sim.run(moment)
        sim.control.request(plan)
        _run_until(sim, plan, lambda: sim.metrics.changes[-1].done is not None)
        moment = max(moment + gap, sim.now)
    return _known(sim.metrics.changes)


def _at_moments(setup: Setup, plan: Plan, moments: Sequence[float]) -> tuple[float, ...]:
    """Delays of requests that come at fixed moments."""
    sim = Simulation(setup)
    for moment in moments:
        sim.request(moment, plan)
    sim.run(moments[-1])
    _run_until(sim, plan, lambda: all(c.delay is not None for c in sim.metrics.changes))
    return _known(sim.metrics.changes)


def _run_until(sim: Simulation, plan: Plan, reached: Callable[[], bool]) -> None:
    """Simulate until something is so, looking a few times per simulated second."""
    limit = sim.now + PATIENCE
    while not reached():
        if sim.now > limit:
            raise SimulationError(
                f"{plan.scheduler} of {', '.join(plan.targets)} did not end "
                f"in {PATIENCE:,.0f} simulated seconds"
            )
        sim.run(sim.now + 0.25)


def _known(changes: list[ChangeRecord]) -> tuple[float, ...]:
    return tuple(change.delay for change in changes if change.delay is not None)
