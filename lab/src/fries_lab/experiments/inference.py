"""W1 as experiments run it: payments that follow the clock, and a sink operator that stamps them.

::

    source -> FD -> arrive -> sink

Costs differ from the paper's, so it is measured first, once for all experiments, how many rows
per second FD can take here, if Spark takes no time at all. The paper's rates are multiplied by
that, over the paper's 1,600 tuples per second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fries import Flow
from fries.reconfiguration import Reconfiguration
from fries.runtime import audit
from fries_lab.errors import ExperimentError
from fries_lab.experiments.experiment import Bench, Found, Part
from fries_lab.experiments.queries import PATIENCE, settle, until
from fries_lab.experiments.schedule import Pace, Schedule
from fries_lab.workloads import w1
from fries_lab.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAPER_CAPACITY: Final = 1_600
"""Tuples per second that the paper's FD could take."""
PAYMENTS: Final = 100_000
"""Payments that rows are made of: all users are among them."""
WARM: Final = 500
"""Rows of the first micro-batch, which is not measured."""
LOOK: Final = 0.25
"""Seconds between two looks at a query that nothing is asked of: they cost time of a core."""
LATE: Final = 0.5
"""Seconds that a request may come late; micro-batches take longer."""
CAPACITY: Final = "capacity"
"""The part that measures it."""
FULL: Final = 300
"""Rows of a micro-batch where capacity is measured, for each worker: seconds of work."""
ROUNDS: Final = 1
"""Micro-batches of each model for that, after one that does not count."""
TIMES: Final = {"user_lstm": 12.0, "user_lstm_small": 36.0, "user_tree": 1.0}
"""Models from the most expensive one to the cheapest, and how often each is run for a row: so that
the smaller LSTM carries the paper's first surge, and not its second one."""
LARGE, SMALL, TREE = TIMES
SHARES: Final = 10
"""Rows among which a part of a repetition is shared out."""
ENDLESS: Final = Schedule([(0, 1e9)])
"""As fast as rows are taken."""


class Costly:
    """The function of FD, with an inference that is repeated: the paper's model took 25 ms.

    Without, Spark's own work on a row would weigh as much as the model, and a cheaper model
    would hardly help. ``times`` need not be whole: then some rows get one more than others.
    """

    def __init__(self, model: str, times: float = 1.0, version: int = 0) -> None:
        self._inference = Inference(trained(model))
        self._times = times
        self.version = version
        """Makes it another function, which does the same."""

    def __call__(self, state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Take a payment."""
        more = (row["id"] % SHARES) < SHARES * (self._times % 1.0) - 1e-9
        for _ in range(int(self._times) + more - 1):
            self._inference(state, row)
        return self._inference(state, row)


def inference(model: str = LARGE, version: int = 0) -> Costly:
    """The function of FD, with one of the models."""
    return Costly(model, TIMES[model], version)


def arrive(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The last operator: notes when rows reach it, in seconds since 1970."""
    now = pa.array(np.full(rows.num_rows, time.time()))
    return pa.RecordBatch.from_arrays([*rows.columns, now], names=[*rows.schema.names, "arrived"])


@dataclass
class Running:
    """W1 at work."""

    flow: Flow
    place: Path
    clock: float
    """When the schedule began, in seconds since 1970."""

    def sleep_until(self, second: float) -> None:
        """Wait for a second of the schedule; a query that fails meanwhile says so."""
        while (left := self.clock + second - time.time()) > 0:
            if self.flow.query is not None and (error := self.flow.query.exception()):
                raise error
            time.sleep(min(left, LOOK))

    def change_at(
        self, second: float, function: Callable[..., Any], scheduler: str
    ) -> tuple[float, Reconfiguration]:
        """Ask for another FD at a second of the schedule; when that was, since 1970.

        A request that comes late is an error: schedulers are compared by the same requests.
        """
        self.sleep_until(second)
        requested = time.time()
        late = requested - self.clock - second
        if late > LATE:
            raise ExperimentError(
                self.flow.name,
                f"the request of second {second:.1f} would come {late:.1f} s late, at another time "
                "than with other schedulers; run it again on a machine that does nothing else",
            )
        return requested, self.change(function, scheduler)

    def change(self, function: Callable[..., Any], scheduler: str) -> Reconfiguration:
        """Ask for another FD."""
        return self.flow.reconfigure({"FD": function}, scheduler, PATIENCE)

    def rows(self, *columns: str) -> dict[str, NDArray[Any]]:
        """What has reached the sink and is committed, without the rows that warmed up."""
        from fries_lab.spark.results import committed

        found = committed(self.place / "rows", columns, "born is not null")
        return {name: found[name].to_numpy() for name in columns}

    def first_use(self, version: int) -> float | None:
        """When FD first used a version, as far as finished tasks have told."""
        use = audit.uses(str(self.place / "audit")).get(("FD", version))
        return None if use is None else use.first


@contextmanager
def running(
    bench: Bench,
    pace: Pace,
    function: Callable[..., Any],
    versioned: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    columns: str = "",
) -> Iterator[Running]:
    """W1 from the moment that its clock is started; at the end a last micro-batch may end.

    ``versioned`` adds columns to the source; with those that FD adds they are ``columns``.
    A micro-batch begins when the one before has ended.
    """
    from fries_lab.spark.paced import paced

    place = bench.folder
    flow = Flow("W1", audit=place / "audit")
    frame = versioned(paced(bench.spark, bench.payments(PAYMENTS), pace)).drop("due")
    schema = f"{w1.SCORED}, born double{columns}"
    scored = flow.source("source", frame).process(
        "FD", function, key="user", initial=(), order_by="id", schema=schema
    )
    stamped = scored.map("arrive", arrive, schema=f"{schema}, arrived double", batch="arrow")
    writer = flow.output(sink=stamped).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    flow.start(writer.option("path", str(place / "rows")))
    try:
        until(lambda: _clock(flow), flow)
        yield Running(flow, place, _clock(flow))
        settle(flow)
    finally:
        flow.stop()


def _clock(flow: Flow) -> float:
    """When the clock was started; 0 if it was not yet."""
    progress = None if flow.query is None else flow.query.lastProgress
    if progress is None:
        return 0.0
    offset = json.loads(progress["sources"][0]["endOffset"])
    return float(offset["clock"] or 0.0)


def pace_of(bench: Bench, schedule: Schedule, limit: float, pulled: bool = False) -> Pace:
    """How rows are made and taken, in all experiments on W1."""
    return Pace(schedule, PAYMENTS, bench.profile.tasks, WARM, max(1, round(limit)), pulled)


CAPACITIES: Final = Part(CAPACITY, 25, lambda bench: _capacities(bench), shared=True)
"""The part that measures capacities, first in every experiment on W1."""


def capacity_of(bench: Bench) -> float:
    """Rows per second of the large model, as the first part has measured it."""
    return float(bench.found(CAPACITY)[LARGE])


def _capacities(bench: Bench) -> Found:
    """Rows per second that all workers take with each model, when there are always enough."""
    tasks = bench.profile.tasks
    with running(bench, pace_of(bench, ENDLESS, FULL * tasks), inference(LARGE)) as run:
        found = {LARGE: tasks * _rate(run.flow)}
        for model in (SMALL, TREE):
            run.change(inference(model), "fries").wait(PATIENCE)
            settle(run.flow)
            found[model] = tasks * _rate(run.flow)
    return found


def _rate(flow: Flow) -> float:
    """Rows per second of FD's function in the next micro-batches."""
    settle(flow)
    before = flow.counters["FD"]
    for _ in range(ROUNDS):
        settle(flow)
    after = flow.counters["FD"]
    return (after.taken - before.taken) / (after.seconds - before.seconds)


def scaled(rate: float, capacity: float) -> float:
    """A rate of the paper, for the capacity that is here."""
    if capacity <= 0:
        raise ExperimentError("capacity", f"it is {capacity} rows per second")
    return rate * capacity / PAPER_CAPACITY
