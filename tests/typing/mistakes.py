"""Mistakes that mypy must find. An ignore that is not needed any more is an error itself.

Nothing here is called; every line would also be refused when a flow is built.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import fries


def same(row: dict[str, Any]) -> dict[str, Any]:
    """A row function."""
    return row


def streams(stream: fries.Stream, table: pa.Table) -> None:
    """Operators with wrong or missing arguments."""
    stream.map("M", same, batch="polars")  # type: ignore[arg-type]
    stream.map("M")  # type: ignore[call-arg]
    stream.map("M", "same")  # type: ignore[arg-type]
    stream.map("M", same, schema=["a long"])  # type: ignore[arg-type]
    stream.filter("F", same, schema="a long")  # type: ignore[call-arg]
    stream.split("S", same, branches="2")  # type: ignore[arg-type]
    stream.union("U", "other")  # type: ignore[arg-type]
    stream.process("P", same)  # type: ignore[call-arg]
    stream.process("P", same, key=1)  # type: ignore[arg-type]
    stream.process("P", same, key="a", batch="arrow")  # type: ignore[call-arg]
    stream.process("P", same, key="a", migrations=same)  # type: ignore[arg-type]
    stream.process("P", same, key="a", on_unreadable="forget")  # type: ignore[arg-type]
    stream.map("M", same, on_error=None)  # type: ignore[arg-type]
    stream.aggregate("A", same, key="a")  # type: ignore[call-arg]
    stream.aggregate("A", same, None, key="a")  # type: ignore[arg-type]
    stream.lookup("L", table, on="a", how="outer")  # type: ignore[arg-type]
    stream.lookup("L", {"a": 1}, on="a")  # type: ignore[arg-type]
    stream.lookup("L", table)  # type: ignore[call-arg]
    stream.join("J", stream)  # type: ignore[call-arg]
    stream.join("J", table, on="a")  # type: ignore[arg-type]
    stream.operator = "other"  # type: ignore[misc]


def flows(flow: fries.Flow, stream: fries.Stream, frame: DataFrame) -> None:
    """Flows with wrong or missing arguments."""
    fries.Flow()  # type: ignore[call-arg]
    fries.Flow("f", groups="8")  # type: ignore[arg-type]
    flow.source("s")  # type: ignore[call-arg]
    flow.source("s", stream)  # type: ignore[arg-type]
    flow.output(frame)  # type: ignore[arg-type]
    flow.output(stream, "other")  # type: ignore[call-arg]
    flow.start(frame)  # type: ignore[arg-type]
    flow.workers = ()  # type: ignore[misc]


def changes(flow: fries.Flow, change: fries.Reconfiguration) -> None:
    """Reconfigurations of the wrong shape."""
    flow.reconfigure("M")  # type: ignore[arg-type]
    flow.reconfigure(["M"])  # type: ignore[arg-type]
    flow.reconfigure({"M": 5})  # type: ignore[dict-item]
    flow.reconfigure({"M": same}, timeout="5")  # type: ignore[arg-type]
    fries.Update()  # type: ignore[call-arg]
    fries.Update(same, migrate=5)  # type: ignore[arg-type]
    fries.Update(same, schema=5)  # type: ignore[arg-type]
    fries.Update("same")  # type: ignore[arg-type]
    change.delay + 1.0  # type: ignore[operator]
    change.state = "done"  # type: ignore[misc]
