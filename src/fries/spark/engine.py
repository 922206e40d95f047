"""A flow on Spark: its DataFrame, its controller, its reconfigurations."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from msgspec import structs
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.change.model import Change, Phase, WayBack
from fries.control.live import LiveChange
from fries.control.messages import ANY_BATCH, Failed
from fries.control.seal import new_secret
from fries.control.server import ControlServer, Held
from fries.errors import (
    AbortedError,
    AlreadyAppliedError,
    FlowError,
    FlowStateError,
    FriesError,
    NotRunningError,
    UpdateRefusedError,
    WireError,
)
from fries.events import QueryStarted
from fries.listening import Announcer
from fries.log.owners import Ownership
from fries.plan import CommitPoint, Plan
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries.runtime.shipped import Shipped
from fries.runtime.spec import OperatorSpec
from fries.schedulers import scheduler as scheduler_of
from fries.serializability import Verdict, check_trace
from fries.spark.blame import story
from fries.spark.checkpoint import checkpoint_of
from fries.spark.definition import Definition
from fries.spark.deployment import Program
from fries.spark.local import is_local, use_own_python
from fries.spark.plan import Planner
from fries.spark.policy import Supervision
from fries.spark.quiet import QuietSpark
from fries.spark.shipping import (
    built_of,
    check_classes,
    differ_plainly,
    kept_of,
    order_of,
    packed,
    pickled_all,
    try_to_load,
)
from fries.spark.starting import Checkpoint
from fries.spark.tasks import Session, action_of
from fries.trace import updates_of
from fries.undoing import built_on, feeding, undoable
from fries.updates import Revision, check_columns, revised
from fries.versions import Applied, Kept, Versions

GIVE_WAY_SECONDS: Final = 0.005
"""For so long a caller leaves the interpreter to the control thread: most changes are settled by
then, and what is still to be hashed does not delay them."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at Spark's progress by somebody who waits for it."""
SUSPECTED: Final = "taken back on suspicion, because no version explains why the query fails"
"""How the reason of such a rollback begins; the evidence follows."""
UNDO_SECONDS: Final = 60.0
"""For workers to load what takes a failed change back; the query has stopped, so few are there."""
OWNER_SECONDS: Final = 1.0
"""Between two looks at whether another driver has come, which waits for this one for a while."""
_logger = logging.getLogger(__name__)


class Engine:
    """Runs one flow."""

    def __init__(self, flow: Definition) -> None:
        self._flow = flow
        self.changing = threading.RLock()
        """Held by whoever changes the flow or starts its query."""
        self._versions = Versions(*built_of(flow.operators))
        self._writer: DataStreamWriter | None = None
        self._checkpoint: Checkpoint | None = None
        self._owner: Ownership | None = None
        self._next_look = 0.0
        self.query: StreamingQuery | None = None
        """The query that :meth:`start` has started."""
        self.deployment: Reconfiguration | None = None
        """The change that brought the code of this start, if it was new."""
        self._quiet: QuietSpark | None = None
        """Keeps Spark's stack traces off the console while the query runs."""
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
        secure = new_secret(), bind, definition, flow.tls
        self._events = flow.events or Announcer(flow.name)
        self.server = ControlServer(flow.name, *secure, ask, self._events)
        """The controller."""
        self.server.start()
        names = tuple(spec.name for spec in flow.operators)
        secret, address = self.server.secret, (host, self.server.address[1])
        self._session = Session(flow.name, address, secret, names, flow.audit, flow.tls)
        self.physical = flow.stages()
        self._crossing = flow.crossing(self.physical)
        self._stage_of = flow.stage_of_edges(self.physical)

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
        replace_functions: bool | None = None,
    ) -> None:
        """Start a query on the output, where its checkpoint has left off."""
        with self.changing:
            self._recover(writer, replace_functions)
            if supervision is not None and supervision.starts_again and not self.is_logged:
                raise FlowStateError(
                    f"flow {self._flow.name!r}",
                    "a query without a checkpoint begins anew when it is started again; give its "
                    "writer a checkpointLocation, or Supervision(rollback=False, restarts=0)",
                )
            if not self.is_logged and self._writer is None:
                _logger.warning(
                    "flow %r: its query has no checkpointLocation, so changes are not logged, "
                    "failures are not rolled back, and whatever ends the query ends its states",
                    self._flow.name,
                )
            self._writer = writer
            if supervision is None or supervision.quiet:
                self._quiet = QuietSpark(writer._spark, self._flow.name)
            try:
                self.resume()
            except Exception:
                self.leave("the query could not be started")
                raise

    def resume(self) -> StreamingQuery:
        """Start the query again: the batch that was not committed is replayed as a whole.

        What was taken back must be safe in the log before: else it would come back.
        """
        assert self._writer is not None
        if self._owner is not None:
            self._owner.stay()
        self.learn_finished()
        self.server.flush()
        self.server.query_begins()
        self.server.expect_rows()
        self.server.news.supervised = True
        self.query = self._launched(self._writer)
        self._events.tell(QueryStarted(self._flow.name, str(self.query.id)))
        self.interrupted = None
        return self.query

    def check_owner(self, now: bool = False) -> None:
        """Raise if another driver was started on the checkpoint; looks once in a while."""
        if self._owner is None or (not now and time.monotonic() < self._next_look):
            return
        self._next_look = time.monotonic() + OWNER_SECONDS
        self._owner.check()

    def give_way(self) -> None:
        """Another driver has the checkpoint: stop the query, and let it know."""
        with self.changing:
            if self.query is not None:
                self.query.stop()
            self.release()

    def release(self) -> None:
        """The query was stopped: the next driver need not wait for this one."""
        if self._owner is not None:
            self._owner.leave()

    def _launched(self, writer: DataStreamWriter) -> StreamingQuery:
        if self._quiet is None:
            return writer.start()
        self._events.details = self._quiet.told
        with self._quiet.starting():
            query = writer.start()
        self._quiet.follow(query)
        return query

    def leave(self, reason: str) -> None:
        """The query is over: nobody may wait for rows, and Spark logs as it did before."""
        with suppress(WireError):  # the flow is stopped: whoever waits has heard of that
            self.server.expect_rows(reason)
        if self._quiet is not None:
            self._quiet.close()
        self._quiet, self._events.details = None, str

    def interrupt(self, reason: Exception) -> None:
        """Stop the query, to start it again: until that is done, it has failed for a reason."""
        assert self.query is not None
        self.interrupted = reason
        self.query.stop()

    def _recover(self, writer: DataStreamWriter, replace_functions: bool | None) -> None:
        """Open the log of the checkpoint, once."""
        folder = checkpoint_of(writer)
        known = None if self._checkpoint is None else self._checkpoint.folder
        if known == folder:
            return
        if known is not None or self.server.history():
            place = known or "of the query that it ran with"
            raise FlowStateError(
                f"flow {self._flow.name!r}",
                f"its changes belong to the checkpoint {place}; build another flow",
            )
        assert folder is not None
        checkpoint, flow = Checkpoint(writer._spark, folder), self._flow
        graph = flow.graph({spec.name: spec for spec in flow.operators})
        program = Program(flow.operators, flow.edges, flow.groups, self._crossing, graph)
        found = checkpoint.recover(program, self.server, replace_functions)
        self._versions, self._flow = found.versions, replace(flow, operators=found.operators)
        self._owner, self._checkpoint = found.owner, checkpoint
        if found.deployed is not None:
            plan, change = found.deployed
            self.server.news.deployed(change)
            self.deployment = Reconfiguration(plan, change, self.undo, self.rest)

    def rest(self) -> int:
        """Let the controller know which micro-batches are committed, or whether jobs are over.

        Gives the newest micro-batch that is committed, as far as known.
        """
        if self.query is None:
            self.server.look_for_jobs()
            return self.server.finished
        if not self.query.isActive:
            self.learn_finished()
        self.server.batches_committed(_finished(self.query))
        return self.server.finished

    def learn_finished(self) -> None:
        """The query has ended: learn which micro-batches it had committed."""
        if self._checkpoint is not None:
            self.server.batches_committed(self._checkpoint.finished())
        elif self.query is not None:
            self.server.batches_committed(_reported(self.query))

    def reconfigure(
        self,
        plan: Plan,
        updates: Mapping[str, Revision],
        timeout: float,
        requested: float,
        note: str = "",
        automatic: bool = False,
        undoes: int = 0,
    ) -> Reconfiguration:
        """Ship new functions to the running workers and let them switch.

        ``automatic``: nobody asked for it; it takes back what has failed. ``undoes``: the change
        that it takes back, also by functions that are in place already.
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
            kept = {} if undoes or self._plainly_new(updates) else kept_of(updates)
            if kept and all(self._versions.has(name, one.digest) for name, one in kept.items()):
                raise AlreadyAppliedError(plan.targets)
            if not undoes:
                for name, update in updates.items():
                    check_classes(new[name], self._versions.kept(name), update)
            self._check_time(plan)
            migrations = {name: update.migrate for name, update in updates.items()}
            inverses = {name: update.inverse for name, update in updates.items()}
            entries = self._flow.entries(plan.components)
            shipped = Shipped(new, migrations, entries, inverses, undoes)
            package = packed(shipped, self._versions.built)
            if not self.server.workers:
                try_to_load(self._flow.operators, plan, package)
            versions = {name: self.server.updates_of(name) + 1 for name in plan.targets}
            labels = {name: new[name].label for name in plan.targets}
            order = order_of(
                plan,
                package,
                versions,
                labels=labels,
                requested=requested,
                note=note,
                timeout=timeout,
                automatic=automatic,
                undoes=undoes,
                stages=self._stages_of(entries),
            )
            change = self.server.request(order)
            old = {name: before[name] for name in new}
            if not kept:
                change.wait(time.monotonic() + GIVE_WAY_SECONDS)
                kept = kept_of(updates)
            self._versions.add(_applied(change, new, old, kept))
            if plan.commit is CommitPoint.RESTART:
                self._restart(change, timeout)
            return Reconfiguration(plan, change, self.undo, self.rest)

    def undo(
        self, plan: Plan, number: int, timeout: float, note: str, automatic: bool = False
    ) -> Reconfiguration:
        """Take a change back by another one, with the versions from before it."""
        requested = time.time()
        with self.changing:
            applied = undoable(self._versions, plan.targets, number)
            story = note or f"undo of change {number}"
            updates = applied.inverted()
            return self.reconfigure(plan, updates, timeout, requested, story, automatic, number)

    def roll_back(self, failed: Failed) -> bool:
        """Take a change back that fails on live rows; the query must have stopped.

        With its whole batch, if that is not committed; else by another change. What was built on
        it goes with it. ``False`` if there is no way back, or that was tried before.
        """
        with self.changing:
            applied = self._versions.culprit(failed.change, failed.operator)
            if applied is None or applied.change.failure:
                return False
            number = applied.change.number
            failed = structs.replace(failed, change=number)
            self.server.blame(failed)
            with_it = built_on(applied, self._versions.after(number), self._fits_without)
            if self.server.revoke({number: story(failed), **with_it}):
                applied.change.failed(failed, story(failed), WayBack.REPLAYED)
                return True
            return self._undo_failed(applied, failed, WayBack.REPLAYED)

    def roll_back_suspect(self, evidence: str, probation: int, failing: frozenset[str]) -> bool:
        """Take the newest version in force back that is on probation, though nobody has blamed it.

        If it is known which operators fail, only versions of those before them are suspected.
        ``False`` if none is left that can be taken back.
        """
        with self.changing:
            before = feeding(failing, self._flow.edges)
            suspects = [
                one.change.number
                for one in self._versions.in_force()
                if not failing or not before.isdisjoint(one.specs)
            ]
            return any(
                self.roll_back(Failed(ANY_BATCH, "", number, f"{SUSPECTED}: {evidence}", "", ""))
                for number in suspects
                if self.is_new(number, probation)
            )

    def is_new(self, number: int, probation: int, operator: str = "") -> bool:
        """Whether a version has been in force for less than so many committed micro-batches."""
        applied = self._versions.culprit(number, operator)
        if applied is None:
            return False
        since = applied.change.since
        return since is None or self.server.finished - since < probation

    def _fits_without(self, later: Applied, without: frozenset[int]) -> bool:
        """Whether the versions of a change fit as they are, if others are taken back."""
        current = self._versions.current(self.server.finished, without=without)
        edges = self._flow.edges
        try:
            fitted = check_columns(tuple(current.values()), edges, later.specs, self._crossing)
        except UpdateRefusedError:
            return False
        return fitted == later.specs

    def roll_back_in_place(self, held: Held, probation: int) -> bool:
        """Take a change back while the query runs; whether the task that waits will hear of it.

        That helps if the rows of its chunk enter the component of the operator that failed in its
        own stage: there the undo can stamp them. Nothing of the chunk has left the stage.
        """
        with self.changing:
            failed = held.failed
            newest = self._versions.newest(failed.operator)
            if newest is not None and newest.change.takes_back(failed.change):
                return held.worker not in newest.change.switched  # else the undo has not helped
            applied = self._versions.culprit(failed.change, failed.operator)
            if applied is None or applied.change.failure:
                return False
            part = self._undo_plan(applied).component_of(failed.operator)
            if part is None or self._stages_of(self._flow.entries((part,))) != {held.stage}:
                return False
            failed = structs.replace(failed, change=applied.change.number)
            if not self.is_new(failed.change, probation):
                return False
            return self._undo_failed(applied, failed, WayBack.IN_PLACE)

    def _undo_plan(self, applied: Applied) -> Plan:
        """How to take a change back now: by the same components, so that it need not wait."""
        graph = self._flow.graph(self._versions.current(-1))
        plan = scheduler_of(applied.change.order.scheduler)(graph, tuple(applied.specs))
        return replace(plan, commit=CommitPoint.NOW)

    def _undo_failed(self, applied: Applied, failed: Failed, way: WayBack) -> bool:
        """Take a change back by another one, and before it those that were built on it."""
        later = self._versions.later(failed.change)
        why = built_on(applied, later, self._fits_without)
        if why and way is WayBack.IN_PLACE:
            return False
        gone = [one for one in reversed(later) if one.change.number in why]
        try:
            for one in (*gone, applied):
                one.inverted()  # refused before anything is undone
            for one in gone:
                note = f"change {failed.change} is rolled back: {why[one.change.number]}"
                self._undo_now(one, note)
                reason = why[one.change.number]
                alike = Failed(failed.batch, "", one.change.number, reason, "", "")
                self.server.record_failure(one.change, alike, reason, way)
            self._undo_now(applied, f"rollback of change {failed.change}: {failed.problem}")
        except FriesError as error:
            replayed_next = way is WayBack.IN_PLACE
            level = logging.DEBUG if replayed_next else logging.WARNING
            _logger.log(level, "change %d cannot be rolled back: %s", failed.change, error)
            return False
        self.server.record_failure(applied.change, failed, story(failed), way)
        return True

    def _undo_now(self, applied: Applied, note: str) -> None:
        plan, number = self._undo_plan(applied), applied.change.number
        change = self.undo(plan, number, UNDO_SECONDS, note, automatic=True)
        if not change.wait(UNDO_SECONDS):
            raise AbortedError(f"it was not in force after {UNDO_SECONDS:.0f} s")

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

    def _stages_of(self, entries: frozenset[int]) -> frozenset[int]:
        return frozenset(self._stage_of[edge] for edge in entries)

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

    def _restart(self, change: LiveChange, timeout: float) -> None:
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
            raise FlowStateError(
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


def _applied(
    change: Change,
    new: Mapping[str, OperatorSpec],
    old: Mapping[str, OperatorSpec],
    kept: Mapping[str, Kept],
) -> Applied:
    """What the driver remembers of a change: all that it sent, as it was then."""
    sent = {name: kept[name].spec(spec) for name, spec in new.items()}
    migrations = {name: one.migrate for name, one in kept.items()}
    inverses = {name: one.inverse for name, one in kept.items()}
    size = len(change.order.payload) + sum(part.nbytes for part in change.order.buffers)
    return Applied(change, sent, old, migrations, inverses, kept, size)


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


def _refuse_speculation(context: SparkContext) -> None:
    if context.getConf().get("spark.speculation", "false") == "true":
        raise FlowError(
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
