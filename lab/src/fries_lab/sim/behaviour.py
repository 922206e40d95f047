"""What operators do to tuples in a simulation: how many come out, and where they go.

All choices are made by hashing, not by drawing: a tuple takes the same way whatever
the scheduler, the interleaving and the seed of everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from fries.graph import Emits, Graph
from fries_lab.errors import SimulationError

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How an operator answers one tuple."""

    fanout: int = 2
    """Tuples out per tuple in, for a one-to-many operator."""
    selectivity: float = 1.0
    """Share of the tuples that an operator lets pass."""
    joins: int = 1
    """A unique operator emits when this many tuples of a transaction have arrived."""

    def __post_init__(self) -> None:
        """Refuse what no operator can do; a fanout of 0 emits nothing, and is fine."""
        if self.fanout < 0:
            raise SimulationError(f"a fanout of {self.fanout} is negative; give 0 or more")
        if not 0.0 <= self.selectivity <= 1.0:
            raise SimulationError(f"a selectivity of {self.selectivity} is no share; give 0 to 1")
        if self.joins < 1:
            raise SimulationError(f"{self.joins} tuples cannot be joined; give joins of 1 or more")


def mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Emitter:
    """The output of one operator: which edges get which tuples for a given tuple."""

    def __init__(self, graph: Graph, operator: str, behaviour: Behaviour, salt: int) -> None:
        self.emits = graph[operator].emits
        self.edges = len(graph.outputs(operator))
        self.behaviour = behaviour
        self.salt = salt
        self._plain = self.emits is Emits.ONE and self.edges == 1 and behaviour.selectivity >= 1.0

    def __call__(self, uid: int) -> list[tuple[int, int]]:
        """The (output edge, uid) pairs for a tuple; children get uids of their own."""
        if self._plain:
            return [(0, uid)]
        if not self.edges or not self._passes(uid):
            return []
        if self.emits is Emits.ONE:
            return [(self._choose(uid), uid)]
        if self.emits is Emits.ONE_PER_EDGE:
            return [(edge, mix(uid * 31 + edge)) for edge in range(self.edges)]
        children = (mix(uid * 31 + child) for child in range(self.behaviour.fanout))
        return [(self._choose(child), child) for child in children]

    def _passes(self, uid: int) -> bool:
        share = self.behaviour.selectivity
        return share >= 1.0 or mix(uid ^ (self.salt * 2 + 1)) < share * _MASK

    def _choose(self, uid: int) -> int:
        return mix(uid ^ (self.salt * 2)) % self.edges if self.edges > 1 else 0
