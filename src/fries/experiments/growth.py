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

from fries.bench import paper_numbers as paper
from fries.bench.plots import LABELS, LOOKS
from fries.experiments.chain import Chain, delays
from fries.experiments.estimates import Estimate, estimate, shown
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.profiles import Profile
from fries.schedulers import fries
from fries.workloads import graphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAYMENT: Final = 0.025
"""Seconds per row where workers are counted: what the paper's model took for a payment. So 40
workers on two cores call their function 1,600 times a second, and not more than they can."""
ROWS: Final = (1_000, 30_000, 1_000_000)
OPERATORS: Final = (1, 4, 32)
SECONDS: Final = (1.0, 2.0, 4.0)
SCHEDULERS: Final = ("fries", "mini_batch")
FLAT: Final = 3.0
"""A delay that grows by less than this factor over the whole range counts as flat."""


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
            return Chain(rows=round(workers / PAYMENT), seconds=1.0, workers=workers)
        case "rows":
            return Chain(rows=int(value), seconds=1.0)
        case "operators":
            return Chain(rows=2_000, seconds=1.0, operators=int(value))
        case _:
            return Chain(rows=round(1_000 * value), seconds=value)


def parts(profile: Profile) -> list[Part]:
    """A part for each point: both schedulers in one query."""
    return [
        Part(
            _name(sweep.name, value),
            _seconds(chain, profile.apart),
            partial(_run, chain),
            chain.workers,
        )
        for sweep in sweeps(profile)
        for value in sweep.values
        for chain in [chain_of(sweep.name, value)]
    ]


def _name(sweep: str, value: float) -> str:
    return f"{sweep}-{value:.0f}"


def _seconds(chain: Chain, changes: int) -> float:
    """Workers that start, a micro-batch that does not count, one per change at a boundary."""
    return 5.0 + 0.7 * chain.workers + (chain.seconds + 0.3) * (changes + 3)


def _run(chain: Chain, bench: Bench) -> Found:
    return delays(chain, bench.spark, bench.folder, bench.profile.apart)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """A table per question, and the channels that the planner counts beside the paper's."""
    tables = [_table(sweep, found) for sweep in sweeps(profile)]
    grown = {sweep.name: growth(sweep, found) for sweep in sweeps(profile)}
    curves = {
        sweep.name: {
            "label": sweep.label,
            "values": list(sweep.values),
            **{one: _curve(sweep, one, found) for one in SCHEDULERS},
        }
        for sweep in sweeps(profile)
    }
    mixed = sum(one["mixed"] for one in found.values())
    return Report(
        [*tables, channels(profile.workers)],
        _verdict(grown, mixed),
        "Operators sleep, so that 40 workers fit on a few cores; a row of the first table takes "
        f"{1e3 * PAYMENT:g} ms, as in the paper, and a worker can only switch between two rows. "
        "Driver and workers are on one machine: on a cluster a message takes longer, and workers "
        "do not share cores. Here they do: where a micro-batch begins, all of them start at once, "
        "and a change that comes in this moment waits for a core. So medians are compared.",
        {"curves": curves, "growth": grown},
    )


def _table(sweep: Sweep, found: Mapping[str, Found]) -> Table:
    rows = [_row(value, found[_name(sweep.name, value)]) for value in sweep.values]
    columns = (
        sweep.label, "Fries (ms)", "median", "of it: asking", "loading", "switching",
        "mini-batch (ms)",
        "batch (s)", "processes", "transactions", "mixed",
    )  # fmt: skip
    return Table(f"Delay against {sweep.label}, mean ± 95 %", columns, rows)


def _row(value: float, found: Found) -> list[str]:
    half = statistics.median(found["fries"])
    asking, switching = (statistics.median(found[name]) for name in ("asking", "switching"))
    return [
        f"{value:,.0f}", str(estimate(found["fries"])), shown(half), shown(asking),
        shown(max(0.0, half - asking - switching)), shown(switching),
        str(estimate(found["mini_batch"])), f"{found['batch_seconds']:.1f}",
        str(found["processes"]), f"{found['transactions']:,}", str(found["mixed"]),
    ]  # fmt: skip


def _curve(sweep: Sweep, scheduler: str, found: Mapping[str, Found]) -> dict[str, list[float]]:
    made: list[Estimate] = [
        estimate(found[_name(sweep.name, value)][scheduler]) for value in sweep.values
    ]
    return {"mean": [one.mean for one in made], "half": [one.half or 0.0 for one in made]}


def growth(sweep: Sweep, found: Mapping[str, Found]) -> dict[str, float]:
    """By scheduler, the median delay at the largest value over that at the smallest."""
    first, last = (found[_name(sweep.name, value)] for value in (sweep.values[0], sweep.values[-1]))
    return {
        one: statistics.median(last[one]) / max(statistics.median(first[one]), 1e-3)
        for one in SCHEDULERS
    }


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


def _verdict(grown: Mapping[str, Mapping[str, float]], mixed: int) -> str:
    flat = [name for name, by in grown.items() if by["fries"] < FLAT]
    steep = [f"{name} ({by['fries']:.1f} times)" for name, by in grown.items() if name not in flat]
    text = f"The delay of Fries is flat (less than {FLAT:g} times) in {_listed(flat)}"
    text += f" and grows with {_listed(steep)}" if steep else ""
    late = grown["seconds"]["mini_batch"]
    text += f"; a change at a boundary takes {late:.1f} times as long in the longest micro-batch."
    return f"{text} Transactions that met half of a change: {mixed}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def figure(report: Report) -> Figure:
    """Four panels, one for each question."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.5, 6.4), layout="constrained")
    panels: list[Axes] = list(made.subplots(2, 2).flat)
    for axes, curve in zip(panels, report.data["curves"].values(), strict=True):
        _panel(axes, curve)
    panels[0].legend(title="mean ± 95 %", fontsize=8)
    return made


def _panel(axes: Axes, curve: Mapping[str, Any]) -> None:
    for name in SCHEDULERS:
        colour, line = LOOKS[name]
        mean, half = curve[name]["mean"], curve[name]["half"]
        below = [min(error, 0.9 * value) for value, error in zip(mean, half, strict=True)]
        axes.errorbar(
            curve["values"], mean, yerr=[below, half], color=colour, linestyle=line,
            label=LABELS[name], marker="o", markersize=4, capsize=3,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(curve["values"], [f"{value:,.0f}" for value in curve["values"]])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(curve["label"])
    axes.set_ylabel("delay (ms)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


EXPERIMENT: Final = Experiment(
    "growth",
    "How the delay of a change in one stage grows",
    'table "parallelism-and-mcs-w2", and beyond',
    parts,
    report,
    figure,
)
