"""What the figures of measurements have in common; they look like those of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fries_lab.bench.plots import LABELS, LOOKS
from fries_lab.experiments.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN: Final = "median, 95 % interval"
INCHES: Final = 0.42
"""Height of a row."""


class Panel(NamedTuple):
    """Rows of a table as points with intervals."""

    title: str
    rows: Sequence[str]
    series: Mapping[str, Sequence[Estimate | None]]
    """By scheduler, one for each row; ``None`` where it was not measured."""

    def kept(self) -> dict[str, Any]:
        """The same as plain data, for the record."""
        series = {
            name: [None if one is None else asdict(one) for one in values]
            for name, values in self.series.items()
        }
        return {"title": self.title, "rows": list(self.rows), "series": series}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Panel:
        """A panel that was kept as JSON."""
        series = {
            name: [None if one is None else Estimate(**one) for one in values]
            for name, values in found["series"].items()
        }
        return cls(found["title"], found["rows"], series)


def draw_rows(
    title: str, label: str, panels: Sequence[Panel], log: bool = True, legend: bool = True
) -> Figure:
    """A figure for tables: a row for each of theirs, a point for each scheduler."""
    from matplotlib.figure import Figure

    every = [x for panel in panels for found in panel.series.values() for x in found if x]
    heights = [len(panel.rows) for panel in panels]
    figure = Figure(figsize=(8.0, 1.6 + INCHES * sum(heights) + 0.5 * len(panels)))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    for one, panel in zip(axes, panels, strict=True):
        _panel(one, panel)
        if log:
            _logarithmic(one.set_xscale, one.set_xlim, every)
        else:
            one.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        one.xaxis.set_major_formatter("{x:,.10g}")
    axes[-1].set_xlabel(f"{label}; {SHOWN}")
    figure.suptitle(title, fontsize=11)
    if legend:
        legend_below(figure, axes[0])
    return figure


def _logarithmic(
    scale: Callable[..., Any], limit: Callable[..., Any], found: Sequence[Estimate]
) -> None:
    """A logarithmic axis; where there are delays of 0, one that begins there."""
    lowest = min((min(_ends(one)) for one in found), default=1.0)
    if lowest > 0:
        scale("log")
        limit(*decades(found))
    else:
        scale("symlog", linthresh=1.0)
        limit(min(-0.1, 2 * lowest))


def _panel(axes: Axes, panel: Panel) -> None:
    count = len(panel.series)
    for number, (name, found) in enumerate(panel.series.items()):
        off = 0.6 * ((number + 0.5) / count - 0.5)
        known = [(row + off, one) for row, one in enumerate(found) if one is not None]
        axes.errorbar(
            [one.value for _, one in known],
            [place for place, _ in known],
            xerr=whiskers([one for _, one in known]),
            color=LOOKS[name][0],
            label=LABELS[name],
            linestyle="none",
            marker="o",
            markersize=4,
            capsize=2,
        )
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=8)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_title(panel.title, fontsize=9, loc="left")
    plain(axes)


def draw_delays(
    axes: Axes, values: Sequence[float], delays: Mapping[str, Sequence[Estimate]]
) -> None:
    """Delays in milliseconds of some schedulers on a logarithmic axis, with their intervals."""
    for name, found in delays.items():
        colour, line = LOOKS[name]
        axes.errorbar(
            values,
            [one.value for one in found],
            yerr=whiskers(found),
            color=colour,
            linestyle=line,
            label=LABELS[name],
            marker="o",
            markersize=4,
            capsize=3,
        )
    every = [one for some in delays.values() for one in some]
    _logarithmic(axes.set_yscale, axes.set_ylim, every)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("reconfiguration delay (ms)")
    plain(axes)


def decades(found: Sequence[Estimate]) -> tuple[float, float]:
    """Powers of ten around all intervals, so that a logarithmic axis has numbers at both ends.

    What is not above 0 has no place there; one decade if nothing is left.
    """
    ends = [end for one in found for end in _ends(one) if end > 0] or [1.0]
    first = math.floor(math.log10(min(ends)))
    return 10.0**first, 10.0 ** max(first + 1, math.ceil(math.log10(max(ends))))


def _ends(one: Estimate) -> tuple[float, float]:
    """From where to where its interval reaches."""
    low = one.value if one.low is None else one.low
    return low, one.value if one.high is None else one.high


def whiskers(found: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """How far intervals reach to both sides: all of them, whatever the axis."""
    down = [0.0 if one.low is None else one.value - one.low for one in found]
    up = [0.0 if one.high is None else one.high - one.value for one in found]
    return down, up


def legend_below(figure: Figure, axes: Axes, title: str = "") -> None:
    """A legend where no data can be."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, title=title or None, loc="outside lower center", ncols=len(labels),
        fontsize=8, title_fontsize=8, frameon=False,
    )  # fmt: skip


def plain(axes: Axes) -> None:
    """Light lines, and no box."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
