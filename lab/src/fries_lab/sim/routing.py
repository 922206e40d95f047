"""From an operator's output to channels: the same for the explorer and for the engine."""

from __future__ import annotations

from collections.abc import Mapping

from fries.graph import Partitioning
from fries_lab.sim.behaviour import Behaviour, Emitter, mix
from fries_lab.sim.topology import Topology

DEFAULT = Behaviour()


class Router:
    """Decides, for each worker and tuple, which channels get which tuples.

    ``weights`` skews a hash-partitioned operator: the share of each of its workers.
    """

    BUCKETS = 4096
    """Key groups of a hash partitioning: enough for smooth shares with hundreds of workers."""

    def __init__(
        self,
        topology: Topology,
        behaviours: Mapping[str, Behaviour],
        weights: Mapping[str, list[float]] | None = None,
    ) -> None:
        self.topology = topology
        self._weights = weights or {}
        graph = topology.graph
        self._emitters = {
            name: Emitter(graph, name, behaviours.get(name, DEFAULT), salt)
            for salt, name in enumerate(graph.order)
        }
        self._edges = {
            name: [self._edge(edge.source, edge.target) for edge in graph.outputs(name)]
            for name in graph.order
        }

    def route(self, worker: int, txn: int, uid: int) -> list[tuple[int, int]]:
        """The (channel, uid) pairs that a worker emits for a tuple."""
        instance = self.topology.workers[worker]
        routes: list[tuple[int, int]] = []
        for edge, child in self._emitters[instance.operator](uid):
            partitioning, by_txn, rows, table, salt = self._edges[instance.operator][edge]
            row = rows[instance.index]
            if partitioning is Partitioning.BROADCAST and len(row) > 1:
                routes.extend((channel, mix(child * 31 + i)) for i, channel in enumerate(row))
            elif len(row) == 1:
                routes.append((row[0], child))
            else:
                key = txn if by_txn else child
                routes.append((row[table[mix(key ^ salt) % self.BUCKETS]], child))
        return routes

    def _edge(
        self, source: str, target: str
    ) -> tuple[Partitioning, bool, list[list[int]], list[int], int]:
        graph = self.topology.graph
        edge = graph.edge(source, target)
        salt = 0 if graph[target].unique else graph.position[target] << 40
        rows = self.topology.of_edge[source, target]
        return edge.partitioning, graph[target].unique, rows, self._table(target), salt

    def _table(self, target: str) -> list[int]:
        """Bucket to worker, in proportion to the weights."""
        count = self.topology.graph[target].workers
        weights = self._weights.get(target) or [1.0] * count
        total, reached = sum(weights), 0.0
        table: list[int] = []
        for worker, weight in enumerate(weights):
            reached += weight
            upto = round(self.BUCKETS * reached / total)
            table.extend([worker] * (upto - len(table)))
        return table
