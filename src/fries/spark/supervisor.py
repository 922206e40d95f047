"""A query that is kept running: restarted when it fails, without the change that made it fail."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from fries.control.messages import Failed, Stuck
from fries.errors import TraitError
from fries.spark.engine import Engine

TICK_SECONDS: Final = 0.2
"""Between two looks at a query that runs well: that soon a change is done after its batch."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Supervision:
    """How a query is kept running. Times are seconds."""

    rollback: bool = True
    """Take a change back whose new version raises on live rows, and replay the batch."""
    restarts: int = 5
    """How often a query that fails for other reasons is started again without getting on."""
    pause: float = 1.0
    """Before the first restart; each further one waits twice as long."""
    longest_pause: float = 60.0
    patience: float = 60.0
    """A new version that has not returned for so long is taken back, too."""

    def __post_init__(self) -> None:
        if self.restarts < 0 or min(self.pause, self.longest_pause, self.patience) < 0:
            raise TraitError("Supervision", "its numbers cannot be negative")

    def pause_before(self, restart: int) -> float:
        """How long to wait before a restart, counted from 1."""
        return float(min(self.pause * 2 ** (restart - 1), self.longest_pause))


class SupervisedQuery:
    """A streaming query that outlives its failures; ``query`` is Spark's own of the moment."""

    def __init__(self, engine: Engine, policy: Supervision) -> None:
        self._engine, self._policy = engine, policy
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._restarts = 0
        self._last_batch = -1
        """The newest batch that was committed when the query last failed."""
        self._warned: set[str] = set()
        self.failures: list[str] = []
        """Why the query failed, each time."""
        self._thread = threading.Thread(target=self._watch, name="fries-supervisor", daemon=True)
        self._thread.start()

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
        """Wait until everything that is there now was processed; for tests."""
        self.query.processAllAvailable()

    def stop(self) -> None:
        """Stop it for good."""
        self._stopping.set()
        with self._engine.changing:
            self.query.stop()
        self._over.wait()

    def _watch(self) -> None:
        """The supervisor's thread."""
        try:
            while self._turn():
                pass
        except Exception as error:  # whatever it is, nobody else would tell
            self._error = error
        finally:
            self._over.set()

    def _turn(self) -> bool:
        """Look at the query once; ``False`` if it is over for good."""
        query = self.query
        try:
            over = query.awaitTermination(TICK_SECONDS)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            return self._was_replaced(query) or self._recover(error)
        if over:
            return self._was_replaced(query)
        if self._engine.server.in_transition:
            self._engine.rest()
        stuck = self._stuck()
        return stuck is None or self._free(query, stuck)

    def _was_replaced(self, query: StreamingQuery) -> bool:
        """Whether the ``restart`` scheduler has stopped it, and started another one."""
        with self._engine.changing:
            return self._engine.query is not query and not self._stopping.is_set()

    def _stuck(self) -> Stuck | None:
        """A new version that does not return. An old one may be slow for good reasons."""
        for worker, stuck in self._engine.server.stuck.items():
            if stuck.seconds < self._policy.patience:
                continue
            if stuck.change and self._policy.rollback:
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
        batch = self._engine.server.finished + 1
        problem = f"it has not returned for {stuck.seconds:.0f} s"
        failed = Failed(batch, stuck.operator, stuck.change, problem, "", "")
        query.stop()
        return self._replay(failed, RuntimeError(f"operator {stuck.operator!r}: {problem}"))

    def _recover(self, error: StreamingQueryException) -> bool:
        """The query failed: start it again, if there is hope."""
        blamed = [failed for failed in self._engine.server.failures if failed.change]
        return self._replay(blamed[0] if blamed else None, error)

    def _replay(self, failed: Failed | None, error: Exception) -> bool:
        """Start the query again, without a change that failed; ``False`` if it is given up."""
        self.failures.append(str(error))
        if self._stopping.is_set():
            return False
        with self._engine.changing:
            self._engine.learn_finished()
            taken_back = failed is not None and self._roll_back(failed)
        if not taken_back and not self._may_restart():
            self._error = error
            return False
        if self._stopping.wait(0 if taken_back else self._policy.pause_before(self._restarts)):
            return False
        with self._engine.changing:
            if not self._stopping.is_set():
                self._engine.resume()
        return not self._stopping.is_set()

    def _roll_back(self, failed: Failed) -> bool:
        if not self._policy.rollback or not self._engine.roll_back(failed):
            return False
        _logger.warning(
            "change %d is rolled back: operator %r failed on %s: %s",
            failed.change,
            failed.operator,
            failed.row or "its rows",
            failed.problem,
        )
        return True

    def _may_restart(self) -> bool:
        """Count the restarts between which no batch was committed."""
        finished = self._engine.server.finished
        if finished > self._last_batch:
            self._restarts = 0
        self._last_batch = finished
        self._restarts += 1
        return self._restarts <= self._policy.restarts
