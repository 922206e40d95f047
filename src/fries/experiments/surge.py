"""W1 under a surge: latency while the rate rises twice and FD gets cheaper models (section 8.3).

Latency is measured where rows reach the last operator of the flow, as at the paper's sink
operator. Rows become visible in the Parquet files of the sink when their micro-batch commits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from fries.bench import measure
from fries.bench import paper_numbers as paper
from fries.bench.plots import LABELS, LOOKS, titled
from fries.experiments.curves import Curve, windowed
from fries.experiments.estimates import shown
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.inference import (
    CAPACITIES,
    CAPACITY,
    LARGE,
    PAPER_CAPACITY,
    SMALL,
    TIMES,
    TREE,
    Running,
    capacity_of,
    inference,
    pace_of,
    running,
    scaled,
)
from fries.experiments.profiles import Profile
from fries.experiments.queries import RESTART, settle
from fries.experiments.schedule import Schedule
from fries.reconfiguration import Reconfiguration
from fries.workloads import simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULERS: Final = (measure.NO_CHANGE, "fries", "epoch", "mini_batch", RESTART)
BUFFER: Final = 50.0
"""Seconds of FD's work in a full micro-batch, before the factor. The next one fills up
meanwhile, so that latency settles near the paper's 70 s when rows come faster than FD is."""
SKIPPED: Final = 80
"""Seconds at the paper's beginning that are left out: nothing happens in the first 100."""
PLANNED: Final = 1.0
"""Seconds from the beginning of a micro-batch until its rows are processed, about."""
LONGER: Final = 2.0
"""What the profile's factor of time is multiplied by: a micro-batch must take seconds, or else it
ends before anything could go wrong in it."""
STEP: Final = 2.0
"""Seconds between two points of a curve, before the factor."""
_END: Final = simulated.SURGE_END - SKIPPED
_RATES: Final = tuple((max(0, begin - SKIPPED), rate) for begin, rate in simulated.SURGE_RATES)
_REQUESTS: Final = tuple(
    (second - SKIPPED, model)
    for second, model in zip(simulated.SURGE_REQUESTS, (SMALL, TREE), strict=True)
)


def _parts(profile: Profile) -> Sequence[Part]:
    seconds = _END * _factor(profile) + 8
    runs = (Part(name, seconds, partial(_run, scheduler=name)) for name in SCHEDULERS)
    return [CAPACITIES, *runs]


def _factor(profile: Profile) -> float:
    """What the paper's times are multiplied by; never more than one."""
    return min(1.0, profile.time * LONGER)


def _run(bench: Bench, scheduler: str) -> Found:
    """Latency over time, and the delays of both changes."""
    factor, capacity = _factor(bench.profile), capacity_of(bench)
    rates = [(begin * factor, scaled(rate, capacity)) for begin, rate in _RATES]
    end, schedule = _END * factor, Schedule(rates)
    pace = pace_of(bench, schedule, capacity * BUFFER * factor)
    changes = []
    with running(bench, pace, inference()) as run:
        for second, model in _REQUESTS if scheduler != measure.NO_CHANGE else ():
            run.sleep_until(second * factor)
            settle(run.flow)  # so that all schedulers meet a micro-batch at its beginning
            time.sleep(PLANNED)
            changes.append((time.time(), run.change(inference(model), scheduler)))
        run.sleep_until(end)
    rows = run.rows("born", "arrived")
    arrived = rows["arrived"] - run.clock
    latency = rows["arrived"] - rows["born"]
    curve = windowed(arrived, latency, end, measure.WINDOW * factor, STEP * factor).aged()
    verdict = run.flow.audit()
    return {
        **asdict(curve),
        "requested": [moment - run.clock for moment, _ in changes],
        "delays": [
            _delay(run, scheduler, number, *change) for number, change in enumerate(changes, 1)
        ],
        "rates": rates,
        "limit": pace.limit,
        "rows": int((arrived <= end).sum()),
        "scheduled": schedule.due(end),
        "mixed": verdict.mixed,
    }


def _delay(
    run: Running, scheduler: str, version: int, requested: float, change: Reconfiguration
) -> float | None:
    """Until no row met the old version; of a restart, until a row has met the new one."""
    if scheduler != RESTART:
        return change.delay
    first = run.first_use(version)
    return None if first is None else first - requested


def _report(profile: Profile, found: Mapping[str, Found]) -> Report:
    curves = {name: Curve.of(found[name]) for name in SCHEDULERS}
    simulations = {name: measure.surge(name, simulated.QUICK, 0) for name in SCHEDULERS}
    first = _REQUESTS[0][0] * _factor(profile)
    judged = {name: curve.since(first) for name, curve in curves.items()}
    columns = ("delays (s)", "peak latency (s)", "final (s)", "area / Fries")
    measured = Table(
        "Latency of W1 from the first request on",
        ["", "paper", *(f"simulated {c}" for c in columns), *columns, "rows taken", "mixed"],
        [
            [
                LABELS[name],
                paper.SURGE.get(name, "-"),
                *_described(_simulated_curve(simulations), name, simulations[name].delays),
                *_described(judged, name, found[name]["delays"]),
                f"{found[name]['rows'] / found[name]['scheduled']:.0%}",
                str(found[name]["mixed"]),
            ]
            for name in SCHEDULERS
        ],
    )
    data = {
        "curves": {name: asdict(curve) for name, curve in curves.items()},
        "rates": found[SCHEDULERS[0]]["rates"],
        "requests": {name: found[name]["requested"] for name in SCHEDULERS},
        "window": measure.WINDOW * _factor(profile),
    }
    return Report(
        [measured, _capacities(found)],
        _verdict(found, judged),
        _scaling(profile, found),
        data,
    )


def _simulated_curve(simulations: Mapping[str, measure.Surge]) -> dict[str, Curve]:
    first = simulated.SURGE_REQUESTS[0] * simulated.QUICK.time
    return {name: Curve(run.seconds, run.latency).since(first) for name, run in simulations.items()}


def _described(curves: Mapping[str, Curve], name: str, delays: Sequence[float | None]) -> list[str]:
    """Delays, peak, final and area of one curve among others."""
    curve = curves[name]
    told = ", ".join("not ended" if one is None else shown(one) for one in delays)
    ratio = curve.area / curves["fries"].area
    return [told or "-", shown(curve.peak), shown(curve.final), shown(ratio)]


def _capacities(found: Mapping[str, Found]) -> Table:
    """What each model can carry, and what it gets."""
    capacity, rates = found[CAPACITY], found[SCHEDULERS[0]]["rates"]
    return Table(
        "What FD can take here, and the rate that it must take (rows per second)",
        ["model", "runs per row", "capacity", "rate", "is that enough?"],
        [
            [
                model,
                f"{TIMES[model]:g}",
                shown(capacity[model]),
                shown(rate),
                _enough(capacity[model], rate),
            ]
            for model, (_, rate) in zip(TIMES, rates, strict=True)
        ],
    )


def _enough(capacity: float, rate: float) -> str:
    return "yes" if capacity >= rate else f"no: {capacity / rate:.0%} of it"


def _verdict(found: Mapping[str, Found], curves: Mapping[str, Curve]) -> str:
    others = [name for name in SCHEDULERS if name not in ("fries", measure.NO_CHANGE)]
    first = {name: found[name]["delays"][0] for name in ("fries", *others)}
    areas = {name: curve.area for name, curve in curves.items()}
    quick = all(
        one is None or first["fries"] < one for name, one in first.items() if name != "fries"
    )
    least = min(areas, key=areas.__getitem__) == "fries"
    mixed = sum(found[name]["mixed"] for name in SCHEDULERS)
    capacity, rates = found[CAPACITY], found[SCHEDULERS[0]]["rates"]
    weak = [model for model, (_, rate) in zip(TIMES, rates, strict=True) if capacity[model] < rate]
    return " ".join(
        [
            f"As in the paper, Fries applied the first change soonest ({shown(first['fries'])} s)."
            if quick
            else "Unlike in the paper, another scheduler applied the first change before Fries.",
            "From then on its latency curve has the least area under it."
            if least
            else "From then on another scheduler has less area under its latency curve.",
            f"Rows that met a mix of versions: {mixed}.",
            f"Too slow for its rate on this machine: {', '.join(weak)}." if weak else "",
        ]
    ).rstrip()


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    capacity, factor = found[CAPACITY][LARGE], _factor(profile)
    return (
        f"Times are the paper's, multiplied by {factor:g}. FD takes {shown(capacity)} rows per "
        f"second here, if Spark takes no time at all, and {PAPER_CAPACITY:,} in the paper; rates "
        f"are multiplied by the ratio, {shown(capacity / PAPER_CAPACITY)}. The LSTM is run "
        f"{TIMES[LARGE]:g} times for a row and the smaller one {TIMES[SMALL]:g} times, so that it "
        "carries the first surge and not the second one, as in the paper. "
        f"The paper's first {SKIPPED} s, in which nothing happens, are left out. A micro-batch "
        "begins when the one before has ended; both requests come when the first rows of the next "
        "micro-batch after the paper's moments are processed, with every scheduler. A micro-batch "
        f"takes what is due, {found[SCHEDULERS[0]]['limit']:,} rows at most; then the source is "
        "held back, as by back-pressure in the paper. Latency is measured where a row reaches the "
        "operator after FD; the files of the sink show it when its micro-batch has ended. A "
        "restart's delay is counted until a row has met the new model, the others' until no row "
        "met the old one."
    )


def _figure(report: Report) -> Figure:
    data = report.data
    figure, axes = titled("W1: latency while the rate rises (measured)")
    for begin, rate in data["rates"]:
        axes.axvline(begin, color="0.85", linewidth=1, zorder=0)
        axes.annotate(
            f" {rate:,.0f}/s",
            (begin, 1.0),
            xycoords=("data", "axes fraction"),
            verticalalignment="top",
            color="0.4",
            fontsize=7,
        )
    for name in SCHEDULERS:
        colour, line = LOOKS[name]
        moments, values = Curve.of(data["curves"][name]).known
        axes.plot(moments, values, line, color=colour, label=LABELS[name])
        asked = data["requests"][name]
        axes.plot(asked, np.interp(asked, moments, values), "o", color=colour, markersize=7)
    axes.plot([], [], "o", color="black", markersize=7, label="reconfiguration requested")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(f"mean latency of rows,\n{data['window']:g}-second windows (s)")
    axes.margins(x=0.01, y=0.12)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.01, 0.93))
    return figure


EXPERIMENT: Final = Experiment(
    "surge",
    "Latency under a surge of payments (W1)",
    'section "Reducing End-to-end Tuple Latency", figure "throughput-compare"',
    _parts,
    _report,
    _figure,
)
