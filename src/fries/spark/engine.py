"""A flow on Spark: its DataFrame, its controller, its reconfigurations."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.control.changes import Change
from fries.control.messages import ANY_BATCH, Failed
from fries.control.seal import new_secret
from fries.control.server import ControlServer
from fries.control.tls import Tls
from fries.errors import (
    AbortedError,
    AlreadyAppliedError,
    FriesError,
    NotRunningError,
    TraitError,
    UpdateRefusedError,
)
from fries.log.shape import shape_of
from fries.plan import CommitPoint, Plan
from fries.protocol.controller import Phase
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec
from fries.schedulers import scheduler as scheduler_of
from fries.serializability import Verdict, check_trace
from fries.spark.checkpoint import checkpoint_of
from fries.spark.local import is_local, use_own_python
from fries.spark.plan import Planner
from fries.spark.policy import Supervision
from fries.spark.recovery import Checkpoint
from fries.spark.shipping import (
    differ_plainly,
    digests_of,
    order_of,
    packed,
    pickled_all,
    try_to_load,
)
from fries.spark.tasks import Session, action_of
from fries.stages import PhysicalFlow, physical
from fries.trace import updates_of
from fries.traits import graph_of
from fries.updates import Revision, check_columns, revised
from fries.versions import Applied, Versions

GIVE_WAY_SECONDS: Final = 0.005
"""For so long a caller leaves the interpreter to the control thread: most changes are settled by
then, and what is still to be hashed does not delay them."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at Spark's progress by somebody who waits for it."""
UNDO_SECONDS: Final = 60.0
"""For workers to load what takes a failed change back; the query has stopped, so few are there."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Definition:
    """A flow as its author has built it."""

    name: str
    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    sources: Mapping[str, DataFrame]
    outputs: tuple[str, ...]
    groups: int
    audit: str | None
    tls: Tls | None = None


class Engine:
    """Runs one flow."""

    def __init__(self, flow: Definition) -> None:
        self._flow = flow
        self.changing = threading.RLock()
        """Held by whoever changes the flow or starts its query."""
        self._versions = Versions(flow.operators)
        self._writer: DataStreamWriter | None = None
        self._checkpoint: Checkpoint | None = None
        self.query: StreamingQuery | None = None
        """The query that :meth:`start` has started."""
        self.interrupted: Exception | None = None
        """Why the query was stopped, while it is not started again."""
        if flow.audit is not None:
            audit.refuse_used(flow.audit)
        context = next(iter(flow.sources.values())).sparkSession.sparkContext
        _refuse_speculation(context)
        use_own_python(context)
        definition = pickled_all(flow.operators)
        bind, host = _addresses(context)
        ask = jobs_over(context)
        self.server = ControlServer(flow.name, new_secret(), bind, definition, flow.tls, ask)
        """The controller."""
        self.server.start()
        names = tuple(spec.name for spec in flow.operators)
        secret, address = self.server.secret, (host, self.server.address[1])
        self._session = Session(flow.name, address, secret, names, flow.audit, flow.tls)
        self.physical = _stages(flow)
        self._crossing = _crossing(flow, self.physical)

    def dataframe(self) -> DataFrame:
        """The output of the flow, as a plan that Spark runs when it is asked to."""
        planner = Planner(self.physical, self._session, self._flow.groups)
        return planner.dataframe(self._flow.sources)

    @property
    def is_logged(self) -> bool:
        """Whether changes are logged, so that the query can be started again."""
        return self._checkpoint is not None

    def start(
        self,
        writer: DataStreamWriter,
        supervision: Supervision | None = None,
        replace_functions: bool = False,
    ) -> None:
        """Start a query on the output, where its checkpoint has left off."""
        with self.changing:
            self._recover(writer, replace_functions)
            if supervision is not None and supervision.starts_again and not self.is_logged:
                raise TraitError(
                    f"flow {self._flow.name!r}",
                    "a query without a checkpoint begins anew when it is started again; give its "
                    "writer a checkpointLocation, or Supervision(rollback=False, restarts=0)",
                )
            self._writer = writer
            self.resume()

    def resume(self) -> StreamingQuery:
        """Start the query again: the batch that was not committed is replayed as a whole.

        What was taken back must be safe in the log before: else it would come back.
        """
        assert self._writer is not None
        self.learn_finished()
        self.server.flush()
        self.server.cut()
        self.query = self._writer.start()
        self.interrupted = None
        return self.query

    def interrupt(self, reason: Exception) -> None:
        """Stop the query, to start it again: until that is done, it has failed for a reason."""
        assert self.query is not None
        self.interrupted = reason
        self.query.stop()

    def _recover(self, writer: DataStreamWriter, replace_functions: bool) -> None:
        """Open the log of the checkpoint, once."""
        folder = checkpoint_of(writer)
        known = None if self._checkpoint is None else self._checkpoint.folder
        if known == folder:
            return
        if known is not None or self.server.history():
            place = known or "of the query that it ran with"
            raise TraitError(
                f"flow {self._flow.name!r}",
                f"its changes belong to the checkpoint {place}; build another flow",
            )
        assert folder is not None
        checkpoint = Checkpoint(writer._spark, folder)
        shape = shape_of(self._flow.operators, self._flow.edges, self._flow.groups)
        checkpoint.recover(shape, self.server, self._versions, replace_functions)
        self._checkpoint = checkpoint

    def rest(self) -> None:
        """Let the controller know which micro-batches are committed."""
        if self.query is not None:
            if not self.query.isActive:
                self.learn_finished()
            self.server.rest(_finished(self.query))

    def learn_finished(self) -> None:
        """The query has ended: learn which micro-batches it had committed."""
        if self._checkpoint is not None:
            self.server.rest(self._checkpoint.finished())
        elif self.query is not None:
            self.server.rest(_reported(self.query))

    def reconfigure(
        self,
        plan: Plan,
        updates: Mapping[str, Revision],
        timeout: float,
        requested: float,
        note: str = "",
        automatic: bool = False,
        undoing: bool = False,
    ) -> Reconfiguration:
        """Ship new functions to the running workers and let them switch.

        ``automatic``: nobody asked for it; it takes back what has failed. ``undoing``: also by
        functions that are in place already, for the change that is undone had brought the same.
        """
        with self.changing:
            self.rest()
            if plan.commit is CommitPoint.NOW and self.server.workers:
                self.server.announce()
            undecided = self._versions.undecided
            before = self._versions.current(self.server.finished)
            new = self._fitted(before, updates)
            if undecided:
                self._check_alone(plan, updates, new)
            digests = {} if undoing or self._plainly_new(updates) else digests_of(updates)
            if digests and all(self._versions.has(name, one) for name, one in digests.items()):
                raise AlreadyAppliedError(plan.targets)
            self._check_time(plan)
            migrations = {name: update.migrate for name, update in updates.items()}
            inverses = {name: update.inverse for name, update in updates.items()}
            shipped = Shipped(new, migrations, self._entries(plan), inverses)
            package = packed(shipped, self._versions.built)
            if not self.server.workers:
                try_to_load(self._flow.operators, plan, package)
            versions = {name: self.server.updates_of(name) + 1 for name in plan.targets}
            order = order_of(plan, package, versions, requested, note, timeout, automatic)
            change = self.server.request(order)
            old = {name: before[name] for name in new}
            if not digests:
                change.wait(time.monotonic() + GIVE_WAY_SECONDS)
                digests = digests_of(updates)
            self._versions.add(Applied(change, new, old, migrations, inverses, digests))
            if plan.commit is CommitPoint.RESTART:
                self._restart(change, timeout)
            return Reconfiguration(plan, change, self.undo)

    def undo(
        self, plan: Plan, number: int, timeout: float, note: str, automatic: bool = False
    ) -> Reconfiguration:
        """Take a change back by another one, with the versions from before it."""
        requested = time.time()
        with self.changing:
            applied = self._undoable(plan, number)
            story = note or f"undo of change {number}"
            updates = applied.inverted()
            return self.reconfigure(plan, updates, timeout, requested, story, automatic, True)

    def roll_back(self, failed: Failed) -> bool:
        """Take a change back that fails on live rows; the query must have stopped.

        With its whole batch, if that is not committed; else by another change. ``False`` if
        there is no way back: it was tried before, or the version before it failed, too.
        """
        with self.changing:
            applied = self._versions.find(failed.change)
            if applied is None or applied.change.failure or applied.change.order.automatic:
                return False
            if self.server.revoke(failed.change, _story(failed)):
                applied.change.failed(failed, _story(failed))
            elif not self._undo_failed(applied, failed):
                return False
            _logger.warning("change %d is rolled back: %s", failed.change, _headline(failed))
            return True

    def roll_back_batch(self, problem: str) -> bool:
        """Take back whatever took effect in the batch that was not committed, if anything did."""
        with self.changing:
            finished = self.server.finished
            new = [c for c in self.server.committed_changes() if c.since > finished]
            if not new:
                return False
            first = min(new, key=lambda change: change.number)
            failed = Failed(ANY_BATCH, "", first.number, problem, "", "")
            return self.roll_back(failed)

    def since(self, number: int) -> int | None:
        """The micro-batch in which a change took effect; ``None`` if there is no such change."""
        applied = self._versions.find(number)
        return None if applied is None else applied.change.since

    def _undo_failed(self, applied: Applied, failed: Failed) -> bool:
        targets = tuple(applied.specs)
        flow = self._flow
        graph = graph_of(self._versions.current(-1), flow.edges, tuple(flow.sources), flow.outputs)
        plan = scheduler_of(applied.change.order.scheduler)(graph, targets)
        plan = replace(plan, commit=CommitPoint.NOW)
        try:
            note = f"rollback of change {failed.change}: {failed.problem}"
            change = self.undo(plan, failed.change, UNDO_SECONDS, note, automatic=True)
            if not change.wait(UNDO_SECONDS):
                return False
        except FriesError as error:
            _logger.warning("change %d cannot be rolled back: %s", failed.change, error)
            return False
        self.server.record_failure(applied.change, failed, _story(failed))
        return True

    def _undoable(self, plan: Plan, number: int) -> Applied:
        """A change that may be undone: it happened, and nothing was built on it."""
        targets = ", ".join(plan.targets)
        for name in plan.targets:
            newest = self._versions.newest(name)
            if newest is not None and newest.change.number > number:
                later = newest.change.number
                taken_back = newest.change.order.automatic
                problem = (
                    f"change {number} was rolled back by change {later}"
                    if taken_back
                    else f"change {later} came after change {number}; undo that first"
                )
                raise UpdateRefusedError(name, problem)
        applied = self._versions.find(number)
        if applied is None or not applied.decided or applied.change.phase is Phase.ROLLED_BACK:
            raise UpdateRefusedError(targets, f"change {number} is not in place")
        return applied

    def _check_alone(
        self, plan: Plan, updates: Mapping[str, Revision], new: Mapping[str, OperatorSpec]
    ) -> None:
        """New versions must fit whether or not an undecided change comes first."""
        decided = self._versions.current(self.server.finished, decided_only=True)
        try:
            without = self._fitted(decided, updates)
        except UpdateRefusedError:
            without = {}
        if without != new:
            raise UpdateRefusedError(
                ", ".join(plan.targets),
                "it builds on a change that is not committed yet; wait for that one first",
            )

    def _plainly_new(self, updates: Mapping[str, Revision]) -> bool:
        """Whether some update is unlike what its operator has, as far as one can see at once."""
        newest = {name: self._versions.newest(name) for name in updates}
        return any(
            applied is None or differ_plainly(applied.specs[name].function, updates[name].function)
            for name, applied in newest.items()
        )

    def _fitted(
        self, current: Mapping[str, OperatorSpec], updates: Mapping[str, Revision]
    ) -> dict[str, OperatorSpec]:
        new = {name: revised(current[name], update) for name, update in updates.items()}
        return check_columns(tuple(current.values()), self._flow.edges, new, self._crossing)

    def _check_time(self, plan: Plan) -> None:
        """Refuse what cannot be done now."""
        targets = ", ".join(plan.targets)
        if not self.server.workers and self.query is None:
            raise NotRunningError(self._flow.name)
        if plan.commit is CommitPoint.NEXT_BATCH and not self._is_streaming():
            raise UpdateRefusedError(
                targets, "a batch job is one batch: it has no boundary to wait for"
            )
        if plan.commit is CommitPoint.RESTART and self._checkpoint is None:
            raise UpdateRefusedError(
                targets,
                "only a query that was started with flow.start(writer), and with a checkpoint, can "
                "be restarted",
            )

    def _is_streaming(self) -> bool:
        return any(frame.isStreaming for frame in self._flow.sources.values())

    def _restart(self, change: Change, timeout: float) -> None:
        """The baseline: stop the query, which throws its batch away, and start it again."""
        deadline = time.monotonic() + timeout
        while not change.wait_ready(time.monotonic() + LOOK_SECONDS):
            self.rest()  # it may wait for a change whose batch has ended
            if time.monotonic() > deadline:
                break
        if change.phase is Phase.ABORTED:
            raise AbortedError(change.reason)
        self.interrupt(RuntimeError(f"change {change.number} restarts it"))
        self.resume()

    def audit(self) -> Verdict:
        """Check every data operation that finished tasks have recorded."""
        if self._session.audit is None:
            raise TraitError(
                f"flow {self._flow.name!r}",
                "it records nothing; make it with Flow(..., audit=folder)",
            )
        happened = (Phase.COMMITTED, Phase.DONE)
        plans = (one.targets for one in self.server.history() if one.phase in happened)
        return check_trace(
            audit.read(self._session.audit, self._session.operators, updates_of(plans))
        )

    def stop(self) -> None:
        """Close the control channel."""
        self.server.stop()

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
    """The newest micro-batch that Spark has committed; all of them if the query is over."""
    return _reported(query) if query.isActive else math.inf


def _reported(query: StreamingQuery) -> int:
    """Spark reports idle time, too, under the number of the batch that will come."""
    progress = query.lastProgress
    if progress is None:
        return -1
    ran = "addBatch" in progress["durationMs"]
    return int(progress["batchId"]) - (0 if ran else 1)


def _story(failed: Failed) -> str:
    return f"{_headline(failed)}\n{failed.story}".rstrip()


def _headline(failed: Failed) -> str:
    if not failed.operator:
        return failed.problem
    row = f" on {failed.row}" if failed.row else ""
    return f"operator {failed.operator!r} failed{row}: {failed.problem}"


def _stages(flow: Definition) -> PhysicalFlow:
    """The stages of a flow, without the functions: those travel once, not with every stage."""
    bare = [replace(spec, function=None, result=None) for spec in flow.operators]
    return physical(bare, flow.edges)


def _crossing(flow: Definition, planned: PhysicalFlow) -> dict[int, pa.Schema]:
    """Columns of the edges that stay as planned.

    Spark's plan fixes those between stages and to the outputs. Behind an aggregate other
    transactions begin, so old results may meet what follows it in its new version.
    """
    leaving = {edge.number for stage in planned.stages for edge in stage.leaving}
    blocking = {spec.name for spec in flow.operators if spec.kind is Kind.AGGREGATE}
    return {
        edge.number: planned.schemas[edge.number]
        for edge in flow.edges
        if edge.number in leaving or edge.source in blocking
    }


def _refuse_speculation(context: SparkContext) -> None:
    if context.getConf().get("spark.speculation", "false") == "true":
        raise TraitError(
            "spark.speculation",
            "two attempts of a task may switch at different rows, and Spark does not tell which "
            "of them counts; turn it off",
        )


def jobs_over(context: SparkContext) -> Callable[[int], bool]:
    """Tells whether a batch job is over: Spark forgets an action before its caller goes on.

    To find Spark's object takes several round trips to Java, to ask it one.
    """
    assert context._jvm is not None
    actions = context._jvm.org.apache.spark.sql.execution.SQLExecution
    return lambda batch: actions.getQueryExecution(action_of(batch)) is None


def _addresses(context: SparkContext) -> tuple[str, str]:
    """Where the controller listens, and where workers find it: loopback if all is local."""
    if is_local(context):
        return "127.0.0.1", "127.0.0.1"
    settings = context.getConf()
    host = settings.get("spark.driver.host", "127.0.0.1")
    return settings.get("spark.driver.bindAddress", host), host
