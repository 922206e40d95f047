"""The paper's tables of delays on real Spark: W2 and W3, W4, and the pruning table of W5.

Each part is a query in one layout, and there are several of each. All schedulers change it in
turns, each time at a random moment of another micro-batch, and all tuples are audited. The naive
scheduler shows what the others avoid.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from fries.plan import brackets
from fries.schedulers import fries, fries_unpruned
from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.measure import delays as simulated
from fries_lab.bench.plots import LABELS
from fries_lab.experiments.comparisons import Comparison, Samples, compare, told
from fries_lab.experiments.estimates import estimate
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import Panel, draw_rows
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import RESTART, Kind, Targets, Trial, trial
from fries_lab.experiments.samples import query40, query71, two_models, users
from fries_lab.experiments.workflows import Workflow
from fries_lab.workloads import graphs
from fries_lab.workloads.layouts import Layout
from fries_lab.workloads.simulated import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = paper.DelayNumbers | paper.PruningNumbers
BOTH: Final[tuple[Layout, ...]] = ("fused", "exchanged")
SCHEDULERS: Final = ("fries", "epoch", "mini_batch", RESTART)
PRUNING: Final = ("fries", "fries_unpruned", "mini_batch", RESTART)
BOUNDARY: Final = "mini_batch"
POOLED: Final = (BOUNDARY, RESTART)
"""Schedulers that take equally long whatever is changed: all rows of a query share their values."""
NAIVE: Final = "naive"
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
    why: str = ""
    """Why it has one layout only."""

    @property
    def targets(self) -> list[Targets]:
        """What is changed, row by row."""
        return [row.targets for row in self.rows]


W2: Final = Flows("W2", paper.W2, BOTH, SCHEDULERS, "epoch", query40, 240)
W3: Final = Flows(
    "W3", paper.W3, ("exchanged",), SCHEDULERS, "epoch", query71, 280,
    "that of the paper; what is different where lookups are fused shows in W2",
)  # fmt: skip
W4: Final = Flows(
    "W4", paper.W4, ("fused",), SCHEDULERS, "epoch", users, 250,
    "every operator that the paper gives an exchange is keyed, so that Spark needs it anyway",
)  # fmt: skip
W5: Final = Flows(
    "W5", paper.W5, ("exchanged",), PRUNING, "fries_unpruned", two_models, 380,
    "that of the paper",
)  # fmt: skip


def parts(flows: Sequence[Flows], profile: Profile) -> list[Part]:
    """A simulated part, and queries for each workflow and layout."""
    queries = (
        Part(
            f"{_name(one, layout)}-{number}",
            one.seconds / profile.rounds,
            partial(_part, one, layout, number, profile),
        )
        for number in range(1, profile.rounds + 1)
        for one in flows
        for layout in one.layouts
    )
    return [Part("simulated", 8, partial(_simulated, flows)), *queries]


def _name(flows: Flows, layout: Layout) -> str:
    return f"{flows.name}-{layout}"


def _part(flows: Flows, layout: Layout, number: int, profile: Profile, bench: Bench) -> Found:
    requests, restarts = (
        shared_out(count, profile.rounds, number) for count in (profile.requests, profile.restarts)
    )
    kinds = [
        Kind(scheduler, targets, requests)
        for targets in flows.targets
        for scheduler in flows.schedulers
        if scheduler not in POOLED
    ]
    kinds.append(Kind(NAIVE, CONTRAST[flows.name], restarts))
    kinds.append(Kind(BOUNDARY, flows.targets[0], requests))
    kinds.append(Kind(RESTART, flows.targets[0], restarts))
    return trial(Trial(flows.make(bench), layout, kinds, seed=number), bench.folder)


def shared_out(count: int, rounds: int, number: int) -> int:
    """How many of some changes are made in a round, counted from 1."""
    return count * number // rounds - count * (number - 1) // rounds


def merged(flows: Sequence[Flows], found: Mapping[str, Found]) -> dict[str, Found]:
    """What all rounds of a query have found, by workflow and layout."""
    names = [_name(one, layout) for one in flows for layout in one.layouts]
    rounds = {name: [found[key] for key in found if _is_round(key, name)] for name in names}
    return {name: _merged(parts) for name, parts in rounds.items()} | {
        "simulated": found["simulated"]
    }


def _is_round(part: str, name: str) -> bool:
    return part.rpartition("-")[0] == name


def _merged(parts: Sequence[Found]) -> Found:
    delays: dict[str, dict[str, list[float]]] = {}
    mixed: Counter[str] = Counter()
    for part in parts:
        mixed.update(part["mixed"])
        for scheduler, rows in part["delays_ms"].items():
            for targets, measured in rows.items():
                delays.setdefault(scheduler, {}).setdefault(targets, []).extend(measured)
    return {
        "delays_ms": delays,
        "mixed": mixed,
        "transactions": sum(part["transactions"] for part in parts),
        "batch_seconds": statistics.median(part["batch_seconds"] for part in parts),
        "stages": parts[0]["stages"],
    }


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
    delays: Mapping[str, Sequence[float]]
    """By scheduler, in milliseconds."""
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

    @property
    def same_plan(self) -> bool:
        """Whether pruning leaves its components as they are."""
        graph = GRAPHS[self.flows.name](1)
        plans = (make(graph, self.row.targets) for make in (fries, fries_unpruned))
        pruned, unpruned = ({part.members for part in plan.components} for plan in plans)
        return pruned == unpruned

    def against(self, name: str) -> Samples:
        """The delays of Fries and of another scheduler."""
        return self.delays["fries"], self.delays[name]


def lines(flows: Sequence[Flows], found: Mapping[str, Found]) -> list[Line]:
    """All rows of all layouts, from what was merged."""
    made = []
    for one in flows:
        for layout in one.layouts:
            part = found[_name(one, layout)]
            delays = part["delays_ms"]
            pooled = {name: [*chain.from_iterable(delays[name].values())] for name in POOLED}
            for row in one.rows:
                samples = {
                    name: pooled.get(name) or delays[name][",".join(row.targets)]
                    for name in one.schedulers
                }
                spread = _spread(one.name, row.targets, part["stages"])
                widest = max(map(len, spread))
                at_source = set().union(*spread) == {0}
                made.append(Line(one, row, layout, samples, widest, at_source))
    return made


def _spread(workflow: str, targets: Targets, stages: Mapping[str, int]) -> list[set[int]]:
    """By component, the stages that it has operators in."""
    plan = fries(GRAPHS[workflow](1), targets)
    return [{stages[name] for name in part.members if name in stages} for part in plan.components]


GRAPHS: Final = {"W2": graphs.w2, "W3": graphs.w3, "W4": graphs.w4, "W5": graphs.w5}


def report(flows: Sequence[Flows], profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table for each workflow and layout, and what the audits say."""
    found = merged(flows, found)
    made = lines(flows, found)
    compared = compare({one.named: one.against(one.flows.against) for one in made})
    shown = [
        (one, layout, [line for line in made if (line.flows, line.layout) == (one, layout)])
        for one in flows
        for layout in one.layouts
    ]
    return Report(
        [*(_table(*some, found, compared) for some in shown), _audits(flows, found)],
        _verdict(made, compared, flows, found),
        _scaling(flows, profile, found),
        {"panels": [_panel(*some).kept() for some in shown]},
    )


def _table(
    flows: Flows,
    layout: Layout,
    made: Sequence[Line],
    found: Mapping[str, Found],
    compared: Mapping[str, Comparison],
) -> Table:
    simulated_ms = found["simulated"][flows.name]
    against = LABELS[flows.against]
    columns = [
        "targets",
        "components",
        "stages",
        f"paper: Fries / {against}",
        f"simulated: Fries / {against}",
        *(LABELS[name] for name in flows.schedulers),
        f"Fries against {against}",
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
                *(str(estimate(line.delays[name])) for name in flows.schedulers),
                str(compared[line.named]),
            ]
        )
    return Table(f"{flows.name}, {layout}: delays in ms, median [95 % interval]", columns, rows)


def _panel(flows: Flows, layout: Layout, made: Sequence[Line]) -> Panel:
    series = {name: [estimate(line.delays[name]) for line in made] for name in flows.schedulers}
    title = f"{flows.name}, {layout}"
    return Panel(title, [", ".join(line.row.targets) for line in made], series)


def _figure(title: str, report: Report) -> Figure:
    return draw_rows(title, "delay (ms)", [Panel.of(one) for one in report.data["panels"]])


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


def _verdict(
    made: Sequence[Line],
    compared: Mapping[str, Comparison],
    flows: Sequence[Flows],
    found: Mapping[str, Found],
) -> str:
    pruned = flows[0].against == "fries_unpruned"
    first = _pruning(made, compared) if pruned else _epochs(made, compared)
    return " ".join([*first, _boundary(made), _consistency(flows, found)])


def _epochs(made: Sequence[Line], compared: Mapping[str, Comparison]) -> list[str]:
    """Where Fries is faster than an epoch, and what is the same in the rows where it is not."""
    other = [line for line in made if compared[line.named].verdict != "lower"]
    source = [line.named for line in other if line.at_source]
    wide = [line.named for line in other if line.stages > 1]
    said = [
        told(compared, "The delay of Fries", "that of epochs"),
        "In the paper it is lower in every row.",
    ]
    if source:
        said.append(
            f"Of those where it is not, {len(source)} change operators in the stage of the sources "
            "only, so that an epoch has no way to go; "
            f"they are {', '.join(source)}."
        )
    if wide:
        said.append(
            f"{len(wide)} have components that reach over an exchange, where rows that were "
            f"stamped old wait whoever stamped them; they are {', '.join(wide)}."
        )
    return said


def _pruning(made: Sequence[Line], compared: Mapping[str, Comparison]) -> list[str]:
    """Whether pruning helps where it changes the plan, and does nothing where it does not."""
    smaller = {one.named: compared[one.named] for one in made if not one.same_plan}
    same = {one.named: compared[one.named] for one in made if one.same_plan}
    differ = {name: one for name, one in same.items() if one.verdict != "not distinguishable"}
    said = [
        f"Pruning makes components smaller in {len(smaller)} of {len(made)} rows. There "
        f"{told(smaller, 'the delay of the pruned plan', 'that of the unpruned one')}"
    ]
    if differ:
        told_of = "; ".join(f"{name} is {one.verdict}" for name, one in differ.items())
        said.append(
            "WARNING: with the same plan in both, the delays differ as well "
            f"({told_of}), so that differences of this size can come from something else than "
            "pruning."
        )
    elif same:
        said.append(
            f"With the same plan in both ({', '.join(same)}) the delays are not distinguishable, "
            "as it must be."
        )
    return said


def _boundary(made: Sequence[Line]) -> str:
    """Fries beside the end of the micro-batch."""
    compared = compare({one.named: one.against(BOUNDARY) for one in made})
    text = told(compared, "The delay of Fries", "that of the mini-batch boundary")
    inside = [compared[line.named] for line in made if line.stages == 1]
    times = [1 / one.times.value for one in inside if one.verdict == "lower"]
    if not times:
        return text
    low, high = f"{min(times):,.0f}", f"{max(times):,.0f}"
    return (
        f"{text} Where a component fits into one stage and Fries is lower (rows: {len(times)}), "
        f"the boundary takes {low if low == high else f'{low} to {high}'} times as long."
    )


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
        f"Streams without end, micro-batches of {lengths}. {profile.requests} changes a row and "
        "scheduler, each at a random moment of a micro-batch in which nothing else changes; the "
        "moments are the same for all schedulers, which take turns. "
        f"They are shared out among {profile.rounds} runs of each query. "
        f"{profile.tasks} workers per stage (paper: 40). Simulated: {SIMULATED.workers} workers, "
        f"times multiplied by {SIMULATED.time:g}. The boundary of a micro-batch and a "
        "restart take equally long whatever is changed: all rows of a query share their "
        f"{profile.requests} and {profile.restarts} values. A restart counts until every target "
        "has processed a row by its new version; it is shown, and not compared."
        f"{''.join(map(_same_layouts, flows))}"
    )


def _same_layouts(flows: Flows) -> str:
    return f" {flows.name} has one layout here: {flows.why}." if flows.why else ""


def _experiment(name: str, title: str, where: str, *flows: Flows) -> Experiment:
    draw = partial(_figure, f"{title} (measured)")
    return Experiment(name, title, where, partial(parts, flows), partial(report, flows), draw)


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
