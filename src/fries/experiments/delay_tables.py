"""The paper's tables of delays on real Spark: W2 and W3, W4, and the pruning table of W5.

Each part is a query by one scheduler in one layout, changed at random moments of its
micro-batches. All tuples are audited. A part with the naive scheduler shows what the others
avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from fries.bench import paper_numbers as paper
from fries.bench.measure import delays as simulated
from fries.experiments.estimates import Estimate, estimate
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.profiles import Profile
from fries.experiments.queries import RESTART, Targets, Trial, trial
from fries.experiments.samples import query40, query71, two_models, users
from fries.experiments.workflows import Workflow
from fries.plan import brackets
from fries.schedulers import fries
from fries.workloads import graphs
from fries.workloads.layouts import Layout
from fries.workloads.simulated import Scale

Row: TypeAlias = paper.DelayNumbers | paper.PruningNumbers
BOTH: Final[tuple[Layout, ...]] = ("fused", "exchanged")
SCHEDULERS: Final = ("fries", "epoch", "mini_batch", RESTART)
PRUNING: Final = ("fries", "fries_unpruned", "epoch", "mini_batch", RESTART)
NAIVE: Final = "naive"
LABELS: Final = {
    "fries": "Fries",
    "fries_unpruned": "unpruned",
    "epoch": "epoch",
    "mini_batch": "mini-batch",
    RESTART: "restart",
    NAIVE: "naive",
}
SIMULATED: Final = Scale(workers=10, time=0.4, requests=2)
"""What is simulated beside: it takes seconds, and the order of delays is that of 40 workers."""
CONTRAST: Final = {
    "W2": ("J1", "J4"),
    "W3": ("J5", "J6", "J7", "J9"),
    "W4": ("FD1", "F2"),
    "W5": ("FD3", "FD4"),
}
"""What the naive scheduler is asked to change: operators in different stages."""


@dataclass(frozen=True)
class Flows:
    """One workflow of a table."""

    name: str
    rows: Sequence[Row]
    layouts: tuple[Layout, ...]
    schedulers: tuple[str, ...]
    against: str
    """The scheduler that the paper's table sets beside Fries."""
    make: Callable[[Bench], Workflow]
    seconds: float
    """How long a part takes on two cores without the changes that restart."""

    @property
    def targets(self) -> list[Targets]:
        """What is changed, row by row."""
        return [row.targets for row in self.rows]


W2: Final = Flows("W2", paper.W2, BOTH, SCHEDULERS, "epoch", query40, 45)
W3: Final = Flows("W3", paper.W3, BOTH, SCHEDULERS, "epoch", query71, 60)
W4: Final = Flows("W4", paper.W4, ("fused",), SCHEDULERS, "epoch", users, 45)
W5: Final = Flows("W5", paper.W5, BOTH, PRUNING, "fries_unpruned", two_models, 60)


def parts(flows: Sequence[Flows], profile: Profile) -> list[Part]:
    """A simulated part, a part for each workflow, layout and scheduler, and naive ones."""
    found = [Part("simulated", 30, partial(_simulated, flows))]
    for one in flows:
        for layout in one.layouts:
            for scheduler in one.schedulers:
                count = profile.restarts if scheduler == RESTART else profile.requests
                run = partial(_part, one, layout, scheduler, one.targets, count)
                found.append(Part(_name(one, layout, scheduler), one.seconds, run))
        layout = one.layouts[-1]
        run = partial(_part, one, layout, NAIVE, [CONTRAST[one.name]], profile.requests)
        found.append(Part(_name(one, layout, NAIVE), one.seconds / 2, run))
    return found


def _name(flows: Flows, layout: Layout, scheduler: str) -> str:
    return f"{flows.name}-{layout}-{scheduler}"


def _part(
    flows: Flows,
    layout: Layout,
    scheduler: str,
    targets: Sequence[Targets],
    requests: int,
    bench: Bench,
) -> Found:
    return trial(Trial(flows.make(bench), layout, scheduler, targets, requests), bench.folder)


def _simulated(flows: Sequence[Flows], bench: Bench) -> Found:
    """Mean delays in simulated milliseconds, by workflow, targets and scheduler."""
    del bench
    return {
        one.name: {
            ",".join(row.targets): {
                name: 1e3
                * simulated(one.name, row.targets, name, SIMULATED.workers, SIMULATED, 0).mean
                for name in ("fries", one.against)
            }
            for row in one.rows
        }
        for one in flows
    }


@dataclass(frozen=True)
class Line:
    """A row of a table: one reconfiguration in one layout."""

    flows: Flows
    row: Row
    layout: Layout
    measured: Mapping[str, Estimate]
    stages: int
    """Stages of Spark that its components have operators in, at most."""

    @property
    def title(self) -> str:
        """What it is about."""
        return f"{self.flows.name} {{{', '.join(self.row.targets)}}}"

    def beaten_by(self) -> list[str]:
        """Schedulers whose mean is below that of Fries by more than both intervals."""
        fries = self.measured["fries"]
        return [
            name
            for name, other in self.measured.items()
            if name != "fries" and other.mean + (other.half or 0.0) < fries.mean - (fries.half or 0)
        ]

    def equals(self, name: str) -> bool:
        """Whether the intervals of Fries and another scheduler overlap."""
        fries, other = self.measured["fries"], self.measured[name]
        return abs(fries.mean - other.mean) <= (fries.half or 0.0) + (other.half or 0.0)


def lines(flows: Sequence[Flows], found: Mapping[str, Found]) -> list[Line]:
    """All rows of all layouts."""
    made = []
    for one in flows:
        for layout in one.layouts:
            by = {name: found[_name(one, layout, name)] for name in one.schedulers}
            for row in one.rows:
                measured = {
                    name: estimate(part["delays_ms"][",".join(row.targets)])
                    for name, part in by.items()
                }
                spread = _spread(one.name, row.targets, by["fries"]["stages"])
                made.append(Line(one, row, layout, measured, spread))
    return made


def _spread(workflow: str, targets: Targets, stages: Mapping[str, int]) -> int:
    """In how many stages the widest component has operators."""
    plan = fries(GRAPHS[workflow](1), targets)
    return max(
        len({stages[name] for name in part.members if name in stages}) for part in plan.components
    )


GRAPHS: Final = {"W2": graphs.w2, "W3": graphs.w3, "W4": graphs.w4, "W5": graphs.w5}


def report(flows: Sequence[Flows], profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table for each workflow and layout, and what the audits say."""
    made = lines(flows, found)
    tables = [
        _table(one, layout, [x for x in made if (x.flows, x.layout) == (one, layout)], found)
        for one in flows
        for layout in one.layouts
    ]
    return Report(
        [*tables, _audits(flows, found)],
        _verdict(made, flows, found),
        _scaling(flows, profile, found),
    )


def _table(flows: Flows, layout: Layout, made: Sequence[Line], found: Mapping[str, Found]) -> Table:
    simulated_ms = found["simulated"][flows.name]
    against = LABELS[flows.against]
    columns = [
        "targets",
        "components",
        "stages",
        f"paper: Fries / {against}",
        f"simulated: Fries / {against}",
        *(LABELS[name] for name in flows.schedulers),
    ]
    rows = []
    for line in made:
        ours = simulated_ms[",".join(line.row.targets)]
        plan = fries(GRAPHS[flows.name](1), line.row.targets)
        rows.append(
            [
                ", ".join(line.row.targets),
                " and ".join(brackets(part) for part in plan.components),
                str(line.stages),
                " / ".join(f"{value:,}" for value in _printed(line.row)),
                f"{ours['fries']:,.0f} / {ours[flows.against]:,.0f}",
                *(str(line.measured[name]) for name in flows.schedulers),
            ]
        )
    return Table(f"{flows.name}, {layout}: delays in ms, mean and 95 % interval", columns, rows)


def _printed(row: Row) -> tuple[int, int]:
    if isinstance(row, paper.PruningNumbers):
        return row.pruned_ms, row.unpruned_ms
    return row.fries_ms, row.epoch_ms


def _audits(flows: Sequence[Flows], found: Mapping[str, Found]) -> Table:
    rows = []
    for one in flows:
        for layout in one.layouts:
            names = (*one.schedulers, NAIVE) if layout == one.layouts[-1] else one.schedulers
            for name in names:
                part = found[_name(one, layout, name)]
                changes = sum(map(len, part["delays_ms"].values()))
                counts = [changes, part["transactions"], part["mixed"]]
                rows.append([one.name, layout, LABELS[name], *(f"{n:,}" for n in counts)])
    columns = ["workflow", "layout", "scheduler", "changes", "transactions", "mixed"]
    return Table("Audit of every tuple of these runs", columns, rows)


def _verdict(made: Sequence[Line], flows: Sequence[Flows], found: Mapping[str, Found]) -> str:
    said = [_order(made), _single(made), _equal(made), _consistency(flows, found)]
    return " ".join(sentence for sentence in said if sentence)


def _order(made: Sequence[Line]) -> str:
    worse = [
        f"{line.title} {line.layout} (by {', '.join(LABELS[name] for name in beaten)})"
        for line in made
        if (beaten := line.beaten_by())
    ]
    if not worse:
        return (
            f"As in the paper, Fries is at or below every other scheduler in all {len(made)} rows."
        )
    return (
        f"Fries is at or below every other scheduler in {len(made) - len(worse)} of {len(made)} "
        f"rows; beyond the intervals it is not in: {'; '.join(worse)}."
    )


def _single(made: Sequence[Line]) -> str:
    inside = [line for line in made if line.stages == 1]
    if not inside:
        return ""
    ratios = [line.measured["mini_batch"].mean / line.measured["fries"].mean for line in inside]
    return (
        f"In the {len(inside)} rows whose components fit into one stage the mini-batch boundary "
        f"takes {min(ratios):,.0f} to {max(ratios):,.0f} times as long as Fries."
    )


def _equal(made: Sequence[Line]) -> str:
    names = {line.title for line in made if line.stages > 1 and line.equals("epoch")}
    if not names:
        return ""
    return (
        f"Where a component reaches over an exchange ({', '.join(sorted(names))}), Fries and epoch "
        "are equal within their intervals: a stage of Spark begins when the one before has ended, "
        "so rows that were stamped old wait in the shuffle whoever stamped them."
    )


def _consistency(flows: Sequence[Flows], found: Mapping[str, Found]) -> str:
    naive = sum(found[_name(one, one.layouts[-1], NAIVE)]["mixed"] for one in flows)
    others: list[Any] = [
        found[_name(one, layout, name)]
        for one in flows
        for layout in one.layouts
        for name in one.schedulers
    ]
    mixed = sum(part["mixed"] for part in others)
    checked = sum(part["transactions"] for part in others)
    return (
        f"The audits found {mixed:,} mixed transactions among {checked:,} with the consistent "
        f"schedulers, and {naive:,} with naive."
    )


def _scaling(flows: Sequence[Flows], profile: Profile, found: Mapping[str, Found]) -> str:
    batches = {
        one.name: found[_name(one, one.layouts[0], "fries")]["batch_seconds"] for one in flows
    }
    lengths = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in batches.items())
    return (
        f"Streams without end, micro-batches of {lengths}, {profile.requests} requests a row at "
        f"random moments ({profile.restarts} where each restarts the query); 2 workers per stage, "
        f"the paper had 40. Simulated: {SIMULATED.workers} workers, times multiplied by "
        f"{SIMULATED.time:g}. A restart counts until every target has processed a row by its new "
        "version."
    )


def _experiment(name: str, title: str, where: str, *flows: Flows) -> Experiment:
    return Experiment(name, title, where, partial(parts, flows), partial(report, flows))


TPCDS: Final = _experiment(
    "tpcds",
    "Delays in W2 and W3",
    "table of reconfigured operators and components, section 8.7",
    W2,
    W3,
)
UNNEST: Final = _experiment(
    "unnest", "Delays with a one-to-many operator (W4)", "table of W4, section 8.8", W4
)
PRUNED: Final = _experiment("pruning", "The effect of pruning (W5)", "table of W5, section 8.9", W5)
