"""How a task ends when nobody hears where it switched. No session is needed for that."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import cast

import pyarrow as pa
import pytest

from fries.errors import WireError
from fries.runtime.layout import Layout
from fries.runtime.task import Task
from fries.spark.tasks import Session, Work
from fries.stages import PhysicalStage


class Unheard:
    """A task that has switched inside, and whose connection is gone."""

    def __init__(self) -> None:
        self.reported: list[bool] = []

    def keep_audit(self, folder: str | None) -> None:
        """Nothing is recorded."""

    def report(self, complete: bool) -> None:
        """Nobody hears it."""
        self.reported.append(complete)
        raise WireError("the control connection is gone")


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Unheard:
    made = Unheard()
    monkeypatch.setattr(Work, "task", lambda self: made)
    return made


def work() -> Work:
    session = Session("flow", ("127.0.0.1", 0), b"", ())
    return Work(session, cast(PhysicalStage, None), cast(Layout, None))


def batches(_: Task) -> Iterator[pa.RecordBatch]:
    yield from [pa.record_batch({"id": [number]}) for number in range(2)]


def test_a_task_that_gave_all_its_rows_must_not_complete(task: Unheard) -> None:
    with pytest.raises(WireError):
        list(work().run(batches))
    assert task.reported == [True]


def test_a_task_that_is_broken_off_says_nothing_to_the_terminal(task: Unheard) -> None:
    rows = cast(Generator[pa.RecordBatch, None, None], work().run(batches))
    next(rows)
    rows.close()  # raises what the generator raises
    assert task.reported == [True]
