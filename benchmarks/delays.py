"""How fast a change arrives: Fries, beside the mini-batch boundary and a restart.

Rows cost processor time. With a worker on every core, the driver and the messages must wait for
the operating system to make room for them; so it is measured with one core left for the driver
and with none, and beside it how long a message and its answer take between two other processes,
and how much later than usual a process is done that computes for as long as a change takes.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark import TaskContext
from pyspark.sql import SparkSession

from benchmarks.spark import drain, folder, percentile, stream_of, wait_until
from fries.flow import Flow

COSTS_MS: Final = (0.1, 2.0, 25.0)
CHANGES_PER_JOB: Final = 50
"""A batch job is one batch, and at most 63 changes can be in transition in it."""
JOBS: Final = 4
RESTART: Final = "restart"
BASELINES: Final = ("mini_batch", RESTART)
BATCH_SECONDS: Final = 5.0
"""Work in one micro-batch of the baselines, on each of two workers."""
REPEATS: Final = 5
WORKERS: Final = (1, 2)
"""On two cores: with one left for the driver, and with none."""
PINGS: Final = 400
STEPS: Final = 220_000
"""Of a computation that takes a few milliseconds, as a change does."""
NumberedRow = dict[str, Any]


@dataclass(frozen=True)
class Delay:
    """Delays of reconfigurations of two operators while rows cost so much."""

    scheduler: str
    workers: int
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


def fries(spark: SparkSession, workers: int, cost_ms: float) -> Delay:
    """Fire changes at random moments of a running job, several jobs in a row."""
    found: list[float] = []
    switches: list[float] = []
    random = np.random.default_rng(0)
    for job in range(JOBS):
        flow = Flow(f"delay-{cost_ms}-{job}")
        seconds = CHANGES_PER_JOB * (0.06 + cost_ms / 1000) * 1.5 + 4
        rows = spark.range(0, int(workers * seconds / (cost_ms / 1000)), 1, workers)
        stream = flow.source("rows", rows.selectExpr("id", "0L AS a", "0L AS b"))
        frame = flow.output(stream.map("A", busy(cost_ms, 0)).map("B", keep(0)))
        running = threading.Thread(target=drain, args=(frame,))
        running.start()
        wait_until(lambda flow=flow: len(flow.workers) == workers)
        time.sleep(2.0)  # the first rows wait for imports
        for version in range(1, CHANGES_PER_JOB + 1):
            time.sleep(float(random.uniform(0.01, 0.05)) + cost_ms / 1000)
            change = flow.reconfigure({"A": busy(cost_ms, version), "B": keep(version)})
            change.wait(30)
            if len(change.switches) == workers:
                found.append((change.delay or 0.0) * 1000)
                switches.append((change.switch_delay or 0.0) * 1000)
        running.join()
        flow.stop()
    p99 = percentile(switches, 99)
    both = percentile(found, 50), percentile(found, 99)
    return Delay("fries", workers, cost_ms, len(found), *both, p99)


def baseline(spark: SparkSession, scheduler: str, cost_ms: float) -> Delay:
    """Fire changes at random moments of micro-batches that take a few seconds each.

    A restart throws its micro-batch away, so that the old version ends at once: it counts until
    a row is processed by the new one, in the query that was started.
    """
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
            used = where / f"used-{version}"
            used.mkdir()
            updates = {"A": noted(busy(cost_ms, version), used), "B": keep(version)}
            requested = time.time()
            change = flow.reconfigure(updates, scheduler)
            change.wait(60)
            assert flow.query is not None, "it was started"
            first = used / str(flow.query.runId)
            wait_until(first.exists)
            until_used = first.stat().st_mtime - requested if scheduler == RESTART else 0.0
            found.append(max(change.delay or 0.0, until_used) * 1000)
        flow.stop()
    return Delay(scheduler, 2, cost_ms, len(found), percentile(found, 50), percentile(found, 99))


def noted(
    function: Callable[[NumberedRow], NumberedRow], used: Path
) -> Callable[[NumberedRow], NumberedRow]:
    """A function that leaves a file for each run of a query in which it is used."""

    def wrapped(row: NumberedRow) -> NumberedRow:
        context = TaskContext.get()
        path = used / str(context and context.getLocalProperty("spark.jobGroup.id"))
        if not path.exists():
            path.touch()
        return function(row)

    return wrapped


def answer_p99(busy_processes: int) -> float:
    """How long a byte and its answer take between two processes while others compute, in ms."""
    here, there = socket.socketpair()

    def ask() -> None:
        here.send(b"?")
        here.recv(1)

    with _beside(*[(_burn,)] * busy_processes, (_echo, there)):
        return percentile(_times(ask), 99)


def stall_p99(busy_processes: int) -> tuple[float, float]:
    """How long a computation takes while others compute, and how much longer at p99, in ms."""
    with _beside(*[(_burn,)] * busy_processes):
        took = _times(lambda: sum(range(STEPS)))
    usual = percentile(took, 50)
    return usual, percentile(took, 99) - usual


@contextmanager
def _beside(*work: tuple[Callable[..., None], *tuple[Any, ...]]) -> Iterator[None]:
    """Other processes at work."""
    children = [multiprocessing.Process(target=one, args=given) for one, *given in work]
    for child in children:
        child.start()
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.join()


def _times(what: Callable[[], object]) -> list[float]:
    """How long something takes at random moments, in ms."""
    random = np.random.default_rng(0)
    took = []
    for _ in range(PINGS):
        time.sleep(float(random.uniform(0.005, 0.03)))
        start = time.perf_counter()
        what()
        took.append((time.perf_counter() - start) * 1000)
    return took


def _burn() -> None:
    while os.getppid() > 1:
        sum(range(1000))


def _echo(sock: socket.socket) -> None:
    while data := sock.recv(1):
        sock.send(data)


def delays(spark: SparkSession) -> list[Delay]:
    """Every cost and every way."""
    found: list[Delay] = []
    for cost_ms in COSTS_MS:
        found.extend(fries(spark, workers, cost_ms) for workers in WORKERS)
        found.extend(baseline(spark, scheduler, cost_ms) for scheduler in BASELINES)
    return found
