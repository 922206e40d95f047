"""What a simulation needs to know: costs, rates, buffers, latencies. All times in seconds."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fries.errors import SimulationError
from fries.graph import Graph
from fries.sim.behaviour import Behaviour


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
        for name in (*self.rates, *self.costs, *self.behaviours, *self.weights, *self.capacities):
            self.graph[name]
        for source in self.graph.sources:
            if not self.rates.get(source):
                raise SimulationError(f"source {source!r} has no rate; give it one in rates")
        for name, weights in self.weights.items():
            if len(weights) != self.graph[name].workers or min(weights) < 0 or not sum(weights):
                raise SimulationError(f"{name!r} needs a weight, not negative, for each worker")
        numbers = [
            *(rate.per_second for rates in self.rates.values() for rate in rates),
            *self.slowdown.values(),
            self.capacity,
            *self.capacities.values(),
        ]
        if any(not math.isfinite(number) or number <= 0 for number in numbers):
            raise SimulationError("rates, slowdowns and capacities must be positive")
        if any(cost.mean < 0 for costs in self.costs.values() for cost in costs):
            raise SimulationError("a cost cannot be negative")
        if self.batch_interval is not None and self.batch_interval <= 0:
            raise SimulationError("a mini-batch needs a positive interval")
