"""Python workers that are killed in local mode, at every moment of a change.

The suite's session gives up a batch with its first task that fails, so the supervisor replays the
batch. An application of its own lets Spark repeat the task. The same oracle judges both;
``test_chaos.py`` kills more than workers, on a cluster.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
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
COMPLETE = set(Moment) - {Moment.SWITCH, Moment.BETWEEN_STAGES}
"""Moments that only the complete matrix has; the simulator crashes at every event in every run."""
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


def marked(moments: Iterable[Moment], complete: Container[Moment]) -> list[pytest.ParameterSet]:
    """As parameters of a test."""
    return [pytest.param(one, marks=[pytest.mark.complete] * (one in complete)) for one in moments]


@pytest.mark.parametrize("moment", marked(Moment, COMPLETE))
def test_a_batch_is_replayed_whole_when_a_worker_dies(
    spark: SparkSession, tmp_path: Path, moment: Moment
) -> None:
    survived(InThread(spark), moment, tmp_path)


@pytest.mark.parametrize("moment", marked(REPEATED, COMPLETE | {Moment.BETWEEN_STAGES}))
def test_a_task_is_repeated_as_it_was_when_a_worker_dies(
    patient: Separate, tmp_path: Path, moment: Moment
) -> None:
    assert survived(patient, moment, tmp_path).failures == 0, "Spark repeats the task"
