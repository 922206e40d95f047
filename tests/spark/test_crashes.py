"""Python workers that are killed in local mode, at every moment of a change.

The suite's session gives up a batch with its first task that fails, so the supervisor replays the
batch. An application of its own lets Spark repeat the task. The same oracle judges both;
``test_chaos.py`` kills more than workers, on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.chaos.applications import Application, InThread, Separate
from benchmarks.chaos.killer import Outcome
from benchmarks.chaos.scenario import Moment, Scenario, Victim
from benchmarks.processes import Guard
from pyspark.sql import SparkSession

from tests.spark.crashes import crashed

ROWS = 120
REPEATED = [Moment.BEFORE_COMMIT, Moment.SWITCH, Moment.BETWEEN_STAGES]
"""Moments in which some task is at work, so that Spark repeats it."""
SETTINGS = {
    "spark.master": "local[2, 4]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Separate]:
    """An application whose tasks may fail three times."""
    guard = Guard()
    yield Separate(guard, SETTINGS, tmp_path_factory.mktemp("patient"))
    guard.close()


def survived(application: Application, moment: Moment, folder: Path) -> Outcome:
    """A crash run that must end well."""
    seed = list(Moment).index(moment)
    outcome = crashed(application, Scenario(seed, Victim.PYTHON, moment, rows=ROWS), folder)
    assert outcome.was_killed, "the moment never came"
    assert outcome.problems == ()
    return outcome


@pytest.mark.parametrize("moment", Moment)
def test_a_batch_is_replayed_whole_when_a_worker_dies(
    spark: SparkSession, tmp_path: Path, moment: Moment
) -> None:
    survived(InThread(spark), moment, tmp_path)


@pytest.mark.parametrize("moment", REPEATED)
def test_a_task_is_repeated_as_it_was_when_a_worker_dies(
    patient: Separate, tmp_path: Path, moment: Moment
) -> None:
    assert survived(patient, moment, tmp_path).failures == 0, "Spark repeats the task"
