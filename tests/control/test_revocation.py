"""Changes that are taken back with their batch, and functions that are of no more use."""

from __future__ import annotations

from dataclasses import replace

from fries.change.model import Phase
from fries.change.store import LOGGED
from fries.control.client import ControlClient
from fries.control.live import LiveChange
from fries.control.messages import Ended, Go
from fries.log.log import Log
from tests.control.fakes import FakeEngine, order, until
from tests.control.sites import Site, batch, met, model
from tests.files import SHAPE, happened, hold


def fresh_worker(site: Site) -> tuple[ControlClient, FakeEngine]:
    """After a revocation: the old workers are gone, and another one comes."""
    until(lambda: site.server.workers == ())
    return site.join()


def running(site: Site, number: int) -> ControlClient:
    """A worker with a task of a batch."""
    client, _ = site.join()
    client.begin(number, 0, 0)
    return client


def sizes(site: Site) -> dict[int, int]:
    """By change, the parts of its functions that the log still has."""
    return {one.number: len(one.payload) for one in Log(site.files, SHAPE).changes}


# Before and after the batch is committed


def test_a_change_in_transition_is_taken_back_with_its_batch(site: Site) -> None:
    client = running(site, 5)
    change = site.change(client)
    assert site.revoke(1, "it raised")
    assert (change.phase, change.reason) == (Phase.ROLLED_BACK, "it raised")
    assert change.wait()
    until(lambda: client.broken, client)
    site.server.query_begins()
    late, engine = fresh_worker(site)
    assert late.begin(5, 0, 0) == Go((), ())
    assert engine.told == []
    site.files.wait_for("00000001.end")
    assert happened(site.files) == []


def test_a_change_that_a_replayed_batch_began_with_is_taken_back_too(site: Site) -> None:
    client = running(site, 5)
    change = site.change(client)
    client.ended(Ended(5, 0, 0, {}, complete=False))
    site.server.query_begins()
    assert client.begin(5, 0, 0) == Go((1,), ()), "replayed: all its rows are new"
    phases = [change.phase]
    assert site.revoke(1, "it raised again")
    assert [*phases, change.phase] == [Phase.DONE, Phase.ROLLED_BACK]
    assert site.server.updates_of("FM") == 0
    site.server.query_begins()
    late, engine = fresh_worker(site)
    assert late.begin(5, 0, 0) == Go((), ())
    assert engine.told == []
    site.server.stop()
    assert happened(site.files) == [], "its first end is replaced"


def test_a_change_whose_batch_is_committed_has_happened(site: Site) -> None:
    client = running(site, 5)
    change = site.change(client)
    client.ended(met(5, 1))
    assert client.begin(6, 0, 0) == Go((1,), ())
    assert not site.revoke(1, "too late")
    assert change.phase is Phase.DONE
    client.poll()
    assert not client.broken, "nobody begins anew for nothing"
    client.ended(Ended(6, 0, 0, {}))
    assert batch(client, 7) == Go((), ()), "it knows"


def test_spark_may_tell_that_the_batch_is_committed(site: Site) -> None:
    client = running(site, 5)
    site.change(client)
    client.ended(met(5, 1))
    site.server.batches_committed(5)
    assert site.server.finished == 5
    assert not site.revoke(1, "too late")


def test_a_change_between_two_batches_is_taken_back_with_the_second(site: Site) -> None:
    client, _ = site.join()
    batch(client, 5)
    site.server.batches_committed(5)
    change = site.server.request(order("FM"))
    until(lambda: change.phase is Phase.COMMITTED)
    assert client.begin(6, 0, 0) == Go((1,), ())
    assert site.revoke(1, "it raised")
    assert change.phase is Phase.ROLLED_BACK


def test_a_change_of_batch_jobs_cannot_be_taken_back(site: Site) -> None:
    client = running(site, -7)
    change = site.change(client)
    assert not site.revoke(1, "it raised")
    assert change.phase is Phase.COMMITTED


def test_what_never_happened_cannot_be_taken_back(site: Site) -> None:
    client = running(site, 5)
    site.change(client, order("FM", payload=b"bad"))
    assert not site.revoke(1, "it raised")
    assert not site.revoke(7, "never requested")


def test_after_a_restart_only_what_the_last_batch_brought_can_be_taken_back(site: Site) -> None:
    client = running(site, 5)
    site.change(client)
    client.ended(met(5, 1))
    client.begin(6, 0, 0)
    site.change(client)
    site.restart(finished=5)
    assert not site.revoke(1, "too late")
    assert site.revoke(2, "it raised")
    _, engine = site.join()
    assert engine.told == [("load", 1), ("adopt", 1)]


# What goes with it


def test_later_changes_go_with_it_and_earlier_ones_stay(site: Site) -> None:
    client = running(site, 5)
    first, second, third = (site.change(client) for _ in range(3))
    assert site.revoke(2, "it raised")
    phases = [change.phase for change in (first, second, third)]
    assert phases == [Phase.COMMITTED, Phase.ROLLED_BACK, Phase.ROLLED_BACK]
    site.server.query_begins()
    late, engine = fresh_worker(site)
    assert late.begin(5, 0, 0) == Go((1,), ())
    assert engine.told == [("load", 1), ("switch", 1)]
    until(lambda: happened(site.files) == [1])


def test_a_driver_that_dies_in_the_middle_leaves_no_change_without_those_it_was_built_on(
    site: Site,
) -> None:
    """The log hears of the newest first: whatever is left of them is a beginning."""
    client = running(site, 5)
    for _ in range(3):
        site.change(client)
    assert site.revoke(1, "it raised")
    site.server.stop()
    ends = [name for name, _ in site.files.written if name.endswith(".end")]
    assert ends == ["00000003.end", "00000002.end", "00000001.end"]


def test_later_changes_that_wait_are_taken_back_too(site: Site) -> None:
    """They were built on it: their migrations expect its states."""
    client = running(site, 5)
    site.change(client)
    held = site.server.request(order("FM", at_boundary=True))
    until(lambda: held.ready, client)
    queued = site.server.request(order("FM"))
    assert (held.phase, queued.phase) == (Phase.PREPARING, Phase.QUEUED)
    assert site.revoke(1, "it raised")
    assert (held.phase, queued.phase) == (Phase.ROLLED_BACK, Phase.ABORTED)
    site.server.query_begins()
    late, engine = fresh_worker(site)
    assert late.begin(5, 0, 0) == Go((), ())
    assert engine.told == []
    site.server.stop()
    assert happened(site.files) == [], "although the log has the commit of both"


def test_a_later_change_whose_commit_is_being_written_goes_with_it(site: Site) -> None:
    client = running(site, 5)
    site.change(client)
    gate = hold(site.files, "commit")
    second = site.server.request(order("FM"))
    until(lambda: site.files.held("00000002.commit"), client)
    assert site.revoke(1, "it raised")
    gate.set()
    site.files.wait_for("00000002.end")
    assert second.phase is Phase.ROLLED_BACK
    assert happened(site.files) == []
    site.server.query_begins()
    late, _ = fresh_worker(site)
    late.begin(5, 0, 0)
    third = site.change(late)
    assert (third.number, third.phase) == (3, Phase.COMMITTED), "the controller is well"


def test_functions_that_a_revoked_change_had_replaced_are_still_there(site: Site) -> None:
    client = running(site, 1)
    site.change(client, model(b"one"))
    client.ended(Ended(1, 0, 0, {}))
    client.begin(2, 0, 0)
    site.change(client, model(b"two"))
    client.ended(Ended(2, 0, 0, {}, complete=False))
    site.server.query_begins()
    client.begin(2, 0, 0)
    assert site.revoke(2, "it raised")
    site.server.query_begins()
    late, engine = fresh_worker(site)
    assert engine.parts == {1: [b"one"]}
    assert ("adopt", 1) in engine.told
    assert late.begin(2, 0, 0) == Go((), ())


# Functions that are of no more use


def replaced_in_turn(site: Site, count: int) -> list[LiveChange]:
    """Changes of one operator, a batch each; the last one's batch is not committed."""
    client = running(site, 1)
    made = []
    for number in range(1, count + 1):
        made.append(site.change(client, model(b"%d" % number)))
        client.ended(met(number, number))
        client.begin(number + 1, 0, 0)
    return made


def test_functions_are_forgotten_when_another_change_has_replaced_them_for_good(
    site: Site,
) -> None:
    changes = replaced_in_turn(site, 3)
    assert [bytes(change.order.payload) for change in changes] == [
        b"migrations",
        b"migrations",
        b"good",
    ]
    _, engine = site.join()
    assert engine.parts == {2: [], 3: [b"3"]}, "of the first only the number is left"


def test_the_log_keeps_some_versions_more_for_undos(site: Site) -> None:
    replaced_in_turn(site, LOGGED + 2)
    kept = dict.fromkeys(range(3, LOGGED + 3), 2)
    until(lambda: sizes(site) == {1: 0, 2: 0, **kept})
    shrunk = [name for name, _ in site.files.written].count("00000001.intent") - 1
    assert shrunk == 1, "once is enough"
    (first, *_) = Log(site.files, SHAPE).changes
    assert first.intent is not None
    assert first.intent.residue == b"migrations"
    assert happened(site.files) == list(range(1, LOGGED + 3))


def test_functions_stay_while_the_change_that_replaced_them_may_be_revoked(site: Site) -> None:
    client = running(site, 1)
    first = site.change(client, model(b"one"))
    client.ended(Ended(1, 0, 0, {}))
    client.begin(2, 0, 0)
    site.change(client, model(b"two"))
    client.ended(Ended(2, 0, 0, {}, complete=False))
    site.server.query_begins()
    client.begin(2, 0, 0)  # now it is in the base, but the batch is not committed
    assert first.order.buffers
    client.ended(Ended(2, 0, 0, {}))
    client.begin(3, 0, 0)
    assert not first.order.buffers


def test_functions_stay_while_one_of_the_operators_still_has_them(site: Site) -> None:
    client = running(site, 1)
    first = site.change(client, model(b"both", "FM", "MC"))
    for number in (1, 2, 3):
        client.ended(Ended(number, 0, 0, {}))
        client.begin(number + 1, 0, 0)
        site.change(client, model(b"one", "FM"))
    assert first.order.buffers
    assert sizes(site)[1] == 2


def test_what_was_rolled_back_keeps_no_functions_in_memory(site: Site) -> None:
    client = running(site, 1)
    change = site.change(client, replace(model(b"one"), residue=b""))
    assert site.revoke(1, "it raised")
    assert (change.order.payload, change.order.buffers) == (b"", ())


def test_what_was_replaced_for_good_is_not_revoked_nor_is_what_came_after_it(site: Site) -> None:
    """Else the undos of later changes would be dropped, and what they took back be in force."""
    client = running(site, 1)
    for number in (1, 2, 3, 4):
        site.change(client, model(b"%d" % number))
        client.ended(met(number, number))
        client.begin(number + 1, 0, 0)
    client.ended(Ended(5, 0, 0, {}))
    site.server.batches_committed(5)
    site.server.query_begins()
    undo = site.change(client, replace(model(b"3"), automatic=True, undoes=4))
    assert not site.server.revoke({2: "suspected", undo.number: "it was made as of change 2"})
    assert undo.phase is not Phase.ROLLED_BACK
    assert [one.phase for one in site.server.history()[:4]] == [Phase.DONE] * 4
