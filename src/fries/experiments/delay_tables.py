"""The paper's tables of delays on real Spark: W2 and W3, W4, and the pruning table of W5.

Each part is one query in one layout. All schedulers change it in turns, at random moments of its
micro-batches, and all tuples are audited. The naive scheduler shows what the others avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

from fries.bench import paper_numbers as paper
from fries.bench.measure import delays as simulated
from fries.experiments.estimates import Estimate, estimate
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.profiles import Profile
from fries.experiments.queries import RESTART, Kind, Targets, Trial, trial
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
BOUNDARY: Final = "mini_batch"
POOLED: Final = (BOUNDARY, RESTART)
"""Schedulers that take equally long whatever is changed: all rows of a query share their mean."""
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
"""What the naive scheduler is asked to change: operators in different stages, where there are."""


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
    """How long a part takes on two cores."""

    @property
    def targets(self) -> list[Targets]:
        """What is changed, row by row."""
        return [row.targets for row in self.rows]


W2: Final = Flows("W2", paper.W2, BOTH, SCHEDULERS, "epoch", query40, 40)
W3: Final = Flows("W3", paper.W3, BOTH, SCHEDULERS, "epoch", query71, 40)
W4: Final = Flows("W4", paper.W4, ("fused",), SCHEDULERS, "epoch", users, 55)
W5: Final = Flows("W5", paper.W5, BOTH, PRUNING, "fries_unpruned", two_models, 75)


def parts(flows: Sequence[Flows], profile: Profile) -> list[Part]:
    """A simulated part, and a query for each workflow and layout."""
    return [
        Part("simulated", 5, partial(_simulated, flows)),
        *(
            Part(_name(one, layout), one.seconds, partial(_part, one, layout, profile))
            for one in flows
            for layout in one.layouts
        ),
    ]


def _name(flows: Flows, layout: Layout) -> str:
    return f"{flows.name}-{layout}"


def _part(flows: Flows, layout: Layout, profile: Profile, bench: Bench) -> Found:
    kinds = [
        Kind(scheduler, targets, profile.requests, profile.together)
        for targets in flows.targets
        for scheduler in flows.schedulers
        if scheduler not in POOLED
    ]
    kinds.append(Kind(NAIVE, CONTRAST[flows.name], profile.requests, profile.together))
    kinds.append(Kind(BOUNDARY, flows.targets[0], 2 * profile.apart))
    kinds.append(Kind(RESTART, flows.targets[0], profile.apart))
    return trial(Trial(flows.make(bench), layout, kinds), bench.folder)


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
    at_source: bool
    """Whether it is all in the stage of the sources."""

    @property
    def title(self) -> str:
        """What it is about."""
        return f"{self.flows.name} {{{', '.join(self.row.targets)}}}"

    @property
    def named(self) -> str:
        """What it is about, and in which layout."""
        return f"{self.title} {self.layout}"

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
            part = found[_name(one, layout)]
            delays = part["delays_ms"]
            pooled = {name: [*chain.from_iterable(delays[name].values())] for name in POOLED}
            for row in one.rows:
                measured = {
                    name: estimate(pooled.get(name) or delays[name][",".join(row.targets)])
                    for name in one.schedulers
                }
                spread = _spread(one.name, row.targets, part["stages"])
                widest = max(map(len, spread))
                at_source = set().union(*spread) == {0}
                made.append(Line(one, row, layout, measured, widest, at_source))
    return made


def _spread(workflow: str, targets: Targets, stages: Mapping[str, int]) -> list[set[int]]:
    """By component, the stages that it has operators in."""
    plan = fries(GRAPHS[workflow](1), targets)
    return [{stages[name] for name in part.members if name in stages} for part in plan.components]


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
            part = found[_name(one, layout)]
            for name in (*one.schedulers, NAIVE):
                changes = sum(map(len, part["delays_ms"][name].values()))
                counts = [changes, part["transactions"], part["mixed"][name]]
                rows.append([one.name, layout, LABELS[name], *(f"{n:,}" for n in counts)])
    columns = ["workflow", "layout", "scheduler", "changes", "transactions of the run", "mixed"]
    return Table("Audit of every tuple of these runs", columns, rows)


def _verdict(made: Sequence[Line], flows: Sequence[Flows], found: Mapping[str, Found]) -> str:
    said = [_order(made), _single(made), _equal(made), _consistency(flows, found)]
    return " ".join(sentence for sentence in said if sentence)


def _order(made: Sequence[Line]) -> str:
    worse = [
        f"{line.named} (by {', '.join(LABELS[name] for name in beaten)})"
        for line in made
        if (beaten := line.beaten_by())
    ]
    if not worse:
        return (
            f"As in the paper, no other scheduler is below Fries in any of the {len(made)} rows, "
            "beyond the intervals."
        )
    return (
        f"In {len(made) - len(worse)} of {len(made)} rows no other scheduler is below Fries beyond "
        f"the intervals; one is in: {'; '.join(worse)}."
    )


def _single(made: Sequence[Line]) -> str:
    inside = [line for line in made if line.stages == 1]
    if not inside:
        return ""
    ratios = [line.measured["mini_batch"].mean / line.measured["fries"].mean for line in inside]
    return (
        f"Where components fit into one stage ({len(inside)} rows) the mini-batch boundary "
        f"takes {min(ratios):,.0f} to {max(ratios):,.0f} times as long as Fries."
    )


def _equal(made: Sequence[Line]) -> str:
    """Which rows are equal with Fries and epoch, and why."""
    fused = [line.named for line in made if line.at_source and line.equals("epoch")]
    beyond = [line.named for line in made if line.stages > 1 and line.equals("epoch")]
    said = []
    if fused:
        said.append(
            f"Fries and epoch are equal within their intervals in {', '.join(fused)}: there all "
            "heads are in the stage of the sources, so that an epoch has no way to go."
        )
    if beyond:
        said.append(
            f"They are also equal in {', '.join(beyond)}: these components reach over an exchange, "
            "and a stage of Spark begins when the one before has ended, so rows that were stamped "
            "old wait in the shuffle whoever stamped them."
        )
    return " ".join(said)


def _consistency(flows: Sequence[Flows], found: Mapping[str, Found]) -> str:
    parts = [found[_name(one, layout)] for one in flows for layout in one.layouts]
    naive = sum(part["mixed"][NAIVE] for part in parts)
    mixed = sum(sum(part["mixed"].values()) for part in parts) - naive
    checked = sum(part["transactions"] for part in parts)
    together = [
        f"{one.name} {layout}"
        for one in flows
        for layout in one.layouts
        if {found[_name(one, layout)]["stages"][name] for name in CONTRAST[one.name]} == {0}
    ]
    why = (
        f" In {', '.join(together)} it cannot mix: all that it changes is in the stage of the "
        "sources, where one task takes a row all the way between two switches."
    )
    return (
        f"The audits of {checked:,} transactions found {mixed:,} mixed by the consistent "
        f"schedulers, and {naive:,} by naive.{why if together else ''}"
    )


def _scaling(flows: Sequence[Flows], profile: Profile, found: Mapping[str, Found]) -> str:
    batches = {
        f"{one.name} {layout}": found[_name(one, layout)]["batch_seconds"]
        for one in flows
        for layout in one.layouts
    }
    lengths = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in batches.items())
    return (
        f"Streams without end, micro-batches of {lengths}, {profile.requests} requests a row and "
        f"scheduler, {profile.together} of them in a micro-batch: one at a random moment of each "
        f"of {profile.together} equal parts of it, the same moments for all schedulers, which take "
        f"turns; {profile.tasks} workers per stage (paper: 40). Simulated: "
        f"{SIMULATED.workers} workers, times multiplied by {SIMULATED.time:g}. "
        "A restart counts until every target has processed a row by its new version. A restart and "
        "the boundary of a micro-batch take equally long whatever is changed: all rows of a query "
        "share their means; the last table says of how many changes."
        f"{''.join(map(_same_layouts, flows))}"
    )


def _same_layouts(flows: Flows) -> str:
    if len(flows.layouts) > 1:
        return ""
    return (
        f" {flows.name} has one layout: every operator of it that the paper gives an exchange is "
        "keyed, so that Spark needs it anyway."
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
