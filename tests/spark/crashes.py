"""Crash runs of tests: however slow a machine is, somebody is killed in each."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.chaos.applications import Application
from benchmarks.chaos.killer import CrashRun, Outcome
from benchmarks.chaos.scenario import Scenario

from tests.waiting import PATIENCE


def crashed(application: Application, scenario: Scenario, folder: Path) -> Outcome:
    """A run in which somebody was killed.

    On a busy machine the query may end before the killer comes to it. Nothing was tried then: the
    next run has twice as many rows, and lasts longer.
    """
    for attempt in count():
        place = folder / str(attempt)
        place.mkdir()
        longer = replace(scenario, rows=scenario.rows * 2**attempt)
        outcome = CrashRun(application, longer, place, PATIENCE).run()
        if outcome.was_killed or outcome.problems:
            return outcome
    raise AssertionError("the moment never came")
