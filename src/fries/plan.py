"""A plan: what a scheduler decides for one reconfiguration, ready to read and to draw."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fries.graph import Graph
from fries.mcs import Component


class CommitPoint(enum.Enum):
    """When the new configuration may start to take effect."""

    NOW = "at once"
    NEXT_BATCH = "at the next mini-batch boundary"
    RESTART = "after a stop and a restart"


class Propagation(enum.Enum):
    """How a component's members learn which tuples belong to the new configuration."""

    MARKERS = "markers"
    """An epoch marker travels on the component's channels and is aligned (the paper)."""
    TAGS = "tags"
    """Each tuple carries the version that it entered with, and both stay resident."""


@dataclass(frozen=True, repr=False)
class Plan:
    """How one reconfiguration of some operators will be carried out."""

    scheduler: str
    graph: Graph
    targets: tuple[str, ...]
    components: tuple[Component, ...]
    commit: CommitPoint = CommitPoint.NOW
    propagation: Propagation = Propagation.MARKERS

    @property
    def heads(self) -> tuple[str, ...]:
        """The operators that get the fast control message."""
        return tuple(head for component in self.components for head in component.heads)

    @property
    def members(self) -> tuple[str, ...]:
        """All operators that take part."""
        return tuple(name for component in self.components for name in component.members)

    @property
    def longest_path(self) -> int:
        """Edges on the longest path of any component: how far markers travel."""
        return max(component.longest_path for component in self.components)

    @property
    def channels(self) -> int:
        """Worker-to-worker channels inside the components, counted and not built."""
        return sum(self.graph.channels(e) for part in self.components for e in part.edges)

    @property
    def total_channels(self) -> int:
        """Worker-to-worker channels of the whole dataflow."""
        return sum(self.graph.channels(edge) for edge in self.graph.edges)

    def component_of(self, operator: str) -> Component | None:
        """The component that an operator belongs to, if any."""
        return next((part for part in self.components if operator in part.members), None)

    def __str__(self) -> str:
        """The plan for people."""
        lines = [
            f"{self.scheduler}: update {', '.join(self.targets)} {self.commit.value}",
            f"  components     {len(self.components)}",
        ]
        for number, part in enumerate(self.components, 1):
            lines.append(f"    {number}. {brackets(part)}, longest path {part.longest_path}")
        lines.append(f"  longest path   {self.longest_path}")
        lines.append(f"  channels       {self.channels:,} of {self.total_channels:,}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dot(self) -> str:
        """The dataflow in Graphviz DOT, with a box around each component."""
        targets, heads, inside = set(self.targets), set(self.heads), set(self.members)
        nodes = {
            op.name: _dot_node(op.name, is_target=op.name in targets, is_head=op.name in heads)
            for op in self.graph
        }
        lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=ellipse];"]
        for number, part in enumerate(self.components):
            lines.append(f"  subgraph cluster_{number} {{")
            lines.append('    color=red; label="";')
            lines.extend(f"    {nodes[name]}" for name in part.members)
            lines.append("  }")
        lines.extend(f"  {node}" for name, node in nodes.items() if name not in inside)
        marked = {(e.source, e.target) for part in self.components for e in part.edges}
        for edge in self.graph.edges:
            style = " [color=red]" if (edge.source, edge.target) in marked else ""
            lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)}{style};")
        return "\n".join([*lines, "}"])

    def to_mermaid(self) -> str:
        """The dataflow as a Mermaid flowchart, with a subgraph per component."""
        ids = {op.name: f"n{number}" for number, op in enumerate(self.graph)}
        lines = ["flowchart LR"]
        for number, part in enumerate(self.components, 1):
            lines.append(f'  subgraph c{number} ["component {number}"]')
            lines.extend(f"    {ids[name]}{_mermaid_label(name)}" for name in part.members)
            lines.append("  end")
        inside = set(self.members)
        lines.extend(
            f"  {ids[op.name]}{_mermaid_label(op.name)}"
            for op in self.graph
            if op.name not in inside
        )
        lines.extend(f"  {ids[edge.source]} --> {ids[edge.target]}" for edge in self.graph.edges)
        for kind, names in (("target", self.targets), ("head", self.heads)):
            if names:
                lines.append(f"  class {','.join(ids[name] for name in names)} {kind}")
        lines.append("  classDef target fill:#f99")
        lines.append("  classDef head stroke-width:3px")
        return "\n".join(lines)


def brackets(part: Component) -> str:
    """A component as the paper's tables print it: ``{[J1], J2}``, heads in brackets."""
    names = (f"[{name}]" if name in part.heads else name for name in part.members)
    return "{" + ", ".join(names) + "}"


def _dot_node(name: str, *, is_target: bool, is_head: bool) -> str:
    styles = []
    if is_target:
        styles.append('style=filled, fillcolor="#ff9999"')
    if is_head:
        styles.append("penwidth=3")
    attributes = f" [{', '.join(styles)}]" if styles else ""
    return f"{_quoted(name)}{attributes};"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _mermaid_label(name: str) -> str:
    escaped = name.replace('"', "#quot;")
    return f'["{escaped}"]'
