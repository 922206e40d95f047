"""A keyed stage of a streaming query: key groups on Spark's state store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from fries.errors import OperatorError
from fries.runtime.arrow import batch_of, concat_batches
from fries.runtime.layout import Layout
from fries.runtime.task import Task
from fries.spark.store import MapStateStore
from fries.spark.tasks import Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class GroupedStage(StatefulProcessor):
    """Gives each key group of a partition to the stage, with the states that Spark keeps of it.

    Spark makes one of these per task, and one more on the driver while it plans the query.
    """

    work: Work
    takes: Layout
    schema: pa.Schema
    """Columns that Spark hands over: those of the layout, and those that it added."""
    _store: MapStateStore | None = field(default=None, init=False)
    _task: Task | None = field(default=None, init=False)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark is about to begin."""
        self._store = MapStateStore(handle)
        if TaskContext.get() is not None:
            self._task = self.work.task()

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Process all rows of a key group."""
        assert self._task is not None
        operator = key[0]
        try:
            whole = concat_batches([self._arrow(part) for part in rows])
            for batch in self._task.group(operator, whole, self.takes, self._store):
                yield batch.to_pandas()
        except BaseException as error:
            enough = isinstance(error, GeneratorExit)  # Spark may use the rows that it has
            self._task.report(complete=enough)
            self._task = None
            if isinstance(error, OperatorError):  # it tells its story itself
                raise error.with_traceback(None) from None
            raise

    def close(self) -> None:
        """All groups are done."""
        if self._task is not None:
            self._task.keep_audit(self.work.session.audit)
            self._task.report(complete=True)

    def _arrow(self, frame: pd.DataFrame) -> pa.RecordBatch:
        """A frame as flat rows; Spark has lost the names that begin with an underscore."""
        frame.columns = self.schema.names
        return batch_of(frame, self.schema)
