"""The application of a crash run, as a process of its own: the flow, its change, its story.

It runs the folders that it is told on its standard input, one after the other, so that runs in
which it is not the victim share a warm Spark. After it was killed it is started again and told the
same folder: it goes on from the query's checkpoint. ::

    echo run | python -m benchmarks.chaos.driver --settings settings.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from benchmarks.chaos import workload
from benchmarks.chaos.scenario import Kind, Moment, Scenario, Teller, events, killed
from benchmarks.cluster import configured
from fries.change.model import UNTRIED
from fries.errors import AbortedError
from fries.flow import Flow
from fries.log.files import PARTIAL, LocalFiles
from fries.log.pieces import Buffer
from fries.reconfiguration import Reconfiguration
from fries.spark.policy import Supervision
from fries.spark.supervisor import SupervisedQuery

POLL_SECONDS: Final = 0.002
"""Between two looks at what has happened: moments last longer."""
VERSION: Final = 1
"""To which the operators are changed."""
KINDS: Final = {"queued": Kind.REQUESTED, UNTRIED: Kind.DONE}
"""What the states of a change are told as, where they have another name."""
SUPERVISION: Final = Supervision(restarts=5, pause=0.1)


class Driver:
    """Runs the flow to the end of its input, and changes it once."""

    def __init__(self, spark: SparkSession, folder: Path, scenario: Scenario) -> None:
        self._folder, self._scenario = folder, scenario
        self._tell = Teller(folder, scenario).tell
        self._version = 0
        """That the flow began with."""
        life = sum(event.kind is Kind.STARTED for event in events(folder))
        self.flow = Flow("chaos", audit=folder / f"audit-{life}", groups=8)
        rows = workload.stream(spark, folder / "in")
        frame = workload.build(self.flow, rows, scenario.row_seconds)
        writer = frame.writeStream.foreachBatch(self._write)
        self._writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        self._change: Reconfiguration | None = None
        self._told: set[Kind] = set()
        """Phases of the change that were told."""
        self._due: float | None = None
        """When the change is to be requested."""
        self._batch = -1
        self._finished = -1
        self._taken: dict[str, int] = {}
        """Rows that FC had taken when its batch began, and FM when the change was committed."""
        self._failures = 0

    def run(self) -> None:
        """Until all input is processed."""
        query = self.flow.start(self._writer, SUPERVISION)
        self._version = self.flow.versions["FC"]
        self._tell(Kind.STARTED, pid=os.getpid(), version=self._version)
        while self._finished < self._scenario.batches - 1:
            time.sleep(POLL_SECONDS)
            self._see_commits()
            self._see_failure(query)
            self._see_change()
            self._request_if_due()
        query.stop()
        verdict = self.flow.audit()
        clean = verdict.atomic and verdict.serializable
        self._tell(Kind.AUDIT, clean=clean, verdict=str(verdict))
        self.flow.stop()
        self._tell(Kind.FINISHED)

    def _write(self, frame: DataFrame, batch: int) -> None:
        """The sink; Spark calls it in a thread of its own."""
        self._taken["FC"] = self._count("FC")
        self._batch = batch
        self._tell(Kind.BATCH, batch=batch)
        workload.keep(frame, self._folder / "out", batch)
        self._tell(Kind.WRITTEN, batch=batch)

    def _see_commits(self) -> None:
        while (self._folder / "checkpoint" / "commits" / str(self._finished + 1)).exists():
            self._finished += 1
            self._tell(Kind.FINISHED_BATCH, batch=self._finished)

    def _see_failure(self, query: SupervisedQuery) -> None:
        """A query that has failed is started again by its supervisor, unless it is given up."""
        for reason in list(query.failures)[self._failures :]:
            self._failures += 1
            self._tell(Kind.FAILED, reason=reason)
        if not query.isActive:
            query.awaitTermination()

    def _request_if_due(self) -> None:
        """While FC, where rows enter the changed part, is at work on the batch of the change."""
        if self._version == VERSION or self._change is not None:
            return
        if self._batch < self._scenario.changed_batch:
            return
        if self._due is None:
            if self._count("FC") > self._taken["FC"] + self._scenario.rows // 4:
                self._due = time.monotonic() + self._scenario.request_seconds
            return
        if time.monotonic() < self._due:
            return
        self._tell(Kind.REQUESTING, version=VERSION)
        self._taken["FM"] = self._count("FM")
        new = workload.updates(VERSION, self._scenario.row_seconds, self._scenario.load_seconds)
        self._change = self.flow.reconfigure(new, self._scenario.scheduler)
        self._tell(Kind.REQUESTED, version=VERSION)

    def _see_change(self) -> None:
        change = self._change
        if change is None:
            return
        state = KINDS.get(change.state) or Kind(change.state)
        if state is Kind.ABORTED:
            self._see_abort(change)
            return
        if state in (Kind.COMMITTED, Kind.DONE):
            self._tell_once(Kind.COMMITTED)
            if self._count("FM") > self._taken["FM"]:
                self._tell_once(Kind.STAGE)
            if change.wait(0):
                self._tell_once(Kind.SWITCHED)
        else:
            self._taken["FM"] = self._count("FM")
        if state in (Kind.PREPARING, Kind.DONE):
            self._tell_once(state)

    def _see_abort(self, change: Reconfiguration) -> None:
        """It never happened: ask again."""
        try:
            change.wait(0)
        except AbortedError as error:
            self._tell(Kind.ABORTED, reason=error.reason)
        self._change = None
        self._told.clear()

    def _count(self, operator: str) -> int:
        """Rows that an operator has taken so far."""
        counts = self.flow.counters.get(operator)
        return 0 if counts is None else counts.taken

    def _tell_once(self, kind: Kind) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(kind, batch=self._batch)


def drive(spark: SparkSession, folder: Path) -> None:
    """Run what is in a folder, from wherever its checkpoint stands."""
    scenario = Scenario.read(folder)
    with torn_log(folder, scenario):
        Driver(spark, folder, scenario).run()


@contextmanager
def torn_log(folder: Path, scenario: Scenario) -> Iterator[None]:
    """If that is the moment: the log stops in the middle of a record until the kill."""
    tell, write = Teller(folder, scenario).tell, LocalFiles.write

    def torn(files: LocalFiles, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        if name == scenario.torn_record and not killed(folder):
            whole = b"".join(parts)
            Path(files.place, f"{name}.torn{PARTIAL}").write_bytes(whole[: len(whole) // 2])
            tell(Kind.LOGGING)
        write(files, name, parts, replace)

    if scenario.moment is not Moment.LOG_WRITE:
        yield
        return
    with patch.object(LocalFiles, "write", torn):
        yield


def main() -> None:
    """Run a driver on what its arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=Path, required=True, help="settings of Spark, in JSON")
    settings = json.loads(parser.parse_args().settings.read_text())
    spark = configured(SparkSession.builder, settings).getOrCreate()
    for line in sys.stdin:
        drive(spark, Path(line.strip()))
    spark.stop()


if __name__ == "__main__":
    main()
