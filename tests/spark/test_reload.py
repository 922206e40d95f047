"""A module is edited and reloaded in the driver: workers get what the driver holds now."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import Row, SparkSession

import fries
from fries.errors import AbortedError, UpdateRefusedError
from tests.spark.streams import PATIENCE, FileStream, start, stop, until

HELPERS = """
class Sum:
    def __init__(self, sum):
        self.sum = sum

    def add(self, amount):
        return Sum(self.sum + amount * 1)

def enriched(row):
    return {**row, "a": 1}
"""
OPERATORS = """
import edited_helpers
from edited_helpers import Sum

B = 1

def enrich(row):
    return {**edited_helpers.enriched(row), "b": B}

def rated(row):
    from edited_tables import RATE
    return {**row, "a": RATE}

def count(state, row):
    if state is not None and not isinstance(state, Sum):
        raise TypeError(f"{state} is of another class")
    state = (state or Sum(0)).add(1)
    return state, {**row, "n": state.sum}
"""

SCORING = """
import threading

sessions = {}
lock = threading.Lock()

class Session:
    def __init__(self, by):
        self.by, self.lock = by, threading.Lock()

def score(batch, by=1):
    with lock:
        session = sessions.setdefault(by, Session(by))
    frame = batch.to_pandas()
    return batch.from_pandas(frame.assign(a=session.by))

def doubled(batch):
    return score(batch, by=2)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the driver's modules are."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("edited_helpers", "edited_operators", "edited_tables", "edited_scoring"):
        sys.modules.pop(name, None)


def written(folder: Path, name: str, text: str) -> ModuleType:
    """A module, written or edited, and imported or reloaded."""
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    known = sys.modules.get(name)
    return importlib.reload(known) if known else importlib.import_module(name)


def test_a_change_brings_a_reloaded_module_and_its_undo_what_was_there_before(
    spark: SparkSession, folder: Path
) -> None:
    written(folder, "edited_helpers", HELPERS)
    ours = written(folder, "edited_operators", OPERATORS)
    stream = FileStream(spark, folder / "in", "id long, a long, b long, n long")
    flow = fries.Flow("reload")
    rows = flow.source("rows", stream.frame).map("enrich", ours.enrich)
    frame = flow.output(rows.process("count", ours.count, key="id"))
    start(flow, frame, folder)

    def add() -> Row:
        """One more row through the whole flow."""
        number = stream.batches
        stream.add([{"id": 0, "a": 0, "b": 0, "n": 0}])
        until(lambda: stream.done(flow), flow)
        found = spark.read.parquet(str(folder / "out")).orderBy("n").collect()
        assert len(found) == number + 1
        return found[-1]

    try:
        assert add()[1:] == (1, 1, 1)
        written(folder, "edited_helpers", HELPERS.replace('"a": 1', '"a": 7'))
        ours = written(folder, "edited_operators", OPERATORS.replace("B = 1", "B = 5"))
        change = flow.reconfigure({"enrich": ours.enrich})
        assert change.wait(PATIENCE)
        assert add()[1:] == (7, 5, 2), "what the reloaded modules say"
        assert flow.reconfigure({"count": ours.count}, note="nothing but another name").wait(
            PATIENCE
        )
        assert add()[1:] == (7, 5, 3), "states are of the same class still"
        written(folder, "edited_helpers", HELPERS.replace("amount * 1", "amount * 10"))
        ours = written(folder, "edited_operators", OPERATORS)
        with pytest.raises(UpdateRefusedError, match=r"edited_helpers\.Sum was edited"):
            flow.reconfigure({"count": ours.count})
        migrate = fries.Update(ours.count, migrate=lambda old: ours.Sum(old.sum))
        assert flow.reconfigure({"count": migrate}).wait(PATIENCE)
        assert add()[1:] == (7, 5, 13), "the new class adds ten"
        assert change.undo().wait(PATIENCE)
        assert add()[1:] == (1, 1, 23), "not what the old function would do with the new modules"
    finally:
        stop(flow)


def test_a_change_that_would_find_old_data_on_the_workers_is_aborted(
    spark: SparkSession, folder: Path
) -> None:
    written(folder, "edited_helpers", HELPERS)
    written(folder, "edited_tables", "RATE = 3")
    spark.sparkContext.addPyFile(str(folder / "edited_tables.py"))  # as it is now
    ours = written(folder, "edited_operators", OPERATORS)
    stream = FileStream(spark, folder / "in", "id long, a long, b long, n long")
    flow = fries.Flow("late")
    frame = flow.output(flow.source("rows", stream.frame).map("enrich", ours.enrich))
    start(flow, frame, folder)

    def add() -> int:
        """What becomes of one more row."""
        stream.add([{"id": 0, "a": 0, "b": 0, "n": stream.batches}])
        until(lambda: stream.done(flow), flow)
        return int(spark.read.parquet(str(folder / "out")).orderBy("n").collect()[-1]["a"])

    try:
        assert add() == 1
        assert flow.reconfigure({"enrich": ours.rated}).wait(PATIENCE)
        assert add() == 3
        written(folder, "edited_tables", "RATE = 400")
        change = flow.reconfigure({"enrich": ours.rated}, note="the same function, other data")
        with pytest.raises(AbortedError, match=r"edited_tables\.RATE is other code here"):
            change.wait(PATIENCE)
        assert add() == 3
    finally:
        stop(flow)


def test_sessions_that_a_rehearsal_opens_in_the_driver_are_no_other_code(
    spark: SparkSession, folder: Path
) -> None:
    ours = written(folder, "edited_scoring", SCORING)
    spark.sparkContext.addPyFile(str(folder / "edited_scoring.py"))
    stream = FileStream(spark, folder / "in", "id long, a long")
    flow = fries.Flow("scoring")
    scored = flow.source("rows", stream.frame).map("score", ours.score, batch="arrow")
    start(flow, flow.output(scored), folder)
    try:
        for number, function in enumerate((ours.score, ours.doubled, ours.score)):
            if number:
                assert flow.reconfigure({"score": function}).wait(PATIENCE)
            stream.add([{"id": number, "a": 0}])
            until(lambda: stream.done(flow), flow)
        found = spark.read.parquet(str(folder / "out")).orderBy("id").collect()
        assert [row.a for row in found] == [1, 2, 1]
    finally:
        stop(flow)
