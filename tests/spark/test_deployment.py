"""New code on a checkpoint with live changes; two drivers on one checkpoint. On a real Spark."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fries.errors import LogDamagedError, LogTakenError
from fries.events import ChangeCommitted, ChangeDone, ChangeRequested, Event, QueryStarted
from fries.flow import Flow
from fries.spark.supervisor import SupervisedQuery
from tests.spark.streams import PATIENCE, FileStream, until

AnyRow = dict[str, Any]
SCHEMA = "id long, user long"
GIVEN = f"{SCHEMA}, version long, seen long"
COUNT = 8


def stamp(version: int) -> Callable[[AnyRow], AnyRow]:
    """A version of the stateless operator."""
    return lambda row: {**row, "version": version}


def broken(row: AnyRow) -> AnyRow:
    """Code that should not have been deployed."""
    raise LookupError(f"no rule for {row['id']}")


def count(state: int, row: AnyRow) -> tuple[int, AnyRow]:
    return state + 1, {**row, "version": -1, "seen": state + 1}


class Checkpoint:
    """A checkpoint on which programs are started one after the other."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.stream = FileStream(spark, folder / "in", SCHEMA)
        self.flow = Flow("program", groups=2)
        self.added = 0
        self.heard: list[Event] = []
        """What a listener has heard since the last start."""

    def start(self, code: Callable[[AnyRow], AnyRow], **how: bool) -> SupervisedQuery:
        """Start the program with some code."""
        self.flow.stop()
        self.flow, self.heard = Flow("program", groups=2), []
        self.flow.listen(self.heard.append)
        rows = self.flow.source("rows", self.stream.frame)
        counted = rows.process("count", count, key="user", initial=0, schema=GIVEN)
        frame = self.flow.output(counted.map("rules", code))
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return self.flow.start(writer, **how)  # type: ignore[arg-type]

    def feed(self) -> None:
        """Add rows, and wait until they were processed."""
        self.add()
        until(lambda: self.stream.done(self.flow))

    def add(self) -> None:
        """Add rows."""
        ids = range(self.added, self.added + COUNT)
        self.added += COUNT
        self.stream.add([{"id": number, "user": 0} for number in ids])

    def versions(self) -> list[int]:
        """The version of each batch of rows; every row is there once, and every count is right."""
        rows = self.spark.read.parquet(str(self.folder / "out")).orderBy("id").collect()
        assert [row.id for row in rows] == list(range(self.added))
        assert sorted(row.seen for row in rows) == list(range(1, self.added + 1))
        return [row.version for row in rows][::COUNT]

    def states(self) -> list[str]:
        """How the changes have ended."""
        return [entry.state for entry in self.flow.history()]


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Checkpoint]:
    made = Checkpoint(spark, tmp_path)
    yield made
    made.flow.stop()


def test_new_code_takes_effect_is_in_the_history_and_can_be_taken_back(
    place: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    place.start(stamp(1))
    place.feed()
    assert place.flow.reconfigure({"rules": stamp(2)}, note="ticket 7").wait(PATIENCE)
    place.feed()
    with caplog.at_level(logging.INFO, "fries.spark.deployment"):
        place.start(stamp(3))
    assert "deployed as change 2: its code has changed; it replaces change 1 (ticket 7)" in (
        caplog.text
    )
    place.feed()
    assert place.flow.versions["rules"] == 2
    deployment = place.flow.deployment
    assert deployment is not None
    assert (deployment.number, deployment.plan.targets) == (2, ("rules",))
    assert place.flow.history()[-1].note.startswith("deployed by a start: rules (its code has")
    assert [type(event) for event in place.heard[:4]] == [
        ChangeRequested,
        ChangeCommitted,
        ChangeDone,
        QueryStarted,
    ]
    assert deployment.undo().wait(PATIENCE)
    place.feed()
    query = place.start(broken)
    place.feed()
    assert query.isActive
    assert place.flow.deployment is not None
    assert place.flow.deployment.state == "rolled back"
    place.start(broken)
    assert place.flow.deployment is None
    place.feed()
    assert place.versions() == [1, 2, 3, 2, 2, 2]
    assert place.states()[:4] == ["done", "done", "done", "rolled back"]
    place.flow.stop()
    shutil.rmtree(place.folder / "checkpoint" / "fries")
    with pytest.raises(LogDamagedError, match=r"of operator 'rules' since change \d are lost"):
        place.start(broken)
    assert place.flow.query is None, "nothing was started"


def test_a_second_driver_in_another_process_has_the_checkpoint_and_the_first_stops(
    place: Checkpoint,
) -> None:
    first = place.start(stamp(1))
    place.feed()
    other = [sys.executable, "-m", "tests.spark.second_driver", str(place.folder)]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "started\n"
            until(lambda: not first.isActive)
            with pytest.raises(LogTakenError, match=f"process {run.pid} on "):
                first.awaitTermination()
            place.add()
            assert run.stdout.readline() == "changed\n"
            assert run.stdout.readline() == "processed\n"
        finally:
            assert run.stdin is not None
            run.stdin.close()
    assert place.versions() == [1, 2]
    place.start(stamp(1))
    place.feed()
    assert place.versions() == [1, 2, 2]
    assert place.states() == ["done"]
