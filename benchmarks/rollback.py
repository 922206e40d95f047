"""How long rows wait when a new version fails on one of them: ``python -m benchmarks.rollback``.

The same failure twice: where the rows enter the component in the stage that fails, so that the
change is taken back in place, and where they were stamped in an earlier stage, so that the batch is
replayed. In turns, in one query; from the moment at which the version raised until the same row was
processed by the version before.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import fries
from benchmarks.spark import folder, percentile, session, wait_until

ROWS: Final = 400
"""Of a micro-batch."""
ROW_SECONDS: Final = 0.001
TRIALS: Final = 10
"""Of each kind."""
SCHEMA: Final = "id long, user long, at double, n long"
Row = dict[str, Any]


def first(row: Row) -> Row:
    """The first operator, in the first stage."""
    return {**row}


def counted(state: int, row: Row) -> tuple[int, Row]:
    """The second one, keyed: how often a user was seen, and when."""
    time.sleep(ROW_SECONDS)
    return state + 1, {**row, "at": time.time(), "n": state + 1}


def failing(bad: int) -> Any:  # noqa: ANN401 - a function
    """A version of it that fails on one row, and says when."""

    def count(state: int, row: Row) -> tuple[int, Row]:
        if row["id"] == bad:
            raise ValueError(time.time())
        return counted(state, row)

    return count


class Trials:
    """A supervised query, and when each row was processed."""

    def __init__(self, spark: SparkSession, where: Path) -> None:
        self._where, self._added = where / "in", 0
        self._where.mkdir()
        self._at: dict[int, float] = {}
        rows = spark.readStream.schema("id long, user long").json(str(self._where))
        self.flow = fries.Flow("rollback", groups=4)
        first_ = self.flow.source("rows", rows).map("first", first)
        made = first_.process("count", counted, key="user", initial=0, schema=SCHEMA)
        writer = self.flow.output(made).writeStream.foreachBatch(self._keep)
        self.query = self.flow.start(
            writer.option("checkpointLocation", str(where / "checkpoint")),
            fries.Supervision(quiet=True),
        )
        self._feed()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        assert batch >= 0
        self._at.update((row["id"], row["at"]) for row in frame.collect())

    def _feed(self) -> None:
        """A micro-batch, until its rows are there."""
        ids = range(self._added, self._added + ROWS)
        self._added += ROWS
        hidden = self._where / f".{ids.start}.json"
        hidden.write_text("".join(f'{{"id": {n}, "user": {n % 50}}}\n' for n in ids))
        hidden.rename(self._where / f"{ids.start}.json")
        wait_until(lambda: ids[-1] in self._at)

    def waited(self, in_place: bool) -> float:
        """Seconds that a row waited for its second try."""
        bad = self._added + ROWS // 2
        updates = (
            {"count": failing(bad)} if in_place else {"first": _again(), "count": failing(bad)}
        )
        change = self.flow.reconfigure(updates)
        change.wait()
        self._feed()
        wait_until(lambda: change.failure is not None)
        expected = "in place" if in_place else "replayed"
        if change.rollback != expected or change.failure is None:
            raise RuntimeError(f"{change} was to be {expected}, and was {change.rollback}")
        failed_at = float(change.failure.problem.removeprefix("ValueError(").removesuffix(")"))
        return self._at[bad] - failed_at


def _again() -> Any:  # noqa: ANN401 - a function
    """Another version of the first operator that does the same."""
    marker = time.time()
    return lambda row: {**row} if marker else row


def main() -> None:
    """Print the waits of both kinds as JSON."""
    spark = session()
    with folder() as where:
        trials = Trials(spark, where)
        waits: dict[str, list[float]] = {"in place": [], "replayed": []}
        for _ in range(TRIALS):
            for kind, found in waits.items():
                found.append(trials.waited(kind == "in place"))
        trials.flow.stop()
    figures = {
        kind: {
            "n": len(found),
            "median_ms": 1000 * statistics.median(found),
            "p90_ms": 1000 * percentile(found, 90),
            "longest_ms": 1000 * max(found),
        }
        for kind, found in waits.items()
    }
    json.dump(figures, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
