"""A flow as its author has built it: what Spark's plan is made of, and where rows enter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from fries.control.tls import Tls
from fries.graph import Graph
from fries.listening import Announcer
from fries.mcs import Component
from fries.runtime.spec import ERRORS, EdgeSpec, Kind, OperatorSpec, Unreadable
from fries.stages import PhysicalFlow, physical
from fries.traits import graph_of


@dataclass(frozen=True)
class Definition:
    """A flow as its author has built it."""

    name: str
    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    sources: Mapping[str, DataFrame]
    outputs: tuple[str, ...]
    groups: int
    audit: str | None
    tls: Tls | None = None
    events: Announcer | None = None

    def graph(self, operators: Mapping[str, OperatorSpec]) -> Graph:
        """The dataflow with some versions of its operators, as the schedulers see it."""
        return graph_of(operators, self.edges, tuple(self.sources), self.outputs)

    def stages(self) -> PhysicalFlow:
        """The stages, without the functions: those travel once, not with every stage."""
        return physical([_bare(spec) for spec in self.operators], self.edges)

    def stage_of_edges(self, planned: PhysicalFlow) -> dict[int, int]:
        """By edge, the stage in which an operator takes the rows that come over it."""
        stages = {spec.name: one.number for one in planned.stages for spec in one.spec.operators}
        return {edge.number: stages[edge.target] for edge in self.edges if edge.target in stages}

    def crossing(self, planned: PhysicalFlow) -> dict[int, pa.Schema]:
        """Columns of the edges that stay as planned.

        Spark's plan fixes those between stages and to the outputs. Behind an aggregate other
        transactions begin, so old results may meet what follows it in its new version.
        """
        leaving = {edge.number for stage in planned.stages for edge in stage.leaving}
        blocking = {spec.name for spec in self.operators if spec.kind is Kind.AGGREGATE}
        return {
            edge.number: planned.schemas[edge.number]
            for edge in self.edges
            if edge.branch != ERRORS and (edge.number in leaving or edge.source in blocking)
        }

    def entries(self, components: Collection[Component]) -> frozenset[int]:
        """Numbers of the edges over which rows enter some components of a plan."""
        entered = {(e.source, e.target) for part in components for e in part.entries}
        heads = {head for part in components for head in part.heads}
        return frozenset(
            edge.number
            for edge in self.edges
            if (edge.source, edge.target) in entered
            or (edge.target in heads and edge.target in self.sources)
        )


def _bare(spec: OperatorSpec) -> OperatorSpec:
    keying = spec.keying and replace(
        spec.keying, initial=None, migrations=(), on_unreadable=Unreadable.FAIL
    )
    return replace(spec, function=None, result=None, keying=keying)
