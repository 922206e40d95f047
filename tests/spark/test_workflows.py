"""W1 to W5 on Spark: what they compute, and that they are planned as in the paper."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console

from fries import Flow, Function, Reconfiguration
from fries.plan import Plan
from fries.reconfiguration import IN_PLACE
from fries_lab.workloads import tpcds, w1, w2, w3, w4, w5
from fries_lab.workloads.features import MERCHANT_STEPS, USER_STEPS, sequences
from fries_lab.workloads.generate import USERS_DDL
from fries_lab.workloads.layouts import Layout
from fries_lab.workloads.models import Inference, Model, trained
from fries_lab.workloads.payments import DDL, Payments, payments, per_user
from tests.spark.streams import PATIENCE, stop, until

ROWS = pa.Table.from_batches([payments(0, 400, Payments(seed=3, users=20, merchants=64))])
LAYOUTS: list[Layout] = ["fused", "exchanged"]
Answer: TypeAlias = "list[tuple[Any, ...]]"


@pytest.fixture
def flow() -> Iterator[Flow]:
    made = Flow("test", groups=4)
    yield made
    stop(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TPC-DS, small."""
    made = tmp_path_factory.mktemp("tpcds") / "data"
    tpcds.write_tpcds(made, 0.01, Console(quiet=True))
    return made


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Dataset 1, small."""
    return spark.createDataFrame(ROWS, DDL).repartition(3)


@pytest.fixture(scope="module")
def users(spark: SparkSession) -> DataFrame:
    """Dataset 2, of the same payments."""
    return spark.createDataFrame(per_user(ROWS), USERS_DDL).repartition(3)


def probabilities(model: str, key: str, steps: int, table: pa.Table = ROWS) -> dict[int, float]:
    """By id, what a model says when it is asked about all payments at once."""
    scores = trained(model)(sequences(table, key, steps))
    return dict(zip(table["id"].to_pylist(), map(float, scores), strict=True))  # type: ignore[arg-type]


def column(rows: dict[int, Row], name: str) -> dict[int, float]:
    """By id, what the flow says."""
    return {number: row[name] for number, row in rows.items()}


def sql(spark: SparkSession, folder: Path, number: int) -> Answer:
    """The answer of plain Spark SQL."""
    for name in tpcds.TABLES:
        spark.read.parquet(tpcds.path(folder, name)).createOrReplaceTempView(name)
    return [tuple(row) for row in spark.sql(tpcds.query(number)).collect()]


def duckdb(folder: Path, number: int) -> Answer:
    """The answer of DuckDB."""
    return [tuple(row.values()) for row in tpcds.answer(folder, number).to_pylist()]


def described(plan: Plan) -> list[tuple[set[str], set[str], int]]:
    """Members, heads and longest path of each component."""
    return [(set(one.members), set(one.heads), one.longest_path) for one in plan.components]


def one(members: str, heads: str, longest: int) -> list[tuple[set[str], set[str], int]]:
    return [(set(members.split()), set(heads.split()), longest)]


W2_PLANS = {
    "J1": one("J1", "J1", 0),
    "J2": one("J2", "J2", 0),
    "J1 J3": one("J1 J2 J3", "J1", 2),
    "J1 J4": one("J1 J2 J3 J4", "J1", 3),
    "J3 J4": one("J3 J4", "J3", 1),
}
W3_PLANS = {
    "J5": one("J5", "J5", 0),
    "J5 J6": one("J5", "J5", 0) + one("J6", "J6", 0),
    "J5 J6 J7 J8": one("J5 J6 J7 U1a U1b J8", "J5 J6 J7", 3),
    "J5 J6 J7 J9": one("J5 J6 J7 U1a U1b J8 J9", "J5 J6 J7", 4),
    "J7 J8 J9": one("J7 U1b J8 J9", "J7", 3),
}
W4_PLANS = {
    "F1 U2": one("F1 U2", "F1", 1),
    "FD1": one("U2 FD1", "U2", 1),
    "F2": one("U2 FD1 LP FD2 MC F2", "U2", 5),
}
W5_PLANS = {
    "FD4": (one("FD4", "FD4", 0), one("RE F4 FD4", "RE", 2)),
    "F3": (one("F3", "F3", 0), one("RE FD3 S1 F3", "RE", 3)),
    "F4": (one("F4", "F4", 0), one("RE F4", "RE", 1)),
    "FD3 FD4": (one("RE FD3 F4 FD4", "RE", 2), one("RE FD3 F4 FD4", "RE", 2)),
    "E1": (one("E1", "E1", 0), one("RE FD3 S1 F3 F4 FD4 SJ E1", "RE", 5)),
}


def check_plans(flow: Flow, expected: dict[str, Any], scheduler: str = "fries") -> None:
    for targets, components in expected.items():
        plan = flow.plan(dict.fromkeys(targets.split()), scheduler)
        assert described(plan) == components, targets


def stages(flow: Flow) -> int:
    return flow.explain().count("one Python process runs")


def test_w1_asks_the_model_about_the_last_payments_of_each_user(
    rows: DataFrame, flow: Flow
) -> None:
    found = {row.id: row.p for row in w1.build(flow, rows, "user_lstm_small").collect()}
    assert found == pytest.approx(probabilities("user_lstm_small", "user", USER_STEPS), abs=1e-5)
    check_plans(flow, {"FD": one("FD", "FD", 0)})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_w2_answers_query_40_exactly(
    spark: SparkSession, folder: Path, flow: Flow, layout: Layout
) -> None:
    sums = w2.build(flow, w2.sales(spark, folder), w2.tables(folder), layout)
    found = [tuple(row) for row in w2.answer(sums).collect()]
    assert found == duckdb(folder, 40)
    if layout == "fused":
        assert found == sql(spark, folder, 40)
    check_plans(flow, W2_PLANS)
    assert stages(flow) == {"fused": 2, "exchanged": 6}[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_w3_answers_query_71_exactly(
    spark: SparkSession, folder: Path, flow: Flow, layout: Layout
) -> None:
    sums = w3.build(flow, w3.sales(spark, folder), w3.tables(folder), layout)
    found = [tuple(row) for row in w3.answer(sums).collect()]
    assert found == duckdb(folder, 71)
    if layout == "fused":
        assert found == sql(spark, folder, 71)
    check_plans(flow, W3_PLANS)
    assert stages(flow) == {"fused": 2, "exchanged": 5}[layout]


def test_w4_judges_unnested_payments_twice(users: DataFrame, flow: Flow) -> None:
    least = 15
    found = {row.id: row for row in w4.build(flow, users, least).collect()}
    counts = ROWS.group_by("user").aggregate([([], "count_all")])
    few = [row["user"] for row in counts.to_pylist() if row["count_all"] < least]
    kept = ROWS.filter(pa.array(~np.isin(ROWS["user"].to_numpy(), few)))
    assert 0 < kept.num_rows < ROWS.num_rows
    by_user = probabilities("user_lstm", "user", USER_STEPS, kept)
    by_merchant = probabilities("merchant_lstm", "merchant", MERCHANT_STEPS, kept)
    assert column(found, "p_user") == pytest.approx(by_user, abs=1e-5)
    assert column(found, "p_merchant") == pytest.approx(by_merchant, abs=1e-5)
    for row in found.values():
        assert row.p == max(row.p_user, row.p_merchant)
        assert row.large == (row.amount >= w4.LARGE)
        assert row.flagged == (row.p > w4.THRESHOLD / (2 if row.large else 1))
    check_plans(flow, W4_PLANS)
    assert stages(flow) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_w5_joins_what_both_models_say(rows: DataFrame, flow: Flow, layout: Layout) -> None:
    found = {row.id: row for row in w5.build(flow, rows, layout).collect()}
    kept = ROWS.filter(pa.array(ROWS["amount"].to_numpy() >= w5.LEAST))
    by_user = probabilities("user_lstm", "user", USER_STEPS)
    by_merchant = probabilities("merchant_lstm", "merchant", MERCHANT_STEPS, kept)
    assert sorted(found) == kept["id"].to_pylist()
    for number in set(by_user) - set(found):
        del by_user[number]
    assert column(found, "p_user") == pytest.approx(by_user, abs=1e-5)
    assert column(found, "p_merchant") == pytest.approx(by_merchant, abs=1e-5)
    for row in found.values():
        limit = w5.THRESHOLD / (2 if row.p_user >= w5.SUSPICIOUS else 1)
        assert row.flagged == (max(row.p_user, row.p_merchant) > limit)
    check_plans(flow, {targets: pruned for targets, (pruned, _) in W5_PLANS.items()})
    unpruned = {targets: whole for targets, (_, whole) in W5_PLANS.items()}
    check_plans(flow, unpruned, "fries_unpruned")
    assert stages(flow) == {"fused": 3, "exchanged": 4}[layout]


def test_dummy_changes_of_a_stream_change_no_answer(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """J1 and J4 are changed again and again while W2 runs, in the paper's layout."""
    sales, tables = w2.sales(spark, folder), w2.tables(folder)
    sales.repartition(4).write.parquet(str(tmp_path / "in"))
    reader = spark.readStream.schema(sales.schema).option("maxFilesPerTrigger", 1)
    flow = Flow("W2", audit=tmp_path / "audit", groups=4)
    sums = w2.build(flow, reader.parquet(str(tmp_path / "in")), tables, "exchanged")
    writer = sums.writeStream.trigger(availableNow=True).format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = flow.start(writer.option("path", str(tmp_path / "out")))
    try:
        until(lambda: flow.workers, flow)
        changes: list[Reconfiguration] = []
        while query.isActive:
            number = len(changes) + 1
            update = {
                "J1": tpcds.renewed(tables.returns, number),
                "J4": tpcds.renewed(tables.date, number),
            }
            changes.append(flow.reconfigure(update))
            until(lambda: changes[-1].state in IN_PLACE or not query.isActive, flow)
            time.sleep(0.2)
        query.awaitTermination()
        verdict = flow.audit()
    finally:
        stop(flow)
    answer = w2.answer(spark.read.schema(w2.SUMS).parquet(str(tmp_path / "out")))
    assert [tuple(row) for row in answer.collect()] == duckdb(folder, 40)
    assert len({tally.old for tally in verdict.tallies}) > 1, "they came in several batches"
    assert verdict.serializable
    assert verdict.mixed == 0


def test_w1_takes_another_model_in_the_middle_of_a_batch(
    rows: DataFrame, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each payment is judged by the old or the new model, with the whole history of its user."""

    def slowly(model: Model) -> Function:
        infer = Inference(model)

        def function(state: Any, row: dict[str, Any]) -> Any:  # noqa: ANN401
            time.sleep(0.015)
            return infer(state, row)

        return function

    found: dict[int, float] = {}
    monkeypatch.setattr(w1, "Inference", slowly)
    scored = w1.build(flow, rows, "user_lstm_small")
    thread = threading.Thread(
        target=lambda: found.update({row.id: row.p for row in scored.collect()})
    )
    thread.start()
    until(lambda: flow.counters.get("FD"))
    change = flow.reconfigure({"FD": Inference(trained("user_tree"))})
    thread.join()
    old = probabilities("user_lstm_small", "user", USER_STEPS)
    new = probabilities("user_tree", "user", USER_STEPS)
    assert sorted(found) == sorted(old)
    by_new = {number for number, p in found.items() if p == pytest.approx(new[number], abs=1e-5)}
    for number in set(found) - by_new:
        assert found[number] == pytest.approx(old[number], abs=1e-5)
    assert 0 < len(by_new) < len(found)
    assert change.wait(PATIENCE)
