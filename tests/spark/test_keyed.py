"""Keyed operators on a real Spark: plain results, states, migrations, restarts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it
from pyspark.sql.window import Window

from fries.errors import (
    AbortedError,
    FlowStateError,
    UpdateRefusedError,
)
from fries.flow import Flow
from fries.updates import Update
from tests.spark.streams import PATIENCE, FileStream, start, start_plainly, stop, until

PAYMENTS = "id long, user long, amount long"
SCORED = f"{PAYMENTS}, version long, total long"
AnyRow = dict[str, Any]


@pytest.fixture
def flow() -> Iterator[Flow]:
    made = Flow("keyed", groups=4)
    yield made
    stop(made)


def recent_5(state: list[int], row: AnyRow) -> tuple[list[int], AnyRow]:
    """The first version: a list of the 5 most recent amounts."""
    state = [*state, row["amount"]][-5:]
    return state, {**row, "version": 0, "total": sum(state)}


def recent_10(state: dict[str, list[int]], row: AnyRow) -> tuple[dict[str, list[int]], AnyRow]:
    """The second version: the 10 most recent ones, in a dict."""
    time.sleep(0.001)
    amounts = [*state["amounts"], row["amount"]][-10:]
    return {"amounts": amounts}, {**row, "version": 1, "total": sum(amounts)}


def slow_5(state: list[int], row: AnyRow) -> tuple[list[int], AnyRow]:
    time.sleep(0.001)
    return recent_5(state, row)


def widen(state: list[int]) -> dict[str, list[int]]:
    return {"amounts": state}


def payments(first: int, count: int) -> list[AnyRow]:
    return [
        {"id": n, "user": n * 31 % 23, "amount": n * 7 % 100} for n in range(first, first + count)
    ]


def keyed(flow: Flow, rows: DataFrame, **options: Any) -> DataFrame:  # noqa: ANN401
    """Source -> FM, which sums up recent amounts."""
    settings: dict[str, Any] = {"function": slow_5, "initial": [], **options}
    source = flow.source("payments", rows)
    return flow.output(source.process("FM", key="user", order_by="id", schema=SCORED, **settings))


def oracle(rows: list[Row], batch_of: dict[int, int]) -> dict[int, int]:
    """Totals by id, from a plain run over the same tuples in the order that Fries promises."""
    states: dict[int, list[int]] = defaultdict(list)
    totals = {}
    for row in sorted(rows, key=lambda row: (batch_of[row["id"]], row["version"], row["id"])):
        most = 10 if row["version"] else 5
        states[row["user"]] = [*states[row["user"]], row["amount"]][-most:]
        totals[row["id"]] = sum(states[row["user"]])
    return totals


def test_a_batch_job_equals_plain_spark(spark: SparkSession, flow: Flow) -> None:
    rows = spark.range(0, 3000, 1, 4).selectExpr(
        "id", "id * 31 % 23 AS user", "id * 7 % 100 AS amount", "if(id % 5 = 0, null, id) AS gap",
        "timestamp_millis(id) AS moment",
    )  # fmt: skip
    users = spark.range(20).selectExpr("id AS user", "concat('u', id) AS name")
    source = flow.source("payments", rows)
    named = source.lookup("L", users, on="user", how="left")
    seen = named.process(
        "P",
        lambda state, row: (state + 1, {**row, "n": state + 1}),
        key="user",
        order_by="id",
        initial=0,
        schema="id long, user long, amount long, gap long, moment timestamp, name string, n long",
    )
    found = flow.output(seen)
    in_order = Window.partitionBy("user").orderBy("id")
    expected = rows.join(users, "user", "left").select(
        "id", "user", "amount", "gap", "moment", "name",
        F.row_number().over(in_order).cast("long").alias("n"),
    )  # fmt: skip
    assert found.dtypes == expected.dtypes
    assert sorted(found.collect(), key=str) == sorted(expected.collect(), key=str)


def test_branches_are_joined_aggregated_and_put_out_apart(spark: SparkSession, flow: Flow) -> None:
    rows = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 AS user", "id AS amount")
    copy = flow.source("payments", rows).replicate("RE")
    left = copy.map("A", lambda row: {**row, "a": 1}, schema=f"{PAYMENTS}, a long")
    right = copy.filter("F", lambda row: row["id"] % 3 > 0).map(
        "B", lambda row: {"id": row["id"], "b": -row["amount"]}, schema="id long, b long"
    )
    joined = left.join("SJ", right, on="id")
    total = joined.aggregate(
        "sums",
        lambda state, row: {"total": state["total"] + row["b"], "count": state["count"] + 1},
        key="user",
        initial={"total": 0, "count": 0},
        schema="user long, total long, count long",
    )
    every = joined.aggregate(
        "all", lambda state, row: state + row["b"], initial=0, schema="sum long",
        result=lambda state: {"sum": state},
    )  # fmt: skip
    frame = flow.output(pairs=joined, totals=total, everything=every)
    kept = rows.where("id % 3 > 0")
    assert sorted(flow.select(frame, "pairs").collect()) == sorted(
        kept.selectExpr("id", "user", "amount", "1L AS a", "-amount AS b").collect()
    )
    assert sorted(flow.select(frame, "totals").collect()) == sorted(
        kept.groupBy("user").agg((-F.sum("amount")).alias("t"), F.count("*")).collect()
    )
    assert flow.select(frame, "everything").collect() == kept.agg(-F.sum("amount")).collect()
    assert "SJ (join, edge-wise one-to-one)" in flow.explain()


def test_a_migration_in_mid_batch_and_a_restart_lose_no_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    batch_of: dict[int, int] = {}

    def add(first: int, count: int) -> None:
        batch_of.update(dict.fromkeys(range(first, first + count), stream.batches))
        stream.add(payments(first, count))

    first = Flow("first", audit=tmp_path / "audit", groups=4)
    add(0, 300)
    start(first, keyed(first, stream.frame), tmp_path)
    until(lambda: stream.done(first), first)
    add(300, 3000)
    until(lambda: first.counters["FM"].taken > 600, first)
    change = first.reconfigure({"FM": Update(recent_10, migrate=widen)})
    until(lambda: stream.done(first), first)
    add(3300, 100)
    until(lambda: stream.done(first), first)
    assert change.state == "done"
    verdict = first.audit()
    stop(first)
    assert verdict.serializable
    assert min(verdict.tallies[0].old, verdict.tallies[0].new) > 300, "it came in mid-batch"

    again = Flow("again", groups=4)
    add(3400, 300)
    frame = keyed(again, stream.frame, function=recent_10, initial=[], migrations=[widen])
    plain = start_plainly(frame, tmp_path)
    until(lambda: stream.done(plain), plain)
    plain.query.stop()
    stop(again)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["id"] for row in rows) == list(range(3700))
    assert {row["id"]: row["total"] for row in rows} == oracle(rows, batch_of)
    assert {row["version"] for row in rows if row["id"] >= 3300} == {1}


def test_a_state_that_the_flow_cannot_read_is_not_guessed_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    first = Flow("first", groups=4)
    stream.add(payments(0, 50))
    older = keyed(first, stream.frame, migrations=[list, None, list])
    plain = start_plainly(older, tmp_path)
    until(lambda: stream.done(plain), plain)
    plain.query.stop()
    stop(first)
    again = Flow("again", groups=4)
    stream.add(payments(50, 50))
    plain = start_plainly(keyed(again, stream.frame), tmp_path)
    with pytest.raises(Exception, match="was written by its version 2"):
        until(lambda: stream.done(plain), plain)
    stop(again)


def test_bad_updates_of_keyed_operators_are_refused(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    stream.add(payments(0, 200))
    table = spark.range(23).selectExpr("id AS user", "id AS name")
    source = flow.source("payments", stream.frame)
    made = source.process(
        "FM", recent_5, key="user", initial=[], order_by="id", schema=SCORED
    ).lookup("L", table, on="user")
    start(flow, flow.output(made), tmp_path)
    until(lambda: stream.done(flow), flow)
    with pytest.raises(AbortedError, match=r"migration fails on the live state of key \d+"):
        flow.reconfigure({"FM": Update(recent_10, migrate=lambda state: state["no"])}).wait(
            PATIENCE
        )
    with pytest.raises(UpdateRefusedError, match=r"other int64, planned are .*, name int64"):
        flow.reconfigure({"L": Update(table.selectExpr("user", "name AS other"))})
    with pytest.raises(UpdateRefusedError, match=r"update '\w+' in the same reconfiguration"):
        flow.reconfigure({"FM": Update(recent_10, schema=f"{SCORED}, more long")})
    with pytest.raises(UpdateRefusedError, match="a key occurs twice in the new table"):
        flow.reconfigure({"L": table.union(table)})
    with pytest.raises(UpdateRefusedError, match="a lookup has no state to migrate"):
        flow.reconfigure({"L": Update(table, migrate=widen)})
    other = flow.reconfigure({"L": table.selectExpr("user", "-name AS name")})
    assert other.wait(PATIENCE)
    stream.add(payments(200, 10))
    until(lambda: stream.done(flow), flow)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(row["id"] >= 200, row["name"] > 0) for row in rows if row["user"]} == {
        (False, True),
        (True, False),
    }


def test_a_query_that_waits_for_rows_can_be_changed(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    start(flow, keyed(flow, stream.frame), tmp_path)
    assert not flow.workers
    with pytest.raises(UpdateRefusedError, match=r"(?s)cannot be loaded.*no_such_module"):
        flow.reconfigure({"FM": Needs("no_such_module")})
    assert flow.reconfigure({"FM": Update(recent_10, migrate=widen)}).wait(PATIENCE)
    assert flow.versions == {"payments": 0, "FM": 1}
    stream.add(payments(0, 50))
    until(lambda: stream.done(flow), flow)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["version"] for row in rows} == {1}


def test_a_query_without_rows_can_be_changed_again_and_again(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    """Though components overlap: between two batches nothing is in transition."""
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    stream.add(payments(0, 50))
    source = flow.source("payments", stream.frame)
    fm = source.process("FM", recent_5, key="user", initial=[], order_by="id", schema=SCORED)
    start(flow, flow.output(fm.filter("F", lambda row: True)), tmp_path)
    until(lambda: stream.done(flow), flow)
    first = flow.reconfigure({"F": lambda row: row["id"] != 60})
    assert first.wait(PATIENCE)
    second = flow.reconfigure({"FM": Update(recent_10, migrate=widen), "F": lambda row: True})
    assert first.state == "untried"
    assert second.wait(PATIENCE)
    with pytest.raises(FlowStateError, match="its query is running; stop it first"):
        flow.start(spark.readStream.format("rate").load().writeStream)
    with pytest.raises(UpdateRefusedError, match="its table or schema is of no use"):
        flow.reconfigure({"FM": Update(recent_5, schema="id lnog")})
    stream.add(payments(50, 50))
    until(lambda: stream.done(flow), flow)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["version"] for row in rows if row["id"] >= 50} == {1}
    assert len(rows) == 100


class Needs:
    """A function that cannot be loaded where a module is missing."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (self.module,)

    def __call__(self, state: Any, row: AnyRow) -> tuple[Any, AnyRow]:  # noqa: ANN401, D102
        return state, row


def test_columns_may_change_inside_a_stage(spark: SparkSession, flow: Flow, tmp_path: Path) -> None:
    """The paper's running example: FM gives one more score, and MC uses it."""
    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    stream.add(payments(0, 100))
    fm = flow.source("payments", stream.frame).process(
        "FM", recent_5, key="user", initial=[], order_by="id", schema=SCORED
    )
    mc = fm.map("MC", lambda row: {"id": row["id"], "p": row["total"]}, schema="id long, p long")
    start(flow, flow.output(mc), tmp_path)
    until(lambda: stream.done(flow), flow)

    def both(state: Any, row: AnyRow) -> tuple[Any, AnyRow]:  # noqa: ANN401
        state, made = recent_10(state, row)
        return state, {**made, "more": -1}

    with pytest.raises(UpdateRefusedError, match=r"update '\w+' in the same reconfiguration"):
        flow.reconfigure({"FM": Update(both, migrate=widen, schema=f"{SCORED}, more long")})
    change = flow.reconfigure(
        {
            "FM": Update(both, migrate=widen, schema=f"{SCORED}, more long"),
            "MC": lambda row: {"id": row["id"], "p": row["more"]},
        }
    )
    assert change.wait(PATIENCE)
    stream.add(payments(100, 100))
    until(lambda: stream.done(flow), flow)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["p"] == -1 for row in rows if row["id"] >= 100} == {True}
    assert {row["p"] == -1 for row in rows if row["id"] < 100} == {False}


def test_a_function_that_fails_names_its_operator_and_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    def picky(state: Any, row: AnyRow) -> tuple[Any, AnyRow]:  # noqa: ANN401
        return state, {**row, "version": 1 // (row["id"] - 7), "total": 0}

    stream = FileStream(spark, tmp_path / "in", PAYMENTS)
    stream.add(payments(0, 20))
    flow = Flow("picky", groups=4)
    start(flow, keyed(flow, stream.frame, function=picky), tmp_path)
    with pytest.raises(Exception, match=r"operator 'FM' failed on \{'id': 7"):
        until(lambda: stream.done(flow), flow)
    stop(flow)


class Fragile:
    """A state that nobody can read while a file is there, if it has seen one row."""

    def __init__(self, flag: str, seen: int) -> None:
        self.flag, self.seen = flag, seen

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if Path(self.flag).exists() and self.seen == 1:
            raise ValueError("no state of one row")


def test_a_state_that_cannot_be_read_is_named_and_can_be_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream, flag = FileStream(spark, tmp_path / "in", PAYMENTS), tmp_path / "flag"

    def count(state: Fragile | None, row: AnyRow) -> tuple[Fragile, AnyRow]:
        seen = 1 if state is None else state.seen + 1
        return Fragile(str(flag), seen), {**row, "version": 0, "total": seen}

    def add(users: Iterable[int]) -> None:
        stream.add([{"id": stream.batches, "user": user, "amount": 0} for user in users])

    def run(**options: Any) -> None:  # noqa: ANN401
        flow = Flow("fragile", groups=4)
        try:
            query = start_plainly(keyed(flow, stream.frame, function=count, **options), tmp_path)
            until(lambda: stream.done(query), query)
            query.query.stop()
        finally:
            stop(flow)

    add(range(40))
    add(range(0, 40, 4))
    run(initial=None)
    flag.touch()
    add([4, 5])
    with pytest.raises(Exception, match="'FM' failed on the state of key 5: it cannot be read"):
        run(initial=None)
    run(initial=None, on_unreadable=lambda key, data, error: Fragile(str(flag), 1000 + key))
    add([5, 7, 8])
    flag.unlink()
    run(initial=None)
    rows = spark.read.parquet(str(tmp_path / "out")).where("id >= 2").collect()
    assert sorted((row["id"], row["user"], row["total"]) for row in rows) == [
        (2, 4, 3), (2, 5, 1006), (3, 5, 1007), (3, 7, 2), (3, 8, 3),
    ]  # fmt: skip
