"""What a simulation needs to know: costs, rates, buffers, latencies. All times in seconds."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fries.graph import Graph
from fries_lab.errors import SimulationError
from fries_lab.sim.behaviour import Behaviour


class Spread(enum.Enum):
    """How the cost of single tuples varies around the mean."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one worker of an operator needs for one tuple."""

    mean: float = 0.0
    spread: Spread = Spread.CONSTANT


@dataclass(frozen=True, slots=True)
class Rate:
    """Tuples per second of one source worker from some moment on."""

    per_second: float
    start: float = 0.0


@dataclass(frozen=True)
class Setup:
    """A dataflow with everything that decides how its simulation goes."""

    graph: Graph
    rates: Mapping[str, tuple[Rate, ...]]
    """For each source, its rates in the order of their starts."""
    costs: Mapping[str, tuple[Cost, ...]] = field(default_factory=dict)
    """For each operator, the cost by version; the last one holds for all later versions."""
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    weights: Mapping[str, list[float]] = field(default_factory=dict)
    """Skew: the share of each worker of a hash-partitioned operator."""
    slowdown: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Stragglers: by (operator, worker), how many times slower than the others."""
    capacity: int = 100
    """Tuples that a channel holds before its sender must wait."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """Other capacities, by the receiving operator."""
    control_latency: float = 0.001
    """One way between the controller and a worker."""
    load_time: float = 0.0
    """From PREPARE until a worker has loaded the new configuration."""
    batch_interval: float | None = None
    """Collect input for this long and process it as a mini-batch; ``None``: pipelined."""
    restart_time: float = 2.6
    """From stop to start; 2.6 s were measured for a Spark query with a trivial state."""
    checkpoint_interval: float | None = None
    guard: bool = True
    """The paper's rule for checkpoints during a change."""
    logging: bool = False
    """Log arrival orders and control messages, for recovery by replay."""
    most_tuples: int | None = None
    """Tuples that each source worker emits at the most."""
    trace: bool = False
    """Record every data operation for the checker."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        named = (*self.rates, *self.costs, *self.behaviours, *self.weights, *self.capacities)
        for name in named:
            self.graph[name]
        for name, index in self.slowdown:
            if not 0 <= index < self.graph[name].workers:
                raise SimulationError(f"{name!r} has no worker {index} to slow down")
        blocking = [op.name for op in self.graph if op.blocking]
        if blocking:
            raise SimulationError(
                f"{blocking[0]!r} is blocking, and nothing is simulated across it; simulate "
                "graph.pipelined, in which each region stands by itself"
            )
        for name in self.rates:
            if not self.graph[name].source:
                raise SimulationError(f"{name!r} is no source and takes no rate; drop it")
        for source in self.graph.sources:
            if source in self.costs:
                raise SimulationError(f"source {source!r} has a rate and needs no cost; drop it")
            self._check_rates(source, self.rates.get(source, ()))
        for name, weights in self.weights.items():
            if len(weights) != self.graph[name].workers or min(weights) < 0 or not sum(weights):
                raise SimulationError(f"{name!r} needs a weight, not negative, for each worker")
        for name, costs in self.costs.items():
            if not costs or not all(_is_time(cost.mean) for cost in costs):
                raise SimulationError(f"{name!r} needs costs, and none may be negative")
        positive = [
            *(rate.per_second for rates in self.rates.values() for rate in rates),
            *self.slowdown.values(),
            self.capacity,
            *self.capacities.values(),
        ]
        if not all(math.isfinite(number) and number > 0 for number in positive):
            raise SimulationError("rates, slowdowns and capacities must be positive")
        for interval in (self.batch_interval, self.checkpoint_interval):
            if interval is not None and not (_is_time(interval) and interval):
                raise SimulationError("mini-batches and checkpoints need a positive interval")
        if not all(map(_is_time, (self.control_latency, self.load_time, self.restart_time))):
            raise SimulationError("latency, load time and restart time cannot be negative")

    def _check_rates(self, source: str, rates: tuple[Rate, ...]) -> None:
        starts = [rate.start for rate in rates]
        if not starts:
            raise SimulationError(f"source {source!r} has no rate; give it one in rates")
        if not all(map(_is_time, starts)) or starts[0] > 0.0 or starts != sorted(starts):
            raise SimulationError(f"the rates of {source!r} must start at 0 and be in order")


def _is_time(number: float) -> bool:
    return math.isfinite(number) and number >= 0
