"""Whether W2 and W3 answer their queries exactly, also while they are changed every second.

Both run as streaming queries over all sales, in several micro-batches, once left alone and once
with dummy changes until the input ends. The sums of all micro-batches must be the answer of
DuckDB and of plain Spark SQL, to the cent.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fries import Flow
from fries.errors import NotRunningError
from fries_lab.experiments.experiment import Bench, Experiment, Found, Part, Report, Table
from fries_lab.experiments.profiles import Profile
from fries_lab.experiments.queries import PATIENCE, Targets, until
from fries_lab.experiments.workflows import Query40, Query71
from fries_lab.workloads import tpcds, w2, w3
from fries_lab.workloads.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY: Final = 1.0
"""Seconds between two changes."""
GROUPS: Final = 8
"""Key groups of the sums: few, so that a micro-batch is about the joins."""
QUERY: Final = {"W2": 40, "W3": 71}
TARGETS: Final[dict[str, Sequence[Targets]]] = {
    "W2": [("J1",), ("J1", "J4"), ("J3", "J4"), ("J2",)],
    "W3": [("J5",), ("J5", "J6", "J7", "J9"), ("J7", "J8", "J9"), ("J6",)],
}
"""What is changed, in turn."""
LAYOUTS: Final[tuple[Layout, ...]] = ("fused", "exchanged")
FILES: Final = {
    ("W2", "fused"): 6, ("W2", "exchanged"): 4, ("W3", "fused"): 6, ("W3", "exchanged"): 4,
}  # fmt: skip
"""Files of each table of sales, and so micro-batches."""


@dataclass(frozen=True)
class Run:
    """One of the streaming queries."""

    workflow: str
    layout: Layout
    changed: bool

    @property
    def name(self) -> str:
        """Of its part."""
        return f"{self.workflow}-{self.layout}-{'changed' if self.changed else 'alone'}"


@dataclass(frozen=True)
class Streamed:
    """Makes streams of tables: a folder keeps their files, and each is a micro-batch."""

    spark: SparkSession
    place: Path
    files: int

    def __call__(self, rows: DataFrame, name: str) -> DataFrame:
        """The rows of a table as a stream that ends."""
        folder = str(self.place / name)
        rows.repartition(self.files).write.parquet(folder)
        reader = self.spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(folder)


RUNS: Final = tuple(
    Run(workflow, layout, changed)
    for workflow in QUERY
    for layout in LAYOUTS
    for changed in (False, True)
)


def parts(_: Profile) -> list[Part]:
    """What others answer, and each of the streaming queries."""
    others = [Part(f"{name}-others", 4.0, partial(_others, name)) for name in QUERY]
    return [*others, *(Part(one.name, 8.0, partial(_run, one)) for one in RUNS)]


def _others(workflow: str, bench: Bench) -> Found:
    """The answers of DuckDB and of Spark SQL."""
    folder, number = bench.tpcds(bench.profile.scale), QUERY[workflow]
    for name in tpcds.TABLES:
        bench.spark.read.parquet(tpcds.path(folder, name)).createOrReplaceTempView(name)
    by_spark = [tuple(row) for row in bench.spark.sql(tpcds.query(number)).collect()]
    by_duckdb = [tuple(row.values()) for row in tpcds.answer(folder, number).to_pylist()]
    return {"DuckDB": digest(by_duckdb), "Spark SQL": digest(by_spark), "rows": len(by_duckdb)}


def _run(what: Run, bench: Bench) -> Found:
    data, files = bench.tpcds(bench.profile.scale), FILES[what.workflow, what.layout]
    return answered(what, data, bench.spark, bench.folder, files)


def answered(what: Run, data: Path, spark: SparkSession, place: Path, files: int) -> Found:
    """What a streaming query answers, and what was done to it meanwhile."""
    flow = Flow(what.name, audit=place / "audit", groups=GROUPS)
    streamed = Streamed(spark, place, files)
    frame, query = _built(what, flow, data, streamed)
    writer = frame.writeStream.trigger(availableNow=True).format("parquet")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    began = time.monotonic()
    running = flow.start(writer.option("path", str(place / "out")))
    try:
        if what.changed:
            _change(flow, what.workflow, query)
        running.awaitTermination()
        seconds = time.monotonic() - began
        verdict = flow.audit()
    finally:
        flow.stop()
    ddl, answer = (w2.SUMS, w2.answer) if what.workflow == "W2" else (w3.SUMS, w3.answer)
    rows = answer(spark.read.schema(ddl).parquet(str(place / "out"))).collect()
    return {
        "rows": len(rows),
        "digest": digest(tuple(row) for row in rows),
        "changes": sum(tally.new > 0 for tally in verdict.tallies),
        "seconds": round(seconds, 1),
        "transactions": verdict.transactions,
        "mixed": verdict.mixed,
    }


def _built(
    what: Run, flow: Flow, data: Path, streamed: Streamed
) -> tuple[DataFrame, Query40 | Query71]:
    """A workflow on streams of files, and what knows its updates."""
    spark = streamed.spark
    if what.workflow == "W2":
        sales, tables = w2.sales(spark, data), w2.tables(data)
        frame = w2.build(flow, streamed(sales, "in"), tables, what.layout)
        return frame, Query40(sales, tables)
    channels, others = w3.sales(spark, data), w3.tables(data)
    streams = (streamed(rows, f"in-{n}") for n, rows in zip(w3.PREFIXES, channels, strict=True))
    frame = w3.build(flow, w3.Sales(*streams), others, what.layout)
    return frame, Query71(channels, others)


def _change(flow: Flow, workflow: str, query: Query40 | Query71) -> None:
    """A dummy change every second, of one target after the other, until the input ends."""
    until(lambda: flow.workers or not _active(flow), flow)
    number = 0
    while _active(flow):
        number += 1
        targets = TARGETS[workflow][number % len(TARGETS[workflow])]
        updates = {name: query.update(name, number) for name in targets}
        with suppress(NotRunningError):  # the input has just ended
            flow.reconfigure(updates, "fries", PATIENCE)
        _pause(flow)


def _pause(flow: Flow) -> None:
    """A second, or less if the input ends."""
    end = time.monotonic() + EVERY
    until(lambda: time.monotonic() > end or not _active(flow), flow)


def _active(flow: Flow) -> bool:
    return flow.query is not None and flow.query.isActive


def digest(rows: Iterable[Sequence[Any]]) -> str:
    """What tells an answer from another one, whatever the order of its rows.

    The queries leave the order of rows open whose sort keys are the same.
    """
    lines = sorted("\t".join(map(_cell, row)) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, Decimal) else repr(value)


def report(profile: Profile, found: Mapping[str, Found]) -> Report:
    """Each run beside the answers of others; what is not equal says NO."""
    rows = [_row(one, found[one.name], found[f"{one.workflow}-others"]) for one in RUNS]
    columns = (
        "workflow", "layout", "rows", "= DuckDB", "= Spark SQL", "changes", "seconds",
        "transactions", "mixed",
    )  # fmt: skip
    wrong = [one.name for one, row in zip(RUNS, rows, strict=True) if "NO" in row]
    changes = sum(found[one.name]["changes"] for one in RUNS)
    mixed = sum(found[one.name]["mixed"] for one in RUNS)
    same = f"NO: {', '.join(wrong)} differ" if wrong else f"all {len(RUNS)} runs are equal"
    return Report(
        [Table("Answers of W2 (query 40) and W3 (query 71)", columns, rows)],
        f"Are the answers those of DuckDB and Spark SQL? {same}. {changes:,} changes while rows "
        f"flowed; transactions that met half of one: {mixed}.",
        f"TPC-DS at scale factor {profile.scale:g} (the paper: 100), in micro-batches of one file, "
        "on one machine.",
    )


def _row(what: Run, found: Found, others: Found) -> list[str]:
    return [
        what.workflow, what.layout, f"{found['rows']:,}",
        *("yes" if found["digest"] == others[name] else "NO" for name in ("DuckDB", "Spark SQL")),
        str(found["changes"]), f"{found['seconds']:.1f}",
        f"{found['transactions']:,}", str(found["mixed"]),
    ]  # fmt: skip


EXPERIMENT: Final = Experiment(
    "answers",
    "Answers of W2 and W3, with and without changes",
    "section 8, workflows W2 and W3",
    parts,
    report,
)
