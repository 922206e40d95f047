"""The flow of the crash runs: payments -> FC (by customer) -> FM (by merchant) -> a sink.

Whatever could go wrong is made visible. A state is a number that depends on every row of its key,
on their order, on the version that processed each of them, and on each migration; every output
row shows the versions that it met and both numbers. States of odd versions have another shape, so
that a function that meets the wrong one fails. The arithmetic is in :func:`advance` and
:func:`migrated`; the oracle uses the same two functions on a plain list of rows.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from fries.flow import Flow
from fries.updates import Update

INPUT: Final = "id long, customer long, merchant long, amount long"
SCORED: Final = f"{INPUT}, fc long, profile long"
OUTPUT: Final = f"{SCORED}, fm long, score long"
FILES: Final = 2
"""Input files of a micro-batch, and so tasks of its first stage."""
MODULUS: Final = 2_147_483_647
CUSTOMERS: Final = 41
MERCHANTS: Final = 17
Row = dict[str, Any]


def advance(state: int, amount: int, version: int) -> int:
    """The next state of a key, which no other row, order or version would give."""
    return (state * 31 + amount * (version + 1) + 1) % MODULUS


def migrated(state: int, version: int) -> int:
    """A state of the version before, for a version: once too often, or once too rarely, shows."""
    return (state * 7 + version) % MODULUS


@dataclass(frozen=True)
class Migration:
    """To a version: another number in another shape."""

    version: int

    def __call__(self, state: Any) -> Any:  # noqa: ANN401 - a number, or a dict with it
        """Migrate one state."""
        return _shaped(migrated(_number(state, self.version - 1), self.version), self.version)


class Scorer:
    """FC or FM at a version. It takes its time, for a row and for being loaded."""

    def __init__(
        self, version: int, takes: str, gives: str, row_seconds: float, load_seconds: float = 0.0
    ) -> None:
        self.version, self.takes, self.gives = version, takes, gives
        self.row_seconds, self.load_seconds = row_seconds, load_seconds

    def __setstate__(self, fields: dict[str, Any]) -> None:
        time.sleep(fields["load_seconds"])
        self.__dict__.update(fields)

    def __call__(self, state: Any, row: Row) -> tuple[Any, Row]:  # noqa: ANN401
        """Process one row of a key."""
        time.sleep(self.row_seconds)
        number = advance(_number(state, self.version), row[self.takes], self.version)
        shows = {"amount": "fc", "profile": "fm"}[self.takes]
        return _shaped(number, self.version), {**row, shows: self.version, self.gives: number}


def customer(version: int, row_seconds: float, load_seconds: float = 0.0) -> Scorer:
    """FC: what a customer's payments tell."""
    return Scorer(version, "amount", "profile", row_seconds, load_seconds)


def merchant(version: int, row_seconds: float, load_seconds: float = 0.0) -> Scorer:
    """FM: what the customers of a merchant tell."""
    return Scorer(version, "profile", "score", row_seconds, load_seconds)


def updates(version: int, row_seconds: float, load_seconds: float = 0.0) -> dict[str, Update]:
    """The change of both operators to a version."""
    migrate = Migration(version)
    return {
        "FC": Update(customer(version, row_seconds, load_seconds), migrate=migrate),
        "FM": Update(merchant(version, row_seconds, load_seconds), migrate=migrate),
    }


def build(flow: Flow, rows: DataFrame, row_seconds: float) -> DataFrame:
    """The flow as its author wrote it, whatever has become of it since."""
    fc = flow.source("payments", rows).process(
        "FC", customer(0, row_seconds), key="customer", order_by="id", initial=0, schema=SCORED
    )
    fm = fc.process(
        "FM", merchant(0, row_seconds), key="merchant", order_by="id", initial=0, schema=OUTPUT
    )
    return flow.output(fm)


def payments(seed: int, batches: int, rows: int) -> list[list[Row]]:
    """The input of each micro-batch."""
    random = np.random.default_rng(seed)
    count = batches * rows
    columns = {
        "id": np.arange(count),
        "customer": random.integers(CUSTOMERS, size=count),
        "merchant": random.integers(MERCHANTS, size=count),
        "amount": random.integers(1_000, size=count),
    }
    every = [
        dict(zip(columns, values, strict=True))
        for values in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]
    return [every[start : start + rows] for start in range(0, count, rows)]


def write_input(folder: Path, batches: list[list[Row]]) -> None:
    """Write the files of all micro-batches. Spark takes them in the order of their times."""
    folder.mkdir()
    moment = int(time.time()) - 3600
    for number, rows in enumerate(batches):
        for part in range(FILES):
            path = folder / f"{number:05}-{part}.parquet"
            pq.write_table(pa.Table.from_pylist(rows[part::FILES]), path)
            moment += 1
            os.utime(path, (moment, moment))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The input as a stream, with the same micro-batches in every run."""
    reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", FILES)
    return reader.parquet(str(folder))


def keep(frame: DataFrame, folder: Path, batch: int) -> None:
    """An idempotent sink: a folder for each micro-batch, whole or not at all."""
    partial, final = folder / f"partial-{batch}", folder / f"batch-{batch}"
    frame.write.mode("overwrite").parquet(str(partial))
    shutil.rmtree(final, ignore_errors=True)  # of an attempt that Spark has not committed
    partial.rename(final)


def read_output(folder: Path) -> dict[int, list[Row]]:
    """By micro-batch, the rows that the sink holds."""
    return {
        int(path.name.removeprefix("batch-")): pq.read_table(path).to_pylist()
        for path in folder.glob("batch-*")
    }


def _number(state: Any, version: int) -> int:  # noqa: ANN401
    """The number in a state, which must have the shape of a version."""
    number: int = state["number"] if version % 2 else state + 0
    return number


def _shaped(number: int, version: int) -> Any:  # noqa: ANN401
    return {"number": number} if version % 2 else number
