"""An hour of changes: ``python -m benchmarks.soak --minutes 60`` (``make soak``).

A query with two operators, one of them keyed, is changed every second or so: both operators
together, with a state migration now and then, and some changes are undone. Every output row shows
the versions that it met and how often its key was seen, so mixed, lost and doubled rows are
counted as they come. Meanwhile memory, threads and open files of the driver, of Spark's Java
process and of the Python workers are written down; in the end they must not have grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from benchmarks.processes import processes
from benchmarks.spark import folder, session
from fries.errors import FriesError
from fries.flow import Flow
from fries.updates import Update

ROWS_PER_SECOND: Final = 400
KEYS: Final = 50
PAUSE_SECONDS: Final = 1.0
"""Between two changes, on average."""
MIGRATION_EVERY: Final = 50
UNDO_EVERY: Final = 7
SAMPLE_SECONDS: Final = 10.0
WARM_UP: Final = 0.25
"""Part of the run after which nothing may grow any more: caches and heaps are full then."""
MOST_GROWTH: Final = 1.25
"""Of memory, from the first to the last quarter of what follows; a leak of a few KB per change
would show as more."""
OUT: Final = Path("out/soak.json")
SCHEMA: Final = "id long, key long, fc long, fm long, seen long"
Row = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """What some processes use."""

    seconds: float
    """Since the start."""
    driver_mb: float
    driver_threads: int
    driver_files: int
    java_mb: float
    java_files: int
    workers_mb: float
    """Of the largest Python worker."""
    workers: int
    log_kb: float
    """Of the durable log."""


@dataclass
class Tally:
    """What has been seen in the output."""

    rows: int = 0
    mixed: int = 0
    wrong_counts: int = 0
    """Keys whose rows were lost or doubled."""
    changes: int = 0
    undone: int = 0
    refused: int = 0
    delays: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def scored(version: int) -> Any:  # noqa: ANN401 - a row function
    """FC."""
    return lambda row: {**row, "fc": version}


def counted(version: int) -> Any:  # noqa: ANN401 - a keyed function
    """FM: how often a key was seen."""

    def count(state: int, row: Row) -> tuple[int, Row]:
        return state + 1, {**row, "fm": version, "seen": state + 1}

    return count


def same(state: int) -> int:
    """A migration, and its inverse."""
    return state


class Soak:
    """A query that is changed again and again."""

    def __init__(self, spark: SparkSession, where: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._where = where
        self._seen = dict.fromkeys(range(KEYS), 0)
        self._began = time.monotonic()
        self.tally = Tally()
        self.flow = Flow("soak", groups=8)
        rate = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
        rows = rate.selectExpr(
            "value AS id", f"value % {KEYS} AS key", "0L AS fc", "0L AS fm", "0L AS seen"
        )
        made = self.flow.source("rows", rows).map("FC", scored(0))
        made = made.process("FM", counted(0), key="key", initial=0, order_by="id", schema=SCHEMA)
        writer = self.flow.output(made).writeStream.foreachBatch(self._check)
        self.query = self.flow.start(writer.option("checkpointLocation", str(where / "checkpoint")))

    def run(self, minutes: float) -> None:
        """Change it until the time is over."""
        deadline, sampled = self._began + 60 * minutes, 0.0
        version = 0
        while time.monotonic() < deadline and self.query.isActive:
            time.sleep(self._random.uniform(0.0, 2 * PAUSE_SECONDS))
            version += 1
            self._change(version)
            if time.monotonic() - sampled > SAMPLE_SECONDS:
                sampled = time.monotonic()
                self.tally.samples.append(self._sample())
        self.flow.stop()

    def _change(self, version: int) -> None:
        migrate = same if version % MIGRATION_EVERY == 0 else None
        update = Update(counted(version), migrate=migrate, inverse=migrate)
        try:
            change = self.flow.reconfigure({"FC": scored(version), "FM": update}, note="soak")
            change.wait(60.0)
            self.tally.changes += 1
            self.tally.delays.append(change.delay or 0.0)
            if version % UNDO_EVERY == 0:
                change.undo().wait(60.0)
                self.tally.undone += 1
        except FriesError as error:
            self.tally.refused += 1
            print("refused:", error, flush=True)

    def _check(self, frame: DataFrame, batch: int) -> None:  # noqa: ARG002
        """The sink: look at every row."""
        counts: dict[int, list[int]] = {}
        for row in frame.collect():
            self.tally.rows += 1
            self.tally.mixed += row["fc"] != row["fm"]
            counts.setdefault(row["key"], []).append(row["seen"])
        for key, seen in counts.items():
            expected = list(range(self._seen[key] + 1, self._seen[key] + 1 + len(seen)))
            self.tally.wrong_counts += sorted(seen) != expected
            self._seen[key] += len(seen)

    def _sample(self) -> Sample:
        mine = os.getpid()
        every = list(processes())
        java = [p.pid for p in every if p.parent == mine and "java" in p.command]
        daemons = {p.pid for p in every if p.parent in java}
        pythons = [p.pid for p in every if p.parent in daemons]
        log = self._where / "checkpoint" / "fries"
        return Sample(
            time.monotonic() - self._began,
            _megabytes(mine),
            len(list(Path(f"/proc/{mine}/task").iterdir())),
            _files(mine),
            sum(map(_megabytes, java)),
            sum(map(_files, java)),
            max(map(_megabytes, pythons), default=0.0),
            len(pythons),
            sum(map(_size, log.iterdir())) / 1024,
        )


def _megabytes(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _size(path: Path) -> int:
    """Bytes of a file; none if it was removed meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def growth(samples: list[Sample]) -> dict[str, float]:
    """By figure, the last quarter against the first quarter, after the warm-up."""
    warm = samples[int(len(samples) * WARM_UP) :]
    quarter = max(1, len(warm) // 4)
    names = ("driver_mb", "driver_threads", "driver_files", "java_mb", "java_files", "workers_mb")
    return {
        name: float(
            np.mean([getattr(one, name) for one in warm[-quarter:]])
            / np.mean([getattr(one, name) for one in warm[:quarter]])
        )
        for name in names
    }


def main() -> None:
    """Run it, and judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    spark = session()
    with folder() as where:
        soak = Soak(spark, where, given.seed)
        soak.run(given.minutes)
    spark.stop()
    tally = soak.tally
    grown = growth(tally.samples)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({**asdict(tally), "growth": grown}, indent=1))
    delays = np.array(tally.delays or [0.0]) * 1000
    print(f"{tally.rows:,} rows, {tally.changes:,} changes, {tally.undone:,} undone,")
    print(f"{tally.refused} refused, {tally.mixed} rows mixed, {tally.wrong_counts} counts wrong")
    print(f"delay {np.percentile(delays, 50):.1f} ms (p50), {np.percentile(delays, 99):.1f} (p99)")
    print("growth:", ", ".join(f"{name} {value:.2f}" for name, value in grown.items()))
    print("restarts of the query:", len(soak.query.failures), "results in", OUT)
    leaks = [name for name, value in grown.items() if value > MOST_GROWTH]
    if tally.mixed or tally.wrong_counts or tally.refused or leaks or soak.query.failures:
        sys.exit(f"not clean; grown: {leaks}")


if __name__ == "__main__":
    main()
