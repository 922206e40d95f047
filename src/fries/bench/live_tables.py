"""The paper's tables of delays, measured on Spark: each function makes one record.

A record is plain data, to be kept as JSON: what was run, and for each row of the table the
delays in milliseconds with their mean and its 95 % confidence interval, beside the paper's.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fries.bench import paper_numbers as paper
from fries.bench.live import Query40, Query71, Targets, Trial, TwoModels, Workflow, delays
from fries.workloads import generate, w2, w3
from fries.workloads.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYOUTS: Final[tuple[Layout, ...]] = ("fused", "exchanged")
SCHEDULERS: Final = ("fries", "epoch", "mini_batch", "restart")
PRUNING: Final = ("fries", "fries_unpruned")
STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's distribution for 1 to 30 degrees of freedom."""
BEYOND: Final = 2.04
"""For more degrees of freedom: a little too wide, never too narrow."""
Measured: TypeAlias = Mapping[str, Mapping[Targets, list[float]]]
"""Delays in seconds, by scheduler and targets."""


@dataclass(frozen=True)
class Profile:
    """How much is run."""

    name: str
    scale: float
    """Scale factor of the TPC-DS tables."""
    payments: int
    """Payments in a micro-batch of W5."""
    requests: int
    """Changes per row of a table and scheduler."""


QUICK: Final = Profile("quick", scale=0.1, payments=4_000, requests=3)
"""Micro-batches of a few seconds on two cores."""
PAPER: Final = Profile("paper", scale=100.0, payments=100_000, requests=30)
"""For a cluster."""


def tpcds_delays(
    spark: SparkSession, data: Path, profile: Profile, advance: Callable[[], object]
) -> dict[str, Any]:
    """The table of W2 and W3: four schedulers, two layouts."""
    flows: dict[str, tuple[Workflow, Sequence[paper.DelayNumbers]]] = {
        "W2": (Query40(w2.sales(spark, data), w2.tables(data)), paper.W2),
        "W3": (Query71(w3.sales(spark, data), w3.tables(data)), paper.W3),
    }
    rows = []
    for name, (workflow, numbers) in flows.items():
        targets = [row.targets for row in numbers]
        for layout in LAYOUTS:
            found = _by_scheduler(workflow, layout, SCHEDULERS, targets, profile, advance)
            rows += [
                {
                    "workflow": name,
                    "layout": layout,
                    **asdict(row),
                    **_summaries(found, row.targets),
                }
                for row in numbers
            ]
    return {"experiment": "tpcds_delays", "profile": asdict(profile), "rows": rows}


def pruning(
    spark: SparkSession, data: Path, profile: Profile, advance: Callable[[], object]
) -> dict[str, Any]:
    """The table of W5: with and without pruning, two layouts."""
    payments = generate.read_payments(spark, data).orderBy("id").limit(profile.payments)
    workflow = TwoModels(payments)
    rows = []
    for layout in LAYOUTS:
        targets = [row.targets for row in paper.W5]
        found = _by_scheduler(workflow, layout, PRUNING, targets, profile, advance)
        rows += [
            {"workflow": "W5", "layout": layout, **asdict(row), **_summaries(found, row.targets)}
            for row in paper.W5
        ]
    return {"experiment": "pruning", "profile": asdict(profile), "rows": rows}


def steps(experiment: str, profile: Profile) -> int:
    """How often an experiment will say that it has advanced."""
    rows, schedulers = {
        "tpcds_delays": (len(paper.W2) + len(paper.W3), SCHEDULERS),
        "pruning": (len(paper.W5), PRUNING),
    }[experiment]
    return rows * len(schedulers) * len(LAYOUTS) * profile.requests


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Delays in milliseconds, with their mean and half the width of its interval."""
    milliseconds = [round(1e3 * one, 2) for one in seconds]
    count = len(milliseconds)
    half = math.nan
    if count > 1:
        quantile = STUDENT[count - 2] if count - 2 < len(STUDENT) else BEYOND
        half = quantile * statistics.stdev(milliseconds) / math.sqrt(count)
    return {
        "delays_ms": milliseconds,
        "mean_ms": round(statistics.fmean(milliseconds), 2),
        "ci95_ms": None if math.isnan(half) else round(half, 2),
    }


def _by_scheduler(
    workflow: Workflow,
    layout: Layout,
    schedulers: Sequence[str],
    targets: Sequence[Targets],
    profile: Profile,
    advance: Callable[[], object],
) -> Measured:
    """One query for each scheduler, on the same rows; random pauses, as shares of a micro-batch."""
    found = {}
    for scheduler in schedulers:
        trial = Trial(workflow, layout, scheduler, targets, profile.requests)
        with tempfile.TemporaryDirectory(prefix="fries-experiment-") as place:
            found[scheduler] = delays(trial, Path(place), advance)
    return found


def _summaries(found: Measured, targets: Targets) -> dict[str, Any]:
    return {"measured": {scheduler: summary(of[targets]) for scheduler, of in found.items()}}
