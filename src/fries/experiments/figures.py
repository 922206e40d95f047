"""What the figures of measurements have in common; they look like those of the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fries.bench.plots import LABELS, LOOKS
from fries.experiments.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_delays(
    axes: Axes, values: Sequence[float], delays: Mapping[str, Sequence[Estimate]]
) -> None:
    """Delays in milliseconds of some schedulers on a logarithmic axis, with their intervals."""
    for name, found in delays.items():
        axes.errorbar(
            values,
            [one.mean for one in found],
            yerr=[[_down(one) for one in found], [one.half or 0.0 for one in found]],
            color=LOOKS[name][0],
            label=LABELS[name],
            marker="o",
            markersize=4,
            capsize=3,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("reconfiguration delay (ms)")
    axes.legend(title="mean, 95 % interval")


def _down(one: Estimate) -> float:
    """How far an interval reaches down: a logarithmic axis has no zero."""
    return min(one.half or 0.0, 0.9 * one.mean)
