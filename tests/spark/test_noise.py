"""What a user sees of a failure: on the console of a program of its own, with Spark as it comes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging
import sys
from pathlib import Path
from unittest import mock

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import fries

folder = Path(sys.argv[1])
schema = "id long, amount double"
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)


def good(row):
    return {**row, "amount": row["amount"] * 2}


def bad(row):
    return {**row, "amount": row["amount"] / (row["id"] - 7)}  # the user's line


def section(name):
    print(f"=== {name}", file=sys.stderr, flush=True)


def feed(name, first):
    rows = [Row(id=n, amount=1.0) for n in range(first, first + 5)]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.mode("append").parquet(str(folder / name / "in"))


def build(name, function):
    (folder / name / "in").mkdir(parents=True)
    feed(name, 0)
    flow = fries.Flow(name)
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    rows = flow.source("payments", reader.parquet(str(folder / name / "in")))
    frame = flow.output(rows.map("score", function))
    writer = frame.writeStream.format("parquet").option("path", str(folder / name / "out"))
    return flow, writer.option("checkpointLocation", str(folder / name / "checkpoint"))


flow, writer = build("update", good)
query = flow.start(writer)
query.processAllAvailable()
change = flow.reconfigure({"score": fries.Update(bad, label="rules v2")})
change.wait()
assert change.state in ("committed", "untried"), change
section("update")
feed("update", 5)
try:
    change.wait(rows=1_000_000)
except fries.FriesError as error:
    print(str(error).splitlines()[0])
while not (folder / "update" / "checkpoint" / "commits" / "1").exists():
    query.awaitTermination(0.1)
section("stopped")
flow.stop()
assert spark.read.parquet(str(folder / "update" / "out")).count() == 10

flow, writer = build("supervised", bad)
feed("supervised", 5)
section("supervised")
query = flow.start(writer, fries.Supervision(restarts=0))
try:
    query.awaitTermination()
except Exception as error:
    print(str(error))
section("stopped")
flow.stop()

def start_and_wait(self, start=DataStreamWriter.start):
    query = start(self)
    try:
        query.awaitTermination()
    except Exception:
        return query


flow, writer = build("at_once", bad)
feed("at_once", 5)
section("at_once")
with mock.patch.object(DataStreamWriter, "start", start_and_wait):
    query = flow.start(writer, fries.Supervision(restarts=0))
try:
    query.awaitTermination()
except Exception as error:
    print(str(error))
section("stopped")
flow.stop()

flow, writer = build("plain", bad)
feed("plain", 5)
section("plain")
query = writer.start()
try:
    query.awaitTermination()
except Exception as error:
    print(str(error))
section("over")
flow.stop()

(folder / "keyed" / "in").mkdir(parents=True)
feed("keyed", 0)
flow = fries.Flow("keyed", groups=2)
rows = flow.source("payments", spark.readStream.schema(schema).parquet(str(folder / "keyed/in")))
counted = rows.process("count", lambda state, row: (state + 1, row), key="id", initial=0)
writer = flow.output(counted).writeStream.format("noop")
section("keyed")
query = flow.start(writer.option("checkpointLocation", str(folder / "keyed" / "checkpoint")))
query.processAllAvailable()
section("stopped")
flow.stop()

logging.basicConfig(level=logging.WARNING)
flow, writer = build("batches", bad)
feed("batches", 5)
writer = writer.foreachBatch(lambda frame, number: frame.write.format("noop").mode("append").save())
section("batches")
query = flow.start(writer, fries.Supervision(restarts=0))
try:
    query.awaitTermination()
except Exception as error:
    print(str(error))
section("stopped")
flow.stop()
assert not logging.getLogger("py4j.clientserver").filters
spark.stop()
"""
HEADLINE = "operator 'score' failed on {'id': 7, 'amount': 1.0}: ZeroDivisionError("
LINE = '/ (row["id"] - 7)}  # the user\'s line'
FEW = 15
"""Lines on the console for a failure: what failed, where, and what was done."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """What the program prints, and its standard error by section."""
    folder = tmp_path_factory.mktemp("noise")
    script = folder / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sections = re.split(r"^=== (\w+)\n", done.stderr, flags=re.MULTILINE)[1:]
    return done.stdout, dict(zip(sections[::2], sections[1::2], strict=True))


def spark_log(text: str) -> str:
    """What Spark has said, in the file that is named."""
    (name,) = set(re.findall(r"Spark's own messages: (\S+)", text))
    path = Path(name)
    told = path.read_text()
    path.unlink()
    return told


@pytest.mark.parametrize("section", ["update", "supervised", "at_once", "batches"])
def test_a_supervised_query_says_in_a_few_lines_what_failed(
    seen: tuple[str, dict[str, str]], section: str
) -> None:
    text = seen[1][section]
    assert len(text.splitlines()) <= FEW, text
    assert HEADLINE in text
    assert LINE in text
    if "(in place)" in text:
        return  # Spark has not seen it
    told = spark_log(text)
    assert "Lost task" in told
    assert "terminated with error" in told
    assert told.count("\tat org.apache.spark") > 50


def test_new_keys_are_no_reason_for_a_warning(seen: tuple[str, dict[str, str]]) -> None:
    assert "doesn't contain key" not in seen[1]["keyed"]


def test_a_rolled_back_change_says_so_by_its_label(seen: tuple[str, dict[str, str]]) -> None:
    printed, errors = seen
    first, *_ = errors["update"].splitlines()
    assert first.startswith("flow 'update': change 1 of score (rules v2) is rolled back (")
    assert HEADLINE in first
    assert printed.startswith(f"the reconfiguration of score was rolled back: {HEADLINE}")


def test_a_query_that_is_given_up_raises_what_failed(seen: tuple[str, dict[str, str]]) -> None:
    _, given_up, *rest = seen[0].splitlines()
    assert given_up.startswith(HEADLINE)
    assert LINE in rest[2]


def test_a_query_that_was_started_plainly_says_operator_and_row_early(
    seen: tuple[str, dict[str, str]],
) -> None:
    printed, errors = seen
    lines = errors["plain"].splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("flow 'plain'"))
    assert HEADLINE in lines[at]
    assert LINE in "\n".join(lines[at : at + 5])
    raised = printed[printed.index("[STREAM_FAILED]") :].splitlines()
    assert any(HEADLINE in line for line in raised[:8]), printed
    assert "Lost task" in errors["plain"], (
        "no supervised query runs: Spark says what it always says"
    )
