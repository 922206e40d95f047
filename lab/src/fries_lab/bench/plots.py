"""Results as figures (PNG).

Figures are made without pyplot: no global state, no window, the same file every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.measure import WINDOW, Delays
from fries_lab.bench.simulated import DelayTable, Inference, ParallelismRow, Result, SweepPoint
from fries_lab.workloads.simulated import SURGE_RATES, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS: Final = {
    "none": "no reconfiguration",
    "epoch": "epoch",
    "mini_batch": "mini-batch",
    "restart": "restart",
    "fries": "Fries",
    "fries_unpruned": "unpruned",
    "naive": "naive",
}
LOOKS: Final = {
    "none": ("0.45", "-"),
    "epoch": ("tab:red", "-"),
    "mini_batch": ("tab:blue", "--"),
    "restart": ("tab:orange", ":"),
    "fries": ("tab:green", "-"),
    "fries_unpruned": ("tab:purple", "--"),
}
"""Colour and line of each scheduler, the same in all figures."""


def draw(workflow: str, result: Result, scale: Scale, out: Path) -> list[Path]:
    """Draw the figures of a workflow into a directory; the files that were written."""
    match result:
        case Inference():
            figures = {
                "surge": _surge(result, scale),
                "invalid": _invalid(result),
                "rate": _sweep(
                    "ingestion rate",
                    "ingestion rate (tuples/s)",
                    [point.rate for point in result.by_rate],
                    result.by_rate,
                ),
                "cost": _sweep(
                    "operator cost",
                    "cost of FD (ms per tuple)",
                    [point.cost * 1e3 for point in result.by_cost],
                    result.by_cost,
                ),
            }
        case DelayTable(parallelism=rows) if rows:
            figures = {"parallelism": _parallelism(rows)}
        case _:
            figures = {}
    written = []
    for name, figure in figures.items():
        path = out / f"{workflow.lower()}-{name}.png"
        figure.savefig(path, dpi=150)
        written.append(path)
    return written


def _surge(result: Inference, scale: Scale) -> Figure:
    figure, axes = titled("W1: latency while the rate rises (simulated)")
    for start, rate in SURGE_RATES:
        axes.axvline(start * scale.time, color="0.85", linewidth=1, zorder=0)
        axes.annotate(
            f" {rate:,}/s",
            (start * scale.time, 1.0),
            xycoords=("data", "axes fraction"),
            verticalalignment="top",
            color="0.4",
            fontsize=7,
        )
    for run in result.surge:
        colour, line = LOOKS[run.scheduler]
        latency = [float("nan") if value is None else value for value in run.latency]
        axes.plot(run.seconds, latency, line, color=colour, label=LABELS[run.scheduler])
    for number, moment in enumerate(result.surge[-1].requests):
        label = "reconfiguration requested" if number == 0 else None
        axes.axvline(moment, color="black", linewidth=0.8, linestyle="-.", label=label)
    axes.set_xlabel("time (simulated s)")
    axes.set_ylabel(f"mean end-to-end latency,\n{WINDOW * scale.time:g}-second windows (s)")
    axes.margins(x=0.01, y=0.12)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.01, 0.93))
    return figure


def _invalid(result: Inference) -> Figure:
    figure, axes = titled("W1: invalid tuples (simulated)")
    for count in result.invalid:
        colour, line = LOOKS[count.scheduler]
        thousands = [value / 1e3 for value in count.count]
        printed = paper.INVALID_TUPLES[count.scheduler] / 1e3
        label = f"{LABELS[count.scheduler]}: {thousands[-1]:,.0f}K (paper {printed:,.0f}K)"
        axes.plot(count.seconds, thousands, line, color=colour, label=label)
    axes.set_xlabel("time (simulated s)")
    axes.set_ylabel("invalid tuples so far (thousands)")
    axes.legend(fontsize=9, loc="upper left")
    axes.set_xlim(0, result.invalid[0].seconds[-1] * 1.01)
    axes.set_ylim(bottom=0)
    return figure


def _sweep(what: str, label: str, values: Sequence[float], points: Sequence[SweepPoint]) -> Figure:
    figure, axes = titled(f"W1: reconfiguration delay against {what} (simulated)")
    _both(axes, values, [point.fries for point in points], [point.epoch for point in points])
    axes.set_xlabel(label)
    axes.set_xticks(values, [f"{value:,g}" for value in values])
    return figure


def _parallelism(rows: Sequence[ParallelismRow]) -> Figure:
    figure, axes = titled("W2: delay of {J1, J4} against workers (simulated)")
    workers = [row.workers for row in rows]
    _both(axes, workers, [row.fries for row in rows], [row.epoch for row in rows])
    axes.set_xlabel("workers per operator")
    axes.set_xticks(workers)
    return figure


def _both(
    axes: Axes, values: Sequence[float], fries: Sequence[Delays], epoch: Sequence[Delays]
) -> None:
    """Delays of both schedulers on a logarithmic axis, with standard deviations."""
    for name, found in (("epoch", epoch), ("fries", fries)):
        axes.errorbar(
            values,
            [delays.mean * 1e3 for delays in found],
            yerr=[delays.spread * 1e3 for delays in found],
            color=LOOKS[name][0],
            label=LABELS[name],
            marker="o",
            markersize=4,
            capsize=3,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("reconfiguration delay (simulated ms)")
    several = any(len(delays.seconds) > 1 for delays in fries)
    axes.legend(title="mean ± standard deviation" if several else None)


def titled(title: str) -> tuple[Figure, Axes]:
    """An empty figure, as all of them look."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
