"""What the public API gives, as mypy sees it. Nothing here is called: reading it is the test.

``make check`` runs mypy --strict over it; a type that changes is an error there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, assert_type

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import fries
from fries.change.model import Rows
from fries.control.messages import Counts
from fries.errors import AbortedError, FriesError, OperatorError, PlanError, UpdateRefusedError
from fries.events import ChangeRolledBack
from fries.listening import Listening
from fries.mcs import Component
from fries.schedulers import Scheduler
from fries.serializability import Contradiction, ScheduleVerdict, SerialOrder, Tally
from fries.spark.supervisor import SupervisedQuery
from fries.transactions import Schedule

NumberedRow = dict[str, Any]


def same(row: NumberedRow) -> NumberedRow:
    """A row function."""
    return row


def counted(state: int, row: NumberedRow) -> tuple[int, NumberedRow]:
    """A keyed function."""
    return state + 1, row


def flows(frame: DataFrame) -> None:
    """A flow: what goes in and what comes out."""
    flow = fries.Flow("f")
    assert_type(fries.Flow("f", audit="folder", groups=8), fries.Flow)
    tls = fries.Tls("flow.pem", Path("flow.key"), authority="authority.pem")
    assert_type(fries.Flow("f", tls=tls), fries.Flow)
    assert_type(fries.Flow("f", audit=Path("folder")), fries.Flow)
    assert_type(flow.name, str)
    stream = flow.source("s", frame)
    assert_type(stream, fries.Stream)
    assert_type(flow.output(stream), DataFrame)
    assert_type(flow.output(left=stream, right=stream), DataFrame)
    assert_type(flow.output(stream, other=stream), DataFrame)
    assert_type(flow.select(frame, "left"), DataFrame)
    assert_type(flow.start(frame.writeStream), SupervisedQuery)
    assert_type(flow.query, StreamingQuery | None)
    assert_type(flow.graph, fries.Graph)
    assert_type(flow.workers, tuple[str, ...])
    assert_type(flow.counters, dict[str, Counts])
    assert_type(flow.counters["s"].taken, int)
    assert_type(flow.counters["s"].given, int)
    assert_type(flow.counters["s"].seconds, float)
    assert_type(flow.versions, dict[str, int])
    assert_type(flow.explain(), str)
    assert_type(flow.plan({"s": same}), fries.Plan)
    assert_type(flow.audit(), fries.Verdict)


def streams(stream: fries.Stream, frame: DataFrame, table: pa.Table, struct: StructType) -> None:
    """Operators: each gives a stream, and a split several."""
    assert_type(stream.flow, fries.Flow)
    assert_type(stream.operator, str)
    assert_type(stream.schema, pa.Schema)
    assert_type(stream.branch, int)
    assert_type(stream.map("M", same), fries.Stream)
    assert_type(stream.map("M", same, schema="a long"), fries.Stream)
    assert_type(stream.map("M", same, schema=struct, batch="arrow"), fries.Stream)
    assert_type(stream.map("M", same, schema=pa.schema([]), batch="pandas"), fries.Stream)
    assert_type(stream.flat_map("U", lambda row: [row]), fries.Stream)
    assert_type(stream.filter("F", lambda row: True), fries.Stream)
    assert_type(stream.split("S", lambda row: 0, branches=3), tuple[fries.Stream, ...])
    assert_type(stream.replicate("R"), fries.Stream)
    assert_type(stream.union("U", stream, stream), fries.Stream)
    assert_type(stream.process("P", counted, key="a", initial=0), fries.Stream)
    process = stream.process(
        "P",
        counted,
        key=("a", "b"),
        schema="a long",
        order_by=["c"],
        initial={"n": 0},
        many=True,
        migrations=[None, lambda state: state],
    )
    assert_type(process, fries.Stream)
    assert_type(stream.aggregate("A", counted, "a long, n long", key="a"), fries.Stream)
    assert_type(stream.map("M", same, on_error="rejected"), fries.Stream)
    assert_type(stream.map("M", same, on_error=fries.DeadLetters("drop", limit=1)), fries.Stream)
    assert_type(stream.process("P", counted, key="a", on_unreadable="skip"), fries.Stream)
    repaired = stream.process("P", counted, key="a", on_unreadable=lambda key, data, error: key)
    assert_type(repaired, fries.Stream)
    assert_type(stream.map("shuffled", lambda row: row, shuffle=["a", "b"]), fries.Stream)
    assert_type(stream.lookup("L", table, on="a"), fries.Stream)
    assert_type(stream.lookup("L", frame, on=["a"], to="b", how="left", shuffle=True), fries.Stream)
    assert_type(stream.join("J", stream, on="a"), fries.Stream)


def changes(flow: fries.Flow, frame: DataFrame, table: pa.Table, names: pd.DataFrame) -> None:
    """A reconfiguration: what it takes and what its handle tells."""
    change = flow.reconfigure({"M": same})
    assert_type(change, fries.Reconfiguration)
    update = fries.Update(same, migrate=lambda state: state, schema=pa.schema([]), result=same)
    assert_type(update, fries.Update)
    assert_type(fries.Update(same, schema="a long"), fries.Update)
    assert_type(fries.Update(table), fries.Update)
    assert_type(flow.reconfigure({"M": update}, "epoch", timeout=5), fries.Reconfiguration)
    assert_type(flow.reconfigure({"L": table, "K": frame, "M": same}), fries.Reconfiguration)
    assert_type(flow.reconfigure({"L": names, "M": update}), fries.Reconfiguration)
    assert_type(flow.reconfigure({"L": names}), fries.Reconfiguration)
    assert_type(fries.Update(names), fries.Update)
    assert_type(change.plan, fries.Plan)
    assert_type(change.state, str)
    assert_type(change.delay, float | None)
    assert_type(change.switch_delay, float | None)
    assert_type(change.switches, dict[str, float])
    assert_type(change.wait(), bool)
    assert_type(change.wait(timeout=1.5), bool)
    assert_type(change.wait(rows=1_000), bool)
    assert_type(change.rows, dict[str, Rows])
    assert_type(change.rows["M"].new, int)
    assert_type(change.labels, Mapping[str, str])
    assert_type(fries.Update(same, label="rules v2"), fries.Update)


def events(flow: fries.Flow) -> None:
    """Listeners get events; a flow is stopped at the end of its block."""

    def hear(event: fries.Event) -> None:
        assert_type(event.flow, str)
        assert_type(event.time, datetime)
        if isinstance(event, ChangeRolledBack):
            assert_type((event.number, event.operator, event.row), tuple[int, str, str])

    with flow as same_flow, flow.listen(hear) as listening:
        assert_type(same_flow, fries.Flow)
        assert_type(listening, Listening)
        assert_type(listening.lost, int)
    assert_type(fries.__version__, str)


def plans(plan: fries.Plan, graph: fries.Graph) -> None:
    """A plan and the graph that it is for."""
    assert_type(plan.scheduler, str)
    assert_type(plan.targets, tuple[str, ...])
    assert_type(plan.components, tuple[Component, ...])
    assert_type(plan.heads, tuple[str, ...])
    assert_type(plan.members, tuple[str, ...])
    assert_type(plan.longest_path, int)
    assert_type(plan.channels, int)
    assert_type(plan.total_channels, int)
    assert_type(plan.component_of("M"), Component | None)
    assert_type(plan.commit, fries.CommitPoint)
    assert_type(plan.propagation, fries.Propagation)
    assert_type(plan.to_dot(), str)
    assert_type(plan.to_mermaid(), str)
    assert_type(graph["M"], fries.Operator)
    assert_type(graph["M"].emits, fries.Emits)
    assert_type(graph.edges, tuple[fries.Edge, ...])
    assert_type(graph.edges[0].partitioning, fries.Partitioning)
    assert_type(graph.regions, tuple[frozenset[str], ...])
    assert_type(fries.SCHEDULERS, dict[str, Scheduler])
    assert_type(fries.SCHEDULERS["fries"](graph, ["M"]), fries.Plan)


def verdicts(verdict: fries.Verdict, trace: fries.Trace, schedule: Schedule) -> None:
    """What the checker says."""
    assert_type(verdict.serializable, bool)
    assert_type(verdict.atomic, bool)
    assert_type(verdict.transactions, int)
    assert_type(verdict.operations, int)
    assert_type(verdict.mixed, int)
    assert_type(verdict.tallies, tuple[Tally, ...])
    assert_type(verdict.contradiction, Contradiction | None)
    assert_type(verdict.serial_order(), SerialOrder | None)
    assert_type(fries.check_trace(trace), fries.Verdict)
    assert_type(fries.check(schedule), ScheduleVerdict)
    builder = fries.TraceBuilder(["M"])
    assert_type(builder.build([{"M": 1}]), fries.Trace)


def errors(aborted: AbortedError, refused: UpdateRefusedError, failed: OperatorError) -> None:
    """Errors have typed fields and one root."""
    roots: list[fries.FriesError] = [aborted, refused, failed]
    refusals: list[PlanError] = [refused]
    assert_type(roots, list[FriesError])
    assert_type(refusals, list[PlanError])
    assert_type(aborted.reason, str)
    assert_type(refused.operator, str)
    assert_type(refused.problem, str)
    assert_type((failed.operator, failed.problem, failed.row), tuple[str, str, str])
