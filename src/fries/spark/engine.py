"""A flow on Spark: its DataFrame, its controller, its reconfigurations."""

from __future__ import annotations

import hashlib
import math
import pickle
import threading
import time
import traceback
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
from fries.runtime.configuration import Configuration, Shipped
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec
from fries.serializability import Verdict, check_trace
from fries.spark.local import is_local, use_own_python
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

    @property
    def decided(self) -> bool:
        """Whether it can no longer be aborted."""
        return self.change.phase not in (Phase.QUEUED, Phase.PREPARING)


class Engine:
    """Runs one flow."""

    def __init__(self, flow: Definition) -> None:
        self._flow = flow
        self._changing = threading.Lock()
        self._specs = {spec.name: spec for spec in flow.operators}
        """The newest version of each operator whose change is done."""
        self._digests: dict[str, bytes] = {}
        self._applied: list[_Applied] = []
        """Changes that may not be done yet, oldest first."""
        self._writer: DataStreamWriter | None = None
        self.query: StreamingQuery | None = None
        """The query that :meth:`start` has started."""
        if flow.audit is not None:
            audit.refuse_used(flow.audit)
        context = next(iter(flow.sources.values())).sparkSession.sparkContext
        use_own_python(context)
        definition = _pickled_all(flow.operators)
        bind, host = _addresses(context)
        self._server = ControlServer(flow.name, new_secret(), bind, definition)
        self._server.start()
        names = tuple(spec.name for spec in flow.operators)
        secret, address = self._server.secret, (host, self._server.address[1])
        self._session = Session(flow.name, address, secret, names, flow.audit)
        self.physical = _stages(flow)

    def dataframe(self) -> DataFrame:
        """The output of the flow, as a plan that Spark runs when it is asked to."""
        planner = Planner(self.physical, self._session, self._flow.outputs, self._flow.groups)
        return planner.dataframe(self._flow.sources)

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query on the output, so that it can be restarted."""
        if self.query is not None and self.query.isActive:
            raise TraitError(
                f"flow {self._flow.name!r}",
                "its query is running; stop it first, or build another flow",
            )
        self._server.cut()
        self._writer = writer
        self.query = writer.start()
        return self.query

    def reconfigure(
        self, plan: Plan, updates: Mapping[str, Revision], timeout: float, requested: float
    ) -> Reconfiguration:
        """Ship new functions to the running workers and let them switch."""
        with self._changing:
            if self.query is not None:
                self._server.rest(_finished(self.query))
            new = self._checked(plan, updates)
            digests = {name: _digest(name, update) for name, update in updates.items()}
            if all(self._has(name, digest) for name, digest in digests.items()):
                raise AlreadyAppliedError(plan.targets)
            self._check_time(plan)
            migrations = {name: update.migrate for name, update in updates.items()}
            shipped = Shipped(new, migrations, self._entries(plan))
            change = self._server.request(self._order(plan, shipped, timeout, requested))
            self._applied.append(_Applied(change, new, digests))
            if plan.commit is CommitPoint.RESTART:
                self._restart(change, timeout)
            return Reconfiguration(plan, change)

    def _checked(self, plan: Plan, updates: Mapping[str, Revision]) -> dict[str, OperatorSpec]:
        """The new versions, which must fit whether or not an undecided change comes first."""
        new = self._fitted(self._current(), updates)
        if any(not applied.decided for applied in self._applied):
            try:
                without = self._fitted(self._current(decided_only=True), updates)
            except UpdateRefusedError:
                without = {}
            if without != new:
                raise UpdateRefusedError(
                    ", ".join(plan.targets),
                    "it builds on a change that is not committed yet; wait for that one first",
                )
        return new

    def _fitted(
        self, current: Mapping[str, OperatorSpec], updates: Mapping[str, Revision]
    ) -> dict[str, OperatorSpec]:
        new = {name: revised(current[name], update) for name, update in updates.items()}
        return check_columns(tuple(current.values()), self._flow.edges, new, self._crossing())

    def _check_time(self, plan: Plan) -> None:
        """Refuse what cannot be done now."""
        targets = ", ".join(plan.targets)
        if not self._server.workers and self.query is None:
            raise NotRunningError(self._flow.name)
        if plan.commit is CommitPoint.NEXT_BATCH and not self._is_streaming():
            raise UpdateRefusedError(
                targets, "a batch job is one batch: it has no boundary to wait for"
            )
        if plan.commit is CommitPoint.RESTART and self.query is None:
            raise UpdateRefusedError(
                targets, "only a query that was started with flow.start(writer) can be restarted"
            )

    def _order(self, plan: Plan, shipped: Shipped, timeout: float, requested: float) -> Order:
        parts: list[pickle.PickleBuffer] = []
        payload = _dumps(shipped, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=parts.append)
        buffers = tuple(_frozen(part.raw()) for part in parts)
        if not self._server.workers:
            _try_to_load(self._flow.operators, plan, payload, buffers)
        return Order(
            plan.targets,
            payload,
            footprint=frozenset(frozenset(part.members) for part in plan.components),
            residue=_dumps(Shipped({}, shipped.migrations)),
            buffers=buffers,
            at_boundary=plan.commit is not CommitPoint.NOW,
            timeout=timeout,
            requested=requested,
        )

    def _is_streaming(self) -> bool:
        return any(frame.isStreaming for frame in self._flow.sources.values())

    def _restart(self, change: Change, timeout: float) -> None:
        """The baseline: stop the query, which throws its batch away, and start it again."""
        assert self._writer is not None
        assert self.query is not None
        if not change.wait_ready(time.monotonic() + timeout) or change.phase is Phase.ABORTED:
            raise AbortedError(change.reason or "not prepared in time")
        self.query.stop()
        self._server.cut()
        self.query = self._writer.start()

    def _current(self, decided_only: bool = False) -> dict[str, OperatorSpec]:
        """The newest version of each operator, in topological order; forgets older ones."""
        while self._applied and self._applied[0].change.over:
            oldest = self._applied.pop(0)
            if oldest.change.phase is Phase.DONE:
                self._specs.update(oldest.specs)
                self._digests.update(oldest.digests)
        specs = dict(self._specs)
        for applied in self._applied:
            wanted = applied.decided or not decided_only
            if wanted and applied.change.phase is not Phase.ABORTED:
                specs.update(applied.specs)
        return specs

    def _has(self, name: str, digest: bytes) -> bool:
        """Whether an operator has an update already, or is about to get it."""
        for applied in reversed(self._applied):
            if name in applied.digests and applied.change.phase is not Phase.ABORTED:
                return applied.digests[name] == digest
        return self._digests.get(name) == digest

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
        """Columns of the edges that stay as planned.

        Spark's plan fixes those between stages and to the outputs. Behind an aggregate other
        transactions begin, so old results may meet what follows it in its new version.
        """
        leaving = {edge.number for stage in self.physical.stages for edge in stage.leaving}
        blocking = {spec.name for spec in self._flow.operators if spec.kind is Kind.AGGREGATE}
        return {
            edge.number: self.physical.schemas[edge.number]
            for edge in self._flow.edges
            if edge.number in leaving or edge.source in blocking
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


def _finished(query: StreamingQuery) -> float:
    """Number of the newest micro-batch that Spark has committed; all of them if the query is over.

    Spark reports idle time, too, under the number of the batch that will come.
    """
    if not query.isActive:
        return math.inf
    progress = query.lastProgress
    if progress is None:
        return -1
    ran = "addBatch" in progress["durationMs"]
    return int(progress["batchId"]) - (0 if ran else 1)


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
    hashed = hashlib.sha256(_pickled(name, update, parts.append))
    for part in parts:
        hashed.update(part.raw())
    return hashed.digest()


def _frozen(part: memoryview) -> memoryview:
    """A large part of a payload as it is now, whatever its owner does with it later."""
    return part if part.readonly else memoryview(bytes(part))


def _try_to_load(
    operators: tuple[OperatorSpec, ...],
    plan: Plan,
    payload: bytes,
    buffers: tuple[memoryview, ...],
) -> None:
    """Where no worker is there to do it: see that the functions can be loaded at all."""
    try:
        Configuration(operators).load(0, 0, payload, buffers)
    except Exception as error:
        raise UpdateRefusedError(
            ", ".join(plan.targets), f"it cannot be loaded:\n{traceback.format_exc()}"
        ) from error


def _pickled_all(operators: tuple[OperatorSpec, ...]) -> bytes:
    """All operators; a function that cannot travel is named."""
    try:
        return _dumps(operators)
    except Exception:
        for spec in operators:
            _pickled(spec.name, spec)
        raise


def _addresses(context: SparkContext) -> tuple[str, str]:
    """Where the controller listens, and where workers find it: loopback if all is local."""
    if is_local(context):
        return "127.0.0.1", "127.0.0.1"
    settings = context.getConf()
    host = settings.get("spark.driver.host", "127.0.0.1")
    return settings.get("spark.driver.bindAddress", host), host
