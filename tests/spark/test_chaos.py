"""Some crash runs on a cluster; ``make chaos`` has the whole matrix.

In ``make test`` an executor and a driver are killed here, and Python workers in
``test_crashes.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.chaos.applications import Separate
from benchmarks.chaos.scenario import Moment, Scenario, Victim
from benchmarks.cluster import Cluster

from tests.java import EXECUTOR
from tests.spark.crashes import crashed

CELLS = [
    (Victim.PYTHON, Moment.SWITCH),
    (Victim.EXECUTOR, Moment.BETWEEN_STAGES),
    (Victim.DRIVER, Moment.AFTER_SWITCH),
    (Victim.DRIVER, Moment.LOG_WRITE),
]
COMPLETE = [(Victim.PYTHON, Moment.SWITCH), (Victim.DRIVER, Moment.LOG_WRITE)]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Separate]:
    with Cluster() as cluster:
        settings = {**cluster.settings, **EXECUTOR}
        yield Separate(cluster.guard, settings, tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize(
    ("victim", "moment"),
    [pytest.param(*cell, marks=[pytest.mark.complete] * (cell in COMPLETE)) for cell in CELLS],
)
def test_a_crash_loses_doubles_and_mixes_nothing(
    application: Separate, tmp_path: Path, victim: Victim, moment: Moment
) -> None:
    seed = CELLS.index((victim, moment))
    outcome = crashed(application, Scenario(seed, victim, moment, rows=200), tmp_path)
    assert outcome.was_killed, "the moment never came"
    assert outcome.problems == ()
