"""Tasks and batches: which changes a task begins with, and what a boundary between batches does."""

from __future__ import annotations

import threading
import time

import pytest

from fries.change.model import Phase
from fries.control.client import ControlClient
from fries.control.messages import Ended, Go
from fries.control.server import ControlServer
from fries.errors import WireError
from tests.control.fakes import (
    PATIENCE,
    SECRET,
    Join,
    Stubborn,
    order,
    settled,
    until,
)


def test_the_next_batch_makes_a_committed_change_part_of_its_base(
    server: ControlServer, join: Join
) -> None:
    client, engine = join()
    client.begin(batch=4, stage=0, partition=0)
    change = server.request(order("FM"))
    until(lambda: ("switch", 1) in engine.told, client)
    client.ended(Ended(4, 0, 0, {1: 123.0}))
    assert client.begin(batch=4, stage=1, partition=0) == Go((), (1,))
    client.ended(Ended(4, 1, 0, {}))
    assert client.begin(batch=5, stage=0, partition=0) == Go((1,), ())
    assert change.phase is Phase.DONE
    assert change.last_old == 123.0


def test_a_task_knows_every_commit_that_was_sent_before_it_began(
    server: ControlServer, join: Join
) -> None:
    """Even if its worker has not looked at the message: the answer comes behind it."""
    client, engine = join()
    client.begin(0, 0, 0)
    assert settled(server.request(order("FM"))) is Phase.COMMITTED
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(0, 0, 1) == Go((), (1,))
    assert engine.told == [("load", 1), ("switch", 1)]


def test_a_change_for_the_boundary_waits_for_the_next_batch(
    server: ControlServer, join: Join
) -> None:
    client, engine = join()
    client.begin(0, 0, 0)
    change = server.request(order("FM", at_boundary=True))
    engine.wait_for("load", 1)
    client.poll()
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(0, 1, 0) == Go((), ())
    phases = [change.phase]
    client.ended(Ended(0, 1, 0, {}))
    assert client.begin(1, 0, 0) == Go((1,), ())
    assert [*phases, change.phase] == [Phase.PREPARING, Phase.DONE]


def test_a_change_for_the_boundary_never_commits_in_the_middle_of_a_batch(
    server: ControlServer, join: Join
) -> None:
    """Not even if its loading ends there: it waits for the next boundary."""
    (client, _), (slow, engine) = join(), join()
    client.begin(0, 0, 0)
    with engine.loading:
        change = server.request(order("FM", at_boundary=True))
        client.ended(Ended(0, 0, 0, {}))
        assert client.begin(1, 0, 0) == Go((), ())
    engine.wait_for("load", 1)
    batch, go = 1, Go((), ())
    while not go.base:  # its answer to the load is under way: one of the next boundaries
        assert change.phase is Phase.PREPARING
        client.ended(Ended(batch, 0, 0, {}))
        batch += 1
        go = client.begin(batch, 0, 0)
        assert go.committed == (), "never in the middle of a batch"
    assert slow.begin(batch, 0, 1) == Go((1,), ())
    assert change.wait(time.monotonic())
    assert change.settled is not None


def test_a_worker_that_loads_slowly_begins_with_the_base_all_the_same(
    server: ControlServer, join: Join
) -> None:
    """It joins during the transition, and the transition is over before it has loaded."""
    client, _ = join()
    client.begin(0, 0, 0)
    assert settled(server.request(order("FM"))) is Phase.COMMITTED
    client.ended(Ended(0, 0, 0, {}))
    begun: list[Go] = []
    late, engine = join(held=True)
    try:
        client.begin(1, 0, 0)
        thread = threading.Thread(target=lambda: begun.append(late.begin(1, 0, 1)))
        thread.start()
        assert not begun
    finally:
        engine.loading.release()
    thread.join()
    assert begun == [Go((1,), ())]
    assert engine.told == [("load", 1), ("switch", 1)]


def test_a_change_for_the_boundary_is_ready_when_all_workers_have_loaded_it(
    server: ControlServer, join: Join
) -> None:
    (client, _), (_, slow) = join(), join(held=True)
    client.begin(0, 0, 0)
    try:
        change = server.request(order("FM", at_boundary=True))
        assert not change.wait_ready(time.monotonic())
        assert not change.ready
    finally:
        slow.loading.release()
    until(lambda: change.ready, client)
    assert change.wait_ready(time.monotonic())
    assert change.phase is Phase.PREPARING, "and waits for the boundary"


def test_after_a_cut_the_next_task_begins_a_new_batch(server: ControlServer, join: Join) -> None:
    """A query that is restarted runs the batch again that it was stopped in."""
    client, engine = join()
    client.begin(0, 0, 0)
    change = server.request(order("FM", at_boundary=True))
    assert change.wait_ready(time.monotonic() + PATIENCE)
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(0, 0, 1) == Go((), ()), "the same batch"
    client.ended(Ended(0, 0, 0, {}))
    server.query_begins()
    phases = [change.phase]
    assert client.begin(0, 0, 0) == Go((1,), ())
    assert [*phases, change.phase] == [Phase.COMMITTED, Phase.DONE]
    assert engine.told == [("load", 1), ("switch", 1)]


def test_a_worker_that_comes_after_a_cut_begins_with_the_change(
    server: ControlServer, join: Join
) -> None:
    """It is told to load the change, and its first task waits until it has."""
    client, _ = join()
    client.begin(0, 0, 0)
    change = server.request(order("FM", at_boundary=True))
    assert change.wait_ready(time.monotonic() + PATIENCE)
    client.ended(Ended(0, 0, 0, {}))
    server.query_begins()
    late, engine = join()
    assert change.settled is None, "nothing runs with it yet"
    assert late.begin(0, 0, 0) == Go((1,), ())
    assert engine.told == [("load", 1), ("switch", 1)]
    assert change.settled is not None


def test_late_tasks_of_older_batches_are_no_boundary(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(4, 0, 0)
    client.ended(Ended(4, 0, 0, {}))
    client.begin(5, 0, 0)
    change = server.request(order("FM"))
    client.ended(Ended(5, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    for batch in (4, 5):
        assert client.begin(batch, 0, 1) == Go((), (1,))
        client.ended(Ended(batch, 0, 1, {}))
    assert client.begin(6, 0, 0) == Go((1,), ())


def test_batch_jobs_that_run_together_are_one_batch(server: ControlServer, join: Join) -> None:
    (first, _), (second, _) = join(), join()
    first.begin(-1, 0, 0)
    second.begin(-2, 0, 0)
    first.ended(Ended(-1, 0, 0, {}))
    change = server.request(order("FM"))
    second.ended(Ended(-2, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    assert second.begin(-2, 1, 0) == Go((), (1,)), "its next stage, though nothing else runs"
    second.ended(Ended(-2, 1, 0, {}))
    assert first.begin(-3, 0, 0) == Go((1,), ())


def test_a_change_for_the_boundary_does_not_wait_for_a_newcomer(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM", at_boundary=True))
    assert change.wait_ready(time.monotonic() + PATIENCE)
    client.ended(Ended(1, 0, 0, {}))
    late, engine = join()
    assert late.begin(2, 0, 0) == Go((1,), ())
    assert engine.told == [("load", 1), ("switch", 1)]


def test_a_newcomer_that_cannot_load_a_committed_change_says_so(
    server: ControlServer, join: Join
) -> None:
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM"))
    client.ended(Ended(1, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    stubborn = Stubborn()
    late = ControlClient(server.address, SECRET, "fraud", stubborn)
    with pytest.raises(WireError, match=r"(?s)change 1 cannot be loaded here.*not today"):
        late.begin(1, 0, 0)
    assert late.broken
    until(lambda: len(server.workers) == 1)
    again = server.request(order("MC"))
    assert again.wait(time.monotonic() + PATIENCE), "it is not waited for"


def test_between_batches_what_is_committed_is_done(server: ControlServer, join: Join) -> None:
    client, _ = join()
    client.begin(1, 0, 0)
    change = server.request(order("FM"))
    client.ended(Ended(1, 0, 0, {}))
    assert change.wait(time.monotonic() + PATIENCE)
    server.batches_committed(0)
    assert not change.over, "batch 1 may have more stages"
    server.batches_committed(1)
    assert change.over
    assert client.begin(2, 0, 0) == Go((1,), ())
