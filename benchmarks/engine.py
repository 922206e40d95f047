"""The engine on Spark: how fast a change arrives, and what flows cost when nothing changes.

``make bench-engine`` runs it. Everything compared is measured in one run on one session.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from fries.flow import Flow

OUT = Path("out/bench-engine.json")
CHANGES_PER_JOB: Final = 50
"""A batch job is one batch, and at most 63 changes can be in transition in it."""
JOBS: Final = 4
COSTS_MS: Final = (0.1, 2.0, 25.0)
ROWS: Final = 5_000_000


@dataclass(frozen=True)
class Delay:
    """Delays of reconfigurations of two operators while rows cost so much."""

    cost_ms: float
    changes: int
    p50_ms: float
    p99_ms: float
    switch_p99_ms: float
    """From the commit message to the last switch: without loading the functions."""


@dataclass(frozen=True)
class Steady:
    """Throughput of a flow without changes, against the same function in plain mapInArrow."""

    plain_rows_per_second: float
    flow_rows_per_second: float
    ratio: float


def busy(cost: float, version: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function of a row that computes for some seconds."""

    def function(row: dict[str, Any]) -> dict[str, Any]:
        end = time.perf_counter() + cost
        while time.perf_counter() < end:
            pass
        return {**row, "a": version}

    return function


def delays(spark: SparkSession, cost_ms: float) -> Delay:
    """Fire changes at random moments of a running job, several jobs in a row."""
    found: list[float] = []
    switches: list[float] = []
    random = np.random.default_rng(0)
    for job in range(JOBS):
        flow = Flow(f"delay-{cost_ms}-{job}")
        seconds = CHANGES_PER_JOB * (0.06 + cost_ms / 1000) * 1.5 + 4
        rows = spark.range(0, int(2 * seconds / (cost_ms / 1000)), 1, 2)
        stream = flow.source("rows", rows.selectExpr("id", "0L AS a", "0L AS b"))
        first = stream.map("A", busy(cost_ms / 1000, 0)).map("B", lambda row: row)
        running = threading.Thread(target=_drain, args=(flow.output(first),))
        running.start()
        while len(flow.workers) < 2:
            time.sleep(0.05)
        time.sleep(2.0)  # the first rows wait for imports
        for version in range(1, CHANGES_PER_JOB + 1):
            time.sleep(float(random.uniform(0.01, 0.05)) + cost_ms / 1000)
            change = flow.reconfigure({"A": busy(cost_ms / 1000, version), "B": _keep(version)})
            change.wait(30)
            if len(change.switches) == 2:
                found.append((change.delay or 0.0) * 1000)
                switches.append((change.switch_delay or 0.0) * 1000)
        running.join()
        flow.stop()
    p99 = float(np.percentile(found, 99))
    return Delay(
        cost_ms,
        len(found),
        statistics.median(found),
        p99,
        float(np.percentile(switches, 99)),
    )


def steady(spark: SparkSession) -> Steady:
    """The same vectorised function as a flow and in plain Spark, in turns."""
    rows = spark.range(0, ROWS, 1, 2).selectExpr("id", "cast(id AS double) AS x")
    flow = Flow("steady")
    hosted = flow.output(flow.source("rows", rows).map("double", _double, batch="arrow"))
    plain = rows.mapInArrow(_plain, "id long, x double")
    times: dict[str, list[float]] = {"plain": [], "flow": []}
    for _ in range(5):
        for name, frame in (("plain", plain), ("flow", hosted)):
            start = time.perf_counter()
            _drain(frame)
            times[name].append(time.perf_counter() - start)
    flow.stop()
    plain_rate, flow_rate = (ROWS / min(times[name]) for name in ("plain", "flow"))
    return Steady(plain_rate, flow_rate, flow_rate / plain_rate)


def _double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch["id"], pc.add(batch["x"], batch["x"])], names=["id", "x"]
    )


def _plain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return map(_double, batches)


def _keep(version: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "b": version}


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Run everything, print tables, keep a JSON record."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    console = Console(width=100)
    cost = steady(spark)
    console.print(
        f"steady state: plain mapInArrow {cost.plain_rows_per_second:,.0f} rows/s, "
        f"the same as a flow {cost.flow_rows_per_second:,.0f} rows/s, ratio {cost.ratio:.2f}"
    )
    table = Table(
        "ms per row",
        "changes",
        "p50 ms",
        "p99 ms",
        "commit to switch, p99 ms",
        title="delay of a change of two operators, request to last switch",
    )
    found = [delays(spark, cost_ms) for cost_ms in COSTS_MS]
    for row in found:
        cells = (row.p50_ms, row.p99_ms, row.switch_p99_ms)
        table.add_row(f"{row.cost_ms:g}", str(row.changes), *(f"{cell:.1f}" for cell in cells))
    console.print(table)
    record = {"steady": asdict(cost), "delays": [asdict(row) for row in found]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(record, indent=2) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
