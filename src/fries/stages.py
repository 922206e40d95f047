"""From a graph of operators to stages: where the exchanges are, and what crosses them.

The stage of an operator is the most exchanges on any path from a source to it; an operator
with a key has an exchange in front. All stages form one line, so that a fan-out never
computes its upstream twice: an edge that skips stages is carried through them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from fries.runtime.dead_letters import COLUMNS
from fries.runtime.spec import ERRORS, GROUPED, EdgeSpec, Kind, OperatorSpec, StageSpec

if TYPE_CHECKING:
    from fries.graph import Graph


class Exchange(enum.Enum):
    """How rows come into a stage."""

    NONE = "none"
    """From the sources, as they are partitioned."""
    SHUFFLED = "shuffle"
    """By key: nothing in the stage needs all rows of a key at once."""
    GROUPED = "key groups"
    """By key, one key group after the other."""


@dataclass(frozen=True)
class PhysicalStage:
    """A stage, what enters it and what leaves it."""

    spec: StageSpec
    exchange: Exchange
    incoming: tuple[EdgeSpec, ...]
    leaving: tuple[EdgeSpec, ...]

    @property
    def number(self) -> int:
        """Its place in the line."""
        return self.spec.number

    def keyed(self, edge: EdgeSpec) -> OperatorSpec | None:
        """The operator whose key decides where rows of an incoming edge go, if any."""
        for operator in self.spec.operators:
            if operator.name == edge.target and operator.keying is not None:
                return operator
        return None


@dataclass(frozen=True)
class PhysicalFlow:
    """All stages of a flow, in a line from its sources to its outputs."""

    stages: tuple[PhysicalStage, ...]
    schemas: Mapping[int, pa.Schema]
    """By edge, the columns of its rows."""
    outputs: tuple[EdgeSpec, ...]
    """Edges that leave the last stage."""


def physical(operators: Sequence[OperatorSpec], edges: Iterable[EdgeSpec]) -> PhysicalFlow:
    """Cut operators, given in topological order, into stages."""
    edges = tuple(edges)
    numbers = _numbers(operators, edges)
    last = max(numbers.values(), default=0)
    stages = tuple(_stage(number, operators, edges, numbers) for number in range(last + 1))
    by_name = {spec.name: spec for spec in operators}
    schemas = {edge.number: _columns(edge, by_name) for edge in edges}
    return PhysicalFlow(stages, schemas, stages[-1].leaving)


def _columns(edge: EdgeSpec, operators: Mapping[str, OperatorSpec]) -> pa.Schema:
    """The columns of the rows of an edge."""
    if edge.branch == ERRORS:
        return COLUMNS
    return operators[edge.source if edge.source in operators else edge.target].schema


def _numbers(operators: Sequence[OperatorSpec], edges: Sequence[EdgeSpec]) -> dict[str, int]:
    """Stage of each operator."""
    numbers: dict[str, int] = {}
    for spec in operators:
        before = [
            numbers[edge.source]
            for edge in edges
            if edge.target == spec.name and edge.source in numbers
        ]
        numbers[spec.name] = max(before, default=0) + (spec.keying is not None)
    return numbers


def _stage(
    number: int,
    operators: Sequence[OperatorSpec],
    edges: Sequence[EdgeSpec],
    numbers: Mapping[str, int],
) -> PhysicalStage:
    here = tuple(spec for spec in operators if numbers[spec.name] == number)
    end = max(numbers.values(), default=0) + 1

    def begins(edge: EdgeSpec) -> int:
        return numbers.get(edge.source, -1)

    def ends(edge: EdgeSpec) -> int:
        return numbers.get(edge.target, end)

    incoming = tuple(edge for edge in edges if begins(edge) < number <= ends(edge))
    leaving = tuple(edge for edge in edges if begins(edge) <= number < ends(edge))
    touching = tuple(edge for edge in edges if begins(edge) <= number <= ends(edge))
    exchange = Exchange.NONE if number == 0 else Exchange.SHUFFLED
    if any(spec.kind in GROUPED for spec in here):
        exchange = Exchange.GROUPED
    return PhysicalStage(StageSpec(number, here, touching), exchange, incoming, leaving)


def explained(name: str, flow: PhysicalFlow, graph: Graph, groups: int) -> str:
    """A flow's stages for people: what runs where, and what is exchanged between."""
    count = len(flow.stages)
    lines = [f"flow {name}: {count} stage{'s' * (count > 1)}, one Spark plan"]
    for stage in flow.stages:
        lines.append(f"  {_exchange_line(stage, groups)}")
        lines.append(f"  stage {stage.number}: one Python process runs")
        lines += [f"    {_operator_line(spec, graph)}" for spec in stage.spec.operators]
        passing = [edge for edge in stage.incoming if edge in stage.leaving]
        lines += [f"    ({edge.source} -> {edge.target} passes through)" for edge in passing]
    names = ", ".join(f"{edge.source} -> {edge.target}" for edge in flow.outputs)
    return "\n".join([*lines, f"  output: {names or 'none yet'}"])


def _exchange_line(stage: PhysicalStage, groups: int) -> str:
    if stage.exchange is Exchange.NONE:
        return "sources: " + (", ".join(edge.target for edge in stage.incoming) or "none yet")
    keys = []
    for edge in stage.incoming:
        spec = stage.keyed(edge)
        if spec is not None and spec.keying is not None:
            keys.append(
                f"{edge.source} -> {edge.target} by {', '.join(spec.keying.columns) or 'nothing'}"
            )
    how = f" in {groups} key groups" if stage.exchange is Exchange.GROUPED else ""
    return f"exchange{how}: {'; '.join(keys)}"


def _operator_line(spec: OperatorSpec, graph: Graph) -> str:
    operator = graph[spec.name]
    traits = [spec.kind.value, operator.emits.value]
    if spec.kind is Kind.PROCESS:
        traits.append("state per key")
    if operator.blocking:
        traits.append("blocking")
    if operator.unique:
        traits.append("unique per tuple")
    if spec.on_error is not None:
        traits.append(f"failing rows: {spec.on_error.to}")
    return f"{spec.name} ({', '.join(traits)})"
