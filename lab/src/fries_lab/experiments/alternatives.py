"""What a user could do instead of Fries, in one run, on the same stream and by the same clock.

Fries switches in the middle of a micro-batch; its ``mini_batch`` scheduler waits for the boundary.
Without Fries one stops the query and starts it with new code, or polls a setting once per
micro-batch and broadcasts it anew (:mod:`fries_lab.spark.polled`).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fries import Flow
from fries_lab.errors import ExperimentError
from fries_lab.experiments.chain import steady
from fries_lab.experiments.comparisons import Comparison, compare
from fries_lab.experiments.estimates import estimate
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.figures import Panel, draw_rows
from fries_lab.experiments.lab import write_whole
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import LOOK, PATIENCE
from fries_lab.experiments.watched import Watched, delays, uses

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COST: Final = 0.001
"""Seconds that the row function sleeps per row."""
ROWS: Final = 1_000
"""Of a micro-batch: with two tasks it takes more than half a second."""
TASKS: Final = 2
WARM: Final = 16
"""Micro-batches before the first change: all but the first few tell how fast rows go through."""
SKIPPED: Final = 4
"""That few: workers start and import."""
DDL: Final = "value long, version long"
FRIES: Final = "Fries"
RESTART: Final = "stop and restart"
POLLED: Final = "polled broadcast"


class Way(Protocol):
    """A way to change the row function of a running query."""

    @property
    def query(self) -> StreamingQuery:
        """The query that runs now."""

    def ask(self, version: int) -> None:
        """Ask for another version."""

    def stop(self) -> None:
        """End the query."""


class ByFlow:
    """With Fries, by one of its schedulers."""

    def __init__(self, scheduler: str, bench: Bench) -> None:
        self._scheduler, self._folder = scheduler, bench.folder
        self._flow = Flow(f"alternatives-{scheduler}")
        rows = self._flow.source("source", steady(bench.spark, ROWS, TASKS))
        scored = rows.map("score", version_of(bench.folder, 0), schema=DDL)
        self._flow.start(_writer(self._flow.output(scored), bench.folder))

    @property
    def query(self) -> StreamingQuery:
        """The query that runs now."""
        assert self._flow.query is not None, "it was started"
        return self._flow.query

    def ask(self, version: int) -> None:
        """Reconfigure."""
        update = version_of(self._folder, version)
        self._flow.reconfigure({"score": update}, self._scheduler, PATIENCE)

    def stop(self) -> None:
        """End the query."""
        self._flow.stop()


class ByRestart:
    """By hand: stop the query, and start it with new code on the same checkpoint."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.query = self._started(0)

    def _started(self, version: int) -> StreamingQuery:
        from fries_lab.spark.polled import mapped

        rows = steady(self._bench.spark, ROWS, TASKS)
        scored = mapped(rows, version_of(self._bench.folder, version), DDL)
        return _writer(scored, self._bench.folder).start()

    def ask(self, version: int) -> None:
        """Stop and start."""
        self.query.stop()
        self.query = self._started(version)

    def stop(self) -> None:
        """End the query."""
        self.query.stop()


class ByPolling:
    """A setting in a file, read and broadcast once per micro-batch."""

    def __init__(self, bench: Bench) -> None:
        from fries_lab.spark.polled import PolledFunction

        self._wish = bench.folder / "wish"
        self.ask(0)
        function = PolledFunction(
            bench.spark, self._wish, partial(version_of, bench.folder), DDL, _swallow
        )
        writer = steady(bench.spark, ROWS, TASKS).writeStream.foreachBatch(function)
        place = str(bench.folder / "checkpoint")
        self.query = writer.option("checkpointLocation", place).start()

    def ask(self, version: int) -> None:
        """Write the setting."""
        write_whole(self._wish, lambda path: path.write_text(str(version), "utf-8"))

    def stop(self) -> None:
        """End the query."""
        self.query.stop()


WAYS: Final[dict[str, Callable[[Bench], Way]]] = {
    FRIES: partial(ByFlow, "fries"),
    "Fries, mini_batch": partial(ByFlow, "mini_batch"),
    RESTART: ByRestart,
    POLLED: ByPolling,
}


def version_of(folder: Path, version: int) -> Watched:
    """The row function that all ways change."""
    return Watched(folder, version, COST)


def _writer(frame: DataFrame, folder: Path) -> DataStreamWriter:
    place = str(folder / "checkpoint")
    return frame.writeStream.format("noop").option("checkpointLocation", place)


def _swallow(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def parts(profile: Profile) -> list[Part]:
    """A part for each way."""
    seconds = 6.0 + 0.8 * WARM + 1.7 * profile.requests
    return [Part(_name(way), seconds, partial(measured, way), TASKS) for way in WAYS]


def _name(way: str) -> str:
    return way.lower().replace(",", "").replace(" ", "-")


def measured(name: str, bench: Bench) -> Found:
    """Delays of changes at random moments by one way, and how fast rows go through before."""
    moments = random.Random(0)
    way = WAYS[name](bench)
    try:
        _until(lambda: len(_seconds(way)) >= WARM, way)
        usual = _seconds(way)[SKIPPED:]
        asked: dict[int, float] = {}
        during: list[int] = []
        for version in range(1, bench.profile.requests + 1):
            time.sleep(moments.random() * statistics.median(usual))
            during.append(_last(way) + 1)
            asked[version] = time.time()
            way.ask(version)
            # each request has a micro-batch of its own, and nobody uses an older version after it
            _until(lambda: version in uses(bench.folder), way)  # noqa: B023 - used at once
            _until(lambda: _last(way) > during[-1], way)
    finally:
        way.stop()
    found = delays(asked, uses(bench.folder), until_new=name == RESTART)
    return {
        "delays_ms": [round(1e3 * one, 3) for one in found],
        "during": during,
        "batch_seconds": round(statistics.median(usual), 3),
        "rows_per_second": [round(ROWS / one, 1) for one in usual],
    }


def _seconds(way: Way) -> list[float]:
    """How long each finished micro-batch took."""
    progress = way.query.recentProgress
    return [
        one["durationMs"]["triggerExecution"] / 1e3
        for one in progress
        if "addBatch" in one["durationMs"]
    ]


def _last(way: Way) -> int:
    """Number of the last micro-batch that has ended."""
    progress = way.query.lastProgress
    if progress is None:
        return -1
    return int(progress["batchId"]) - (0 if "addBatch" in progress["durationMs"] else 1)


def _until(condition: Callable[[], object], way: Way) -> None:
    """Wait for something that a running query brings about; if it fails, say why."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if error := way.query.exception():
            raise error
        if time.monotonic() > deadline:
            raise ExperimentError(
                type(way).__name__, f"nothing has come of it in {PATIENCE:.0f} seconds"
            )
        time.sleep(LOOK)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """All ways beside each other."""
    by_way = {way: found[_name(way)] for way in WAYS}
    ours = by_way[FRIES]["delays_ms"]
    compared = compare({way: (ours, by_way[way]["delays_ms"]) for way in WAYS if way != FRIES})
    rows = [
        [
            way, str(estimate(one["delays_ms"])), str(compared[way]) if way in compared else "",
            str(estimate(one["rows_per_second"])), f"{one['batch_seconds']:.1f}",
        ]
        for way, one in by_way.items()
    ]  # fmt: skip
    columns = ("way", "delay (ms)", "Fries against it", "rows/s", "batch (s)")
    panel = Panel(
        f"{ROWS:,} rows of {1e3 * COST:g} ms",
        list(WAYS),
        {"fries": [estimate(one["delays_ms"]) for one in by_way.values()]},
    )
    return Report(
        [Table("Until no row is processed by the old version, median [95 %]", columns, rows)],
        _verdict(compared, by_way),
        f"{ROWS:,} rows in a micro-batch, of which each takes {1e3 * COST:g} ms of sleep, in "
        f"{TASKS} tasks on one machine; {profile.requests} changes each, at random moments of "
        "micro-batches of their own; rows per second are those of the micro-batches before the "
        "first change. On a cluster a restart also has to load models and tables again, and "
        "micro-batches are often longer. By the log of the row function itself: 0 if no row was "
        "under way when the request came; for a restart "
        f"until the first row by the new version.",
        {"panels": [panel.kept()]},
    )


def _verdict(compared: Mapping[str, Comparison], found: Mapping[str, Found]) -> str:
    others = " ".join(_beside(way, one) for way, one in compared.items())
    rates = {way: one["rows_per_second"] for way, one in found.items()}
    plain = [*rates[RESTART], *rates[POLLED]]
    (rate,) = compare({"": (rates[FRIES], plain)}).values()
    return (
        f"Fries takes {estimate(found[FRIES]['delays_ms'])} ms. {others} Its rows go through at "
        f"{rate.times} times the rate of plain Spark ({rate.verdict})."
    )


def _beside(way: str, one: Comparison) -> str:
    if one.verdict == "not distinguishable":
        return f"It is not distinguishable from {way}."
    return f"It is {one.verdict} than {way} ({one.times} times)."


def figure(report: Report) -> Figure:
    """The delay of each way."""
    panels = [Panel.of(one) for one in report.data["panels"]]
    title = "Until no row is processed by the old version (measured)"
    return draw_rows(title, "delay (ms)", panels, legend=False)


EXPERIMENT: Final = Experiment(
    "alternatives",
    "What a user could do instead",
    "section 3.1, and what Spark's users do",
    parts,
    report,
    figure,
)
