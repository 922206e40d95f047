"""One crash run: start the driver, kill at the moment, start again what does not by itself, judge.

Executors and Python workers are started again by Spark; a driver is started again from here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.chaos import workload
from benchmarks.chaos.applications import Application
from benchmarks.chaos.driver import VERSION
from benchmarks.chaos.oracle import problems
from benchmarks.chaos.scenario import (
    TRIGGERS,
    Event,
    Kind,
    Scenario,
    Victim,
    events,
    killed,
    mark_killed,
)
from benchmarks.processes import kill

RUN_SECONDS: Final = 300.0
"""Until a run that has not ended counts as failed: a busy machine takes a third of it."""
POLL_SECONDS: Final = 0.003
BUSY_SWITCHES: Final = 5
"""A Python worker that gave up its core so many times within :data:`BUSY_SECONDS` is at work."""
BUSY_SECONDS: Final = 0.03


@dataclass(frozen=True)
class Outcome:
    """How a crash run went."""

    scenario: Scenario
    problems: tuple[str, ...]
    """What is wrong; nothing if all is well."""
    was_killed: bool
    """Whether the moment came at all."""
    failures: int
    """How often the query failed and was started again."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the run counts, and all was as it must be."""
        return self.was_killed and not self.problems


class CrashRun:
    """A scenario with an application, in a folder of its own."""

    def __init__(
        self,
        application: Application,
        scenario: Scenario,
        folder: Path,
        seconds: float = RUN_SECONDS,
    ) -> None:
        self._application, self._scenario, self._folder = application, scenario, folder
        self._seconds = seconds

    def run(self) -> Outcome:
        """From the start of the query to the verdict."""
        began = time.monotonic()
        size = self._scenario.batches, self._scenario.rows
        batches = workload.payments(self._scenario.seed, *size)
        workload.write_input(self._folder / "in", batches)
        self._scenario.write(self._folder)
        wrong = self._until_finished(began + self._seconds)
        told = events(self._folder)
        if wrong:
            self._application.end()
        else:
            found = workload.read_output(self._folder / "out")
            wrong = [*problems(batches, found, VERSION), *_of_audit(told)]
        return Outcome(
            self._scenario,
            tuple(wrong),
            killed(self._folder),
            sum(event.kind is Kind.FAILED for event in told),
            time.monotonic() - began,
        )

    def _until_finished(self, deadline: float) -> list[str]:
        """Keep a driver running until it has processed everything; why it has not, otherwise."""
        self._application.run(self._folder)
        restarted = False
        while True:
            alive = self._application.alive  # asked first: its last word comes before its end
            told = events(self._folder)
            if told and told[-1].kind is Kind.FINISHED:
                return []
            if time.monotonic() > deadline:
                return [f"it hangs; the last events were {told[-3:]}", self._application.story()]
            if not alive:
                mine = self._scenario.victim is Victim.DRIVER and killed(self._folder)
                if restarted or not mine:
                    return ["the driver ended by itself", self._application.story()]
                restarted = True
                self._application.run(self._folder)
            self._kill_if_due(told)
            time.sleep(POLL_SECONDS)

    def _kill_if_due(self, told: list[Event]) -> None:
        if killed(self._folder) or not any(self._is_moment(event) for event in told):
            return
        time.sleep(self._scenario.kill_seconds)
        victims = self._victims()
        if victims:
            kill(self._scenario.choose(victims))
            mark_killed(self._folder)

    def _is_moment(self, event: Event) -> bool:
        trigger = TRIGGERS[self._scenario.moment]
        batch = event.fields.get("batch", self._scenario.changed_batch)
        return event.kind is trigger and batch >= self._scenario.changed_batch

    def _victims(self) -> list[int]:
        """Whom to choose from: Python workers at work, if there are any."""
        pids = self._application.pids(self._scenario.victim)
        return pids if self._scenario.victim is not Victim.PYTHON else busy(pids) or pids


def busy(pids: list[int]) -> list[int]:
    """Those that are at work: an operator that sleeps for each row gives up its core each time."""
    before = {pid: _switches(pid) for pid in pids}
    time.sleep(BUSY_SECONDS)
    return [pid for pid in pids if _switches(pid) - before[pid] >= BUSY_SWITCHES]


def _switches(pid: int) -> int:
    """How often a process gave up its core."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def _of_audit(told: list[Event]) -> list[str]:
    verdicts = [event for event in told if event.kind is Kind.AUDIT]
    return [str(event.fields["verdict"]) for event in verdicts if not event.fields["clean"]]
