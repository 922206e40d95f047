"""Runs experiments one after the other, says how far it is, and writes what they have shown."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fries_lab.experiments.experiment import Experiment, Found, Part, Report
from fries_lab.experiments.lab import Lab, write_json, write_whole

TRUST: Final = 120.0
"""Seconds of work after which what this machine has needed weighs as much as what parts say."""


class Runner:
    """Runs experiments and keeps records, tables and figures in a folder."""

    def __init__(self, lab: Lab, out: Path, console: Console) -> None:
        self._lab = lab
        self._out = out
        self._console = console

    def run(self, experiments: Sequence[Experiment]) -> dict[str, Report]:
        """Run what is not kept from an earlier run; a report of each."""
        parts = {one.name: list(one.parts(self._lab.profile)) for one in experiments}
        kept = {
            part.place(one.name): found
            for one in experiments
            for part in parts[one.name]
            if (found := self._lab.kept(one, part)) is not None
        }
        left = {
            part.place(one.name): part
            for one in experiments
            for part in parts[one.name]
            if part.place(one.name) not in kept
        }
        if kept:
            self._say(f"{len(kept)} parts are there from an earlier run, {len(left)} to go")
        reports = {}
        with _Clock(self._console, list(left.values())) as clock:
            for experiment in experiments:
                found = {}
                for part in parts[experiment.name]:
                    place = part.place(experiment.name)
                    if place not in kept:
                        with clock.running(experiment, part):
                            kept[place] = self._lab.run(experiment, part)
                    found[part.name] = kept[place]
                reports[experiment.name] = self._report(experiment, found)
        return reports

    def _report(self, experiment: Experiment, found: Mapping[str, Found]) -> Report:
        report = experiment.report(self._lab.profile, found)
        base = self._out / self._lab.profile.name / experiment.name
        record = {
            "experiment": experiment.name,
            "title": experiment.title,
            "paper": experiment.paper,
            "profile": asdict(self._lab.profile),
            "measured": self._lab.measured(
                part.place(experiment.name) for part in experiment.parts(self._lab.profile)
            ),
            "report": asdict(report),
            "found": dict(found),
        }
        write_json(base.with_suffix(".json"), record)
        tables = "\n".join(table.markdown() for table in report.tables)
        text = f"{report.verdict}\n\n{tables}\n{report.scaling}\n"
        write_whole(base.with_suffix(".md"), lambda path: path.write_text(text, "utf-8"))
        if experiment.figure is not None:
            figure = experiment.figure(report)
            write_whole(
                base.with_suffix(".png"),
                lambda path: figure.savefig(path, dpi=120, format="png"),
            )
        self._say(f"{experiment.name}: {report.verdict}")
        return report

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Clock:
    """A bar over all parts, with an estimate of the time left.

    Parts say how long they take on two cores; what this machine has needed so far corrects it.
    """

    def __init__(self, console: Console, parts: Sequence[Part]) -> None:
        self._console = console
        self._left = sum(part.seconds for part in parts)
        self._done = 0.0
        self._spent = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=self._left, left="")

    def __enter__(self) -> _Clock:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def running(self, experiment: Experiment, part: Part) -> _Running:
        """A part that runs now."""
        what = f"{experiment.name}: {part.name}"
        self._progress.update(self._bar, description=what, left=f"about {self.estimate()} left")
        if not self._console.is_terminal:
            self._console.print(f"{what} (about {self.estimate()} left)", highlight=False)
        return _Running(self, part)

    def estimate(self) -> str:
        """The time left."""
        factor = (TRUST + self._spent) / (TRUST + self._done)
        minutes, seconds = divmod(round(self._left * factor), 60)
        return f"{minutes} min {seconds:02} s"

    def finished(self, part: Part, seconds: float) -> None:
        """A part is finished, after so many seconds."""
        self._left -= part.seconds
        self._done += part.seconds
        self._spent += seconds
        self._progress.advance(self._bar, part.seconds)


class _Running:
    """A part between its begin and its end."""

    def __init__(self, clock: _Clock, part: Part) -> None:
        self._clock, self._part = clock, part
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:  # noqa: ANN401
        if kind is None:
            self._clock.finished(self._part, time.monotonic() - self._begin)
