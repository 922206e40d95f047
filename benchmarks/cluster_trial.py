"""A trial of the engine on a cluster, as a driver process of its own.

It runs the flow of the crash runs over some micro-batches, changes it in the middle of one, and
prints what the audit and the oracle say, as one JSON line. ``tests/spark/test_cluster.py`` starts
it, because a process can hold one Spark session only. ::

    python -m benchmarks.cluster_trial --settings settings.json --folder run --scheduler fries
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.chaos import oracle, workload
from benchmarks.cluster import configured
from fries.flow import Flow

ROW_SECONDS: Final = 0.002


def trial(
    spark: SparkSession, folder: Path, scheduler: str, batches: int, rows: int
) -> dict[str, object]:
    """One query with a change in its second micro-batch."""
    given = workload.payments(0, batches, rows)
    workload.write_input(folder / "in", given)
    flow = Flow(f"trial-{scheduler}", audit=folder / "audit", groups=8)
    frame = workload.build(flow, workload.stream(spark, folder / "in"), ROW_SECONDS)
    writer = frame.writeStream.foreachBatch(
        lambda made, batch: workload.keep(made, folder / "out", batch)
    )
    query = flow.start(writer.option("checkpointLocation", str(folder / "checkpoint")))
    _until(flow, lambda: _taken(flow) > rows)
    change = flow.reconfigure(workload.updates(1, ROW_SECONDS), scheduler)
    waited = change.wait()
    _until(flow, lambda: (folder / "checkpoint" / "commits" / str(batches - 1)).exists())
    query.stop()
    verdict = flow.audit()
    pids = [int(name.split("/")[1]) for name in flow.workers]
    flow.stop()
    found = workload.read_output(folder / "out")
    return {
        "scheduler": scheduler,
        "waited": waited,
        "state": change.state,
        "workers": pids,
        "serializable": verdict.atomic and verdict.serializable,
        "problems": oracle.problems(given, found, final_version=1),
        "old": sum(row["fc"] == 0 for made in found.values() for row in made),
    }


def _taken(flow: Flow) -> int:
    counts = flow.counters.get("FC")
    return 0 if counts is None else counts.taken


def _until(flow: Flow, condition: Callable[[], bool]) -> None:
    while not condition():
        assert flow.query is not None
        if error := flow.query.exception():
            raise error
        time.sleep(0.01)


def main() -> None:
    """Run trials one after the other in one session."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=Path, required=True, help="settings of Spark, in JSON")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--schedulers", nargs="+", default=["fries"])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400)
    given = parser.parse_args()
    settings = json.loads(given.settings.read_text())
    spark = configured(SparkSession.builder, settings).getOrCreate()
    for scheduler in given.schedulers:
        folder = given.folder / scheduler
        folder.mkdir()
        found = trial(spark, folder, scheduler, given.batches, given.rows)
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
