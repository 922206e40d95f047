"""The worker's machine in a pipeline: the exact instructions for each event."""

from __future__ import annotations

import pickle

import pytest

from fries.errors import ProtocolError
from fries.protocol.messages import (
    CancelCheckpoint,
    Commit,
    Part,
    Prepare,
    Prepared,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
    ToWorker,
)
from fries.protocol.worker_events import Drop, Load, Loaded, Received, Say, Switch
from fries_lab.sim.worker_machine import (
    AligningEvent,
    AligningInstruction,
    AligningWorker,
    BarrierArrived,
    Block,
    MarkerArrived,
    SendMarkers,
    TakeSnapshot,
    Unblock,
)

HEAD = Part(("FM",), head=True, forwards=(7, 8))
MIDDLE = Part(awaits=frozenset({1, 2}), forwards=(9,))
LAST = Part(("MC",), awaits=frozenset({1}))


def fresh(*inputs: int) -> AligningWorker:
    return AligningWorker.of("MC#0", frozenset(inputs))


def after(worker: AligningWorker, *events: AligningEvent) -> AligningWorker:
    """The worker's state behind some events."""
    for event in events:
        worker, _ = worker.handle(event)
    return worker


def answer(worker: AligningWorker, event: AligningEvent) -> list[AligningInstruction]:
    """The worker's instructions for one event."""
    return list(worker.handle(event)[1])


def prepared(part: Part, *inputs: int, change: int = 1) -> AligningWorker:
    return after(fresh(*inputs), Received(Prepare(change, part)), Loaded(change))


# Prepare, commit, retire


def test_prepare_loads_and_the_answer_waits_for_the_load() -> None:
    worker = fresh()
    assert answer(worker, Received(Prepare(1, HEAD))) == [Load(1)]
    loading = after(worker, Received(Prepare(1, HEAD)))
    assert loading.core.loading == (1,)
    assert answer(loading, Loaded(1)) == [Say(Prepared(1))]
    assert after(loading, Loaded(1)).core.loading == ()


def test_a_head_switches_on_commit_then_sends_markers_then_replies() -> None:
    worker = prepared(HEAD)
    assert answer(worker, Received(Commit(1))) == [
        Switch(1, ("FM",)),
        SendMarkers(1, (7, 8)),
        Say(Switched(1)),
    ]
    assert after(worker, Received(Commit(1))).core.effective == {1}


def test_a_head_without_inner_outputs_sends_no_markers() -> None:
    worker = prepared(Part(("FM",), head=True))
    assert answer(worker, Received(Commit(1))) == [Switch(1, ("FM",)), Say(Switched(1))]


def test_a_member_that_is_no_target_switches_nothing_but_passes_markers_on() -> None:
    worker = prepared(Part(awaits=frozenset({1}), forwards=(9,)), 1)
    assert answer(worker, MarkerArrived(1, 1)) == [
        Switch(1, ()),
        SendMarkers(1, (9,)),
        Unblock(frozenset({1})),
        Say(Switched(1)),
    ]


def test_the_commit_message_means_nothing_to_who_waits_for_markers() -> None:
    worker = prepared(LAST, 1)
    assert worker.handle(Received(Commit(1))) == (worker, ())


def test_retire_drops_the_old_configuration_and_forgets_the_change() -> None:
    worker = after(prepared(HEAD), Received(Commit(1)))
    assert answer(worker, Received(Retire(1))) == [Drop(1)]
    assert after(worker, Received(Retire(1))).parts == ()


def test_several_changes_at_once_are_told_apart() -> None:
    worker = after(prepared(HEAD), Received(Commit(1)), Received(Prepare(2, HEAD)), Loaded(2))
    assert [change for change, _ in worker.parts] == [1, 2]
    assert answer(worker, Received(Commit(2))) == [
        Switch(2, ("FM",)),
        SendMarkers(2, (7, 8)),
        Say(Switched(2)),
    ]
    worker = after(worker, Received(Commit(2)), Received(Retire(1)))
    assert worker.parts == ((2, HEAD),)
    assert worker.core.effective == {1, 2}


# Loads that come late


def test_a_change_that_is_retired_while_loading_is_adopted_once_loaded() -> None:
    """It has become part of the base meanwhile, so the worker must not go without it."""
    worker = after(fresh(), Received(Prepare(1, HEAD)), Received(Commit(1)), Received(Retire(1)))
    assert answer(worker, Loaded(1)) == [
        Say(Prepared(1)),
        Switch(1, HEAD.targets),
        *([SendMarkers(1, HEAD.forwards)] if HEAD.forwards else []),
        Say(Switched(1)),
        Drop(1),
    ]
    assert after(worker, Loaded(1)).parts == ()


def test_a_commit_before_the_load_ends_waits_for_it() -> None:
    worker = after(fresh(), Received(Prepare(1, HEAD)))
    assert answer(worker, Received(Commit(1))) == []
    early = after(worker, Received(Commit(1)))
    assert early.core.early == {1}
    assert answer(early, Loaded(1)) == [
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        SendMarkers(1, (7, 8)),
        Say(Switched(1)),
    ]
    done = after(early, Loaded(1))
    assert not done.core.early
    assert not done.core.loading
    assert done.core.effective == {1}


def test_changes_are_switched_to_in_the_order_of_their_numbers_however_they_load() -> None:
    """A worker that joins late gets all changes at once, and loads may end in any order."""
    commands: list[ToWorker] = [Prepare(1, HEAD), Commit(1), Prepare(2, HEAD), Commit(2)]
    worker = after(fresh(), *map(Received, commands))
    assert answer(worker, Loaded(2)) == [Say(Prepared(2))], "not before the first"
    assert answer(after(worker, Loaded(2)), Loaded(1)) == [
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        SendMarkers(1, (7, 8)),
        Say(Switched(1)),
        Switch(2, ("FM",)),
        SendMarkers(2, (7, 8)),
        Say(Switched(2)),
    ]


def test_a_commit_waits_for_the_load_of_an_earlier_change() -> None:
    commands: list[ToWorker] = [Prepare(1, HEAD), Commit(1), Prepare(2, HEAD)]
    worker = after(fresh(), *map(Received, commands), Loaded(2))
    assert answer(worker, Received(Commit(2))) == []
    assert after(worker, Received(Commit(2)), Loaded(1)).core.effective == {1, 2}


def test_markers_that_are_complete_before_the_load_ends_wait_for_it() -> None:
    worker = after(fresh(1, 2), Received(Prepare(1, MIDDLE)), MarkerArrived(1, 1))
    assert answer(worker, MarkerArrived(1, 2)) == [Block(2)], "nothing may pass before the switch"
    assert answer(after(worker, MarkerArrived(1, 2)), Loaded(1)) == [
        Say(Prepared(1)),
        Switch(1, ()),
        SendMarkers(1, (9,)),
        Unblock(frozenset({1, 2})),
        Say(Switched(1)),
    ]


# Marker alignment


def test_alignment_blocks_until_the_last_marker_then_switches_forwards_and_unblocks() -> None:
    worker = prepared(Part(("F",), awaits=frozenset({1, 2, 3}), forwards=(9,)), 1, 2, 3, 4)
    assert answer(worker, MarkerArrived(1, 2)) == [Block(2)]
    worker = after(worker, MarkerArrived(1, 2))
    assert answer(worker, MarkerArrived(1, 3)) == [Block(3)]
    worker = after(worker, MarkerArrived(1, 3))
    assert worker.markers == ((1, frozenset({2, 3})),)
    assert answer(worker, MarkerArrived(1, 1)) == [
        Switch(1, ("F",)),
        SendMarkers(1, (9,)),
        Unblock(frozenset({1, 2, 3})),
        Say(Switched(1)),
    ]
    assert after(worker, MarkerArrived(1, 1)).markers == ()


def test_two_changes_align_one_after_the_other() -> None:
    worker = prepared(MIDDLE, 1, 2)
    worker = after(worker, Received(Prepare(2, MIDDLE)), Loaded(2))
    worker = after(worker, MarkerArrived(1, 1), MarkerArrived(1, 2))
    assert worker.core.effective == {1}
    assert answer(worker, MarkerArrived(2, 2)) == [Block(2)]
    assert answer(after(worker, MarkerArrived(2, 2)), MarkerArrived(2, 1)) == [
        Switch(2, ()),
        SendMarkers(2, (9,)),
        Unblock(frozenset({1, 2})),
        Say(Switched(2)),
    ]


# What the protocol does not allow


@pytest.mark.parametrize(
    ("worker", "event", "problem"),
    [
        (prepared(HEAD), Received(Prepare(1, HEAD)), "change 1 was prepared twice"),
        (fresh(), Received(Commit(1)), "change 1 was never prepared here"),
        (
            after(prepared(HEAD), Received(Commit(1))),
            Received(Commit(1)),
            "change 1 was committed twice",
        ),
        (
            after(fresh(), Received(Prepare(1, HEAD)), Received(Commit(1))),
            Received(Commit(1)),
            "change 1 was committed twice",
        ),
        (
            after(prepared(HEAD), Received(Commit(1)), Received(Retire(1))),
            Received(Commit(1)),
            "change 1 was never prepared here",
        ),
        (prepared(LAST, 1, 2), MarkerArrived(1, 2), "no marker of change 1 belongs on 2"),
        (prepared(HEAD, 1), MarkerArrived(1, 1), "no marker of change 1 belongs on 1"),
        (fresh(1), MarkerArrived(1, 1), "change 1 was never prepared here"),
        (
            after(prepared(LAST, 1), MarkerArrived(1, 1)),
            MarkerArrived(1, 1),
            "change 1 was committed twice",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    worker: AligningWorker, event: AligningEvent, problem: str
) -> None:
    with pytest.raises(ProtocolError) as raised:
        worker.handle(event)
    assert str(raised.value) == f"MC#0: {problem}"
    assert pickle.loads(pickle.dumps(raised.value)).problem == problem


# Checkpoints


def test_a_source_takes_its_snapshot_at_once() -> None:
    assert answer(fresh(), Received(StartCheckpoint(1))) == [
        TakeSnapshot(1),
        Say(Snapshotted(1)),
    ]
    assert after(fresh(), Received(StartCheckpoint(1))).checkpoint == 1


def test_barriers_are_aligned_over_all_inputs() -> None:
    worker = fresh(1, 2)
    assert answer(worker, BarrierArrived(1, 2)) == [Block(2)]
    worker = after(worker, BarrierArrived(1, 2))
    assert worker.barriers == {2}
    assert answer(worker, BarrierArrived(1, 1)) == [
        TakeSnapshot(1),
        Say(Snapshotted(1)),
        Unblock(frozenset({1, 2})),
    ]
    done = after(worker, BarrierArrived(1, 1))
    assert (done.checkpoint, done.barriers) == (1, frozenset())


def test_cancel_stops_alignment_and_barriers_of_the_checkpoint_mean_nothing_more() -> None:
    worker = after(fresh(1, 2), BarrierArrived(1, 2))
    assert answer(worker, Received(CancelCheckpoint(1))) == [Unblock(frozenset({2}))]
    worker = after(worker, Received(CancelCheckpoint(1)))
    assert worker.handle(BarrierArrived(1, 1)) == (worker, ())
    assert answer(worker, BarrierArrived(2, 1)) == [Block(1)]


@pytest.mark.parametrize("seen", [(), (1, 2)], ids=["before", "after"])
def test_cancel_before_and_after_the_snapshot(seen: tuple[int, ...]) -> None:
    worker = after(fresh(1, 2), *(BarrierArrived(1, channel) for channel in seen))
    assert answer(worker, Received(CancelCheckpoint(1))) == []
    assert after(worker, Received(CancelCheckpoint(1))).cancelled == 1


def test_a_newer_barrier_overtakes_the_cancel() -> None:
    worker = after(fresh(1, 2, 3), BarrierArrived(1, 2))
    assert answer(worker, BarrierArrived(2, 1)) == [Unblock(frozenset({2})), Block(1)]
    worker = after(worker, BarrierArrived(2, 1))
    assert (worker.checkpoint, set(worker.barriers)) == (2, {1})
    assert answer(worker, Received(CancelCheckpoint(1))) == [], "the newer one goes on"
    worker = after(worker, Received(CancelCheckpoint(1)))
    assert (worker.checkpoint, set(worker.barriers), worker.cancelled) == (2, {1}, 1)
    assert answer(after(worker, BarrierArrived(2, 2)), BarrierArrived(2, 3)) == [
        TakeSnapshot(2),
        Say(Snapshotted(2)),
        Unblock(frozenset({1, 2, 3})),
    ]


def test_a_single_input_is_never_blocked() -> None:
    worker = fresh(1)
    for checkpoint in (1, 2):
        assert answer(worker, BarrierArrived(checkpoint, 1)) == [
            TakeSnapshot(checkpoint),
            Say(Snapshotted(checkpoint)),
            Unblock(frozenset({1})),
        ]
        worker = after(worker, BarrierArrived(checkpoint, 1))


def test_an_older_barrier_behind_a_newer_one_means_nothing() -> None:
    """It was cancelled, or the newer one would not exist: the cancel is still on its way.

    It used to count for the newer checkpoint, which then blocked a channel for ever.
    """
    worker = after(fresh(1, 2), BarrierArrived(2, 1))
    assert worker.handle(BarrierArrived(1, 2)) == (worker, ())
    assert answer(worker, BarrierArrived(2, 2)) == [
        TakeSnapshot(2),
        Say(Snapshotted(2)),
        Unblock(frozenset({1, 2})),
    ]


def test_barriers_and_markers_are_aligned_side_by_side() -> None:
    worker = prepared(Part(("F",), awaits=frozenset({1, 2})), 1, 2, 3)
    worker = after(worker, BarrierArrived(1, 3), MarkerArrived(1, 1))
    assert worker.barriers == {3}
    assert worker.markers == ((1, frozenset({1})),)
    assert answer(worker, MarkerArrived(1, 2)) == [
        Switch(1, ("F",)),
        Unblock(frozenset({1, 2})),
        Say(Switched(1)),
    ]
    worker = after(worker, MarkerArrived(1, 2), BarrierArrived(1, 1))
    assert answer(worker, BarrierArrived(1, 2))[:2] == [TakeSnapshot(1), Say(Snapshotted(1))]


# States and messages as values


def test_states_are_values() -> None:
    """The explorer keeps states in sets: equal ones must be equal, and none may change."""
    worker = fresh(1, 2)
    events: list[AligningEvent] = [
        Received(Prepare(1, MIDDLE)),
        Loaded(1),
        MarkerArrived(1, 1),
        BarrierArrived(1, 2),
        Received(CancelCheckpoint(1)),
        MarkerArrived(1, 2),
        Received(Retire(1)),
    ]
    seen = {worker}
    for event in events:
        again, same = worker.handle(event)
        worker, instructions = worker.handle(event)
        assert (again, same) == (worker, instructions)
        assert hash((again, same)) == hash((worker, instructions))
        seen.add(worker)
    assert len(seen) == len(events) + 1
