"""Some crash runs on a cluster; ``make chaos`` has the whole matrix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.chaos.applications import Separate
from benchmarks.chaos.scenario import Moment, Scenario, Victim
from benchmarks.cluster import Cluster

from tests.spark.crashes import crashed

CELLS = [
    (Victim.PYTHON, Moment.SWITCH),
    (Victim.EXECUTOR, Moment.BETWEEN_STAGES),
    (Victim.DRIVER, Moment.AFTER_SWITCH),
    (Victim.DRIVER, Moment.LOG_WRITE),
]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Separate]:
    with Cluster() as cluster:
        yield Separate(cluster.guard, cluster.settings, tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize(("victim", "moment"), CELLS)
def test_a_crash_loses_doubles_and_mixes_nothing(
    application: Separate, tmp_path: Path, victim: Victim, moment: Moment
) -> None:
    seed = CELLS.index((victim, moment))
    outcome = crashed(application, Scenario(seed, victim, moment, rows=200), tmp_path)
    assert outcome.was_killed, "the moment never came"
    assert outcome.problems == ()
