"""A query that is kept running: restarted when it fails, without the change that made it fail."""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from fries.control.messages import ANY_BATCH, Failed, Stuck
from fries.control.server import Held
from fries.errors import LogTakenError
from fries.listening import Announcer
from fries.spark.blame import cause_of, headline
from fries.spark.engine import Engine
from fries.spark.narrator import Narrator
from fries.spark.policy import Supervision

TICK_SECONDS: Final = 0.2
"""Between two looks at a query that runs well: that soon a change is done after its batch."""
MOST_FAILURES: Final = 100
"""That are remembered."""
_logger = logging.getLogger(__name__)


class SupervisedQuery:
    """A streaming query that outlives its failures; ``query`` is Spark's own of the moment."""

    def __init__(
        self, engine: Engine, policy: Supervision, narrator: Narrator | None = None
    ) -> None:
        self._engine, self._policy = engine, policy
        self._narrator = narrator or Narrator(Announcer("nameless"))
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._restarts = 0
        self._last_batch = -1
        """The newest batch that was committed when the query last failed."""
        self._warned: set[str] = set()
        self.failures: deque[str] = deque(maxlen=MOST_FAILURES)
        """Why the query failed, each time."""
        self._held: SimpleQueue[Held | None] = SimpleQueue()
        """Tasks that wait for a change to be taken back; ``None``: it is over."""
        engine.server.take_back(self._held.put, policy.probation if policy.rollback else 0)
        for name, work in (("supervisor", self._watch), ("rollback", self._free_tasks)):
            threading.Thread(target=work, name=f"fries-{name}", daemon=True).start()

    @property
    def query(self) -> StreamingQuery:
        """Spark's query; another one after a restart."""
        query = self._engine.query
        assert query is not None
        return query

    @property
    def isActive(self) -> bool:  # noqa: N802 - as Spark names it
        """Whether it runs, or is about to be started again."""
        return not self._over.is_set()

    @property
    def lastProgress(self) -> Any:  # noqa: N802, ANN401
        """Progress of the newest batch since the last restart."""
        return self.query.lastProgress

    @property
    def recentProgress(self) -> Any:  # noqa: N802, ANN401
        """Progress of the last batches since the last restart."""
        return self.query.recentProgress

    @property
    def status(self) -> Any:  # noqa: ANN401
        """What Spark is doing."""
        return self.query.status

    def exception(self) -> Exception | None:
        """Why it was given up, if it was."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until it is over for good; raises why, if it was given up.

        ``False`` if that takes longer than ``timeout`` seconds.
        """
        over = self._over.wait(timeout)
        if self._error is not None:
            raise self._error
        return over

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until everything that is there now was processed; for tests.

        If the query fails meanwhile, and is started again, the new one goes on with it.
        """
        while not self._over.is_set():
            query = self.query
            try:
                query.processAllAvailable()
            except StreamingQueryException:
                while self.query is query and not self._over.wait(TICK_SECONDS):
                    pass
            else:
                return
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop it for good."""
        self._stopping.set()
        with self._engine.changing:
            self.query.stop()
        self._over.wait()
        self._engine.release()

    def _watch(self) -> None:
        """The supervisor's thread."""
        going = True
        while going:
            try:
                going = self._turn()
            except LogTakenError as error:
                self.failures.append(str(error))
                self._error = self._narrator.given_up(error, ())
                self._engine.give_way()
                going = False
            except Exception as error:  # Spark or the file system is away: that may pass
                going = self._after(error)
        self._engine.server.take_back(None, 0)
        self._held.put(None)
        try:
            if self._error is None:
                self._narrator.ended()
        finally:
            self._over.set()

    def _free_tasks(self) -> None:
        """What the second thread does: take changes back for tasks that wait for it."""
        while (held := self._held.get()) is not None:
            try:
                goes_on = self._policy.rollback and self._engine.roll_back_in_place(
                    held, self._policy.probation
                )
            except Exception as error:  # then the batch is replayed
                self.failures.append(repr(error))
                goes_on = False
            if not goes_on:
                self._engine.server.give_up(held.worker, held.failed.change)

    def _after(self, error: Exception) -> bool:
        """Something else than the query failed: try again, as often as after other failures."""
        self.failures.append(repr(error))
        if self._stopping.is_set():
            return False
        if not self._may_restart():
            self._error = self._narrator.given_up(error, ())
            return False
        self._narrator.restarting(error, (), self._restarts, self._policy)
        return not self._stopping.wait(self._policy.pause_before(self._restarts))

    def _turn(self) -> bool:
        """Look at the query once; ``False`` if it is over for good."""
        query = self.query
        try:
            over = query.awaitTermination(TICK_SECONDS)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            return self._was_replaced(query) or self._replay(query, error)
        if over:
            return self._was_replaced(query) or self._was_interrupted(query)
        self._engine.check_owner()
        if self._engine.server.in_transition:
            with self._engine.changing:
                self._engine.rest()
        stuck = self._stuck()
        return stuck is None or self._free(query, stuck)

    def _was_replaced(self, query: StreamingQuery) -> bool:
        """Whether the ``restart`` scheduler has stopped it, and started another one."""
        with self._engine.changing:
            return self._engine.query is not query and not self._stopping.is_set()

    def _was_interrupted(self, query: StreamingQuery) -> bool:
        """Whether it was stopped to be started again, and that has failed: then try again."""
        reason = self._engine.interrupted
        return reason is not None and self._replay(query, reason)

    def _stuck(self) -> Stuck | None:
        """A new version that does not return. An old one may be slow for good reasons."""
        for worker, stuck in tuple(self._engine.server.stuck.items()):
            if stuck.seconds < self._policy.patience:
                continue
            if self._policy.rollback and self._is_new(stuck):
                return stuck
            if worker not in self._warned:
                self._warned.add(worker)
                _logger.warning(
                    "operator %r has not returned for %d s in worker %s",
                    stuck.operator,
                    stuck.seconds,
                    worker,
                )
        return None

    def _free(self, query: StreamingQuery, stuck: Stuck) -> bool:
        """Stop a batch that would never end, and take its change back."""
        problem = f"it has not returned for {stuck.seconds:.0f} s"
        failed = Failed(ANY_BATCH, stuck.operator, stuck.change, problem, "", "")
        error = RuntimeError(f"operator {stuck.operator!r}: {problem}")
        with self._engine.changing:
            if self._engine.query is not query:
                return True
            self._engine.interrupt(error)
        return self._replay(query, error, failed)

    def _replay(
        self, query: StreamingQuery, error: Exception, failed: Failed | None = None
    ) -> bool:
        """Start the query again, without a change that failed; ``False`` if it is given up."""
        self.failures.append(str(error))
        if self._stopping.is_set():
            return False
        self._engine.check_owner(now=True)
        with self._engine.changing:
            self._engine.learn_finished()
            taken_back = self._take_back([failed] if failed else self._blamed())
            if not taken_back and not self._may_restart():
                taken_back = self._take_suspect_back(error)
                if not taken_back:
                    self._error = self._narrator.given_up(error, self._blamed())
                    return False
            if not taken_back:
                self._narrator.restarting(error, self._blamed(), self._restarts, self._policy)
        if self._stopping.wait(0 if taken_back else self._policy.pause_before(self._restarts)):
            return False
        with self._engine.changing:
            if self._stopping.is_set():
                return False
            if self._engine.query is query:
                if not taken_back:
                    self._take_back(self._blamed())  # a report may have come late
                self._resume()
        return True

    def _resume(self) -> None:
        """Start the query; if that fails, the old one will be found dead again, and counted."""
        try:
            self._engine.resume()
        except LogTakenError:
            raise
        except Exception as error:
            self.failures.append(repr(error))

    def _blamed(self) -> list[Failed]:
        """What is known to have failed in the batch that was not committed."""
        batch = self._engine.server.finished + 1
        found = self._engine.server.failures
        return [failed for failed in found if failed.batch in (batch, ANY_BATCH)]

    def _take_back(self, blamed: list[Failed]) -> bool:
        """Take one of the changes back that have failed; the last one first."""
        if not self._policy.rollback:
            return False
        new = {one.change: one for one in reversed(blamed) if self._is_new(one)}
        return any(self._engine.roll_back(new[number]) for number in sorted(new, reverse=True))

    def _take_suspect_back(self, error: Exception) -> bool:
        """Before giving up: take the newest version back that is on probation, though nobody told.

        It may have killed its worker, or it gave what an operator behind it cannot take. If that
        does not help, the next older one follows. If a new version is known to have failed, and
        cannot be taken back, only those before it are suspected: they gave it its rows.
        """
        if not self._policy.rollback:
            return False
        blamed = self._blamed()
        evidence = headline(blamed[-1]) if blamed else cause_of(str(error))
        failing = frozenset(one.operator for one in blamed if self._is_new(one))
        if not self._engine.roll_back_suspect(evidence, self._policy.probation, failing):
            return False
        self._restarts = 0
        return True

    def _is_new(self, told: Failed | Stuck) -> bool:
        """Whether a version may be to blame, because its change is not long ago."""
        return self._engine.is_new(told.change, self._policy.probation, told.operator)

    def _may_restart(self) -> bool:
        """Count the restarts between which no batch was committed."""
        finished = self._engine.server.finished
        if finished > self._last_batch:
            self._restarts = 0
        self._last_batch = finished
        self._restarts += 1
        return self._restarts <= self._policy.restarts
