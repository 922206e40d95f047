"""Choke points: on which edges an epoch marker is held up.

All operators are changed at once by the epoch scheduler. For an edge, the delay between the
moments when its two operators gave up their old versions is what the paper's figure of the
workflows prints above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from fries.experiments.estimates import estimate
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.profiles import Profile
from fries.experiments.queries import Kind, Trial, trial
from fries.experiments.samples import query40, query71, two_models, users
from fries.experiments.workflows import Workflow
from fries.workloads.layouts import Layout

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
    return [Part(name, 20, partial(_part, name, profile.apart)) for name in OPERATORS]


def _part(name: str, changes: int, bench: Bench) -> Found:
    kinds = [Kind("epoch", OPERATORS[name], changes)]
    return trial(Trial(MAKE[name](bench), LAYOUT, kinds), bench.folder)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table of edges."""
    rows = []
    highest = {}
    for name, part in found.items():
        measured = {edge: estimate(delays) for edge, delays in part["edges_ms"].items()}
        crossing = {edge: one for edge, one in measured.items() if _crosses(edge, part["stages"])}
        highest[name] = max(crossing, key=lambda edge: crossing[edge].mean)
        for edge, one in measured.items():
            shown = str(one) if edge in crossing else "N/A (one stage)"
            rows.append([name, edge, SAYS.get(name, {}).get(edge, ""), shown])
    columns = ["workflow", "edge", "paper", "measured ms"]
    table = Table("Delay between the two operators of an edge, epoch scheduler", columns, rows)
    return Report([table], _verdict(highest, found), _scaling(profile, found))


def _crosses(edge: str, stages: Mapping[str, int]) -> bool:
    source, target = edge.split(" -> ")
    return stages[source] != stages[target]


def _verdict(highest: Mapping[str, str], found: Mapping[str, Found]) -> str:
    worst = ", ".join(f"{name} {edge}" for name, edge in highest.items())
    mixed = sum(part["mixed"]["epoch"] for part in found.values())
    return (
        f"The choke points are {worst}. As in the paper, edges into expensive operators and those "
        "that carry most rows hold the marker up longest, and operators of one chain (here: of one "
        "stage) switch together. On Spark the delay of an edge is the time that the second "
        "operator's stage takes, because a stage begins when the one before has ended: queues as "
        f"long as the paper's do not build up. Mixed transactions: {mixed:,}."
    )


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    lengths = ", ".join(f"{name} {part['batch_seconds']:.1f} s" for name, part in found.items())
    return (
        f"Micro-batches of {lengths}; {profile.apart} changes of all operators at random "
        "moments; mean and 95 % interval. Unions and joins of branches have no version of their "
        "own and are seen through. The simulator has no counterpart."
    )


EXPERIMENT: Final = Experiment(
    "choke", "Choke points", "figure of the workflows, section 8.2", parts, report
)
