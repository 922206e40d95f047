"""Is nothing mixed on real Spark? Every scheduler, changes at random moments, an audit.

``make consistency`` runs it over 100,000 tuples for each scheduler. The flow has all that is
hard: a replicate and the join of its branches, a one-to-many operator, two keyed stages with
state, four exchanges::

    source -> RE -> FC (by customer) ------> SJ -> U (two rows) -> FM (by merchant) -> MC
               `--> F4 (a slow map) -------'

Two checks are independent of each other: the audit that workers record, and the rows that come
out, where every operator leaves its version and every state its count.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console
from rich.table import Table

from fries.flow import Flow
from fries.reconfiguration import IN_PLACE, Reconfiguration
from fries.updates import Update

OUT: Final = Path("out/consistency.json")
SCHEDULERS: Final = (
    "fries",
    "fries_unpruned",
    "epoch",
    "multi_version",
    "mini_batch",
    "restart",
    "naive",
)
TARGETS: Final = (("FC", "FM"), ("F4", "MC"), ("FM", "MC"), ("FC", "F4", "U", "FM", "MC"), ("U",))
"""What is changed together, in turns."""
PAUSE: Final = 0.4
RESTART_PAUSE: Final = 12.0
"""Seconds between two changes, at the most. A restart throws its batch away: with a shorter pause
no batch would ever end."""
NumberedRow = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """How a run of one scheduler went."""

    scheduler: str
    tuples: int
    operations: int
    changes: int
    mixed: int
    """Transactions that met both versions of one change, by the audit."""
    torn: int
    """Tuples whose rows show both versions of one change, by the output."""
    lost: int
    """Rows that are missing in the output, or there twice."""
    wrong_states: int
    """Keys whose states are not what a plain count gives."""
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether all was as it must be."""
        return not (self.mixed or self.torn or self.lost or self.wrong_states)


def customer(version: int) -> Callable[[Any, NumberedRow], tuple[Any, NumberedRow]]:
    """FC: counts the tuples of a customer; the state has another shape in every second version."""

    def function(state: Any, row: NumberedRow) -> tuple[Any, NumberedRow]:  # noqa: ANN401
        count = (state["n"] if version % 2 else state) + 1
        return {"n": count} if version % 2 else count, {**row, "fc": version, "seen": count}

    return function


def merchant(version: int) -> Callable[[Any, NumberedRow], tuple[Any, NumberedRow]]:
    """FM: counts the rows of a merchant, in the same two shapes."""

    def function(state: Any, row: NumberedRow) -> tuple[Any, NumberedRow]:  # noqa: ANN401
        count = (state["n"] if version % 2 else state) + 1
        return {"n": count} if version % 2 else count, {**row, "fm": version, "rows": count}

    return function


def leave(column: str, version: int) -> Callable[[NumberedRow], NumberedRow]:
    """A map that leaves its version."""
    return lambda row: {**row, column: version}


def twice(version: int) -> Callable[[NumberedRow], list[NumberedRow]]:
    """U: two rows for each."""
    return lambda row: [{**row, "part": part, "u": version} for part in (0, 1)]


def reshape(version: int) -> Callable[[Any], Any]:
    """The migration of a count to the shape of a version."""
    return (lambda state: {"n": state}) if version % 2 else (lambda state: state["n"])


def update(operator: str, version: int) -> Update:
    """The next version of an operator."""
    if operator in ("FC", "FM"):
        function = customer(version) if operator == "FC" else merchant(version)
        return Update(function, migrate=reshape(version))
    return Update(twice(version) if operator == "U" else leave(operator.lower(), version))


def build(flow: Flow, rows: DataFrame) -> DataFrame:
    """The flow, at version 0 of everything."""
    base = "id long, customer long, merchant long"
    source = flow.source("payments", rows).replicate("RE")
    fc = source.process(
        "FC",
        customer(0),
        key="customer",
        initial=0,
        schema=f"{base}, fc long, seen long",
    )
    f4 = source.map("F4", leave("f4", 0), schema=f"{base}, f4 long")
    joined = fc.join("SJ", f4, on="id")
    parts = joined.flat_map(
        "U", twice(0), schema=f"{base}, fc long, seen long, f4 long, part long, u long"
    )
    fm = parts.process(
        "FM",
        merchant(0),
        key="merchant",
        initial=0,
        schema=f"{base}, fc long, seen long, f4 long, part long, u long, fm long, rows long",
    )
    mc = fm.map(
        "MC",
        leave("mc", 0),
        schema=(
            f"{base}, fc long, seen long, f4 long, part long, u long, fm long, rows long, mc long"
        ),
    )
    return flow.output(mc)


def run(
    spark: SparkSession,
    scheduler: str,
    tuples: int,
    batches: int,
    folder: Path,
    seed: int = 0,
    pause: float = PAUSE,
) -> Report:
    """One query over all tuples, with changes at random moments, and what the checks say."""
    began = time.perf_counter()
    partitions = 2 * batches
    rows = spark.range(0, tuples, 1, partitions).selectExpr(
        "id", "id * 7919 % 509 AS customer", "id * 104729 % 127 AS merchant"
    )
    rows.write.mode("overwrite").parquet(str(folder / "in"))
    stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 2)
    flow = Flow(f"consistency-{scheduler}", audit=folder / "audit", groups=16)
    frame = build(flow, stream.parquet(str(folder / "in")))
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    flow.start(writer.option("checkpointLocation", str(folder / "checkpoint")))
    changes = list(_changing(flow, scheduler, batches, seed, pause))
    verdict = flow.audit()
    flow.stop()
    kept = [change.plan.targets for change in changes if change.state in {"committed", *IN_PLACE}]
    out = spark.read.parquet(str(folder / "out")).collect()
    return Report(
        scheduler,
        tuples,
        verdict.operations,
        len(kept),
        sum(tally.mixed for tally in verdict.tallies),
        _torn(out, kept),
        _lost(out, tuples),
        _wrong_states(out, tuples),
        time.perf_counter() - began,
    )


def _changing(
    flow: Flow, scheduler: str, batches: int, seed: int, pause: float
) -> Iterator[Reconfiguration]:
    """Change operators at random moments until the last batch has ended."""
    random = np.random.default_rng(seed)
    versions: Counter[str] = Counter()
    turn = 0
    flow.wait_until_running()  # the first change comes then, however fast batches are
    while not _finished(flow, batches):
        if turn:
            time.sleep(float(random.uniform(0.0, pause)))
        if not flow.workers or _finished(flow, batches - 1):
            continue
        targets = TARGETS[turn % len(TARGETS)]
        turn += 1
        versions.update(targets)
        updates = {name: update(name, versions[name]) for name in targets}
        change = flow.reconfigure(updates, scheduler)
        change.wait(60)
        yield change
        if scheduler == "restart":
            pause *= 2  # it throws the running batch away, which must end some time
    query = flow.query
    assert query is not None
    query.stop()


def _finished(flow: Flow, batches: int) -> bool:
    """Whether so many batches are committed; a query that failed says why."""
    query = flow.query
    assert query is not None
    failure = query.exception()
    if failure is not None:
        raise failure
    progress = query.lastProgress
    return (
        progress is not None
        and progress["batchId"] + 1 >= batches
        and bool(progress["batchId"] >= batches or progress["numInputRows"])
    )


def _torn(rows: list[Row], changes: list[tuple[str, ...]]) -> int:
    """Tuples of which one operator shows a change and another one does not."""
    columns = {"FC": "fc", "F4": "f4", "U": "u", "FM": "fm", "MC": "mc"}
    versions: Counter[str] = Counter()
    torn: set[int] = set()
    for targets in changes:
        versions.update(targets)
        for row in rows:
            if len({row[columns[name]] >= versions[name] for name in targets}) > 1:
                torn.add(row["id"])
    met: dict[int, set[tuple[int, ...]]] = {}
    for row in rows:
        met.setdefault(row["id"], set()).add(tuple(row[name] for name in columns.values()))
    return len(torn | {number for number, seen in met.items() if len(seen) > 1})


def _lost(rows: list[Row], tuples: int) -> int:
    found = Counter((row["id"], row["part"]) for row in rows)
    expected = {(number, part) for number in range(tuples) for part in (0, 1)}
    doubled = sum(count - 1 for count in found.values())
    return len(expected - found.keys()) + len(found.keys() - expected) + doubled


def _wrong_states(rows: list[Row], tuples: int) -> int:
    """A key's counts must be 1 to n, each once: nothing lost in a migration, nothing doubled."""
    wrong = 0
    for key, count, expected in (
        ("customer", "seen", Counter(number * 7919 % 509 for number in range(tuples))),
        ("merchant", "rows", Counter(n * 104729 % 127 for n in range(tuples) for _ in (0, 1))),
    ):
        seen: dict[int, list[int]] = {}
        for row in rows:
            if key == "merchant" or row["part"] == 0:
                seen.setdefault(row[key], []).append(row[count])
        wrong += sum(
            sorted(seen.get(value, [])) != list(range(1, total + 1))
            for value, total in expected.items()
        )
    return wrong


def session() -> SparkSession:
    """A local Spark with as many partitions as cores."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def main() -> None:
    """Every scheduler over 100,000 tuples; a table, and a JSON record."""
    spark = session()
    console = Console(width=110)
    table = Table(
        "scheduler",
        "tuples",
        "operations",
        "changes",
        "mixed",
        "torn",
        "lost",
        "states",
        "s",
        title="audited runs on Spark, changes at random moments",
    )
    reports = []
    for scheduler in SCHEDULERS:
        folder = Path(tempfile.mkdtemp(prefix="fries-consistency-"))
        try:
            pause = RESTART_PAUSE if scheduler == "restart" else PAUSE
            report = run(spark, scheduler, 100_000, 10, folder, pause=pause)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        reports.append(report)
        cells = list(asdict(report).values())
        table.add_row(cells[0], *(f"{cell:,.0f}" for cell in cells[1:]))
        console.print(f"{scheduler}: {'clean' if report.clean else 'NOT CLEAN'}")
    console.print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    spark.stop()
    if not all(report.clean for report in reports if report.scheduler != "naive"):
        sys.exit("a scheduler that should be consistent was not")


if __name__ == "__main__":
    main()
