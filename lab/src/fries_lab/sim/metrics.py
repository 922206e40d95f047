"""What a simulation measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fries.change.model import Phase
from fries.plan import Plan, Propagation


@dataclass
class ChangeRecord:
    """How one reconfiguration went. All times are simulated seconds."""

    plan: Plan
    requested: float
    number: int = 0
    """The controller's number for it; 0 while it waits for a mini-batch or a restart."""
    phase: Phase = Phase.QUEUED
    switched: dict[str, float] = field(default_factory=dict)
    """By worker, when it switched."""
    last_old: float = 0.0
    """With tags: when a target last used the old version."""
    done: float | None = None

    @property
    def committed(self) -> bool:
        """Whether it happened, or will: its COMMIT is in the log."""
        return self.phase in (Phase.COMMITTED, Phase.DONE)

    @property
    def delay(self) -> float | None:
        """From the request until no target uses the old version; ``None`` if that never came."""
        targets = set(self.plan.targets)
        if self.plan.propagation is Propagation.TAGS:
            if self.done is None:
                return None
            return max([self.last_old, *self.switched.values()]) - self.requested
        wanted = sum(self.plan.graph[name].workers for name in targets)
        times = [t for name, t in self.switched.items() if name.rsplit("#", 1)[0] in targets]
        return max(times) - self.requested if len(times) == wanted else None


@dataclass
class Latencies:
    """End-to-end latency of tuples, in bins of one second of arrival at a sink."""

    total: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    def add(self, now: float, latency: float) -> None:
        """Count one tuple that arrived now."""
        second = int(now)
        if second >= len(self.count):
            missing = second + 1 - len(self.count)
            self.total.extend([0.0] * missing)
            self.count.extend([0] * missing)
        self.total[second] += latency
        self.count[second] += 1

    def window(self, end: int, length: int = 10) -> float | None:
        """Mean latency of the tuples that arrived in the ``length`` seconds up to ``end``."""
        first = max(0, end - length)
        count = sum(self.count[first:end])
        return sum(self.total[first:end]) / count if count else None

    @property
    def mean(self) -> float:
        """Mean latency of all tuples."""
        return sum(self.total) / max(1, sum(self.count))


Probe = Callable[[float, str, float, int], None]
"""Called with (now, operator, birth of the tuple, version) for every data operation."""


@dataclass
class Metrics:
    """Everything measured in one run."""

    latencies: Latencies = field(default_factory=Latencies)
    changes: list[ChangeRecord] = field(default_factory=list)
    checkpoints: int = 0
    """Completed checkpoints."""
    crashes: int = 0
