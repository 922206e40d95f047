"""Listeners hear everything in order, and harm nobody; what is logged reads well."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

from fries import listening
from fries.events import (
    ChangeAborted,
    ChangeCommitted,
    ChangeDone,
    ChangeRequested,
    ChangeRolledBack,
    Event,
    OperatorFailed,
    QueryEnded,
    QueryGivenUp,
    QueryRestarting,
    QueryStarted,
)
from fries.listening import Announcer
from tests.waiting import PATIENCE

WHAT = ("demo", 3, ("score", "judge"), ("rules v2", "#1f0c93ab"))


@pytest.fixture
def announcer() -> Iterator[Announcer]:
    made = Announcer("demo")
    yield made
    made.close()


def events(count: int) -> list[Event]:
    return [QueryStarted("demo", str(number)) for number in range(count)]


def test_a_listener_hears_everything_in_order_on_a_thread_of_its_own(announcer: Announcer) -> None:
    heard: list[Event] = []
    threads: set[threading.Thread] = set()

    def callback(event: Event) -> None:
        heard.append(event)
        threads.add(threading.current_thread())

    announcer.listen(callback)
    told = events(100)
    for event in told:
        announcer.tell(event)
    announcer.close()  # waits for the last ones
    assert heard == told
    assert len(threads) == 1
    assert threading.current_thread() not in threads


class SecretiveError(Exception):
    """Whoever tells of it fails."""

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        """Nobody may know."""
        raise SystemExit("no cause")


@pytest.mark.parametrize(
    "error", [ValueError("not today"), SystemExit("not today"), SecretiveError("not today")]
)
def test_a_listener_that_raises_hears_the_next_event(
    announcer: Announcer, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    heard: list[Event] = []

    def callback(event: Event) -> None:
        heard.append(event)
        raise error

    announcer.listen(callback)
    told = events(2)
    for event in told:
        announcer.tell(event)
    announcer.close()
    assert heard == told
    assert caplog.text.count("a listener failed on: flow 'demo': query") == 2
    assert "not today" in caplog.text


def test_a_listener_that_hangs_delays_nobody_and_its_memory_is_bounded(
    announcer: Announcer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "MOST_WAITING", 5)
    gate, began = threading.Event(), threading.Event()

    def hang(_: Event) -> None:
        began.set()
        gate.wait(PATIENCE)

    slow = announcer.listen(hang)
    heard: list[Event] = []
    monkeypatch.setattr(listening, "MOST_WAITING", 10_000)
    announcer.listen(heard.append)
    told = events(50)
    announcer.tell(told[0])
    assert began.wait(PATIENCE)
    for event in told[1:]:
        announcer.tell(event)
    assert slow.lost == 49 - 5
    assert caplog.text.count("a listener is too slow") == 1
    gate.set()
    announcer.close()
    assert heard == told


def test_a_listener_that_stops_hears_no_more_and_may_stop_itself(announcer: Announcer) -> None:
    heard: list[Event] = []
    with announcer.listen(heard.append):
        pass
    once = threading.Event()

    def callback(_: Event) -> None:
        listener.stop()
        once.set()

    listener = announcer.listen(callback)
    announcer.tell(QueryEnded("demo"))
    assert once.wait(PATIENCE)
    once.clear()
    announcer.tell(QueryEnded("demo"))
    announcer.close()
    assert heard == []
    assert not once.is_set()


def test_a_flow_can_be_stopped_by_its_listener(announcer: Announcer) -> None:
    closed = threading.Event()

    def callback(_: Event) -> None:
        announcer.close()
        closed.set()

    announcer.listen(callback)
    announcer.tell(QueryEnded("demo"))
    assert closed.wait(PATIENCE)


LINES: dict[str, tuple[Event, int, str]] = {
    "requested": (
        ChangeRequested(*WHAT, scheduler="epoch", note="ticket 17"),
        logging.INFO,
        "change 3 of score (rules v2), judge (#1f0c93ab) is requested by epoch (ticket 17)",
    ),
    "committed": (
        ChangeCommitted("demo", 1, ("score",), ("",)),
        logging.INFO,
        "change 1 of score is committed",
    ),
    "done": (
        ChangeDone(*WHAT, delay=0.0125),
        logging.INFO,
        "change 3 of score (rules v2), judge (#1f0c93ab) is done, switched after 12.5 ms",
    ),
    "aborted": (
        ChangeAborted(*WHAT, reason="no module\nTraceback"),
        logging.WARNING,
        "change 3 of score (rules v2), judge (#1f0c93ab) is aborted: no module",
    ),
    "rolled back": (
        ChangeRolledBack(
            "demo", 1, ("F",), ("v2",), "operator 'F' failed: boom\nstory", "F", "", "boom", "story"
        ),
        logging.WARNING,
        "change 1 of F (v2) is rolled back: operator 'F' failed: boom\n    story",
    ),
    "failed": (
        OperatorFailed("demo", "F", 0, "{'id': 1}", "ValueError('x')", "one\ntwo\n"),
        logging.ERROR,
        "operator 'F' failed on {'id': 1}: ValueError('x')\n    one\n    two",
    ),
    "started": (QueryStarted("demo", "abc"), logging.INFO, "query abc is started"),
    "restarting": (
        QueryRestarting("demo", "it broke", 2, 5, 2.0),
        logging.WARNING,
        "the query failed, restart 2 of 5 in 2.0 s: it broke",
    ),
    "given up": (
        QueryGivenUp("demo", "it broke"),
        logging.ERROR,
        "the query is given up: it broke",
    ),
    "ended": (QueryEnded("demo"), logging.INFO, "the query has ended"),
}


@pytest.mark.parametrize("case", LINES)
def test_each_event_is_one_record_of_the_log(
    case: str, announcer: Announcer, caplog: pytest.LogCaptureFixture
) -> None:
    event, level, line = LINES[case]
    caplog.set_level(logging.DEBUG, "fries.events")
    announcer.tell(event)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, f"flow 'demo': {line}")


def test_events_cannot_be_changed() -> None:
    event = QueryEnded("demo")
    with pytest.raises(AttributeError):
        event.flow = "other"  # type: ignore[misc]
    assert event.time.tzinfo is not None
    assert hash(LINES["requested"][0])
