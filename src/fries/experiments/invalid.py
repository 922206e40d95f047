"""Invalid rows of W1: rows carry a version, FD's follows some time later (section 8.4).

A row is invalid if its version is not the one that FD has when it gets there. The source is
back-pressured: it could make rows faster than FD takes them, and makes them just before they are
taken. A micro-batch stands for the queue in front of FD.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fries.bench import measure
from fries.bench import paper_numbers as paper
from fries.bench.plots import LABELS, LOOKS, titled
from fries.bench.simulated import INVALID_SCHEDULERS
from fries.experiments.curves import Curve, counted
from fries.experiments.estimates import shown
from fries.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries.experiments.inference import (
    CAPACITIES,
    CAPACITY,
    LARGE,
    PAPER_CAPACITY,
    capacity_of,
    inference,
    pace_of,
    running,
    scaled,
)
from fries.experiments.profiles import Profile
from fries.experiments.queries import batch_seconds
from fries.experiments.schedule import Schedule
from fries.workloads import simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULERS: Final = INVALID_SCHEDULERS
QUEUE: Final = 15.0
"""Seconds of FD's work in a micro-batch, before the profile's factor. The paper's numbers imply a
queue of 30 s (see ``simulated.INVALID_BUFFER``). But if a micro-batch takes longer than FD's
version lags behind, what is invalid depends on where in it the versions rise, and there are few
of them; so it is half as long."""
LONGEST: Final = 68.0
"""Seconds of a micro-batch up to which Fries leaves fewer invalid rows than epochs, before the
profile's factor. If versions rise at any moment of one that takes d seconds, epochs leave the
lag's 20 s invalid on average, and Fries ``(20 * 10 + (d - 20) ** 2 / 2) / d``."""
STEP: Final = 2.0
"""Seconds between two points of a curve, before the profile's factor."""
CHANGES: Final = range(1, measure.VERSIONS_END // measure.VERSION_PERIOD)
"""Versions after the first one."""
EVER_INVALID: Final = 1 - measure.VERSION_PERIOD / measure.VERSIONS_END
"""Share of the tuples that come after the first version: invalid if FD's version stays."""


class Versioned:
    """An inference that has a version, and notes it in the row."""

    def __init__(self, version: int) -> None:
        self._inference = inference(LARGE, version)
        self._version = version

    def __call__(self, state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Take a payment."""
        state, made = self._inference(state, row)
        return state, {**made, "v2": self._version}


def _parts(profile: Profile) -> Sequence[Part]:
    seconds = measure.VERSIONS_END * profile.time + 10
    runs = (Part(name, seconds, partial(_run, scheduler=name)) for name in SCHEDULERS)
    return [CAPACITIES, *runs]


def _run(bench: Bench, scheduler: str) -> Found:
    """Invalid rows over time."""
    factor, capacity = bench.profile.time, capacity_of(bench)
    period, end = measure.VERSION_PERIOD * factor, measure.VERSIONS_END * factor
    rate = scaled(simulated.INVALID_RATE, capacity)
    pace = pace_of(bench, Schedule([(0, rate)]), capacity * QUEUE * factor, pulled=True)
    version = f"cast(floor(due / {period}) as long) as v1"
    with running(
        bench, pace, Versioned(0), lambda rows: rows.selectExpr("*", version), ", v1 long, v2 long"
    ) as run:
        changes = []
        for number in CHANGES if scheduler != measure.NO_CHANGE else ():
            run.sleep_until(number * period + measure.VERSION_LAG * factor)
            changes.append(run.change(Versioned(number), scheduler))
        run.sleep_until(end)
        work = run.flow.counters["FD"]
        batches = batch_seconds(run.flow)
    rows = run.rows("arrived", "v1", "v2")
    arrived = rows["arrived"] - run.clock
    wrong = arrived[rows["v1"] != rows["v2"]]
    return {
        **asdict(counted(wrong, end, STEP * factor)),
        "rows": int((arrived <= end).sum()),
        "rate": rate,
        "limit": pace.limit,
        "batch_seconds": statistics.fmean(batches),
        "cost": work.seconds / max(1, work.taken),
        "delays": [change.delay for change in changes],
        "mixed": run.flow.audit().mixed,
    }


def _report(profile: Profile, found: Mapping[str, Found]) -> Report:
    wrong = {name: int(Curve.of(found[name]).final) for name in SCHEDULERS}
    factor = found[CAPACITY][LARGE] / PAPER_CAPACITY * profile.time
    simulations = {name: measure.invalid(name, simulated.QUICK, 0) for name in SCHEDULERS}
    ever = simulations[measure.NO_CHANGE].count[-1] / EVER_INVALID
    printed = paper.INVALID_TUPLES[measure.NO_CHANGE] / EVER_INVALID
    table = Table(
        "Invalid tuples of W1",
        [
            "",
            "paper",
            "paper, scaled",
            "paper, share",
            "simulated, share",
            "invalid rows",
            "share",
            "micro-batch (s)",
            "wasted work of FD (tuple-seconds)",
            "mixed",
        ],
        [
            [
                LABELS[name],
                f"{paper.INVALID_TUPLES[name]:,}",
                f"{paper.INVALID_TUPLES[name] * factor:,.0f}",
                f"{paper.INVALID_TUPLES[name] / printed:.0%}",
                f"{simulations[name].count[-1] / ever:.0%}",
                f"{wrong[name]:,}",
                f"{wrong[name] / max(1, found[name]['rows']):.0%}",
                shown(found[name]["batch_seconds"]),
                shown(wrong[name] * found[name]["cost"]),
                str(found[name]["mixed"]),
            ]
            for name in SCHEDULERS
        ],
    )
    data = {"curves": {name: asdict(Curve.of(found[name])) for name in SCHEDULERS}}
    return Report([table], _verdict(found, wrong), _scaling(profile, found), data)


def _verdict(found: Mapping[str, Found], wrong: Mapping[str, int]) -> str:
    shares = [wrong[name] / max(1, found[name]["rows"]) for name in SCHEDULERS]
    expected = shares == sorted(shares, reverse=True)
    order = " > ".join(LABELS[name] for name in SCHEDULERS)
    mixed = sum(found[name]["mixed"] for name in SCHEDULERS)
    told = f"The order is the paper's: {order}." if expected else f"The order is not {order}."
    ratio = wrong["epoch"] / max(1, wrong["fries"])
    printed = paper.INVALID_TUPLES["epoch"] / paper.INVALID_TUPLES["fries"]
    return (
        f"{told} Epochs leave {ratio:.1f} times as many invalid rows as Fries "
        f"({printed:.1f} times in the paper). Rows that met a mix of versions: {mixed}."
    )


def _scaling(profile: Profile, found: Mapping[str, Found]) -> str:
    one = found[SCHEDULERS[0]]
    return (
        f"Times are the paper's, multiplied by {profile.time:g}. The source could make "
        f"{one['rate']:,.0f} rows per second, {simulated.INVALID_RATE / PAPER_CAPACITY:g} times "
        "what FD takes, and is back-pressured: it makes them just before they are taken. "
        f"A micro-batch has {one['limit']:,} rows, {QUEUE * profile.time:g} s of FD's work, "
        "half of the queue that the paper's numbers imply, so that it takes not much longer "
        f"than FD's version lags behind ({measure.VERSION_LAG * profile.time:g} s): in longer ones "
        "it depends on where in them the versions rise what is invalid. Rows that were taken "
        "before their version rose and meet FD after its change are invalid, too: were "
        f"micro-batches more than about {LONGEST * profile.time:.2g} s long, epochs, which change "
        "between them, would "
        "leave fewer invalid rows than Fries. Scaled numbers are the paper's, multiplied by "
        f"the time and by FD's capacity ({found[CAPACITY][LARGE]:,.0f} rows per second here, "
        f"{PAPER_CAPACITY:,} in the paper); shares are of all tuples. The paper's tuples are "
        "counted from its 302K, which are all that came after the first version. Wasted work is "
        "invalid rows times the measured seconds that FD's function takes for one."
    )


def _figure(report: Report) -> Figure:
    figure, axes = titled("W1: invalid tuples (measured)")
    for name in SCHEDULERS:
        colour, line = LOOKS[name]
        moments, counts = Curve.of(report.data["curves"][name]).known
        label = f"{LABELS[name]}: {counts[-1]:,.0f} (paper {paper.INVALID_TUPLES[name]:,})"
        axes.plot(moments, counts, line, color=colour, label=label)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("invalid tuples so far")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, loc="upper left")
    return figure


EXPERIMENT: Final = Experiment(
    "invalid",
    "Invalid tuples while versions change (W1)",
    'section "Reducing Wasted Computing Resources", figure "wrong-tuples"',
    _parts,
    _report,
    _figure,
)
