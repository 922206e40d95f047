"""A flow on Spark: its DataFrame, its controller, its reconfigurations."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import SparkContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.control.changes import Change, Order
from fries.control.server import ControlServer
from fries.control.wire import new_secret
from fries.errors import (
    AbortedError,
    AlreadyAppliedError,
    NotRunningError,
    TraitError,
    UpdateRefusedError,
)
from fries.plan import CommitPoint, Plan
from fries.protocol.controller import Phase
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries.runtime.configuration import Shipped
from fries.runtime.spec import EdgeSpec, OperatorSpec
from fries.serializability import Verdict, check_trace
from fries.spark.plan import Planner
from fries.spark.tasks import Session
from fries.stages import PhysicalFlow, physical
from fries.trace import updates_of
from fries.updates import Revision, check_columns, revised

_dumps: Callable[..., bytes] = cloudpickle.dumps


@dataclass(frozen=True)
class Definition:
    """A flow as its author has built it."""

    name: str
    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    sources: Mapping[str, DataFrame]
    outputs: Mapping[str, str]
    """By the operator that an output edge ends in, the name of the output."""
    groups: int
    audit: str | None


@dataclass(frozen=True)
class _Applied:
    """A change that was requested: what it made of its operators, and how to know it again."""

    change: Change
    specs: Mapping[str, OperatorSpec]
    digests: Mapping[str, bytes]


class Engine:
    """Runs one flow."""

    def __init__(self, flow: Definition) -> None:
        self._flow = flow
        self._applied: list[_Applied] = []
        self._writer: DataStreamWriter | None = None
        self.query: StreamingQuery | None = None
        """The query that :meth:`start` has started."""
        context = next(iter(flow.sources.values())).sparkSession.sparkContext
        if _is_local(context) and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable  # else Spark takes the first python3 of the PATH
        definition = _pickled_all(flow.operators)
        self._server = ControlServer(flow.name, new_secret(), _reachable_host(context), definition)
        self._server.start()
        names = tuple(spec.name for spec in flow.operators)
        secret, address = self._server.secret, self._server.address
        self._session = Session(flow.name, address, secret, names, flow.audit)
        self.physical = _stages(flow)

    def dataframe(self) -> DataFrame:
        """The output of the flow, as a plan that Spark runs when it is asked to."""
        planner = Planner(self.physical, self._session, self._flow.outputs, self._flow.groups)
        return planner.dataframe(self._flow.sources)

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query on the output, so that it can be restarted."""
        self._writer = writer
        self.query = writer.start()
        return self.query

    def reconfigure(
        self, plan: Plan, updates: Mapping[str, Revision], timeout: float
    ) -> Reconfiguration:
        """Ship new functions to the running workers and let them switch."""
        current = self._current()
        new = {name: revised(current[name], update) for name, update in updates.items()}
        new = check_columns(tuple(current.values()), self._flow.edges, new, self._crossing())
        requested = time.time()
        digests = {name: _digest(name, update) for name, update in updates.items()}
        if all(self._has(name, digest) for name, digest in digests.items()):
            raise AlreadyAppliedError(plan.targets)
        if not self._server.workers:
            raise NotRunningError(self._flow.name)
        if plan.commit is CommitPoint.NEXT_BATCH and not self._is_streaming():
            raise UpdateRefusedError(
                ", ".join(plan.targets), "a batch job is one batch: it has no boundary to wait for"
            )
        if plan.commit is CommitPoint.RESTART and self._writer is None:
            raise UpdateRefusedError(
                ", ".join(plan.targets),
                "only a query that was started with flow.start(writer) can be restarted",
            )
        migrations = {name: update.migrate for name, update in updates.items()}
        parts: list[pickle.PickleBuffer] = []
        shipped = Shipped(new, migrations, self._entries(plan))
        change = self._server.request(
            Order(
                plan.targets,
                _dumps(shipped, buffer_callback=parts.append),
                buffers=tuple(part.raw() for part in parts),
                requested=requested,
                footprint=frozenset(frozenset(part.members) for part in plan.components),
                at_boundary=plan.commit is not CommitPoint.NOW,
                timeout=timeout,
            )
        )
        self._applied.append(_Applied(change, new, digests))
        if plan.commit is CommitPoint.RESTART:
            self._restart(change, timeout)
        return Reconfiguration(plan, change)

    def _is_streaming(self) -> bool:
        return any(frame.isStreaming for frame in self._flow.sources.values())

    def _restart(self, change: Change, timeout: float) -> None:
        """The baseline: stop the query, which throws its batch away, and start it again."""
        assert self._writer is not None
        assert self.query is not None
        change.wait_ready(time.monotonic() + timeout)
        if change.phase is Phase.ABORTED:
            raise AbortedError(change.reason)
        self.query.stop()
        self._server.cut()
        self.query = self._writer.start()

    def _current(self) -> dict[str, OperatorSpec]:
        """The newest version of each operator, in topological order."""
        specs = {spec.name: spec for spec in self._flow.operators}
        for applied in self._applied:
            if applied.change.phase is not Phase.ABORTED:
                specs.update(applied.specs)
        return specs

    def _has(self, name: str, digest: bytes) -> bool:
        """Whether an operator has an update already, or is about to get it."""
        for applied in reversed(self._applied):
            if name in applied.digests and applied.change.phase is not Phase.ABORTED:
                return applied.digests[name] == digest
        return False

    def audit(self) -> Verdict:
        """Check every data operation that finished tasks have recorded."""
        if self._session.audit is None:
            raise TraitError(
                f"flow {self._flow.name!r}",
                "it records nothing; make it with Flow(..., audit=folder)",
            )
        plans = (order.targets for order in self._server.committed())
        return check_trace(
            audit.read(self._session.audit, self._session.operators, updates_of(plans))
        )

    @property
    def server(self) -> ControlServer:
        """The controller."""
        return self._server

    def stop(self) -> None:
        """Close the control channel."""
        self._server.stop()

    def _crossing(self) -> dict[int, pa.Schema]:
        """Columns of the edges that Spark's plan fixes: between stages, and to the outputs."""
        stages = self.physical.stages
        return {
            edge.number: self.physical.schemas[edge.number]
            for stage in stages
            for edge in stage.leaving
        }

    def _entries(self, plan: Plan) -> frozenset[int]:
        """Numbers of the edges over which rows enter a component of the plan."""
        entered = {(e.source, e.target) for part in plan.components for e in part.entries}
        heads = set(plan.heads)
        return frozenset(
            edge.number
            for edge in self._flow.edges
            if (edge.source, edge.target) in entered
            or (edge.target in heads and edge.target in self._flow.sources)
        )


def _stages(flow: Definition) -> PhysicalFlow:
    """The stages of a flow, without the functions: those travel once, not with every stage."""
    bare = [replace(spec, function=None, result=None) for spec in flow.operators]
    return physical(bare, flow.edges)


def _pickled(
    name: str, value: object, aside: Callable[[pickle.PickleBuffer], object] | None = None
) -> bytes:
    try:
        return _dumps(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=aside)
    except Exception as error:
        raise UpdateRefusedError(
            name,
            f"it cannot be pickled ({error}); keep connections, locks and sessions out of it, and "
            "open them inside the function",
        ) from error


def _digest(name: str, update: Revision) -> bytes:
    """What tells an update from another one, without keeping its models."""
    parts: list[pickle.PickleBuffer] = []
    hashed = hashlib.blake2b(_pickled(name, update, parts.append))
    for part in parts:
        hashed.update(part.raw())
    return hashed.digest()


def _pickled_all(operators: tuple[OperatorSpec, ...]) -> bytes:
    """All operators; a function that cannot travel is named."""
    try:
        return _dumps(operators)
    except Exception:
        for spec in operators:
            _pickled(spec.name, spec)
        raise


def _is_local(context: SparkContext) -> bool:
    return context.getConf().get("spark.master", "").startswith("local")


def _reachable_host(context: SparkContext) -> str:
    """Where workers find the driver: loopback if they are on this machine."""
    host = context.getConf().get("spark.driver.host", "127.0.0.1")
    return "127.0.0.1" if _is_local(context) else host
