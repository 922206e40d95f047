"""How fast a change arrives: Fries, beside the mini-batch boundary and a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.spark import drain, folder, percentile, stream_of, wait_until
from fries.flow import Flow

COSTS_MS: Final = (0.1, 2.0, 25.0)
CHANGES_PER_JOB: Final = 50
"""A batch job is one batch, and at most 63 changes can be in transition in it."""
JOBS: Final = 4
BASELINES: Final = ("mini_batch", "restart")
BATCH_SECONDS: Final = 5.0
"""Work in one micro-batch of the baselines, on each of two workers."""
REPEATS: Final = 5
NumberedRow = dict[str, Any]


@dataclass(frozen=True)
class Delay:
    """Delays of reconfigurations of two operators while rows cost so much."""

    scheduler: str
    cost_ms: float
    changes: int
    p50_ms: float
    p99_ms: float
    switch_p99_ms: float | None = None
    """From the commit message to the last switch: without loading the functions."""


def busy(cost_ms: float, version: int) -> Callable[[NumberedRow], NumberedRow]:
    """A function of a row that computes for some time."""

    def function(row: NumberedRow) -> NumberedRow:
        end = time.perf_counter() + cost_ms / 1000
        while time.perf_counter() < end:
            pass
        return {**row, "a": version}

    return function


def keep(version: int) -> Callable[[NumberedRow], NumberedRow]:
    """A function of a row that costs nothing."""
    return lambda row: {**row, "b": version}


def fries(spark: SparkSession, cost_ms: float) -> Delay:
    """Fire changes at random moments of a running job, several jobs in a row."""
    found: list[float] = []
    switches: list[float] = []
    random = np.random.default_rng(0)
    for job in range(JOBS):
        flow = Flow(f"delay-{cost_ms}-{job}")
        seconds = CHANGES_PER_JOB * (0.06 + cost_ms / 1000) * 1.5 + 4
        rows = spark.range(0, int(2 * seconds / (cost_ms / 1000)), 1, 2)
        stream = flow.source("rows", rows.selectExpr("id", "0L AS a", "0L AS b"))
        frame = flow.output(stream.map("A", busy(cost_ms, 0)).map("B", keep(0)))
        running = threading.Thread(target=drain, args=(frame,))
        running.start()
        wait_until(lambda flow=flow: len(flow.workers) == 2)
        time.sleep(2.0)  # the first rows wait for imports
        for version in range(1, CHANGES_PER_JOB + 1):
            time.sleep(float(random.uniform(0.01, 0.05)) + cost_ms / 1000)
            change = flow.reconfigure({"A": busy(cost_ms, version), "B": keep(version)})
            change.wait(30)
            if len(change.switches) == 2:
                found.append((change.delay or 0.0) * 1000)
                switches.append((change.switch_delay or 0.0) * 1000)
        running.join()
        flow.stop()
    p99 = percentile(switches, 99)
    return Delay("fries", cost_ms, len(found), percentile(found, 50), percentile(found, 99), p99)


def baseline(spark: SparkSession, scheduler: str, cost_ms: float) -> Delay:
    """Fire changes at random moments of micro-batches that take a few seconds each."""
    found: list[float] = []
    random = np.random.default_rng(1)
    rows = max(2, int(2 * BATCH_SECONDS / (cost_ms / 1000)))
    with folder() as where:
        frame = spark.range(0, 3 * REPEATS * rows, 1, 6 * REPEATS)
        stream = stream_of(frame.selectExpr("id", "0L AS a", "0L AS b"), where / "in")
        flow = Flow(f"{scheduler}-{cost_ms}")
        made = flow.source("rows", stream).map("A", busy(cost_ms, 0)).map("B", keep(0))
        writer = flow.output(made).writeStream.format("noop")
        flow.start(writer.option("checkpointLocation", str(where / "checkpoint")))
        wait_until(lambda: flow.counters.get("A"))
        for version in range(1, REPEATS + 1):
            time.sleep(float(random.uniform(0.5, BATCH_SECONDS)))
            updates = {"A": busy(cost_ms, version), "B": keep(version)}
            change = flow.reconfigure(updates, scheduler)
            change.wait(60)
            found.append((change.delay or 0.0) * 1000)
        flow.stop()
    return Delay(scheduler, cost_ms, len(found), percentile(found, 50), percentile(found, 99))


def delays(spark: SparkSession) -> list[Delay]:
    """Every cost and every way."""
    found = []
    for cost_ms in COSTS_MS:
        found.append(fries(spark, cost_ms))
        found.extend(baseline(spark, scheduler, cost_ms) for scheduler in BASELINES)
    return found
