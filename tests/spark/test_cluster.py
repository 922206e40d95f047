"""The engine on a standalone cluster: executors in processes of their own.

Each trial is a driver process, because this one holds the local session of the other tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster import Cluster, environment
from benchmarks.processes import kill, processes

from tests.java import EXECUTOR


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as made:
        yield made


def trial(
    cluster: Cluster, folder: Path, *schedulers: str, settings: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What a driver process with some settings of Spark says."""
    path = folder / "settings.json"
    path.write_text(json.dumps({**cluster.settings, **EXECUTOR, **(settings or {})}))
    log = folder / "trial.log"
    command = (sys.executable, "-m", "benchmarks.cluster_trial", "--settings", str(path))
    started = cluster.guard.start(
        [*command, "--folder", str(folder), "--schedulers", *schedulers], log, environment()
    )
    status = started.wait()
    lines = log.read_text(errors="replace").splitlines()
    assert status == 0, "\n".join(lines[-40:])
    return [json.loads(line) for line in lines if line.startswith('{"scheduler"')]


def launched(cluster: Cluster) -> int:
    """How many executors there have been so far."""
    return len(list(cluster.logs.glob("worker-*/app-*/*/stderr")))


@pytest.mark.parametrize(
    "schedulers",
    [
        pytest.param(("fries",), id="at once"),
        pytest.param(
            ("mini_batch", "restart"), id="at a boundary, and with a restart",
            marks=pytest.mark.complete,
        ),
    ],
)  # fmt: skip
def test_a_flow_is_changed_on_two_executors(
    cluster: Cluster, tmp_path: Path, schedulers: tuple[str, ...]
) -> None:
    """By one scheduler of each kind."""
    found = trial(cluster, tmp_path, *schedulers)
    assert [one["scheduler"] for one in found] == list(schedulers)
    for one in found:
        assert one["problems"] == [], one
        assert one["serializable"], one
        assert one["waited"], one
        assert one["old"] >= 400, one


@pytest.mark.complete
def test_without_reuse_of_python_workers(cluster: Cluster, tmp_path: Path) -> None:
    (one,) = trial(cluster, tmp_path, "fries", settings={"spark.python.worker.reuse": "false"})
    assert one["problems"] == []
    assert one["serializable"]


@pytest.mark.complete
def test_executors_join_late_and_leave(cluster: Cluster, tmp_path: Path) -> None:
    """Dynamic allocation begins with one executor; the second one joins when tasks wait."""
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    before = launched(cluster)
    (one,) = trial(cluster, tmp_path, "fries", settings=settings)
    assert one["problems"] == []
    assert one["serializable"]
    assert launched(cluster) - before >= 2


def test_nothing_is_left_behind() -> None:
    with Cluster(workers=1) as made:
        below = {process.pid for process in made.guard.below()}
        assert len(below) >= 2
        kill(next(iter(below)))
    assert not below & {process.pid for process in processes()}
