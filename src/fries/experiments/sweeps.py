"""Delays of W1's FD against the ingestion rate, and against its cost (sections 8.5 and 8.6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from fries.bench import measure
from fries.bench.plots import LABELS, titled
from fries.bench.simulated import DEFAULT_RATE
from fries.experiments.estimates import Estimate, estimate, shown
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.figures import draw_delays
from fries.experiments.inference import (
    CAPACITIES,
    CAPACITY,
    LARGE,
    PAPER_CAPACITY,
    TIMES,
    Costly,
    Running,
    capacity_of,
    pace_of,
    running,
    scaled,
)
from fries.experiments.profiles import Profile
from fries.experiments.queries import LOOK, batch_seconds, one_in_each, spread, until
from fries.experiments.schedule import Schedule
from fries.reconfiguration import Reconfiguration
from fries.workloads import simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULERS: Final = ("fries", "epoch")
RATES: Final = (500, 1_500, 2_500)
"""The paper's tuples per second; its ends, and a rate that FD just carries."""
COSTS: Final = (0.025, 0.035, 0.045)
"""Seconds per tuple, likewise: its ends and the middle."""
BUFFER: Final = 20.0
"""Seconds of FD's work in a full micro-batch, before the profile's factor."""

ROUNDS: Final = 2
"""Micro-batches per scheduler in which changes are requested."""
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
    seconds = 8 + WARM_UP * profile.time + 10 * ROUNDS
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
    with running(bench, pace, Costly(LARGE, times)) as run:
        run.sleep_until(WARM_UP * factor)
        for _ in range(ROUNDS):
            moments = one_in_each(chance, bench.profile.requests // ROUNDS)
            for scheduler in SCHEDULERS:
                functions = (Costly(LARGE, times, version) for version in versions)
                delays[scheduler] += _delays(run, functions, scheduler, moments)
        batches = batch_seconds(run.flow)
        work = run.flow.counters["FD"]
    return {
        "delays_ms": delays,
        "rate": rate,
        "cost_ms": 1e3 * work.seconds / max(1, work.taken),
        "batch_seconds": batches[-1],
        "mixed": run.flow.audit().mixed,
    }


def _delays(
    run: Running, functions: Iterator[Costly], scheduler: str, moments: Sequence[float]
) -> list[float]:
    """How long changes at some moments of a micro-batch took, once it has ended."""

    def ask() -> Reconfiguration:
        change = run.change(next(functions), scheduler)
        until(lambda: change.wait(LOOK), run.flow)
        return change

    changes = spread(moments, batch_seconds(run.flow)[-1], ask)
    until(lambda: all(change.state == "done" for change in changes), run.flow)
    return [round(1e3 * change.delay, 3) for change in changes if change.delay is not None]


def _report(profile: Profile, found: Mapping[str, Found], sweep: _Sweep) -> Report:
    rows, means = [], []
    for point in sweep.points:
        one = found[point.name]
        mine = {name: estimate(one["delays_ms"][name]) for name in SCHEDULERS}
        means.append(mine)
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
                *(str(mine[name]) for name in SCHEDULERS),
                str(one["mixed"]),
            ]
        )
    columns = [
        f"paper's {sweep.label}",
        *(f"simulated {LABELS[name]} (ms)" for name in SCHEDULERS),
        "rows per second",
        "FD (ms per row)",
        "last micro-batch (s)",
        *(f"{LABELS[name]} (ms)" for name in SCHEDULERS),
        "mixed",
    ]
    table = Table(f"Delay of FD in W1 against {sweep.what}", columns, rows)
    data = {
        "values": [sweep.shown_at(point) for point in sweep.points],
        "delays_ms": {
            name: [found[point.name]["delays_ms"][name] for point in sweep.points]
            for name in SCHEDULERS
        },
    }
    mixed = sum(found[point.name]["mixed"] for point in sweep.points)
    return Report([table], _verdict(means, sweep, mixed), _scaling(profile, found), data)


def _verdict(means: Sequence[Mapping[str, Estimate]], sweep: _Sweep, mixed: int) -> str:
    grows = {name: means[-1][name].mean / means[0][name].mean for name in SCHEDULERS}
    least = min(one["epoch"].mean / one["fries"].mean for one in means)
    told = "less than" if least > 1 else "not always less than"
    same = "more than" if grows["epoch"] > grows["fries"] else "no more than"
    return (
        f"The delay of Fries is {told} that of epochs ({shown(least)} times less, at least). "
        f"From the first to the last {sweep.what}, the delay of epochs grows "
        f"{shown(grows['epoch'])} times, {same} that of Fries ({shown(grows['fries'])} times); "
        f"in the paper it grows much faster. Rows that met a mix of versions: {mixed}."
    )


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    capacity = found[CAPACITY][LARGE]
    return (
        f"FD takes {capacity:,.0f} rows per second here and {PAPER_CAPACITY:,} in the paper; rates "
        f"are multiplied by the ratio, times by {profile.time:g}. FD runs its model "
        f"{TIMES[LARGE]:g} times for a row; where the paper lengthens the user's history, more "
        f"often. A micro-batch has no more than {BUFFER * profile.time:g} s of FD's work at its "
        f"least cost. Each scheduler had {profile.requests} requests, from "
        f"{WARM_UP * profile.time:g} s on: one at a random moment of each of "
        f"{profile.requests // ROUNDS} equal parts of {ROUNDS} micro-batches; ± is the 95 % "
        "interval."
    )


def _figure(report: Report, sweep: _Sweep) -> Figure:
    figure, axes = titled(f"W1: delay of FD against {sweep.what} (measured)")
    values = report.data["values"]
    delays = report.data["delays_ms"]
    draw_delays(axes, values, {name: [*map(estimate, delays[name])] for name in SCHEDULERS})
    axes.set_xlabel(f"the paper's {sweep.label}")
    axes.set_xticks(values, [f"{value:,g}" for value in values])
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
