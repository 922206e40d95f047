"""The supervisor's decisions, with an engine that fails as it is told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from fries.control.messages import ANY_BATCH, Failed, Stuck
from fries.errors import LogTakenError, UsageError
from fries.events import Event, QueryEnded, QueryGivenUp, QueryRestarting
from fries.listening import Announcer
from fries.spark.engine import Engine
from fries.spark.narrator import PLAN, Narrator
from fries.spark.policy import Supervision
from fries.spark.supervisor import SupervisedQuery
from tests.waiting import PATIENCE

QUICK = Supervision(restarts=2, pause=0.0)


class FakeQuery:
    """Fails when it is looked at, or ends well."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802, ARG002
        """Tell how it ended."""
        if self._fails:
            raise StreamingQueryException("it failed")
        return True

    def stop(self) -> None:
        """Note it; whoever waits hears that it is over."""
        self.stopped = True
        self.awaitTermination = lambda timeout: True  # type: ignore[method-assign]


@dataclass
class FakeServer:
    """What the controller knows."""

    finished: int = -1
    in_transition: bool = False
    failures: list[Failed] = field(default_factory=list)
    stuck: dict[str, Stuck] = field(default_factory=dict)

    def take_back(self, on_hold: Any, probation: int) -> None:  # noqa: ANN401
        """Nobody waits here."""


@dataclass
class FakeEngine:
    """A query that fails a number of times; rollbacks and restarts are noted."""

    fails: int
    reversible: set[int] = field(default_factory=set)
    since_of: dict[int, int] = field(default_factory=dict)
    suspects: int = 0
    """How many changes can be taken back without a report."""
    failing: list[set[str]] = field(default_factory=list)
    """Each time, the operators before which they were looked for; none: everywhere."""
    broken: list[Exception] = field(default_factory=list)
    """What starting again raises, each time."""
    late: list[Failed] = field(default_factory=list)
    """Reports that come while nobody looks: after the first decision."""
    server: FakeServer = field(default_factory=FakeServer)
    told: list[str] = field(default_factory=list)
    looks: list[bool] = field(default_factory=list)
    """Looks for another driver, and whether each had to be made at once."""
    taken: Exception | None = None
    """What such a look raises."""

    def __post_init__(self) -> None:
        self.changing = RLock()
        self.query: Any = FakeQuery(self.fails > 0)
        self.interrupted: Exception | None = None

    def interrupt(self, reason: Exception) -> None:
        """Stop the query, to start it again."""
        self.interrupted = reason
        self.query.stop()

    def check_owner(self, now: bool = False) -> None:
        """Raise if another driver has come."""
        self.looks.append(now)
        if self.taken is not None:
            raise self.taken

    def release(self) -> None:
        """Let the next driver in."""

    def give_way(self) -> None:
        """Stop for the other driver."""
        self.told.append("give way")

    def learn_finished(self) -> None:
        """Nothing is committed."""

    def rest(self) -> None:
        """Nothing is committed."""

    def is_new(self, number: int, probation: int, operator: str = "") -> bool:  # noqa: ARG002
        """Whether a change is on probation; 0 is none."""
        return number > 0 and self.server.finished - self.since_of.get(number, 0) < probation

    def roll_back(self, failed: Failed) -> bool:
        """Take a change back, once."""
        if failed.change not in self.reversible:
            return False
        self.reversible.remove(failed.change)
        self.told.append(f"roll back {failed.change}")
        return True

    def roll_back_suspect(self, evidence: str, probation: int, failing: frozenset[str]) -> bool:
        """Take back what may be to blame."""
        assert probation == QUICK.probation
        if not self.suspects:
            return False
        self.suspects -= 1
        self.failing.append(set(failing))
        self.told.append(f"suspect: {evidence}")
        return True

    def resume(self) -> None:
        """Start again."""
        if self.broken:
            raise self.broken.pop()
        self.fails -= 1
        self.interrupted = None
        self.told.append("resume")
        self.query = FakeQuery(self.fails > 0)


def supervised(
    engine: FakeEngine, policy: Supervision = QUICK, narrator: Narrator | None = None
) -> SupervisedQuery:
    """A query that was watched until it was over."""
    query = SupervisedQuery(cast(Engine, engine), policy, narrator)
    with suppress(Exception):
        query.awaitTermination(PATIENCE)
    assert not query.isActive
    return query


def failure(change: int, batch: int = 0) -> Failed:
    return Failed(batch, "F", change, "it raised", "row", "story")


def test_a_query_that_ends_well_is_over() -> None:
    engine = FakeEngine(0)
    query = supervised(engine)
    assert (engine.told, query.exception(), list(query.failures)) == ([], None, [])


def test_a_query_is_started_again_so_often_and_no_more() -> None:
    engine = FakeEngine(9)
    query = supervised(engine)
    assert engine.told == ["resume", "resume"]
    assert isinstance(query.exception(), StreamingQueryException)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(0)
    assert len(query.failures) == 3


def test_a_change_that_failed_is_taken_back_and_does_not_count_as_a_restart() -> None:
    engine = FakeEngine(4, reversible={1})
    engine.server.failures = [failure(1)]
    query = supervised(engine)
    assert engine.told == ["roll back 1", "resume", "resume", "resume"]
    assert query.exception() is not None


def test_the_last_change_is_taken_back_first_and_then_another_one() -> None:
    engine = FakeEngine(2, reversible={1, 2})
    engine.server.failures = [failure(1), failure(2), failure(3)]
    assert supervised(engine).exception() is None
    assert engine.told == ["roll back 2", "resume", "roll back 1", "resume"]


def test_failures_of_other_batches_blame_nobody() -> None:
    engine = FakeEngine(1, reversible={1, 2})
    engine.server.finished = 6
    engine.server.failures = [failure(1, batch=6), failure(2, batch=ANY_BATCH)]
    supervised(engine)
    assert engine.told == ["roll back 2", "resume"]


def test_a_version_that_has_served_long_is_not_new() -> None:
    engine = FakeEngine(1, reversible={1}, since_of={1: 5})
    engine.server.finished = 5 + QUICK.probation
    engine.server.failures = [failure(1, batch=engine.server.finished + 1)]
    supervised(engine)
    assert engine.told == ["resume"]


def test_before_it_is_given_up_what_nobody_has_blamed_is_taken_back() -> None:
    engine = FakeEngine(9, suspects=2)
    query = supervised(engine)
    again = ["resume", "resume"]
    suspect = ["suspect: it failed", "resume"]
    assert engine.told == [*again, *suspect, *again, *suspect, *again]
    assert query.exception() is not None


def test_an_unchanged_operator_that_fails_is_the_evidence() -> None:
    engine = FakeEngine(4, suspects=1)
    engine.server.failures = [failure(0)]
    supervised(engine)
    assert "suspect: operator 'F' failed on row: it raised" in engine.told
    assert engine.failing == [set()], "its version is not new, so whatever is may be to blame"


def test_versions_before_one_that_fails_and_cannot_be_taken_back_are_suspected() -> None:
    """It may fail because of the rows that it gets."""
    engine = FakeEngine(9, suspects=1)
    engine.server.failures = [failure(1)]
    query = supervised(engine)
    suspect = ["suspect: operator 'F' failed on row: it raised", "resume"]
    assert engine.told == ["resume", "resume", *suspect, "resume", "resume"]
    assert engine.failing == [{"F"}]
    assert query.exception() is not None


def test_without_rollback_nothing_is_taken_back() -> None:
    engine = FakeEngine(9, reversible={1}, suspects=1)
    engine.server.failures = [failure(1)]
    supervised(engine, Supervision(rollback=False, restarts=0))
    assert engine.told == []


def test_what_cannot_be_started_now_is_started_later() -> None:
    engine = FakeEngine(1, broken=[OSError("the file system is away")])
    query = supervised(engine)
    assert engine.told == ["resume"]
    assert query.exception() is None
    assert any("the file system is away" in failed for failed in query.failures)


def test_what_can_never_be_started_is_given_up() -> None:
    engine = FakeEngine(1, broken=[OSError("away")] * 99)
    query = supervised(engine)
    assert query.exception() is not None


def test_a_new_version_that_does_not_return_is_taken_back() -> None:
    engine = FakeEngine(0, reversible={1})
    running = FakeQuery(fails=False)
    running.awaitTermination = lambda timeout: False  # type: ignore[method-assign]
    engine.query = running
    engine.server.stuck = {"worker": Stuck("F", 1, 99.0)}
    supervised(engine)
    assert running.stopped
    assert engine.told == ["roll back 1", "resume"]


def test_a_query_that_was_stopped_to_be_started_again_is_not_given_up_in_silence() -> None:
    engine = FakeEngine(0, reversible={1}, broken=[OSError("the file system is away")])
    running = FakeQuery(fails=False)
    running.awaitTermination = lambda timeout: False  # type: ignore[method-assign]
    engine.query = running
    engine.server.stuck = {"worker": Stuck("F", 1, 99.0)}
    query = supervised(engine)
    assert engine.told == ["roll back 1", "resume"]
    assert query.exception() is None


def test_a_restart_that_failed_is_tried_again_and_then_given_up_with_its_reason() -> None:
    engine = FakeEngine(0)
    engine.interrupt(RuntimeError("change 3 restarts it"))
    supervised(engine)
    assert engine.told == ["resume"]
    hopeless = FakeEngine(0, broken=[OSError("away")] * 99)
    hopeless.interrupt(RuntimeError("change 3 restarts it"))
    given_up = supervised(hopeless)
    assert "change 3 restarts it" in str(given_up.exception())
    assert any("away" in failed for failed in given_up.failures)


@dataclass
class Told:
    """What people are told, and what is said when the query is over."""

    heard: list[Event] = field(default_factory=list)
    over: list[str] = field(default_factory=list)

    def of(self, engine: FakeEngine) -> SupervisedQuery:
        """Watch a query until it is over."""
        events = Announcer("demo")
        events.listen(self.heard.append)
        query = supervised(engine, narrator=Narrator(events, self.over.append))
        events.close()
        return query


def test_a_query_that_is_given_up_says_operator_and_row_first() -> None:
    engine, told = FakeEngine(9), Told()
    first = Failed(0, "F", 0, "ValueError('no')", "{'id': 7}", "Traceback\n  boom\n")
    engine.server.failures = [Failed(ANY_BATCH, "", 0, "unloadable", "", ""), first]
    query = told.of(engine)
    line = "operator 'F' failed on {'id': 7}: ValueError('no')"
    why = f"{line}\n    Traceback\n      boom"
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert str(caught.value) == why
    assert list(query.failures) == ["it failed"] * 3, "what Spark says is kept"
    once, again, last = told.heard
    assert isinstance(once, QueryRestarting)
    assert (once.reason, once.restart, once.most) == (why, 1, 2)
    assert isinstance(again, QueryRestarting)
    assert (again.reason, again.restart) == (line, 2), "the story is told once"
    assert isinstance(last, QueryGivenUp)
    assert last.reason == why
    assert told.over == [f"the query was given up: {line}"]


def test_what_spark_says_is_told_without_its_plan_and_its_middle() -> None:
    narrator = Narrator(Announcer("demo"))
    long = "first\n" + "java\n" * 50 + f"why\n{PLAN}\nand 1,000 lines"
    error = narrator.given_up(StreamingQueryException(long), [])
    assert str(error).startswith("first\njava\n    [40 lines left out]\njava")
    assert str(error).endswith("java\nwhy")


def test_a_query_that_was_stopped_says_so() -> None:
    told = Told()
    told.of(FakeEngine(0))
    assert [type(event) for event in told.heard] == [QueryEnded]
    assert told.over == ["the query has ended"]


def test_pauses_double_up_to_the_longest() -> None:
    policy = Supervision(pause=1.0, longest_pause=10.0)
    assert [policy.pause_before(n) for n in (1, 2, 3, 4, 5, 5_000)] == [1, 2, 4, 8, 10, 10]
    with pytest.raises(UsageError, match="cannot be negative"):
        Supervision(probation=-1)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_query_on_a_checkpoint_that_another_driver_has_taken_is_not_started_again(
    fails: int,
) -> None:
    """Nor is anything rolled back: whether it runs or has failed, for that may be why it has."""
    taken = LogTakenError("memory", "process 7 on elsewhere")
    engine = FakeEngine(fails, reversible={1}, taken=taken)
    if not fails:
        engine.query.awaitTermination = lambda timeout: False
    engine.server.failures = [failure(1)]
    query = supervised(engine)
    assert (engine.told, engine.looks) == (["give way"], [bool(fails)])
    assert query.exception() is taken


def test_a_start_that_finds_another_driver_is_the_last_one() -> None:
    taken = LogTakenError("memory", "process 7 on elsewhere")
    engine = FakeEngine(2, broken=[taken])
    assert supervised(engine).exception() is taken
    assert engine.told == ["give way"]
