"""The engine on a standalone cluster: executors in processes of their own.

Each trial is a driver process, because this one holds the local session of the other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster import Cluster, environment
from benchmarks.processes import kill, processes

pytestmark = pytest.mark.xdist_group("spark")  # Spark on two cores: one at a time


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as made:
        yield made


def trial(
    cluster: Cluster, folder: Path, *schedulers: str, **settings: str
) -> list[dict[str, Any]]:
    """What a driver process with some settings of Spark says."""
    names = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    path = folder / "settings.json"
    path.write_text(json.dumps({**cluster.settings, **names}))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.cluster_trial"),
            *("--settings", str(path), "--folder", str(folder), "--schedulers", *schedulers),
        ],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_every_scheduler_changes_a_flow_on_two_executors(cluster: Cluster, tmp_path: Path) -> None:
    schedulers = ("fries", "fries_unpruned", "epoch", "multi_version", "mini_batch", "restart")
    found = trial(cluster, tmp_path, *schedulers)
    assert [one["scheduler"] for one in found] == list(schedulers)
    for one in found:
        assert one["problems"] == [], one
        assert one["serializable"], one
        assert one["waited"], one
        assert one["old"] >= 400, one


def test_without_reuse_of_python_workers(cluster: Cluster, tmp_path: Path) -> None:
    (one,) = trial(cluster, tmp_path, "fries", python_worker_reuse="false")
    assert one["problems"] == []
    assert one["serializable"]


def test_nothing_is_left_behind() -> None:
    with Cluster(workers=1) as made:
        below = {process.pid for process in made.guard.below()}
        assert len(below) >= 2
        kill(next(iter(below)))
    assert not below & {process.pid for process in processes()}
