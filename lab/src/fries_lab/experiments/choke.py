"""Choke points: on which edges an epoch marker is held up.

All operators are changed at once by the epoch scheduler. For an edge, the delay between the
moments when its two operators gave up their old versions is what the paper's figure of the
workflows prints above it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fries_lab.experiments.comparisons import compare
from fries_lab.experiments.estimates import estimate, shown
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import Panel, draw_rows
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import Kind, Trial, trial
from fries_lab.experiments.samples import query40, query71, two_models, users
from fries_lab.experiments.workflows import Workflow
from fries_lab.workloads.layouts import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYOUT: Final[Layout] = "exchanged"
"""With the exchanges of the paper."""
OPERATORS: Final = {
    "W2": ("J1", "J2", "J3", "J4"),
    "W3": ("J5", "J6", "J7", "J8", "J9"),
    "W4": ("F1", "U2", "FD1", "LP", "FD2", "MC", "F2"),
    "W5": ("FD3", "S1", "F3", "F4", "FD4", "E1"),
}
"""All operators that have versions."""
MAKE: Final[dict[str, Callable[[Bench], Workflow]]] = {
    "W2": query40,
    "W3": query71,
    "W4": users,
    "W5": two_models,
}
SAYS: Final = {
    "W4": {"U2 -> FD1": "about 140 s", "LP -> FD2": "about 140 s from U2"},
    "W5": {"FD3 -> S1": "877.4 s (a straggler)"},
}
"""What the paper's text says; the figure itself has more."""


def parts(profile: Profile) -> Sequence[Part]:
    """One for each workflow."""
    return [Part(name, 45, partial(_part, name, profile.requests)) for name in OPERATORS]


def _part(name: str, changes: int, bench: Bench) -> Found:
    kinds = [Kind("epoch", OPERATORS[name], changes)]
    return trial(Trial(MAKE[name](bench), LAYOUT, kinds), bench.folder)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table of edges."""
    rows, panels = [], []
    for name, part in found.items():
        measured = {edge: estimate(delays) for edge, delays in part["edges_ms"].items()}
        for edge, one in measured.items():
            where = "over an exchange" if _crosses(edge, part["stages"]) else "inside a stage"
            rows.append([name, edge, where, SAYS.get(name, {}).get(edge, ""), str(one)])
        panels.append(Panel(name, list(measured), {"epoch": list(measured.values())}).kept())
    columns = ["workflow", "edge", "on Spark", "paper", "delay (ms), median [95 % interval]"]
    table = Table("Delay between the two operators of an edge, epoch scheduler", columns, rows)
    return Report([table], _verdict(found), _scaling(profile, found), {"panels": panels})


def figure(report: Report) -> Figure:
    """A panel for each workflow."""
    panels = [Panel.of(one) for one in report.data["panels"]]
    return draw_rows(
        "Choke points: by how much the second operator of an edge is later (measured)",
        "delay between the two operators (ms)",
        panels,
        log=False,
        legend=False,
    )


def _crosses(edge: str, stages: Mapping[str, int]) -> bool:
    """Whether the two operators of an edge are in different stages."""
    source, target = edge.split(" -> ")
    return stages[source] != stages[target]


def _verdict(found: Mapping[str, Found]) -> str:
    told = [_choke_point(name, part) for name, part in found.items()]
    mixed = sum(part["mixed"]["epoch"] for part in found.values())
    inside = [
        statistics.median(delays)
        for part in found.values()
        for edge, delays in part["edges_ms"].items()
        if not _crosses(edge, part["stages"])
    ]
    said = [f"The edges that hold a marker up longest: {'; '.join(told)}."]
    if inside:
        said.append(
            "Between operators of one stage, where no marker travels, the largest median is "
            f"{shown(max(inside, key=abs))} ms."
        )
    return " ".join([*said, f"Mixed transactions: {mixed:,}."])


def _choke_point(name: str, part: Found) -> str:
    """The edge with the longest delay, those that may be as long, and the paper's."""
    edges = {one: ms for one, ms in part["edges_ms"].items() if _crosses(one, part["stages"])}
    worst = max(edges, key=lambda edge: statistics.median(edges[edge]))
    compared = compare({edge: (ms, edges[worst]) for edge, ms in edges.items() if edge != worst})
    near = [edge for edge, one in compared.items() if one.verdict != "lower"]
    printed = SAYS.get(name, {})
    text = f"{name} {worst}"
    if near:
        text += f", not distinguishable from {', '.join(near)}"
    if printed and not {worst, *near} & printed.keys():
        text += f" (NOT the paper's: {', '.join(printed)})"
    elif printed:
        text += " (one that the paper names)"
    return text


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    lengths = ", ".join(f"{name} {part['batch_seconds']:.1f} s" for name, part in found.items())
    return (
        f"Micro-batches of {lengths}; {profile.requests} changes of all operators, each at a "
        "random moment of a micro-batch of its own. A delay is the time between the moments when "
        "the two operators used their old versions last. Unions and joins of branches "
        "have no version of their own and are seen through. The simulator has no counterpart."
    )


EXPERIMENT: Final = Experiment(
    "choke", "Choke points", "figure of the workflows, section 8.2", parts, report, figure
)
