"""One picture of the engine's benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS: Final = {"fries": "#2a78b5", "mini_batch": "#e08a2e", "restart": "#b03a3a"}


def plot(record: dict[str, Any], path: Path) -> None:
    """Whatever of delays, throughput and state size has been measured."""
    panels = [
        (name, draw)
        for name, draw in (("delays", _delays), ("throughput", _throughput), ("states", _states))
        if name in record
    ]
    if not panels:
        return
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (name, draw) in zip(axes[0], panels, strict=True):
        draw(axis, record[name])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _delays(axis: Axes, rows: list[dict[str, Any]]) -> None:
    costs = sorted({row["cost_ms"] for row in rows})
    for place, scheduler in enumerate(COLOURS):
        found = {row["cost_ms"]: row for row in reversed(rows) if row["scheduler"] == scheduler}
        places = [index + place * 0.27 for index, cost in enumerate(costs) if cost in found]
        heights = [found[cost]["p50_ms"] for cost in costs if cost in found]
        above = [found[cost]["p99_ms"] - found[cost]["p50_ms"] for cost in costs if cost in found]
        axis.bar(
            places,
            heights,
            width=0.25,
            yerr=[[0] * len(above), above],
            label=scheduler,
            color=COLOURS[scheduler],
        )
    axis.set_xticks(
        [index + 0.27 for index in range(len(costs))], [f"{cost:g} ms" for cost in costs]
    )
    axis.set_yscale("log")
    axis.set_xlabel("cost of a row")
    axis.set_ylabel("delay, ms (median, line to p99)")
    axis.set_title("delay of a change")
    axis.legend()


def _throughput(axis: Axes, groups: dict[str, list[dict[str, Any]]]) -> None:
    rows = [row for found in groups.values() for row in found]
    names = [f"{row['what']}" for row in rows]
    axis.barh(range(len(rows)), [row["rows_per_second"] for row in rows], color="#2a78b5")
    axis.set_yticks(range(len(rows)), names, fontsize=7)
    axis.set_xscale("log")
    axis.set_xlabel("rows per second")
    axis.set_title("without any change")


def _states(axis: Axes, rows: list[dict[str, Any]]) -> None:
    axis.plot([row["keys"] for row in rows], [row["batch_seconds"] for row in rows], marker="o")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("keys in the state (10,000 touched)")
    axis.set_ylabel("seconds per batch")
    axis.set_title("batch time and state size")
