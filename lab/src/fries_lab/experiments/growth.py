"""How the delay of a change in one stage grows: with workers, rows, operators, long micro-batches.

The paper compares delays for a growing number of workers by the channels that markers travel on.
Inside one stage no marker travels: a delay should be flat in everything but the size of a row's
work, and only a change at a boundary should grow with the length of a micro-batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fries.schedulers import fries
from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.plots import LABELS
from fries_lab.experiments.chain import Chain, delays
from fries_lab.experiments.estimates import Estimate, estimate, ratio, shown
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import SHOWN, draw_delays, legend_below
from fries_lab.experiments.profiles import Profile
from fries_lab.workloads import graphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAYMENT: Final = 0.025
"""Seconds per row where workers are counted: what the paper's model took for a payment. So 40
workers on two cores call their function 1,600 times a second, and not more than they can."""
ROWS: Final = (1_000, 300_000)
OPERATORS: Final = (1, 32)
SECONDS: Final = (0.25, 1.0)
SHORT: Final = 0.5
"""Seconds of a micro-batch where something else is varied."""
SCHEDULERS: Final = ("fries", "mini_batch")
FLAT: Final = 3.0
"""A delay that grows by less than this factor over the whole range counts as flat."""
LATE: Final = "seconds"
"""Where changes at a boundary are made, too: their delay depends on the length of a batch."""


class Sweep(NamedTuple):
    """One of the four questions."""

    name: str
    label: str
    values: Sequence[float]


def sweeps(profile: Profile) -> tuple[Sweep, ...]:
    """What is varied, one at a time."""
    return (
        Sweep("workers", "Python workers", profile.workers),
        Sweep("rows", "rows of a micro-batch", ROWS),
        Sweep("operators", "operators in the component", OPERATORS),
        Sweep("seconds", "seconds of a micro-batch", SECONDS),
    )


def chain_of(sweep: str, value: float) -> Chain:
    """What is run at a point: all else stays as it is.

    Where rows are varied, each takes so much less time that a micro-batch lasts the same.
    """
    match sweep:
        case "workers":
            workers = int(value)
            return Chain(rows=round(SHORT * workers / PAYMENT), seconds=SHORT, workers=workers)
        case "rows":
            return Chain(rows=int(value), seconds=SHORT)
        case "operators":
            return Chain(rows=1_000, seconds=SHORT, operators=int(value))
        case _:
            return Chain(rows=round(2_000 * value), seconds=value)


def parts(profile: Profile) -> list[Part]:
    """A part for each point."""
    return [
        Part(
            _name(sweep.name, value),
            _seconds(chain, (1 + 2 * (sweep.name == LATE)) * profile.requests),
            partial(_run, chain, sweep.name == LATE),
            chain.workers,
        )
        for sweep in sweeps(profile)
        for value in sweep.values
        for chain in [chain_of(sweep.name, value)]
    ]


def _name(sweep: str, value: float) -> str:
    return f"{sweep}-{value:.10g}"


def _seconds(chain: Chain, batches: int) -> float:
    """Workers that start, and the micro-batches of the changes."""
    return 7.0 + 0.8 * chain.workers + (chain.seconds + 0.3) * (batches + 4)


def _run(chain: Chain, late: bool, bench: Bench) -> Found:
    count = bench.profile.requests
    return delays(chain, bench.spark, bench.folder, count, count * late)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table per question, and the channels that the planner counts beside the paper's."""
    tables = [_table(sweep, found) for sweep in sweeps(profile)]
    grown = {sweep.name: growth(sweep, found) for sweep in sweeps(profile)}
    curves = {
        sweep.name: {
            "label": sweep.label,
            "values": list(sweep.values),
            "delays_ms": {
                name: [found[_name(sweep.name, value)][name] for value in sweep.values]
                for name in _shown(sweep)
            },
        }
        for sweep in sweeps(profile)
    }
    mixed = sum(one["mixed"] for one in found.values())
    return Report(
        [*tables, channels(profile.workers)],
        _verdict(grown, _late(profile, found), mixed),
        f"{profile.requests} changes by each scheduler, each at a random moment of a micro-batch "
        "of its own. Operators sleep, so that 40 workers fit on a few cores; a row of the first "
        f"table takes {1e3 * PAYMENT:g} ms, as in the paper, and a worker can only switch between "
        "two rows. Driver and workers are on one machine: on a cluster a message takes longer, and "
        "workers do not share cores. Here they do: where a micro-batch begins, all of them start "
        f"at once, and a change that comes in this moment waits for a core.",
        {"curves": curves},
    )


def _shown(sweep: Sweep) -> Sequence[str]:
    return SCHEDULERS if sweep.name == LATE else SCHEDULERS[:1]


def _table(sweep: Sweep, found: Mapping[str, Found]) -> Table:
    rows = [
        _row(value, found[_name(sweep.name, value)], _shown(sweep)[1:]) for value in sweep.values
    ]
    columns = (
        sweep.label, "Fries (ms)", "of it: asking", "loading", "switching",
        *(f"{LABELS[name]} (ms)" for name in _shown(sweep)[1:]),
        "batch (s)", "processes", "transactions", "mixed",
    )  # fmt: skip
    return Table(f"Delay against {sweep.label}, median [95 % interval]", columns, rows)


def _row(value: float, found: Found, others: Sequence[str]) -> list[str]:
    half = statistics.median(found["fries"])
    asking, switching = (statistics.median(found[name]) for name in ("asking", "switching"))
    return [
        f"{value:,.10g}", str(estimate(found["fries"])), shown(asking),
        shown(max(0.0, half - asking - switching)), shown(switching),
        *(str(estimate(found[name])) for name in others), f"{found['batch_seconds']:.1f}",
        str(found["processes"]), f"{found['transactions']:,}", str(found["mixed"]),
    ]  # fmt: skip


def growth(sweep: Sweep, found: Mapping[str, Found], scheduler: str = "fries") -> Estimate:
    """The delay at the largest value, as a multiple of that at the smallest."""
    first, last = (found[_name(sweep.name, value)] for value in (sweep.values[0], sweep.values[-1]))
    return ratio(last[scheduler], first[scheduler])


def _late(profile: Profile, found: Mapping[str, Found]) -> Estimate:
    (sweep,) = (one for one in sweeps(profile) if one.name == LATE)
    return growth(sweep, found, "mini_batch")


def channels(workers: Sequence[int]) -> Table:
    """Data channels of W2 and of its component of {J1, J4}, from the planner and the paper."""
    printed = {row.workers: row for row in paper.CHANNELS}
    rows = []
    for count in workers:
        plan = fries(graphs.w2(count), ("J1", "J4"))
        row = printed.get(count)
        theirs = [f"{row.total:,}", f"{row.in_mcs:,}"] if row else ["-", "-"]
        rows.append([str(count), f"{plan.total_channels:,}", f"{plan.channels:,}", *theirs])
    columns = ("workers", "channels", "in the MCS", "paper: channels", "paper: in the MCS")
    return Table("Data channels of W2, {J1, J4} reconfigured", columns, rows)


def _verdict(grown: Mapping[str, Estimate], late: Estimate, mixed: int) -> str:
    """Flat only where the whole interval is, growing only where the whole interval is not."""
    by_verdict: dict[str, list[str]] = {}
    for name, one in grown.items():
        by_verdict.setdefault(_steepness(one), []).append(f"{name} ({one} times)")
    said = [f"it {verdict} {', '.join(names)}" for verdict, names in by_verdict.items()]
    return (
        f"The delay of Fries from the smallest to the largest value: {'; '.join(said)}. "
        f"Flat is less than {FLAT:g} times. A change at a boundary takes {late} times as long in "
        f"the longest micro-batch. Transactions that met half of a change: {mixed}."
    )


def _steepness(grown: Estimate) -> str:
    if grown.low is None or grown.high is None:
        return "was measured once in"
    if grown.high < FLAT:
        return "is flat in"
    return "grows with" if grown.low >= FLAT else "may be flat or not in"


def figure(report: Report) -> Figure:
    """Four panels, one for each question."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.5, 6.8), layout="constrained")
    made.suptitle("Delay of a change in one stage (measured)", fontsize=11)
    panels: list[Axes] = list(made.subplots(2, 2).flat)
    for axes, curve in zip(panels, report.data["curves"].values(), strict=True):
        _panel(axes, curve)
    legend_below(made, panels[-1], SHOWN)
    return made


def _panel(axes: Axes, curve: Mapping[str, Any]) -> None:
    from matplotlib.ticker import NullLocator

    found = {name: [*map(estimate, delays)] for name, delays in curve["delays_ms"].items()}
    draw_delays(axes, curve["values"], found)
    axes.set_xscale("log")
    axes.set_xticks(curve["values"], [f"{value:,.10g}" for value in curve["values"]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(curve["label"])
    axes.set_ylabel("delay (ms)")
    axes.set_title(f"against {curve['label']}", fontsize=9)


EXPERIMENT: Final = Experiment(
    "growth",
    "How the delay of a change in one stage grows",
    'table "parallelism-and-mcs-w2", and beyond',
    parts,
    report,
    figure,
)
