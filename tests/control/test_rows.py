"""Whether rows have gone through a change, who waits for them, and what listeners are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from fries.change.model import Decision, Order, Phase, Rows, WayBack
from fries.control.client import ControlClient
from fries.control.live import LiveChange
from fries.control.messages import ANY_BATCH, ENCODER, UP, Counted, Counts, Ended, Failed, Taken
from fries.control.server import ControlServer
from fries.errors import OperatorError, RolledBackError, TooFewRowsError, WireError
from fries.events import (
    ChangeAborted,
    ChangeDone,
    ChangeRequested,
    ChangeRolledBack,
    Event,
    OperatorFailed,
)
from fries.listening import Announcer
from fries.plan import Plan
from fries.reconfiguration import Reconfiguration
from tests.control.fakes import PATIENCE, SECRET, FakeEngine, order, until
from tests.control.sites import Site, batch


class Job:
    """A controller with a worker, and all that listeners are told."""

    def __init__(self) -> None:
        self.events = Announcer("fraud")
        self.heard: list[Event] = []
        self.events.listen(self.heard.append)
        self.server = ControlServer("fraud", SECRET, events=self.events)
        self.server.start()
        self.client = ControlClient(self.server.address, SECRET, "fraud", FakeEngine())
        self.batch = 0

    def change(self, *names: str) -> LiveChange:
        """A change that is in force, before any row has met it."""
        labels = dict.fromkeys(names, "v2")
        change = self.server.request(replace(order(*names), labels=labels))
        until(lambda: bool(change.switched), self.client)
        self.batch += 1
        batch(self.client, self.batch)
        return change

    def take(self, operator: str, change: int, rows: int, *older: int) -> None:
        """A task in which an operator takes rows."""
        self.client.took(operator, change, rows, older)
        self.client.count(operator, rows, rows, 0.0)
        self.client.ended(Ended(self.batch, 0, 0, {}))

    def told(self) -> list[str]:
        """What listeners were told, when they have heard all of it."""
        self.server._loop.ask(lambda: None)  # what it does at this moment is told then
        self.events.close()
        return [type(event).__name__ for event in self.heard]

    def close(self) -> None:
        """End everything."""
        self.client.close()
        self.server.stop()
        self.events.close()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def handle(change: LiveChange, look: Callable[[], int] = lambda: -1) -> Reconfiguration:
    plan = Plan("fries", cast(Any, None), change.order.targets, ())
    return Reconfiguration(plan, change, cast(Any, None), look)


def in_background(wait: Callable[[], object]) -> Callable[[], object]:
    """Begin to wait; gives a function that waits for what came of it."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(wait())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> object:
        thread.join(PATIENCE)
        return outcome[0]

    return result


def test_a_change_is_untried_until_each_target_has_taken_a_row(job: Job) -> None:
    change = job.change("FM", "MC")
    assert (change.phase, change.state) == (Phase.DONE, "untried")
    assert handle(change).wait(PATIENCE), "the workers have switched"
    job.take("FM", 1, 7)
    until(lambda: change.rows.get("FM") == Rows(7, 0))
    assert change.state == "untried"
    job.take("MC", 1, 2)
    until(lambda: change.state == "done")
    assert handle(change).rows == {"FM": Rows(7, 0), "MC": Rows(2, 0)}
    assert job.server.history()[0].state == "done"
    assert job.told() == ["ChangeRequested", "ChangeCommitted", "ChangeDone"]
    requested, *_, done = job.heard
    assert isinstance(requested, ChangeRequested)
    assert isinstance(done, ChangeDone)
    assert (done.number, done.targets, done.labels) == (1, ("FM", "MC"), ("v2", "v2"))


def test_who_waits_for_the_end_of_a_batch_asks_spark_while_the_flow_lives() -> None:
    looked: list[int] = []
    change = LiveChange(1, Order(("A",), b"", frozenset()))

    def look() -> int:
        looked.append(1)
        if len(looked) == 2:
            change.move(Phase.DONE, "")
        return -1

    change.move(Phase.COMMITTED, "")
    assert not handle(change, look).wait_until_done(timeout=0.0)
    assert handle(change, look).wait_until_done()
    assert len(looked) == 2

    def stop() -> int:
        late.decision = Decision.MADE
        late.abandon()
        raise WireError("the controller has stopped")

    late = LiveChange(2, Order(("A",), b"", frozenset()))
    late.move(Phase.COMMITTED, "")
    assert not handle(late, stop).wait_until_done()


def test_a_change_is_waited_for_until_the_first_batch_with_it_is_committed() -> None:
    """It is done as soon as that batch begins, if no row of the one before was left to meet it."""
    change = LiveChange(1, Order(("A",), b"", frozenset()), since=5)
    change.move(Phase.DONE, "")
    committed = [4, 4, 5]
    assert not handle(change, lambda: 4).wait_until_done(timeout=0.3)
    assert handle(change, lambda: committed.pop(0)).wait_until_done()
    assert committed == []


def test_nobody_waits_for_a_batch_that_will_not_come() -> None:
    change = LiveChange(1, Order(("A",), b"", frozenset()), since=5)
    change.move(Phase.DONE, "")
    change.expect_rows("the query is over")
    assert handle(change, lambda: 4).wait_until_done()


def test_rows_of_both_versions_are_told_while_a_change_is_in_transition(job: Job) -> None:
    job.client.begin(1, 0, 0)
    change = job.server.request(order("FM"))
    until(lambda: bool(change.switched), job.client)
    job.take("FM", 0, 40, 1)
    job.take("FM", 1, 2)
    until(lambda: change.rows.get("FM") == Rows(2, 40))
    assert change.state == "committed"


def test_who_waits_for_rows_hears_of_the_last_one(job: Job) -> None:
    change = handle(job.change("FM"))
    assert not change.wait(0.0, rows=10)
    result = in_background(lambda: change.wait(rows=10))
    job.take("FM", 1, 9)
    job.take("FM", 1, 1)
    assert result() is True
    assert change.wait(rows=10)


def test_who_waits_for_rows_hears_of_a_rollback(job: Job) -> None:
    job.client.begin(1, 0, 0)
    made = job.server.request(replace(order("FM"), labels={"FM": "v2"}))
    until(lambda: bool(made.switched), job.client)
    change = handle(made)
    result = in_background(lambda: change.wait(rows=10))
    failed = Failed(1, "FM", 1, "ValueError('x')", "{'id': 1}", "Traceback\n  boom")
    reason = "operator 'FM' failed on {'id': 1}: ValueError('x')"
    job.server.blame(failed)
    assert job.server.revoke({1: reason})
    error = result()
    assert isinstance(error, RolledBackError)
    assert reason in str(error)
    assert str(change) == f"change 1 of FM (v2) by fries: rolled back: {reason}"
    assert repr(change) == str(change)
    assert job.told()[-1] == "ChangeRolledBack"
    last = job.heard[-1]
    assert isinstance(last, ChangeRolledBack)
    assert (last.operator, last.row, last.problem) == ("FM", "{'id': 1}", "ValueError('x')")
    assert last.way == "replayed"
    assert last.story.endswith("boom")


def test_who_waits_for_rows_hears_that_none_will_come(job: Job) -> None:
    change = handle(job.change("FM"))
    job.take("FM", 1, 3)
    result = in_background(lambda: change.wait(rows=10))
    until(lambda: change.rows["FM"].new == 3)
    job.server.expect_rows(unless="the query has ended")
    error = result()
    assert isinstance(error, TooFewRowsError)
    assert (error.number, error.wanted, error.taken) == (1, 10, {"FM": 3})
    assert "the query has ended" in str(error)
    assert change.wait(rows=3), "those have come"
    job.server.expect_rows()
    assert not change.wait(0.0, rows=10), "it runs again"
    result = in_background(lambda: change.wait(rows=10))
    job.server.stop()
    assert "the flow was stopped" in str(result())


def test_who_waits_for_rows_hears_that_a_later_change_gets_them(job: Job) -> None:
    change = handle(job.change("FM", "MC"))
    result = in_background(lambda: change.wait(rows=10))
    later = job.change("MC")
    assert "change 2 has replaced its version of MC" in str(result())
    job.take("MC", 2, 10)
    assert handle(later).wait(PATIENCE, rows=10)


def test_an_undo_that_is_told_of_a_failure_says_so_once(site: Site) -> None:
    heard: list[Event] = []
    client, _ = site.join()
    change = site.change(client)
    batch(client, 1)
    client.took("FM", 1, 5, ())
    client.count("FM", 5, 5, 0.0)
    batch(client, 2)
    until(lambda: change.state == "done")
    events = site.server.news._events
    events.listen(heard.append)
    failed = Failed(2, "FM", 1, "boom", "row 7", "story")
    for _ in range(2):
        site.server.record_failure(
            change, failed, "operator 'FM' failed on row 7: boom", WayBack.IN_PLACE
        )
    client.took("FM", 1, 5, ())
    client.count("FM", 5, 5, 0.0)
    batch(client, 3)
    until(lambda: change.rows["FM"].new == 10)
    events.close()
    (event,) = heard
    assert isinstance(event, ChangeRolledBack)
    assert (event.operator, event.row, event.problem) == ("FM", "row 7", "boom")
    assert event.way == "in place"


def test_a_change_that_cannot_be_loaded_is_told_of(job: Job) -> None:
    change = job.server.request(order("FM", payload=b"bad"))
    until(lambda: change.over, job.client)
    assert job.told() == ["ChangeRequested", "ChangeAborted"]
    last = job.heard[-1]
    assert isinstance(last, ChangeAborted)
    assert "no module named 'missing'" in last.reason


def test_tasks_that_fail_for_one_reason_are_told_of_once(job: Job) -> None:
    job.client.begin(1, 0, 0)
    for number in range(3):
        job.client.failed(0, OperatorError("FM", "boom", f"row {number}", "story"))
    job.client.failed(0, OperatorError("FM", "bang", "row 3", "story"))
    until(lambda: len(job.server.failures) == 4)
    assert job.told() == ["OperatorFailed", "OperatorFailed"]
    first = job.heard[0]
    assert isinstance(first, OperatorFailed)
    assert first.headline == "operator 'FM' failed on row 0: boom"


def test_of_a_restored_change_nobody_knows_the_rows(site: Site) -> None:
    client, _ = site.join()
    site.change(client, replace(order("FM"), labels={"FM": "rules v2"}))
    batch(client, 1)
    server = site.restart(finished=1)
    (restored,) = server.history()
    assert (restored.state, restored.labels) == ("done", {"FM": "rules v2"})


def test_a_failure_of_an_earlier_driver_is_told_by_operator_and_row(site: Site) -> None:
    client, _ = site.join()
    change = site.change(client)
    batch(client, 1)
    reason = "operator 'FM' failed on row 7: boom\nTraceback: story"
    site.server.record_failure(
        change, Failed(ANY_BATCH, "FM", 1, "boom", "row 7", "story"), reason, WayBack.REPLAYED
    )
    site.server.flush()
    (restored,) = site.restart(finished=1).history()
    assert (restored.state, restored.reason) == ("rolled back", reason)


def test_what_is_told_of_rows_that_never_were_is_ignored(job: Job) -> None:
    change = job.change("FM")
    job.take("FM", 99, 5)
    job.take("other", 1, 5)
    job.take("FM", 1, 1)
    until(lambda: change.rows.get("FM") == Rows(1, 0))
    assert list(change.rows) == ["FM"]


def test_nothing_is_said_of_versions_while_there_is_no_change() -> None:
    plain = Counted({})
    assert len(ENCODER.encode(plain)) == len(ENCODER.encode(Counted({}, taken=())))
    some = Counted({}, taken=(Taken("FM", 1, 2, 3),))
    assert UP.decode(ENCODER.encode(some)) == some


def test_rows_of_a_change_that_is_not_young_are_told_rarely_and_at_the_end(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)
    monkeypatch.setattr("fries.control.reports.YOUNG_SECONDS", -1.0)
    change = job.change("FM")
    job.client.begin(2, 0, 0)
    for rows in range(10):
        job.client.took("FM", 1, rows, ())
        job.client.count("FM", rows, rows, 0.0)
    until(lambda: job.server.counters.get("FM", Counts()).taken == 45)
    assert not change.rows
    job.client.ended(Ended(2, 0, 0, {}))
    until(lambda: change.rows.get("FM") == Rows(45, 0))
    monkeypatch.setattr("fries.control.reports.RARE_SECONDS", -1.0)
    job.client.took("FM", 1, 5, ())
    job.client.count("FM", 5, 5, 0.0)
    until(lambda: change.rows["FM"] == Rows(50, 0))


def test_a_report_of_rows_is_on_its_way_within_the_time_of_a_report(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)
    change = job.change("FM")
    job.client.begin(2, 0, 0)
    job.client.took("FM", 1, 5, ())
    job.client.count("FM", 5, 5, 0.0)
    assert change.wait(time.monotonic() + PATIENCE, rows=5), "while its task goes on"
