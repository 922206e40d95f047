"""Swap two operators of a running Spark job together, and see that no row met half of it.

Run it with ``python examples/hot_swap.py``.
"""

import tempfile
import threading
import time
from collections import Counter

from pyspark.sql import SparkSession

import fries


def score(version: int) -> fries.Function:
    """A model that takes 2 ms for a payment and says which version it is."""

    def function(row: dict[str, float]) -> dict[str, float]:
        time.sleep(0.002)
        return {**row, "scored_by": version}

    return function


def decide(version: int) -> fries.Function:
    """A rule that must fit the model."""
    return lambda row: {**row, "decided_by": version}


def main() -> None:
    """Score 6,000 payments in one long batch, and change model and rule in the middle."""
    folder = tempfile.mkdtemp(prefix="fries-audit-")
    flow = fries.Flow("payments", audit=folder)
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    payments = spark.range(0, 6000, 1, 2).selectExpr(
        "id", "id * 1.5 AS amount", "-1L AS scored_by", "-1L AS decided_by"
    )
    stream = flow.source("payments", payments)
    result = flow.output(stream.map("model", score(1)).map("rule", decide(1)))

    rows: list[Counter[tuple[int, int]]] = []
    job = threading.Thread(
        target=lambda: rows.append(
            Counter((row.scored_by, row.decided_by) for row in result.collect())
        )
    )
    job.start()
    while len(flow.workers) < 2:
        time.sleep(0.05)
    time.sleep(3.0)  # the first rows are slow: workers are still importing libraries

    change = flow.reconfigure({"model": score(2), "rule": decide(2)})
    change.wait()
    print(change.plan)
    print(f"all workers switched {(change.delay or 0.0) * 1000:.1f} ms after the request")
    job.join()
    for (scored, decided), count in sorted(rows[0].items()):
        print(f"{count:5d} payments scored by version {scored} and decided by version {decided}")
    print(f"audit: {flow.audit()}")
    flow.stop()
    spark.stop()


if __name__ == "__main__":
    main()
