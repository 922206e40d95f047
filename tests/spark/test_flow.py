"""Flows on a real Spark: plain results, changes in the middle of a batch, refusals."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it
from pyspark.sql.streaming.query import StreamingQuery

from fries.control.server import ControlServer
from fries.errors import (
    AbortedError,
    AlreadyAppliedError,
    DuplicateOperatorError,
    EmptyUpdateError,
    FlowStateError,
    NotRunningError,
    UnknownOperatorError,
    UpdateRefusedError,
    UsageError,
)
from fries.flow import Flow
from fries.spark.engine import jobs_over
from fries.updates import Update
from tests.waiting import PATIENCE

NumberedRow = dict[str, Any]


def set_a(version: int, seconds: float = 0.0) -> Callable[[NumberedRow], NumberedRow]:
    def function(row: NumberedRow) -> NumberedRow:
        time.sleep(seconds)
        return {**row, "a": version}

    return function


def set_b(version: int) -> Callable[[NumberedRow], NumberedRow]:
    return lambda row: {**row, "b": version}


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("id", "-1L AS a", "-1L AS b")


def chain(flow: Flow, rows: DataFrame, seconds: float = 0.0) -> DataFrame:
    """Source -> A -> B, where A takes its time and both leave their version."""
    return flow.output(flow.source("rows", rows).map("A", set_a(0, seconds)).map("B", set_b(0)))


@pytest.fixture
def flow() -> Iterator[Flow]:
    made = Flow("test")
    yield made
    made.stop()


class Running:
    """A batch job in a thread of its own."""

    def __init__(self, frame: DataFrame) -> None:
        self._rows: list[Row] = []
        self._thread = threading.Thread(target=lambda: self._rows.extend(frame.collect()))
        self._thread.start()

    def rows(self) -> list[Row]:
        """Its result, when it has ended."""
        self._thread.join()
        return self._rows


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def newest(query: StreamingQuery) -> int:
    """The number of the newest finished micro-batch."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def runs(flow: Flow) -> bool:
    """Whether both workers are there, and rows have been processed by the first versions."""
    taken = [counts.taken for counts in flow.counters.values()]
    return len(flow.workers) == 2 and any(taken)


def test_a_shuffle_changes_where_rows_are_processed_and_nothing_else(
    spark: SparkSession, flow: Flow
) -> None:
    """All rows of a key are in one process, several stages of them in one plan."""
    rows = flow.source("rows", spark.range(0, 200, 1, 3).selectExpr("id", "id % 5 AS k"))
    where = rows.map(
        "where", lambda row: {**row, "pid": os.getpid()}, "id long, k long, pid long", shuffle="k"
    )
    even, odd = where.split("parity", lambda row: row["id"] % 2, shuffle=["id", "k"])
    twice = even.flat_map("twice", lambda row: [row, row], shuffle="id")
    kept = odd.filter("kept", lambda row: row["id"] > 10, shuffle="k")
    found = flow.output(twice.union("all", kept)).collect()
    expected = [n for n in range(200) if n % 2 == 0 or n > 10]
    assert sorted({row.id for row in found}) == expected
    assert len(found) == 100 + len(expected)
    assert len({(row.k, row.pid) for row in found}) == 5
    assert flow.explain().splitlines()[0] == "flow test: 4 stages, one Spark plan"
    assert "exchange: where -> parity by id, k" in flow.explain()
    assert flow.plan({"where": None}).heads == ("where",)
    with pytest.raises(UsageError, match=r"names \['nothing'\]"):
        Flow("other").source("rows", spark.range(3)).map("A", set_a(0), shuffle="nothing")


def test_results_equal_those_of_plain_spark(spark: SparkSession, flow: Flow) -> None:
    users = spark.range(100).selectExpr("id", "id % 7 AS kind")
    more = spark.range(100, 130).selectExpr("id", "'x' AS note")
    first = flow.source("users", users)
    second = flow.source("more", more).map(
        "named",
        lambda row: {"id": row["id"], "kind": len(row["note"])},
        schema="id long, kind long",
    )
    both = first.union("both", second)
    even, odd = both.split("parity", lambda row: row["id"] % 2)
    twice = even.flat_map("twice", lambda row: [row, {**row, "kind": -1}])
    kept = odd.filter("kept", lambda batch: batch["kind"].to_numpy() > 2, batch="arrow")
    scored = twice.union("together", kept).map(
        "scored", lambda frame: frame.assign(score=frame["kind"] * 1.5), batch="pandas"
    )
    found = flow.output(scored)

    plain = users.unionByName(more.selectExpr("id", "cast(length(note) AS long) AS kind"))
    evens, odds = plain.where("id % 2 = 0"), plain.where("id % 2 = 1 AND kind > 2")
    expected = (
        evens.unionByName(evens.withColumn("kind", F.lit(-1).cast("long")))
        .unionByName(odds)
        .withColumn("score", F.col("kind") * F.lit(1.5))
    )
    assert found.dtypes == expected.dtypes
    assert sorted(found.collect()) == sorted(expected.collect())


def test_a_stream_used_twice_is_replicated(spark: SparkSession, flow: Flow) -> None:
    rows = flow.source("rows", numbered(spark, 10))
    copy = rows.replicate("RE")
    left, right = copy.map("L", set_a(1)), copy.map("R", set_a(2))
    found = flow.output(left.union("U", right)).collect()
    assert sorted((row.id, row.a) for row in found) == [(n, a) for n in range(10) for a in (1, 2)]
    assert str(flow.plan({"L": set_a(3), "R": set_a(3)}).components[0].heads) == "('RE',)"


@pytest.mark.parametrize("scheduler", ["fries", "fries_unpruned", "epoch", "multi_version"])
def test_a_change_in_the_middle_of_a_batch_is_all_or_nothing(
    spark: SparkSession, tmp_path: Path, scheduler: str
) -> None:
    flow = Flow("audited", audit=tmp_path)
    running = Running(chain(flow, numbered(spark, 4000), 0.002))
    until(lambda: runs(flow))
    change = flow.reconfigure({"A": set_a(1, 0.002), "B": set_b(1)}, scheduler)
    assert change.wait(PATIENCE)
    undone = flow.reconfigure({"A": set_a(2, 0.002), "B": set_b(2)}, scheduler)
    with pytest.raises(UsageError, match=r"the timeout of wait\(\) is '60'; give seconds"):
        change.wait("60")  # type: ignore[arg-type]
    assert undone.wait(PATIENCE), "the same components: no need to wait for the end of the batch"
    rows = running.rows()
    assert sorted(row.id for row in rows) == list(range(4000)), "no row lost, none twice"
    assert {(row.a, row.b) for row in rows} <= {(0, 0), (1, 1), (2, 2)}
    assert {row.a for row in rows} >= {1, 2}
    assert change.state == "committed", "a batch job is one batch"
    assert change.delay is not None
    assert len(change.switches) == 2
    verdict = flow.audit()
    flow.stop()
    assert verdict.serializable, verdict
    assert (verdict.transactions, verdict.operations, verdict.mixed) == (4000, 12000, 0)
    assert [tally.new > 0 for tally in verdict.tallies] == [True, True]


def test_an_audit_sees_one_to_many_rows_and_replicates(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("fan-out", audit=tmp_path)
    rows = flow.source("rows", numbered(spark, 2000)).map("A", set_a(0, 0.002))
    many = rows.flat_map("M", lambda row: [row, row, row]).replicate("RE")
    left, right = many.map("L", set_b(0)), many.map("R", set_b(0))
    running = Running(flow.output(left.union("U", right)))
    until(lambda: runs(flow))
    change = flow.reconfigure({"L": set_b(1), "R": set_b(1)})
    assert change.plan.heads == ("M",), "a one-to-many ancestor starts the synchronisation"
    assert change.wait(PATIENCE)
    assert len(running.rows()) == 12000
    verdict = flow.audit()
    flow.stop()
    assert verdict.serializable, verdict
    assert verdict.transactions == 2000
    assert verdict.tallies[0].new > 0


def test_an_audit_must_be_asked_for(spark: SparkSession, flow: Flow) -> None:
    with pytest.raises(NotRunningError):
        flow.audit()
    chain(flow, numbered(spark, 1))
    with pytest.raises(UsageError, match="audit=folder"):
        flow.audit()


def test_a_streaming_query_is_changed_and_the_change_is_done_with_the_next_batch(
    spark: SparkSession, flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, announced = ControlServer.announce, list[str]()

    def noted(server: ControlServer) -> None:
        announced.append(server.flow)
        announce(server)

    monkeypatch.setattr(ControlServer, "announce", noted)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    frame = chain(flow, rows.selectExpr("value AS id", "-1L AS a", "-1L AS b"), 0.001)
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    try:
        until(lambda: flow.workers)
        first = flow.reconfigure({"A": set_a(1), "B": set_b(1)})
        until(lambda: first.state == "done")
        second = flow.reconfigure({"A": set_a(2), "B": set_b(2)}, "mini_batch")
        until(lambda: second.state == "done")
        assert second.delay is not None
        assert announced == [flow.name], "workers hear of it in advance only if it is for now"
        done = newest(query)
        until(lambda: newest(query) > done + 1)
    finally:
        query.stop()
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in written) == list(range(len(written)))
    by_id = [(row.a, row.b) for row in sorted(written)]
    assert set(by_id) <= {(0, 0), (1, 1), (2, 2)}
    assert by_id[-1] == (2, 2)


def test_waiting_until_a_flow_runs_and_a_change_is_done(spark: SparkSession, flow: Flow) -> None:
    with pytest.raises(NotRunningError):
        flow.wait_until_running()
    frame = chain(flow, numbered(spark, 2000), 0.002)
    assert not flow.wait_until_running(timeout=0.0)
    with pytest.raises(UnknownOperatorError, match="no operator named 'C'"):
        flow.wait_until_running("C")
    wrong: Any = "1"
    with pytest.raises(UsageError, match="the timeout is '1'"):
        flow.wait_until_running(timeout=wrong)
    running = Running(frame)
    assert flow.wait_until_running("B")
    assert flow.counters["B"].taken > 0
    change = flow.reconfigure({"A": set_a(1), "B": set_b(1)})
    assert not change.wait_until_done(timeout=0.0), "the job goes on"
    assert change.wait_until_done()
    assert change.state == "done"
    assert len(running.rows()) == 2000


def test_bad_updates_are_refused_and_the_job_goes_on(spark: SparkSession, flow: Flow) -> None:
    running = Running(chain(flow, numbered(spark, 2000), 0.002))
    until(lambda: runs(flow))
    with pytest.raises(UnknownOperatorError, match="no operator named 'C'"):
        flow.reconfigure({"C": set_a(1)})
    with pytest.raises(EmptyUpdateError):
        flow.reconfigure({})
    with pytest.raises(UsageError, match=r"operators to functions: \{'A': function\}"):
        flow.reconfigure("A", set_a(1))  # type: ignore[arg-type]
    with pytest.raises(UpdateRefusedError, match="no function to replace"):
        flow.reconfigure({"rows": set_a(1)})
    lock = threading.Lock()
    with pytest.raises(UpdateRefusedError, match="cannot be pickled"):
        flow.reconfigure({"A": lambda row: (lock.locked(), row)[1]})
    for _ in range(2):  # an aborted change may be tried again
        with pytest.raises(AbortedError, match="no_such_module"):
            flow.reconfigure({"A": _needs("no_such_module")}).wait(PATIENCE)
    good = {"B": set_b(1)}
    assert flow.reconfigure(good).wait(PATIENCE)
    with pytest.raises(AlreadyAppliedError, match="B: these functions are in place"):
        flow.reconfigure(good)
    rows = running.rows()
    assert sorted(row.id for row in rows) == list(range(2000))
    assert {row.b for row in rows} <= {0, 1}


class _needs:  # noqa: N801 - used as a function
    """A function whose worker cannot import what it needs."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (self.module,)

    def __call__(self, row: NumberedRow) -> NumberedRow:
        return row


def test_flows_of_one_name_do_not_meet(spark: SparkSession) -> None:
    """As when a notebook's cell is run again."""
    found = []
    flows = [Flow("same") for _ in range(2)]
    for version, flow in enumerate(flows, 1):
        rows = flow.source("rows", numbered(spark, 20)).map("A", set_a(version))
        found.append({row.a for row in flow.output(rows).collect()})
    assert found == [{1}, {2}]
    for flow in flows:
        flow.stop()


def test_a_dry_run_refuses_columns_that_do_not_fit(spark: SparkSession, flow: Flow) -> None:
    def add(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(a=frame["a"] + 1)

    rows = flow.source("rows", numbered(spark, 10)).map("A", add, batch="pandas")
    flow.output(rows)
    with pytest.raises(UpdateRefusedError, match="dry run on an empty batch failed"):
        flow.reconfigure({"A": lambda frame: frame[["id"]]})
    with pytest.raises(NotRunningError, match="start its query first"):
        flow.reconfigure({"A": lambda frame: frame.assign(a=1)})


def test_bad_flows_are_refused(spark: SparkSession, flow: Flow) -> None:
    rows = flow.source("rows", numbered(spark, 10))
    with pytest.raises(DuplicateOperatorError):
        rows.map("rows", set_a(1))
    other = rows.map("other", lambda row: {"x": 1}, schema="x long")
    with pytest.raises(UsageError, match="make names, order and types equal"):
        rows.union("U", other)
    with pytest.raises(UsageError, match="dry run on an empty batch failed"):
        rows.map("broken", lambda frame: frame["missing"], batch="pandas")
    with pytest.raises(NotRunningError):
        flow.reconfigure({"other": set_a(1)})
    flow.output(other)
    with pytest.raises(FlowStateError, match="its output is built"):
        rows.map("late", set_a(1))


def test_operators_that_mean_nothing_are_refused(spark: SparkSession, flow: Flow) -> None:
    columns = numbered(spark, 10).selectExpr("*", "array(a) AS many", "a / 2D AS half")
    rows = flow.source("rows", columns)
    with pytest.raises(UsageError, match="operator '': give the operator a name"):
        rows.map("", set_a(1))
    with pytest.raises(UsageError, match="operator 'A': 7 cannot be called"):
        rows.map("A", 7)  # type: ignore[arg-type]
    for within in (0, -1.0, float("nan"), float("inf"), True, "1 s"):
        with pytest.raises(UsageError, match=f"operator 'A': switch_within={within!r} "):
            rows.map("A", lambda row: row, switch_within=within)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="operator 'P': None cannot be called"):
        rows.process("P", None, key="id")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="operator 'G': 'sum' cannot be called"):
        rows.aggregate("G", max, "n long", result="sum")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch='numpy' means nothing; use 'arrow' or 'pandas'"):
        rows.map("A", set_a(1), batch="numpy")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="split 'SP': it cannot have 0 branches"):
        rows.split("SP", lambda row: 0, branches=0)
    for key in ("half", "many"):
        with pytest.raises(UsageError, match=f"operator 'P': its key '{key}' is .*; use integers"):
            rows.process("P", max, key=key)
    with pytest.raises(UsageError, match=r"operator 'P': .* 'many' cannot be sorted by"):
        rows.process("P", max, key="id", order_by=("id", "many"))
    with pytest.raises(UsageError, match=r"operator 'P': its order_by names \['when'\], but it ge"):
        rows.process("P", max, key="id", order_by="when")
    with pytest.raises(UsageError, match=r"aggregate 'G': its schema lacks the key columns \['id"):
        rows.aggregate("G", max, "n long", key="id")
    with pytest.raises(UsageError, match="flow 'none': it cannot have 0 key groups"):
        Flow("none", groups=0)
    assert flow.graph.order == ("rows",), "what is refused leaves nothing behind"


def test_streams_that_do_not_belong_together_are_refused(spark: SparkSession, flow: Flow) -> None:
    rows, more = (flow.source(name, numbered(spark, 10)) for name in ("rows", "more"))
    stranger = Flow("another").source("rows", numbered(spark, 10))
    with pytest.raises(
        UsageError, match="operator 'U': its input 'rows' belongs to flow 'another'"
    ):
        rows.union("U", stranger)
    with pytest.raises(
        UsageError, match="operator 'J': its input 'rows' belongs to flow 'another'"
    ):
        rows.join("J", stranger, on="id")
    with pytest.raises(UsageError, match="output 'output': the stream belongs to another flow"):
        flow.output(stranger)
    with pytest.raises(
        UsageError, match=r"one branch comes from \['rows'\] and the other from \['m"
    ):
        rows.map("A", set_a(1)).join("J", more.map("B", set_b(1)), on="id")
    totals = rows.aggregate("G", max, "id long, n long", key="id")
    with pytest.raises(UsageError, match=r"join 'J': one branch comes from .*; it pairs branches"):
        rows.join("J", totals, on="id")
    live = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match="source 'live': a flow has streams or static tables for"):
        flow.source("live", live)


def test_outputs_that_cannot_be_told_apart_are_refused(spark: SparkSession, flow: Flow) -> None:
    rows = flow.source("rows", numbered(spark, 3))
    named = rows.map("A", lambda row: {"_output": "mine"}, schema="_output string")
    with pytest.raises(UsageError, match="'_output' is there twice, or a name of Fries"):
        flow.output(one=named, two=rows)
    text = rows.map("B", lambda row: {"id": "text"}, schema="id string")
    with pytest.raises(UsageError, match="one name has two types; rename one"):
        flow.output(one=text, two=rows)
    with pytest.raises(UsageError, match="flow 'test': it has no output; name at least one stream"):
        flow.output()
    with pytest.raises(UsageError, match="output 'rows': an operator is called so"):
        flow.output(rows=named)
    assert {row["_output"] for row in flow.output(named).collect()} == {"mine"}, "if it is alone"


def test_outputs_and_joins_that_cannot_be_told_apart_are_refused(spark: SparkSession) -> None:
    flow = Flow("one")
    rows = flow.source("rows", spark.range(3))
    upper = rows.map("A", lambda row: {"ID": 1}, schema="ID long")
    with pytest.raises(UsageError, match="'ID' is there twice"):
        flow.output(one=rows, two=upper)
    with pytest.raises(UsageError, match="a stream without a name is called so"):
        flow.output(rows, output=upper)
    stranger = Flow("two").source("others", spark.range(3))
    with pytest.raises(UsageError, match="belongs to flow 'two'"):
        rows.join("J", stranger, on="id")
    total = rows.aggregate("G", max, "id long, n long", key="id")
    copies = total.replicate("copies")
    copies.map("M", dict).join("together", copies, on="id")
    with pytest.raises(UsageError, match=r"'copies' already; put .replicate\('a name'\) behind it"):
        total.map("N", dict)


def test_the_branches_of_a_split_can_be_united(spark: SparkSession, flow: Flow) -> None:
    low, high = flow.source("rows", numbered(spark, 10)).split("S", lambda row: row["id"] // 5)
    found = flow.output(low.union("U", high)).collect()
    assert sorted(row.id for row in found) == list(range(10))
    assert "U.1 (pass, one-to-one)" in flow.explain()


def test_actions_on_one_flow_are_batches_of_their_own(spark: SparkSession, flow: Flow) -> None:
    frame = chain(flow, numbered(spark, 1000), 0.002)
    running = Running(frame)
    until(lambda: runs(flow))
    actions = spark._jsparkSession.sharedState().statusStore().executionsList()
    batch = -1 - actions.last().executionId()
    is_over = jobs_over(spark.sparkContext)
    assert not is_over(batch)
    change = flow.reconfigure({"A": set_a(1)})
    assert change.wait(PATIENCE)
    running.rows()
    assert is_over(batch)
    assert change.state == "committed"
    assert {row.a for row in frame.collect()} == {1}
    assert change.state == "done"


def test_a_change_that_builds_on_an_undecided_one_is_refused(
    spark: SparkSession, flow: Flow
) -> None:
    rows = flow.source("rows", numbered(spark, 3000)).map(
        "M", lambda row: {"x": row["id"]}, schema="x long"
    )
    last = rows.map("N", lambda row: {"z": row["x"]}, schema="z long")
    slow = last.filter("S", lambda row: bool(set_a(0, 0.002)(row)))
    running = Running(flow.output(slow))
    until(lambda: runs(flow))
    first = flow.reconfigure({"S": lambda row: len(set_a(1, 0.002)(row)) > 0}, "epoch")
    assert first.wait(PATIENCE)
    queued = flow.reconfigure(
        {"M": Update(lambda row: {"y": 1}, schema="y long"), "N": lambda row: {"z": row["y"]}}
    )
    assert queued.state == "queued", "its component overlaps with that of the first"
    with pytest.raises(UpdateRefusedError, match="a change that is not committed yet"):
        flow.reconfigure({"N": lambda row: {"z": row["y"] + 1}})
    with pytest.raises(UpdateRefusedError, match="it is an output"):
        flow.reconfigure({"output": set_a(1)})
    assert len(running.rows()) == 3000


def test_frames_keep_the_types_of_columns_that_are_not_changed(
    spark: SparkSession, flow: Flow
) -> None:
    rows = spark.range(3).selectExpr("id", "concat('n', id) AS name", "timestamp_millis(id) AS t")
    made = flow.source("rows", rows).map("M", lambda frame: frame.assign(n=1), batch="pandas")
    assert flow.output(made).dtypes == [*rows.dtypes, ("n", "bigint")]
    with pytest.raises(UsageError, match="does not tell the type of its column 's'"):
        Flow("other").source("rows", rows).map(
            "M", lambda frame: frame.assign(s="x"), batch="pandas"
        )


def test_an_audit_folder_of_another_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for problem in ("", "it has files of another run"):
        flow = Flow("audited", audit=tmp_path)
        if problem:
            with pytest.raises(UsageError, match=problem):
                chain(flow, numbered(spark, 5))
        else:
            assert len(chain(flow, numbered(spark, 5)).collect()) == 5
        flow.stop()
