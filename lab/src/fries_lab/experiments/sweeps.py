"""Delays of W1's FD against the ingestion rate, and against its cost (sections 8.5 and 8.6)."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from fries_lab.bench import measure
from fries_lab.bench.plots import LABELS, titled
from fries_lab.bench.simulated import DEFAULT_RATE
from fries_lab.experiments.comparisons import Comparison, compare, told
from fries_lab.experiments.estimates import estimate, shown
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import SHOWN, draw_delays, legend_below
from fries_lab.experiments.inference import (
    CAPACITIES,
    CAPACITY,
    LARGE,
    PAPER_CAPACITY,
    TIMES,
    Costly,
    capacity_of,
    pace_of,
    running,
    scaled,
)
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import alone, batch_seconds, last_batch, last_seconds
from fries_lab.experiments.schedule import Schedule
from fries_lab.workloads import simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULERS: Final = ("fries", "epoch")
RATES: Final = (500, 1_500, 2_500)
"""The paper's tuples per second; its ends, and a rate that FD just carries."""
COSTS: Final = (0.025, 0.035, 0.045)
"""Seconds per tuple, likewise: its ends and the middle."""
BUFFER: Final = 6.0
"""Seconds of FD's work in a full micro-batch, before the profile's factor."""
WARM_UP: Final = 30.0
"""Seconds before the first request, before the profile's factor: a quarter of the paper's, enough
for micro-batches to grow to their size."""


@dataclass(frozen=True)
class _Point:
    """A rate and a cost of FD, as in the paper."""

    rate: float = DEFAULT_RATE
    cost: float = simulated.INFERENCE

    @property
    def name(self) -> str:
        return f"{self.rate:g}-per-second-{1e3 * self.cost:g}-ms"


@dataclass(frozen=True)
class _Sweep:
    """Some points, and how they are shown."""

    points: Sequence[_Point]
    what: str
    label: str
    shown_at: Callable[[_Point], float]


def _parts(profile: Profile, sweep: _Sweep) -> Sequence[Part]:
    seconds = 12 + WARM_UP * profile.time + 3.0 * profile.requests
    runs = (Part(one.name, seconds, partial(_run, point=one)) for one in sweep.points)
    return [CAPACITIES, *runs]


def _run(bench: Bench, point: _Point) -> Found:
    """Delays in milliseconds of both schedulers, which take turns at random moments."""
    factor, capacity = bench.profile.time, capacity_of(bench)
    times = TIMES[LARGE] * point.cost / simulated.INFERENCE
    rate = scaled(point.rate, capacity)
    pace = pace_of(bench, Schedule([(0, rate)]), capacity * BUFFER * factor)
    chance, versions = random.Random(0), count(1)
    delays: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    during: list[int] = []
    with running(bench, pace, Costly(LARGE, times)) as run:
        run.sleep_until(WARM_UP * factor)
        for _ in range(bench.profile.requests):
            moment = chance.random()
            for scheduler in chance.sample(SCHEDULERS, len(SCHEDULERS)):
                time.sleep(moment * last_seconds(run.flow))
                during.append(last_batch(run.flow) + 1)
                change = run.change(Costly(LARGE, times, next(versions)), scheduler)
                alone(run.flow, change, during[-1])
                assert change.delay is not None, "it is done"
                delays[scheduler].append(round(1e3 * change.delay, 3))
        batches = batch_seconds(run.flow)
        work = run.flow.counters["FD"]
    return {
        "delays_ms": delays,
        "during": during,
        "rate": rate,
        "cost_ms": 1e3 * work.seconds / max(1, work.taken),
        "batch_seconds": statistics.median(batches),
        "mixed": run.flow.audit().mixed,
    }


def _report(profile: Profile, found: Mapping[str, Found], sweep: _Sweep) -> Report:
    compared = compare(
        {
            f"{sweep.shown_at(point):,g}": (one["fries"], one["epoch"])
            for point in sweep.points
            for one in [found[point.name]["delays_ms"]]
        }
    )
    rows = []
    for point, against in zip(sweep.points, compared.values(), strict=True):
        one = found[point.name]
        simulations = (
            measure.steady_delay(name, point.rate, point.cost, simulated.QUICK, 0).mean
            for name in SCHEDULERS
        )
        rows.append(
            [
                f"{sweep.shown_at(point):,g}",
                *(shown(1e3 * delay) for delay in simulations),
                shown(one["rate"]),
                shown(one["cost_ms"]),
                shown(one["batch_seconds"]),
                *(str(estimate(one["delays_ms"][name])) for name in SCHEDULERS),
                str(against),
                str(one["mixed"]),
            ]
        )
    columns = [
        f"paper's {sweep.label}",
        *(f"simulated {LABELS[name]} (ms)" for name in SCHEDULERS),
        "rows per second",
        "FD (ms per row)",
        "micro-batch (s)",
        *(f"{LABELS[name]} (ms)" for name in SCHEDULERS),
        "Fries against epoch",
        "mixed",
    ]
    title = f"Delay of FD in W1 against {sweep.what}, median [95 % interval]"
    table = Table(title, columns, rows)
    delays = {
        name: [found[point.name]["delays_ms"][name] for point in sweep.points]
        for name in SCHEDULERS
    }
    data = {
        "values": [sweep.shown_at(point) for point in sweep.points],
        "delays_ms": delays,
    }
    mixed = sum(found[point.name]["mixed"] for point in sweep.points)
    verdict = _verdict(compared, delays, sweep, mixed)
    return Report([table], verdict, _scaling(profile, found), data)


def _verdict(
    compared: Mapping[str, Comparison],
    delays: Mapping[str, Sequence[Sequence[float]]],
    sweep: _Sweep,
    mixed: int,
) -> str:
    grown = compare({name: (delays[name][-1], delays[name][0]) for name in SCHEDULERS})
    ends = " ".join(
        f"At the highest {sweep.what}, the delay of {LABELS[name]} is {one.times} times that at "
        f"the lowest ({one.verdict})."
        for name, one in grown.items()
    )
    steeper = grown["epoch"].verdict == "higher"
    paper = "and so it does here" if steeper else "which was NOT found here"
    return (
        f"{told(compared, 'The delay of Fries', 'that of epochs')} {ends} In the paper the delay "
        f"of epochs grows, {paper}. Rows that met a mix of versions: {mixed}."
    )


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    capacity = found[CAPACITY][LARGE]
    return (
        f"FD takes {capacity:,.0f} rows per second here and {PAPER_CAPACITY:,} in the paper; rates "
        f"are multiplied by the ratio, times by {profile.time:g}. FD runs its model "
        f"{TIMES[LARGE]:g} times for a row; where the paper lengthens the user's history, more "
        f"often. A micro-batch has no more than {BUFFER * profile.time:g} s of FD's work at its "
        f"least cost. Each scheduler had {profile.requests} requests, from "
        f"{WARM_UP * profile.time:g} s on: each at a random moment of a micro-batch of its own, "
        "the same moments for both."
    )


def _figure(report: Report, sweep: _Sweep) -> Figure:
    figure, axes = titled(f"W1: delay of FD against {sweep.what} (measured)")
    values = report.data["values"]
    delays = report.data["delays_ms"]
    draw_delays(axes, values, {name: [*map(estimate, delays[name])] for name in SCHEDULERS})
    axes.set_xlabel(f"the paper's {sweep.label}")
    axes.set_xticks(values, [f"{value:,g}" for value in values])
    legend_below(figure, axes, SHOWN)
    return figure


def _experiment(name: str, place: str, sweep: _Sweep) -> Experiment:
    return Experiment(
        name,
        f"Delay against {sweep.what} (W1)",
        place,
        partial(_parts, sweep=sweep),
        partial(_report, sweep=sweep),
        partial(_figure, sweep=sweep),
    )


BY_RATE: Final = _experiment(
    "rate",
    'section "Effect of Data Ingestion Rates", figure "epoch-delay-input-frequency"',
    _Sweep(
        [_Point(rate=rate) for rate in RATES],
        "ingestion rate",
        "rate (tuples/s)",
        lambda point: point.rate,
    ),
)
BY_COST: Final = _experiment(
    "cost",
    'section "Effect of Operator Costs", figure "epoch-delay-operator-cost"',
    _Sweep(
        [_Point(cost=cost) for cost in COSTS],
        "operator cost",
        "cost of FD (ms per tuple)",
        lambda point: 1e3 * point.cost,
    ),
)
