"""A controller with a durable log, over real sockets: the log comes first, and is believed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from fries.change.model import Change, Phase
from fries.control.client import ControlClient
from fries.control.ledger import Ledger
from fries.control.messages import Ended, Go
from fries.control.wire import LARGE_BYTES
from fries.errors import LogError, OperatorError
from fries.log.log import Log
from tests.control.fakes import order, until
from tests.control.sites import Site, batch, met, model
from tests.files import PATIENCE, SHAPE, MemoryFiles, happened, hold

# The log comes first


def test_no_worker_hears_of_a_commit_before_the_log_has_it(site: Site) -> None:
    gate = hold(site.files, "commit")
    client, engine = site.join()
    change = site.server.request(order("FM"))
    site.files.wait_until_held("00000001.commit")
    assert client.begin(0, 0, 0) == Go((), ()), "tasks go on meanwhile, without it"
    assert (change.phase, change.ready) == (Phase.PREPARING, False)
    assert engine.told == [("load", 1)]
    gate.set()
    until(lambda: ("switch", 1) in engine.told, client)
    assert happened(site.files) == [1]


def test_the_log_has_the_intent_before_the_commit_and_the_end_last(site: Site) -> None:
    client, _ = site.join()
    client.begin(3, 0, 0)
    site.change(client)
    client.ended(met(3, 1))
    client.begin(4, 0, 0)
    site.files.wait_for("00000001.end")
    names = [name for name, _ in site.files.written[1:]]
    assert names == ["00000001.intent", "00000001.commit", "00000001.since", "00000001.end"]
    (logged,) = Log(site.files, SHAPE).changes
    assert logged.end is not None
    assert (logged.since, logged.end.phase) == (3, "done")


def test_a_change_for_the_boundary_is_logged_before_the_boundary_comes(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    change = site.server.request(order("FM", at_boundary=True))
    assert change.wait_ready(time.monotonic() + PATIENCE)
    assert (happened(site.files), change.phase) == ([1], Phase.PREPARING)
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(1, 0, 0) == Go((1,), ())


def test_a_boundary_that_finds_the_log_writing_lets_the_change_wait(site: Site) -> None:
    gate = hold(site.files, "commit")
    client, _ = site.join()
    client.begin(0, 0, 0)
    change = site.server.request(order("FM", at_boundary=True))
    site.files.wait_until_held("00000001.commit")
    client.ended(Ended(0, 0, 0, {}))
    assert batch(client, 1) == Go((), ())
    gate.set()
    assert change.wait_ready(time.monotonic() + PATIENCE)
    assert client.begin(1, 1, 0) == Go((), ()), "not in the middle of a batch"
    client.ended(Ended(1, 1, 0, {}))
    assert client.begin(2, 0, 0) == Go((1,), ())


def test_a_large_change_is_logged_as_it_is_shipped(site: Site) -> None:
    large = bytes(range(256)) * (2 * LARGE_BYTES // 256)
    parts = (memoryview(large), memoryview(b""), memoryview(b"small"))
    client, engine = site.join()
    client.begin(0, 0, 0)
    site.change(client, replace(order("FM"), buffers=parts))
    (logged,) = Log(site.files, SHAPE).changes
    assert [bytes(part) for part in logged.payload[1:]] == engine.parts[1] == [large, b"", b"small"]


# A log that fails


@pytest.mark.parametrize("kind", ["intent", "commit"])
@pytest.mark.parametrize("error", [LogError("disk full"), OSError("disk full")])
def test_a_log_that_fails_aborts_the_change_and_the_job_goes_on(
    site: Site, kind: str, error: Exception
) -> None:
    client, engine = site.join()
    client.begin(0, 0, 0)
    site.files.faults[kind] = error
    change = site.change(client)
    assert change.phase is Phase.ABORTED
    assert "the commit cannot be logged" in change.reason
    assert "disk full" in change.reason
    assert happened(site.files) == []
    del site.files.faults[kind]
    again = site.change(client)
    assert (again.number, again.phase) == (2, Phase.COMMITTED)
    assert ("switch", 1) not in engine.told
    assert happened(site.files) == [2]


def test_a_commit_that_was_written_and_could_not_be_made_safe_is_taken_back(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.files.late_faults["commit"] = LogError("the folder cannot be flushed")
    assert site.change(client).phase is Phase.ABORTED
    site.files.wait_for("00000001.end")
    assert "00000001.commit" in site.files.contents
    assert happened(site.files) == []


def test_what_another_driver_has_logged_is_left_alone(site: Site) -> None:
    """Two drivers on one checkpoint: the second may not even say how its change ended."""
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.files.contents["00000001.intent"] = b"of another driver"
    assert "another driver" in site.change(client).reason
    assert site.change(client).phase is Phase.COMMITTED
    assert site.files.contents["00000001.intent"] == b"of another driver"
    assert "00000001.end" not in site.files.contents


def test_an_end_that_cannot_be_written_is_told_and_does_no_harm(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.files.faults["end"] = LogError("disk full")
    change = site.change(client)
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(1, 0, 0) == Go((1,), ())
    assert change.phase is Phase.DONE
    until(lambda: "the log of changes could not be written: disk full" in caplog.text)
    assert happened(site.files) == [1]
    with pytest.raises(LogError, match="disk full"):
        site.server.flush()
    site.files.faults.clear()
    site.server.flush()
    assert "00000001.end" in site.files.contents, "it is written when somebody asks for it"


def test_a_change_that_the_log_may_have_is_not_called_aborted_when_the_flow_stops(
    site: Site,
) -> None:
    """Whoever comes back will find it in the log and finish it."""
    gate = hold(site.files, "commit")
    site.join()
    change = site.server.request(order("FM"))
    site.files.wait_until_held("00000001.commit")
    stopping = threading.Thread(target=site.server.stop)
    stopping.start()
    assert not change.wait(time.monotonic() + PATIENCE), "nobody will tell any more"
    gate.set()
    stopping.join()
    assert happened(site.files) == [1]
    assert change.phase is not Phase.ABORTED


def test_a_change_that_the_log_was_not_asked_about_is_aborted_when_the_flow_stops(
    site: Site,
) -> None:
    _, engine = site.join()
    with engine.loading:
        change = site.server.request(order("FM"))
        site.files.wait_for("00000001.intent")
        site.server.stop()
    assert (change.phase, change.reason) == (Phase.ABORTED, "the flow was stopped")
    assert happened(site.files) == []


# A log that is made shorter


def test_a_log_becomes_short_beside_the_changes_and_a_new_driver_goes_on(site: Site) -> None:
    client, _ = site.join()
    for number in range(30):
        client.begin(number, 0, 0)
        site.change(client)
        client.ended(met(number, number + 1))
    until(lambda: "00000002.segment" in site.files.contents and len(site.files.contents) < 60)
    server = site.restart(finished=29)
    assert [(c.number, c.phase) for c in server.history()] == [
        (number, Phase.DONE) for number in range(1, 31)
    ]
    assert happened(site.files) == list(range(1, 31))


def test_a_commit_waits_for_one_step_that_makes_the_log_shorter() -> None:
    """What was asked for while a segment is written comes before what it has is removed."""
    files = MemoryFiles()
    gate = hold(files, "segment")
    ledger, done, removed = Ledger(Log(files, SHAPE)), threading.Event(), list[int]()
    for number in range(1, 12):
        change = Change(number, order("FM"))
        change.move(Phase.DONE, "")
        ledger.intend(number, change.order)
        ledger.commit(number, lambda _: None)
        ledger.take_effect([number], number, lambda _: None)
        ledger.end(change)
    files.wait_until_held("00000001.segment")
    ledger.intend(12, order("FM"))
    ledger.commit(12, lambda _: done.set())
    files.when_written["00000012.commit"] = lambda: removed.append(len(files.removed))
    gate.set()
    assert done.wait(PATIENCE)
    ledger.close()
    assert removed == [0]


# A new driver


def test_a_new_driver_goes_on_where_the_last_one_left_off(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.change(client, model(b"one"))
    bad = site.change(client, order("FM", payload=b"bad"))
    assert bad.phase is Phase.ABORTED
    site.change(client, model(b"three", "MC"))
    server = site.restart(finished=0)
    assert [(c.number, c.phase) for c in server.history()] == [
        (1, Phase.DONE),
        (2, Phase.ABORTED),
        (3, Phase.DONE),
    ]
    assert server.finished == 0
    late, engine = site.join()
    assert engine.told == [(what, n) for n in (1, 3) for what in ("load", "adopt")]
    assert engine.parts == {1: [b"one"], 3: [b"three"]}
    assert late.begin(1, 0, 0) == Go((), ())
    assert site.change(late).number == 4
    assert happened(site.files) == [1, 3, 4]


def test_a_change_without_a_commit_never_happened_after_a_restart(site: Site) -> None:
    _, engine = site.join()
    with engine.loading:
        site.server.request(order("FM"))
        site.files.wait_for("00000001.intent")
        server = site.restart()
    (restored,) = server.history()
    assert restored.phase is Phase.ABORTED
    assert restored.reason == "the driver ended before it was committed"
    _, engine = site.join()
    assert engine.told == []


# What a worker reports


def test_failures_are_kept_until_the_query_begins_anew(site: Site) -> None:
    client, _ = site.join()
    client.begin(5, 0, 0)
    error = OperatorError("FM", "x" * 30_000, "row 7", "t" * 30_000 + "the end")
    client.failed(1, error)
    until(lambda: bool(site.server.failures))
    (failed,) = site.server.failures
    assert (failed.batch, failed.operator, failed.change, failed.row) == (5, "FM", 1, "row 7")
    assert failed.problem.startswith("xxx")
    assert failed.story.endswith("the end")
    assert len(failed.problem) + len(failed.story) < len(error.problem) + len(error.story)
    site.server.query_begins()
    assert site.server.failures == []


def test_a_failure_that_nobody_hears_is_no_failure_of_its_own(site: Site) -> None:
    client, _ = site.join()
    site.server.stop()
    until(lambda: client.broken)
    client.failed(1, OperatorError("FM", "boom"))


def test_a_function_that_does_not_return_is_told_of_until_it_does(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.client.STUCK_SECONDS", 0.01)
    client, _ = site.join()
    client.begin(0, 0, 0)
    client.calling("FM", 3)
    until(lambda: client.name in site.server.stuck)
    stuck = site.server.stuck[client.name]
    assert (stuck.operator, stuck.change) == ("FM", 3)
    until(lambda: site.server.stuck[client.name].seconds > stuck.seconds)
    client.returned()

    def calm() -> bool:
        client.ended(Ended(0, 0, 0, {}))
        return not site.server.stuck

    until(calm)


def test_a_worker_that_is_gone_is_not_stuck(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fries.control.client.STUCK_SECONDS", 0.01)
    client, _ = site.join()
    client.begin(0, 0, 0)
    client.calling("FM", 3)
    until(lambda: client.name in site.server.stuck)
    client.close()
    until(lambda: site.server.workers == ())
    assert site.server.stuck == {}


def weigh(client: ControlClient, change: Change, memory: list[int], megabytes: int) -> None:
    """A worker tells how much memory it uses."""
    memory[0] = megabytes << 20
    client.count("FM", 1, 1, 0.0)
    client.ended(Ended(0, 0, 0, {}))
    until(lambda: change.memory.get(client.name, (0, 0))[1] == megabytes << 20)


def test_a_worker_that_needs_much_more_memory_since_a_change_is_told_of_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = [0]
    monkeypatch.setattr("fries.control.reports.memory_used", lambda: memory[0])
    client, _ = site.join()
    client.begin(0, 0, 0)
    change = site.change(client)
    for megabytes in (100, 300, 356):
        weigh(client, change, memory, megabytes)
    assert caplog.text == "", "256 MB more are not too much yet"
    for megabytes in (357, 500):
        weigh(client, change, memory, megabytes)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"since change 1 of FM, worker {client.name} uses 257 MB more; does it keep its rows?"
    )
    assert change.memory == {client.name: (100 << 20, 500 << 20)}
