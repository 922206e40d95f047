"""The pace of flows against the same functions in plain Spark, and the delay of a change.

``make bench-pace`` runs all parts; ``python -m benchmarks.pace chains`` one. A flow and plain Spark
take turns in one session, on one partition. Seconds are those of the best of some rounds, CPU
time is that of all processes in it. A JSON record and a table are kept in ``docs/results/pace/``;
parts that are run again take the place of those in it, and each names its commit and date.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from benchmarks.pace_shapes import CHAINS, Shape, costs, models, wide
from benchmarks.spark import drain, session, wait_until
from benchmarks.throughput import own_workers
from fries.flow import Flow
from fries_lab.experiments.machine import machine

OUT: Final = Path("docs/results/pace")
PARTS: Final = ("costs", "models", "chains", "wide")
ROUNDS: Final = 5
CHANGES: Final = 7
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Pace:
    """A flow beside plain Spark."""

    part: str
    shape: str
    rows: int
    plain_seconds: float
    flow_seconds: float
    ratio: float
    """Rows a second of the flow, of those of plain Spark."""
    cpu_ratio: float
    """The same by the CPU seconds of all processes."""
    delay_ms: float | None = None
    """Median of the delays of changes, request to switch."""


def main() -> None:
    """Run everything, or the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all if none")
    parser.add_argument(
        "--only", default="", help="only shapes whose names have this text; nothing is kept"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    spark = session()
    made: dict[str, Callable[[], Iterator[Shape]]] = {
        "costs": costs,
        "models": models,
        "chains": lambda: iter(CHAINS),
        "wide": wide,
    }
    for part in chosen:
        found = []
        for shape in made[part]():
            if arguments.only in shape.name:
                found.append(measured(spark, part, shape, arguments.rounds))
                print(_line(found[-1]), flush=True)
        if not arguments.only:
            _keep(part, found)
    spark.stop()


def measured(spark: SparkSession, part: str, shape: Shape, rounds: int) -> Pace:
    """One shape: a flow and plain Spark in turns, and then changes of the flow."""
    rows = shape.rows_of(spark)
    flow = Flow(f"pace-{part}")
    hosted = flow.output(shape.flow(flow.source("rows", rows)))
    with own_workers(spark):
        plain = shape.plain(rows)
    taken: dict[str, list[tuple[float, float]]] = {"plain": [], "flow": []}
    for _ in range(rounds + 1):
        for name, frame in (("plain", plain), ("flow", hosted)):
            before, cpu = time.perf_counter(), cpu_seconds()
            drain(frame)
            taken[name].append((time.perf_counter() - before, cpu_seconds() - cpu))
    best = {name: min(times[1:]) for name, times in taken.items()}  # the first one warms up
    flow.stop()
    return Pace(
        part,
        shape.name,
        shape.rows,
        best["plain"][0],
        best["flow"][0],
        best["plain"][0] / best["flow"][0],
        best["plain"][1] / max(best["flow"][1], 1e-9),
        delay(spark, shape) if shape.changes else None,
    )


def delay(spark: SparkSession, shape: Shape) -> float:
    """Median of the delays of changes that come at random moments of a running job."""
    flow = Flow("pace-delay")
    frame: DataFrame = flow.output(shape.flow(flow.source("rows", shape.rows_of(spark, 20))))
    running = threading.Thread(target=_until_cancelled, args=(frame,))
    running.start()
    wait_until(lambda: flow.counters.get(shape.target))
    random = np.random.default_rng(0)
    found = []
    for _ in range(CHANGES):
        time.sleep(float(random.uniform(0.15, 0.3)))
        if not running.is_alive():
            break
        change = flow.reconfigure({shape.target: shape.again()})
        change.wait(60)
        if change.delay is not None and change.switches:
            found.append(1000 * change.delay)
    spark.sparkContext.cancelAllJobs()
    running.join()
    flow.stop()
    return statistics.median(found) if found else float("nan")


def _until_cancelled(frame: DataFrame) -> None:
    with contextlib.suppress(Exception):
        drain(frame)


def cpu_seconds() -> float:
    """Of this process, Spark's and all Python workers that live."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    return sum(used for one, used in ticks.items() if _is_ours(one, parents)) / TICKS


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = parents.get(process, 0)
    return False


def _line(one: Pace) -> str:
    told = "" if one.delay_ms is None else f"{one.delay_ms:,.1f}"
    return (
        f"| {one.shape} | {one.rows:,} | {one.plain_seconds:.2f} | {one.flow_seconds:.2f} "
        f"| {one.ratio:.2f} | {one.cpu_ratio:.2f} | {told} |"
    )


def _keep(part: str, found: list[Pace]) -> None:
    """Put a part into the record, and write its table again."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "pace.json"
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    day = datetime.now(UTC).date().isoformat()
    kept[part] = {"day": day, "machine": machine(), "shapes": [asdict(one) for one in found]}
    path.write_text(json.dumps(kept, indent=2) + "\n")
    lines = ["# The pace of flows", "", __doc__.strip(), ""]
    for name in (one for one in PARTS if one in kept):
        shapes = [_line(Pace(**one)) for one in kept[name]["shapes"]]
        lines += [f"## {name}", "", _where(kept[name]), "", *_HEAD, *shapes, ""]
    (OUT / "README.md").write_text("\n".join(lines).rstrip() + "\n")


def _where(part: dict[str, Any]) -> str:
    made = part["machine"]
    return (
        f"Measured on {part['day']} on {made['cpu']}, {made['cores']} cores, Spark "
        f"{made['spark']}, Python {made['python']}, at commit {made['commit']}."
    )


_HEAD: Final = (
    "| shape | rows | plain Spark, s | flow, s | rows/s of the flow : plain | by CPU time "
    "| delay of a change, ms |",
    "|---|---|---|---|---|---|---|",
)


if __name__ == "__main__":
    main()
