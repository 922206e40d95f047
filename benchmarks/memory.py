"""Does a worker's memory stay bounded? Eight times the rows, the same peak.

What a worker holds is a chunk, the versions of its operators, and the rows of one key group. So
the keyed flow gets eight times the key groups with eight times the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from fries.flow import Flow

ROWS: Final = {"stateless": 1_000_000, "keyed": 100_000}
TIMES: Final = 8
GROUPS: Final = 64
OFTEN: Final = 100
"""Rows of the keyed flow between two looks at the memory."""


@dataclass(frozen=True)
class Memory:
    """The highest resident memory of any worker during a job."""

    flow: str
    rows: int
    peak_mb: float


def memory(spark: SparkSession) -> list[Memory]:
    """Both flows, small and large."""
    found = []
    for name, rows in ROWS.items():
        for times in (1, TIMES):
            flow = Flow(f"memory-{name}-{times}", groups=GROUPS * times)
            frame = spark.range(0, rows * times, 1, 2).selectExpr("id", "id % 9973 AS k")
            made = _stateless(flow, frame) if name == "stateless" else _keyed(flow, frame)
            (peak,) = made.agg({"peak": "max"}).collect()[0]
            flow.stop()
            found.append(Memory(name, rows * times, peak / 2**10))
    return found


class Peak:
    """The highest resident memory of this process since it was first asked, in KiB (Linux).

    Spark reuses workers, and the peak of a process includes whatever it did before.
    """

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> int:
        """Ask for it."""
        if not self._asked:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self._asked = True
        (line,) = [s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s]
        return int(line.split()[1])


def _stateless(flow: Flow, frame: DataFrame) -> DataFrame:
    peak = Peak()

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        peaks = pa.array(np.full(batch.num_rows, peak()), type=pa.int64())
        return pa.RecordBatch.from_arrays([batch["id"], peaks], names=["id", "peak"])

    return flow.output(
        flow.source("rows", frame).map("M", noted, schema="id long, peak long", batch="arrow")
    )


def _keyed(flow: Flow, frame: DataFrame) -> DataFrame:
    peak = Peak()

    def noted(state: int, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        every = row["id"] % OFTEN == 0  # asking takes longer than counting
        return state + 1, {"k": row["k"], "peak": peak() if every else 0}

    return flow.output(
        flow.source("rows", frame).process(
            "P", noted, key="k", initial=0, schema="k long, peak long"
        )
    )
