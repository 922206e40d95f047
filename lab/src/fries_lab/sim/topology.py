"""Workers and channels of a dataflow: the parallel graph G* (section 7.2), materialised.

Only the simulator needs every channel as an object; planning works on operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fries.graph import Edge, Graph, Partitioning
from fries.mcs import Component
from fries.plan import Plan, Propagation
from fries.protocol.messages import Part
from fries_lab.sim.controller import Requested


@dataclass(frozen=True, slots=True)
class Channel:
    """A FIFO from one worker to another, along an edge."""

    number: int
    edge: Edge
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker of an operator."""

    number: int
    operator: str
    index: int

    @property
    def name(self) -> str:
        """A name for messages and logs."""
        return f"{self.operator}#{self.index}"


class Topology:
    """All workers and channels of a graph, numbered."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.workers: list[Instance] = []
        self.of_operator: dict[str, list[int]] = {}
        for name in graph.order:
            first = len(self.workers)
            count = graph[name].workers
            self.workers.extend(Instance(first + i, name, i) for i in range(count))
            self.of_operator[name] = list(range(first, first + count))
        self.channels: list[Channel] = []
        self.of_edge: dict[tuple[str, str], list[list[int]]] = {}
        for edge in graph.edges:
            self._connect(edge)

    @cached_property
    def inputs(self) -> list[list[int]]:
        """Channels that arrive at each worker."""
        found: list[list[int]] = [[] for _ in self.workers]
        for channel in self.channels:
            found[channel.target].append(channel.number)
        return found

    @cached_property
    def outputs(self) -> list[list[int]]:
        """Channels that leave each worker."""
        found: list[list[int]] = [[] for _ in self.workers]
        for channel in self.channels:
            found[channel.source].append(channel.number)
        return found

    def request(self, plan: Plan) -> Requested:
        """A plan as a request to the controller: what each worker has to do."""
        parts = (part for component in plan.components for part in self._parts(plan, component))
        return Requested(
            parts=tuple(parts),
            footprint=frozenset(frozenset(part.members) for part in plan.components),
            tagged=plan.propagation is Propagation.TAGS,
        )

    def _connect(self, edge: Edge) -> None:
        """Number the channels of an edge; ``of_edge`` holds one row per sending worker."""
        senders, receivers = self.of_operator[edge.source], self.of_operator[edge.target]
        rows = []
        for sender in senders:
            if edge.partitioning is Partitioning.FORWARD:
                reached = [receivers[self.workers[sender].index]]
            else:
                reached = receivers
            first = len(self.channels)
            self.channels.extend(
                Channel(first + i, edge, sender, receiver) for i, receiver in enumerate(reached)
            )
            rows.append(list(range(first, first + len(reached))))
        self.of_edge[edge.source, edge.target] = rows

    def _parts(self, plan: Plan, component: Component) -> list[tuple[str, Part]]:
        tagged = plan.propagation is Propagation.TAGS
        inside = {(edge.source, edge.target) for edge in component.edges}
        entered = {edge.target for edge in component.entries}
        parts = []
        for name in component.members:
            head = name in component.heads or (tagged and name in entered)
            targets = (name,) if name in component.targets else ()
            if tagged and not head and not targets:
                continue
            for worker in self.of_operator[name]:
                inner = self._split(self.inputs[worker], inside)
                outer = self._split(self.outputs[worker], inside)
                entries = frozenset(self.inputs[worker]) - frozenset(inner)
                part = (
                    Part(targets, head, entries=entries)
                    if tagged
                    else Part(targets, head, awaits=frozenset(inner), forwards=tuple(outer))
                )
                parts.append((self.workers[worker].name, part))
        return parts

    def _split(self, channels: list[int], inside: set[tuple[str, str]]) -> list[int]:
        edges = ((number, self.channels[number].edge) for number in channels)
        return [number for number, edge in edges if (edge.source, edge.target) in inside]
