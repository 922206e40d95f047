"""Invalid rows of W1: rows carry a version, FD's follows some time later (section 8.4).

A row is invalid if its version is not the one that FD has when it gets there. The source is
back-pressured: it could make rows faster than FD takes them, and makes them just before they are
taken. A micro-batch stands for the queue in front of FD.

There are several runs by each scheduler. In a run, versions rise and requests come at the same
seconds whatever the scheduler; from run to run all of that is shifted, because it matters where in
a micro-batch a version rises.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fries_lab.bench import measure
from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.plots import LABELS, LOOKS, titled
from fries_lab.bench.simulated import INVALID_SCHEDULERS
from fries_lab.experiments.comparisons import DOUBT, Comparison, compare, power
from fries_lab.experiments.curves import Curve, counted
from fries_lab.experiments.estimates import estimate, shown
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import legend_below
from fries_lab.experiments.inference import (
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
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import batch_seconds
from fries_lab.experiments.schedule import Schedule
from fries_lab.workloads import simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULERS: Final = INVALID_SCHEDULERS
QUEUE: Final = 15.0
"""Seconds of FD's work in a micro-batch, before the profile's factor. The paper's numbers imply a
queue of 30 s (see ``simulated.INVALID_BUFFER``). But if a micro-batch takes longer than FD's
version lags behind, what is invalid depends on where in it the versions rise, and there are few
of them; so it is half as long."""
OTHER_SETTINGS: Final = (
    "Another setting gave another order: in micro-batches of 3 s of work, the queue that the "
    "paper's numbers imply, one run each, it depended on where in them the versions rose: 2,296 "
    "invalid rows with epochs and 1,305 with Fries in one trial, 2,111 and 2,237 in another."
)
"""What is known of other settings, from results that this repository had before."""
LONGEST: Final = 68.0
"""Seconds of a micro-batch up to which Fries leaves fewer invalid rows than epochs, before the
profile's factor. If versions rise at any moment of one that takes d seconds, epochs leave the
lag's 20 s invalid on average, and Fries ``(20 * 10 + (d - 20) ** 2 / 2) / d``."""
STEP: Final = 2.0
"""Seconds between two points of a curve, before the profile's factor."""
SHIFTED: Final = 25.0
"""Seconds by which all versions of a run rise later, at most, before the profile's factor: more
than a micro-batch takes, and so that FD's last version still comes before the end."""
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
    seconds = measure.VERSIONS_END * profile.time + 9
    runs = (
        Part(f"{name}-{number}", seconds, partial(_run, scheduler=name, number=number))
        for number in range(1, profile.repeats + 1)
        for name in SCHEDULERS
        if number == 1 or name != measure.NO_CHANGE
    )
    return [CAPACITIES, *runs]


def shifted(number: int, factor: float) -> float:
    """By how many seconds the versions of a run rise later."""
    return SHIFTED * factor * random.Random(f"invalid {number}").random()


def _run(bench: Bench, scheduler: str, number: int) -> Found:
    """Invalid rows over time."""
    factor, capacity = bench.profile.time, capacity_of(bench)
    period, end = measure.VERSION_PERIOD * factor, measure.VERSIONS_END * factor
    shift = shifted(number, factor)
    rate = scaled(simulated.INVALID_RATE, capacity)
    pace = pace_of(bench, Schedule([(0, rate)]), capacity * QUEUE * factor, pulled=True)
    risen = f"floor((due - {shift}) / {period})"
    version = f"cast(least(greatest({risen}, 0), {CHANGES[-1]}) as long) as v1"
    with running(
        bench, pace, Versioned(0), lambda rows: rows.selectExpr("*", version), ", v1 long, v2 long"
    ) as run:
        changes = []
        for change in CHANGES if scheduler != measure.NO_CHANGE else ():
            second = shift + change * period + measure.VERSION_LAG * factor
            changes.append(run.change_at(second, Versioned(change), scheduler)[1])
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
    runs = {
        name: [found[key] for key in found if key.rpartition("-")[0] == name] for name in SCHEDULERS
    }
    factor = found[CAPACITY][LARGE] / PAPER_CAPACITY * profile.time
    shares = {name: [_share(one) for one in of] for name, of in runs.items()}
    (against,) = compare({"epoch": (shares["fries"], shares["epoch"])}).values()
    data = {
        "curves": {name: [asdict(Curve.of(one)) for one in of] for name, of in runs.items()},
    }
    return Report(
        [_table(runs, shares, factor)],
        _verdict(runs, shares, against),
        _scaling(profile, found[CAPACITY][LARGE], runs["fries"][0]),
        data,
    )


def _share(one: Found) -> float:
    """Of the rows of a run, those that are invalid."""
    return float(Curve.of(one).final / max(1, one["rows"]))


def _table(
    runs: Mapping[str, Sequence[Found]], shares: Mapping[str, Sequence[float]], factor: float
) -> Table:
    simulations = {name: measure.invalid(name, simulated.QUICK, 0) for name in SCHEDULERS}
    ever = simulations[measure.NO_CHANGE].count[-1] / EVER_INVALID
    printed = paper.INVALID_TUPLES[measure.NO_CHANGE] / EVER_INVALID
    columns = (
        "", "paper", "paper, scaled", "paper, share", "simulated, share", "runs", "invalid rows",
        "share (%)", "micro-batch (s)", "wasted work of FD (tuple-seconds)", "mixed",
    )  # fmt: skip
    rows = []
    for name, of in runs.items():
        wrong = [Curve.of(one).final for one in of]
        wasted = [count * one["cost"] for count, one in zip(wrong, of, strict=True)]
        rows.append(
            [
                LABELS[name],
                f"{paper.INVALID_TUPLES[name]:,}",
                f"{paper.INVALID_TUPLES[name] * factor:,.0f}",
                f"{paper.INVALID_TUPLES[name] / printed:.0%}",
                f"{simulations[name].count[-1] / ever:.0%}",
                str(len(of)),
                str(estimate(wrong)),
                str(estimate([100 * share for share in shares[name]])),
                shown(statistics.median(one["batch_seconds"] for one in of)),
                str(estimate(wasted)),
                str(sum(one["mixed"] for one in of)),
            ]
        )
    return Table("Invalid tuples of W1, median [95 % interval]", columns, rows)


def _verdict(
    runs: Mapping[str, Sequence[Found]],
    shares: Mapping[str, Sequence[float]],
    against: Comparison,
) -> str:
    printed = paper.INVALID_TUPLES["fries"] / paper.INVALID_TUPLES["epoch"]
    mixed = sum(one["mixed"] for of in runs.values() for one in of)
    most = shares[measure.NO_CHANGE][0]
    worse = [name for name in SCHEDULERS[1:] if max(shares[name]) >= most]
    same = "as in the paper" if against.verdict == "lower" else "in the paper it is lower"
    beside = f"{against.verdict} {'from' if against.verdict == DOUBT else 'than'}"
    without = (
        f"NOT below the run without a change in every run: {', '.join(LABELS[n] for n in worse)}."
        if worse
        else "Without a change it was higher than in any other run."
    )
    return (
        f"With Fries the share of invalid rows is {beside} that with epochs ({same}): "
        f"{against.times} times, and {printed:.2f} times in the paper; p of the rank test "
        f"{against.p:.3f}. {power(len(shares['fries']), 1)} {without} "
        f"Rows that met a mix of versions: {mixed}. {OTHER_SETTINGS}"
    )


def _scaling(profile: Profile, capacity: float, one: Found) -> str:
    return (
        f"{profile.repeats} runs by each scheduler, and one without a change. In each, versions "
        f"rise later than in the paper by another time, up to {SHIFTED * profile.time:g} s, the "
        "same for all schedulers. "
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
        f"the time and by FD's capacity ({capacity:,.0f} rows per second here, "
        f"{PAPER_CAPACITY:,} in the paper); shares are of all tuples. The paper's tuples are "
        "counted from its 302K, which are all that came after the first version. Wasted work is "
        "invalid rows times the measured seconds that FD's function takes for one."
    )


def _figure(report: Report) -> Figure:
    figure, axes = titled("W1: invalid tuples (measured)")
    for name in SCHEDULERS:
        colour, line = LOOKS[name]
        runs = [Curve.of(one).known for one in report.data["curves"][name]]
        ends = estimate([float(counts[-1]) for _, counts in runs])
        label = f"{LABELS[name]}: {ends.value:,.0f} (paper {paper.INVALID_TUPLES[name]:,})"
        for number, (moments, counts) in enumerate(runs):
            shown_as = label if number == 0 else None
            axes.plot(moments, counts, line, color=colour, label=shown_as, alpha=0.7)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("invalid tuples so far")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    legend_below(figure, axes, "a line for each run; medians at the end")
    return figure


EXPERIMENT: Final = Experiment(
    "invalid",
    "Invalid tuples while versions change (W1)",
    'section "Reducing Wasted Computing Resources", figure "wrong-tuples"',
    _parts,
    _report,
    _figure,
)
