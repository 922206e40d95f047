"""A flow on Spark: its DataFrame, its controller, its reconfigurations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import reduce

import pyarrow as pa
from pyspark import SparkContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

from fries.control.changes import Order
from fries.control.server import ControlServer
from fries.control.wire import new_secret
from fries.errors import (
    AlreadyAppliedError,
    NotRunningError,
    OperatorError,
    TraitError,
    UpdateRefusedError,
)
from fries.plan import CommitPoint, Plan
from fries.protocol.controller import Phase
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries.runtime.configuration import Shipped
from fries.runtime.functions import make_call
from fries.runtime.spec import Function, OperatorSpec, StageSpec, Style
from fries.serializability import Verdict, check_trace
from fries.spark.schemas import spark_schema
from fries.spark.tasks import EDGE, Session, StageTask
from fries.trace import updates_of

_dumps: Callable[[object], bytes] = cloudpickle.dumps


class Engine:
    """Runs one flow: a stage of operators between its sources and its output."""

    def __init__(
        self,
        flow: str,
        stage: StageSpec,
        sources: Mapping[str, DataFrame],
        schema: pa.Schema,
        audit_folder: str | None,
    ) -> None:
        self._stage = stage
        self._sources = sources
        self._schema = schema
        self._last: dict[str, tuple[bytes, Reconfiguration]] = {}
        """By operator, its newest function, and the change that brought it."""
        context = next(iter(sources.values())).sparkSession.sparkContext
        if _is_local(context) and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable  # else Spark takes the first python3 of the PATH
        self._server = ControlServer(flow, new_secret(), _reachable_host(context))
        self._server.start()
        self._session = Session(
            flow, self._server.address, self._server.secret, stage.operators, audit_folder
        )

    def dataframe(self) -> DataFrame:
        """The output of the flow, as a plan that Spark runs when it is asked to."""
        feed = tuple(edge for edge in self._stage.edges if edge.target in self._sources)
        rows = [self._sources[edge.target] for edge in feed]
        if len(feed) > 1:
            tagged = zip(rows, feed, strict=True)
            rows = [frame.withColumn(EDGE, F.lit(edge.number)) for frame, edge in tagged]
        joined = reduce(_union, rows)
        task = StageTask(self._session, self._stage, feed)
        return joined.mapInArrow(task, spark_schema(self._schema))

    def reconfigure(
        self, plan: Plan, updates: Mapping[str, Function], timeout: float
    ) -> Reconfiguration:
        """Ship new functions to the running workers and let them switch."""
        specs = {spec.name: spec for spec in self._stage.operators}
        if plan.commit is CommitPoint.RESTART:
            raise UpdateRefusedError(
                ", ".join(plan.targets),
                "to restart, stop the query, build the flow with the new functions, and start it",
            )
        for name, function in updates.items():
            _check(specs.get(name), name, function)
        pickled = {name: _pickled(name, function) for name, function in updates.items()}
        if all(self._has(name, data) for name, data in pickled.items()):
            raise AlreadyAppliedError(plan.targets)
        if not self._server.workers:
            raise NotRunningError(self._session.flow)
        change = self._server.request(
            Order(
                plan.targets,
                _dumps(Shipped(dict(updates), self._entries(plan))),
                footprint=frozenset(frozenset(part.members) for part in plan.components),
                at_boundary=plan.commit is CommitPoint.NEXT_BATCH,
                timeout=timeout,
            )
        )
        handle = Reconfiguration(plan, change)
        self._last.update({name: (data, handle) for name, data in pickled.items()})
        return handle

    def _has(self, name: str, function: bytes) -> bool:
        """Whether an operator has a function already, or is about to get it."""
        last, change = self._last.get(name, (b"", None))
        return last == function and change is not None and change.state != Phase.ABORTED.value

    def audit(self) -> Verdict:
        """Check every data operation that finished tasks have recorded."""
        if self._session.audit is None:
            raise TraitError(
                f"flow {self._session.flow!r}",
                "it records nothing; make it with Flow(..., audit=folder)",
            )
        names = tuple(spec.name for spec in self._stage.operators)
        plans = (order.targets for order in self._server.committed())
        return check_trace(audit.read(self._session.audit, names, updates_of(plans)))

    @property
    def workers(self) -> tuple[str, ...]:
        """The worker processes that are connected now."""
        return self._server.workers

    def stop(self) -> None:
        """Close the control channel."""
        self._server.stop()

    def _entries(self, plan: Plan) -> frozenset[int]:
        """Numbers of the edges over which rows enter a component of the plan."""
        entered = {(e.source, e.target) for part in plan.components for e in part.entries}
        heads = set(plan.heads)
        return frozenset(
            edge.number
            for edge in self._stage.edges
            if (edge.source, edge.target) in entered
            or (edge.target in heads and edge.target in self._sources)
        )


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _check(spec: OperatorSpec | None, name: str, function: Function) -> None:
    """Refuse what can be seen to be wrong before anything is shipped."""
    if spec is None or spec.function is None:
        raise UpdateRefusedError(name, "it has no function to replace")
    if not callable(function):
        raise UpdateRefusedError(name, f"{function!r} cannot be called")
    if spec.style is Style.ROW:
        return
    empty = pa.RecordBatch.from_pylist([], schema=spec.takes)
    try:
        make_call(spec, function)(empty)
    except OperatorError as error:
        raise UpdateRefusedError(
            name, f"its dry run on an empty batch failed: {error.problem}\n{error.story}"
        ) from error


def _pickled(name: str, function: Function) -> bytes:
    try:
        return _dumps(function)
    except Exception as error:
        raise UpdateRefusedError(
            name,
            f"it cannot be pickled ({error}); keep connections, locks and sessions out of it, and "
            "open them inside the function",
        ) from error


def _is_local(context: SparkContext) -> bool:
    return context.getConf().get("spark.master", "").startswith("local")


def _reachable_host(context: SparkContext) -> str:
    """Where workers find the driver: loopback if they are on this machine."""
    host = context.getConf().get("spark.driver.host", "127.0.0.1")
    return "127.0.0.1" if _is_local(context) else host
