"""Arguments of wrong types and calls at wrong times: refused in words that point the right way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import fries
from fries.errors import UpdateRefusedError, UsageError
from fries.flow import Flow
from fries.stream import Stream
from tests.spark.streams import FileStream

SCHEMA = "id long, k long"


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    flow = Flow("refused")
    yield flow.source("rows", FileStream(spark, tmp_path / "in", SCHEMA).frame)
    flow.stop()


async def later(row: object) -> object:
    return row


def each(row: object) -> Iterator[object]:
    yield row


def each_keyed(state: object, row: object) -> Iterator[object]:
    yield state, row


class _Later:
    async def __call__(self, row: object) -> object:
        return row


ANY: Any = fries
"""The package, for whoever does not look at types."""
BUILDING: dict[str, tuple[Callable[[Any], object], str]] = {
    "a flow without a name": (lambda rows: Flow(rows), "give a text"),
    "many groups": (lambda rows: ANY.Flow("x", groups="64"), "groups is '64'; give how many"),
    "a folder for tls": (lambda rows: ANY.Flow("x", tls="certificates"), r"give fries\.Tls"),
    "a frame of pandas": (
        lambda rows: rows.flow.source("p", pd.DataFrame({"a": [1]})),
        r"source 'p': it is given .*spark\.createDataFrame",
    ),
    "no frame": (lambda rows: rows.flow.source("p", None), "it is given None; give a DataFrame"),
    "the name last": (lambda rows: rows.flow.source(rows, "p"), "its name is .*; give a text"),
    "the function first": (lambda rows: rows.map(dict, "name"), "its name is .*; give a text"),
    "no name": (lambda rows: rows.map("", dict), "give the operator a name"),
    "the output's name": (lambda rows: rows.map("output", dict), "choose another name"),
    "no function": (lambda rows: rows.map("m", "upper"), "'upper' cannot be called"),
    "a schema as a dict": (lambda rows: rows.map("m", dict, {"a": "long"}), "name the columns"),
    "a schema with a slip": (lambda rows: rows.map("m", dict, "a lnog"), "Spark cannot read it"),
    "branches as a text": (lambda rows: rows.split("s", dict, "2"), "branches is '2'"),
    "a number as a key": (
        lambda rows: rows.process("p", max, key=5),
        "operator 'p': its key is 5; give the name of a column, or a list",
    ),
    "a number in a key": (lambda rows: rows.process("p", max, key=[5]), "its key is 5; give"),
    "a column of Spark as a key": (
        lambda rows: rows.map("m", dict, shuffle=rows.flow._sources["rows"]["id"]),
        "its key is Column.*; give the name of a column",
    ),
    "one migration": (
        lambda rows: rows.process("p", max, key="k", migrations=abs),
        "migrations is .*abs.*; give a list of functions, oldest first",
    ),
    "streams in a list": (
        lambda rows: rows.union("u", [rows, rows]),
        r"give streams one after the other: \.union\('u', second, third\)",
    ),
    "a frame to join": (
        lambda rows: rows.join("j", rows.flow._sources["rows"], on="id"),
        "the other branch is DataFrame",
    ),
    "a number to look up": (lambda rows: rows.lookup("l", None, on=3), "lookup 'l': on is 3"),
    "a frame as output": (
        lambda rows: rows.flow.output(rows.flow._sources["rows"]),
        "output 'output': it is DataFrame.*; give a stream of this flow",
    ),
    "an output like an operator": (
        lambda rows: rows.flow.output(rows=rows),
        r"output 'rows': an operator is called so.*flow\.output\(rows_rows=stream\)",
    ),
    "a plan of one name": (lambda rows: rows.flow.plan("rows"), r"\{'rows': function\}"),
    "no scheduler": (lambda rows: rows.flow.plan({"rows": 0}, None), "such as 'fries'"),
    "an async function": (lambda rows: rows.map("m", later), "is an async function; nobody awaits"),
    "an async callable": (lambda rows: rows.filter("f", _Later()), "is an async function"),
    "a generator": (lambda rows: rows.map("m", each), "is a generator; return the result"),
    "a keyed generator": (
        lambda rows: rows.process("p", each_keyed, key="k", many=True),
        "is a generator",
    ),
    "a frame of no types": (
        lambda rows: rows.lookup("l", pd.DataFrame({"id": [1], "o": [object()]}), on="id"),
        "lookup 'l': Spark has no types for its frame of pandas",
    ),
    "a column of pandas": (
        lambda rows: rows.lookup("l", pd.Series([1], name="id"), on="id"),
        "lookup 'l': it is given .*; give a DataFrame",
    ),
    "a limit in words": (
        lambda rows: rows.map("m", dict, on_error=fries.DeadLetters("bad", ANY.Flow)),
        "the limit of failing rows is .*; give a share of 1",
    ),
    "dead letters that fail": (
        lambda rows: rows.map("m", dict, on_error=fries.DeadLetters("fail")),
        "use on_error='fail'",
    ),
    "supervision by words": (lambda rows: ANY.Supervision(restarts="5"), "restarts is '5'"),
    "supervision by numbers": (lambda rows: ANY.Supervision(10), "rollback is 10; give True"),
}


@pytest.mark.parametrize("case", BUILDING)
def test_wrong_arguments_are_refused_with_what_was_meant(rows: Stream, case: str) -> None:
    call, problem = BUILDING[case]
    with pytest.raises(UsageError, match=f"(?s){problem}"):
        call(rows)


def test_a_query_is_started_with_a_writer_and_nothing_else(rows: Stream) -> None:
    flow: Any = rows.flow
    frame = flow.output(rows)
    for wrong in (rows, frame, frame.writeStream.trigger, None, "memory"):
        with pytest.raises(UsageError, match=r"start\(\) takes a writer, and is given"):
            flow.start(wrong)
    with pytest.raises(UsageError, match=r"the supervision is .*; give fries\.Supervision"):
        flow.start(frame.writeStream, {"restarts": 5})
    with pytest.raises(UsageError, match="replace_functions is 'no'; give True, False or nothing"):
        flow.start(frame.writeStream, None, "no")
    with pytest.raises(UsageError, match="its timeout is '60'; give seconds, such as 60"):
        flow.reconfigure({"rows": dict}, timeout="60")
    with pytest.raises(UsageError, match="its note is 17; give a text for the history"):
        flow.reconfigure({"rows": dict}, note=17)


def test_frames_of_spark_connect_are_refused_by_name(rows: Stream) -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(UsageError, match="source 'c': its DataFrame is one of Spark Connect"):
        rows.flow.source("c", frame)


def test_a_stopped_flow_says_that_it_was_stopped(rows: Stream) -> None:
    frame = rows.flow.output(rows.map("m", dict))
    rows.flow.stop()
    for call in (
        lambda: rows.flow.start(frame.writeStream.format("noop")),
        lambda: rows.flow.reconfigure({"m": dict}),
    ):
        with pytest.raises(UsageError, match=r"flow\.stop\(\) has ended it; build it again"):
            call()


def test_a_flat_map_may_yield_and_nothing_else_becomes_a_generator(rows: Stream) -> None:
    many = rows.flat_map("many", each)
    rows.flow.output(many.map("one", dict))
    rows.flow.plan({"many": each})
    for update, what in ((each, "a generator"), (later, "an async function")):
        with pytest.raises(UpdateRefusedError, match=f"'one' is refused: its function is {what}"):
            rows.flow.reconfigure({"one": update})


def test_a_frame_of_pandas_is_looked_up_with_the_types_of_a_stream(
    spark: SparkSession,
) -> None:
    with Flow("pandas") as flow:
        ids = flow.source("ids", spark.range(3).selectExpr("id", "timestamp_ntz'2026-01-01' AS t"))
        names = pd.DataFrame({"id": [0, 1], "name": ["a", None], "t": pd.Timestamp(2026, 1, 1)})
        found = ids.lookup("names", names, on=["id", "t"], how="left")
        made = flow.output(found).collect()
    assert sorted((row.id, row.name) for row in made) == [(0, "a"), (1, None), (2, None)]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "spark"])
def test_a_table_whose_columns_share_a_name_is_refused_with_the_names(
    kind: str, rows: Stream, spark: SparkSession
) -> None:
    names = ["id", "a", "a", "b", "b"]
    tables: dict[str, Any] = {
        "pandas": pd.DataFrame([[0] * len(names)], columns=names),
        "arrow": pa.Table.from_arrays([pa.array([0])] * len(names), names),
        "spark": spark.createDataFrame([(0,) * len(names)], names),
    }
    table = tables[kind]
    problem = "its table has several columns named 'a', 'b'; rename them, or drop all but one"
    with pytest.raises(UsageError, match=f"lookup 'names': {problem}"):
        rows.lookup("names", table, on="id")
    rows.flow.output(rows.lookup("names", spark.range(3), on="id"))
    with pytest.raises(UpdateRefusedError, match=problem):
        rows.flow.reconfigure({"names": table})


def test_a_column_that_cannot_cross_an_exchange_is_refused_as_what_it_is(rows: Stream) -> None:
    scored = rows.map("score", dict)
    count = scored.aggregate("count", max, "k long, n long", key="k")
    rows.flow.output(count)
    update = fries.Update(lambda row: {**row, "p": 0.5}, schema="id long, k long, p double")
    problem = "operator 'score' is refused: it would give .* to 'count', where the plan is fixed"
    with pytest.raises(UpdateRefusedError, match=problem):
        rows.flow.reconfigure({"score": update})


def test_a_query_without_a_checkpoint_is_warned_of_once(
    rows: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    frame = rows.flow.output(rows)
    with caplog.at_level(logging.WARNING, "fries"):
        for _ in range(2):
            rows.flow.start(frame.writeStream.format("noop")).stop()
    (line,) = (record.getMessage() for record in caplog.records)
    assert "no checkpointLocation, so changes are not logged" in line
    assert "\n" not in line


def test_a_new_table_that_takes_long_says_so_meanwhile(
    rows: Stream, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    found = rows.lookup("names", spark.range(3).selectExpr("id"), on="id")
    rows.flow.output(found)
    slow = spark.range(3).selectExpr("id", "java_method('java.lang.Thread', 'sleep', 1500L) AS x")
    with (
        caplog.at_level(logging.WARNING, "fries"),
        pytest.raises(UpdateRefusedError, match="the table gives"),
    ):
        rows.flow.reconfigure({"names": slow})
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("lookup 'names': Spark collects its new table; reconfigure waits for")
