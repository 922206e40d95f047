"""Functions over batches are called in the driver first: what that leaves is no other code."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from fries.errors import StaleCodeError
from fries.spark.pickling import dumps
from fries.spark.rehearsal import rehearsed
from tests.runtime.project import Project

SCORING = """
import threading

lock = threading.Lock()
sessions = {}
seen = []
model = None

class Session:
    opened = 0

    def __init__(self):
        Session.opened += 1
        self.lock = threading.Lock()

def score(batch):
    global model
    with lock:
        if model is None:
            model = Session()
        sessions.setdefault("a", Session())
        seen.append(len(batch))
    return batch

def opens(batch):
    if "a" not in sessions:
        sessions["a"] = Session()
    return batch
"""


@pytest.mark.parametrize("name", ["score", "opens"])
def test_what_a_rehearsal_fills_is_no_other_code(project: Project, name: str) -> None:
    project.write("scoring", SCORING)
    project.work()
    same = project.write("scoring", SCORING)
    for _ in range(3):
        with rehearsed(getattr(same, name)) as function:
            assert function([]) == []
    assert project.returns(getattr(same, name), [1]) == [1]


@pytest.mark.parametrize(
    "edit",
    [
        lambda module: module.sessions.update(b=1),
        lambda module: module.sessions.update(a=1),
        lambda module: module.sessions.clear() or module.sessions.update(b=1),
        lambda module: setattr(module, "model", 1),
        lambda module: setattr(module.Session, "opened", -1),
    ],
)
def test_what_the_user_puts_there_is_not_hidden(project: Project, edit: Any) -> None:  # noqa: ANN401
    project.write("scoring", SCORING)
    project.work()
    same = project.write("scoring", SCORING)
    with rehearsed(same.score) as function:
        function([])
    edit(same)
    with rehearsed(same.score) as function:
        function([])
    with pytest.raises(StaleCodeError):
        project.arrives(same.score)


def test_what_the_user_takes_away_again_is_as_before(project: Project) -> None:
    project.write("scoring", SCORING)
    project.work()
    same = project.write("scoring", SCORING)
    with rehearsed(same.score) as function:
        function([])
    same.sessions.clear()
    same.seen.clear()
    same.model, same.Session.opened = None, 0
    assert project.returns(same.score, [1]) == [1]


class Opens:
    """Opens what does not pickle when it is called."""

    def __init__(self) -> None:
        self.lock: Any = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch."""
        self.lock = threading.Lock()
        return batch


def test_a_function_that_was_rehearsed_is_as_it_was() -> None:
    scorer = Opens()
    with rehearsed(scorer) as function:
        function(None)
    assert scorer.lock is None
    assert dumps(scorer)


def test_what_does_not_pickle_is_rehearsed_itself() -> None:
    lock, calls = threading.Lock(), []

    def locked(batch: object) -> None:
        with lock:
            calls.append(batch)

    with rehearsed(locked) as function:
        function(1)
    assert calls == [1]
