"""The worker's machine: the exact instructions for each event, and the messages on the wire."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from fries.control.messages import (
    ANY_BATCH,
    Begin,
    Cut,
    Ended,
    Failed,
    GivenUp,
    Go,
    Hello,
    Holds,
    Noted,
    Soon,
    Welcome,
)
from fries.errors import ProtocolError
from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    FromWorker,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
    ToWorker,
)
from fries.protocol.worker import Activity, Worker
from fries.protocol.worker_events import (
    Adopt,
    ChunkBoundary,
    Connected,
    ConnectionLost,
    Define,
    Defined,
    Disconnect,
    Drop,
    HoldExpired,
    Hurry,
    LimitLoad,
    Load,
    Loaded,
    LoadExpired,
    Message,
    Ready,
    Received,
    Resume,
    Say,
    StandBack,
    Switch,
    TaskBegins,
    TaskEnds,
    TaskHolds,
    TaskMayEnd,
    TaskMayStart,
    TaskMustFail,
    VersionFailed,
    WorkerEvent,
    WorkerInstruction,
)

FM = Part(("FM",), head=True)
MC = Part(("MC",), head=True)
TASK = Begin(4, 0, 1, 7)
ENDED = Ended(4, 0, 1, {}, 7)
CUT = Ended(4, 0, 1, {}, 7, cuts=(Cut(10, 1),))
FAILED = Ended(4, 0, 1, {}, 7, complete=False, cuts=(Cut(10, 1),))
HOLDS = Holds("FM", 1, 0)


def fresh() -> Worker:
    return Worker("w")


def after(worker: Worker, *events: WorkerEvent | Message) -> Worker:
    """The worker's state behind some events, or messages of the controller."""
    for event in events:
        worker, _ = worker.handle(event if isinstance(event, WorkerEvent) else Received(event))
    return worker


def answer(worker: Worker, event: WorkerEvent | Message) -> list[WorkerInstruction]:
    """The worker's instructions for one event, or message of the controller."""
    return list(worker.handle(event if isinstance(event, WorkerEvent) else Received(event))[1])


def prepared(part: Part = FM, change: int = 1) -> Worker:
    return after(fresh(), Prepare(change, part), Loaded(change))


def running(worker: Worker | None = None, *committed: int) -> Worker:
    """A worker whose task has begun."""
    return after(worker or fresh(), TaskBegins(TASK), Go((), committed))


# Joining


def test_a_worker_says_hello_and_is_ready_when_it_has_the_base() -> None:
    assert answer(fresh(), Connected("fraud")) == [Say(Hello("fraud", "w"))]
    worker = after(fresh(), Connected("fraud"))
    welcome = Welcome((1, 3), b"pickled", {"FM": 2})
    assert answer(worker, welcome) == [Define(b"pickled", (("FM", 2),))]
    worker = after(worker, welcome)
    assert answer(worker, Defined()) == [Load(1)]
    worker = after(worker, Defined())
    assert answer(worker, Loaded(1)) == [Adopt(1), Load(3)]
    worker = after(worker, Loaded(1))
    assert answer(worker, Loaded(3)) == [Adopt(3), Ready()]
    assert after(worker, Loaded(3)) == Worker("w", welcomed=True)


def test_without_a_base_it_is_ready_at_once() -> None:
    worker = after(fresh(), Connected("fraud"), Welcome(()))
    assert answer(worker, Defined()) == [Ready()]


def test_what_is_under_way_is_loaded_after_the_base() -> None:
    worker = after(fresh(), Connected("fraud"), Welcome((1,)))
    assert answer(worker, Prepare(2, FM)) == [StandBack()]
    worker = after(worker, Prepare(2, FM))
    assert answer(worker, Defined()) == [Load(1)]
    worker = after(worker, Defined())
    assert answer(worker, Loaded(1)) == [Adopt(1), Ready(), Load(2)]


def test_functions_that_cannot_be_loaded_end_the_connection() -> None:
    worker = after(fresh(), Connected("fraud"), Welcome(()))
    why = "the flow's functions cannot be loaded here:\nTraceback"
    assert answer(worker, Defined("Traceback")) == [
        Disconnect(why),
        TaskMustFail(f"no configuration for this task: {why}"),
    ]


def test_a_change_of_the_base_that_cannot_be_loaded_is_told_and_ends_the_connection() -> None:
    worker = after(fresh(), Connected("fraud"), Welcome((1, 2)), Defined())
    problem = "change 1 cannot be loaded in worker w"
    assert answer(worker, Loaded(1, "Traceback")) == [
        Say(Failed(ANY_BATCH, "", 1, problem, "", "Traceback")),
        Disconnect("change 1 cannot be loaded here:\nTraceback"),
        TaskMustFail("no configuration for this task: change 1 cannot be loaded here:\nTraceback"),
    ]


def test_a_connection_that_is_lost_while_joining() -> None:
    worker = after(fresh(), Connected("fraud"))
    assert answer(worker, ConnectionLost("it is gone")) == [
        Disconnect("it is gone"),
        TaskMustFail("no configuration for this task: it is gone"),
    ]


# Prepare, commit, retire


def test_prepare_loads_and_the_answer_waits_for_the_load() -> None:
    assert answer(fresh(), Prepare(1, FM)) == [StandBack(), Load(1)]
    loading = after(fresh(), Prepare(1, FM))
    assert loading.loading == (1,)
    assert loading.awaits_load
    assert answer(loading, Loaded(1)) == [Hurry(), Say(Prepared(1))]
    assert after(loading, Loaded(1)).loading == ()


def test_an_idle_worker_switches_on_commit() -> None:
    assert answer(prepared(), Commit(1)) == [Switch(1, ("FM",)), Say(Switched(1))]
    assert after(prepared(), Commit(1)).effective == {1}


def test_changes_are_loaded_one_after_the_other() -> None:
    worker = after(fresh(), Prepare(1, FM))
    assert answer(worker, Prepare(2, MC)) == [StandBack()]
    worker = after(worker, Prepare(2, MC))
    assert answer(worker, Loaded(1)) == [Hurry(), Say(Prepared(1)), Load(2)]


def test_retire_drops_the_old_configuration_and_forgets_the_change() -> None:
    worker = after(prepared(), Commit(1))
    assert answer(worker, Retire(1)) == [Drop(1)]
    worker = after(worker, Retire(1))
    assert worker == Worker("w", effective=frozenset({1})), "a task may be told to begin with it"
    started = after(worker, TaskBegins(TASK), Go((1,), ()), TaskEnds(ENDED))
    assert after(started, TaskBegins(TASK), Go((), ())).effective == frozenset(), "but only once"


def test_several_changes_at_once_are_told_apart() -> None:
    worker = after(prepared(), Commit(1), Prepare(2, MC), Loaded(2))
    assert [change for change, _ in worker.parts] == [1, 2]
    assert answer(worker, Commit(2)) == [Switch(2, ("MC",)), Say(Switched(2))]
    worker = after(worker, Commit(2), Retire(1))
    assert worker.parts == ((2, MC),)
    assert worker.effective == {1, 2}


def test_an_announcement_makes_rows_stand_back() -> None:
    assert answer(running(), Soon()) == [StandBack()]


# Loads that fail, are aborted or come late


def test_a_failed_load_is_refused_and_its_commit_is_no_breach() -> None:
    """Others could load it. The worker's first task says why it cannot begin."""
    worker = after(fresh(), Prepare(1, FM))
    assert answer(worker, Loaded(1, "no module")) == [Say(Refused(1, "no module"))]
    worker = after(worker, Loaded(1, "no module"))
    assert worker == Worker("w", failed=((1, "no module"),))
    assert answer(worker, Commit(1)) == []
    assert answer(worker, Retire(1)) == [Drop(1)]
    assert after(worker, Commit(1), Retire(1)) == worker
    assert answer(worker, Abort(1)) == [Drop(1, aborted=True)]
    assert after(worker, Abort(1)) == fresh()


def test_what_is_loaded_after_its_abort_is_dropped_again() -> None:
    worker = after(fresh(), Prepare(1, FM))
    assert answer(worker, Abort(1)) == [LimitLoad(1), Drop(1, aborted=True)]
    aborted = after(worker, Abort(1))
    assert aborted == Worker("w", loading=(1,)), "it cannot be stopped"
    assert not aborted.awaits_load
    for error in (None, "too late anyway"):
        assert answer(aborted, Loaded(1, error)) == [Drop(1, aborted=True)]
        assert after(aborted, Loaded(1, error)) == fresh()


def test_the_next_change_is_loaded_when_the_load_of_an_aborted_one_ends() -> None:
    worker = after(fresh(), Prepare(1, FM), Abort(1))
    assert answer(worker, Prepare(2, FM)) == [StandBack()]
    worker = after(worker, Prepare(2, FM))
    assert worker.awaits_load
    assert answer(worker, Loaded(1)) == [Drop(1, aborted=True), Load(2)]


def test_a_change_that_is_aborted_before_its_turn_is_never_loaded() -> None:
    worker = after(fresh(), Prepare(1, FM), Prepare(2, FM), Prepare(3, FM))
    assert answer(worker, Abort(2)) == [Drop(2, aborted=True)]
    assert answer(after(worker, Abort(2)), Loaded(1)) == [Hurry(), Say(Prepared(1)), Load(3)]


def test_an_aborted_change_whose_load_does_not_end_costs_the_connection() -> None:
    worker = after(fresh(), Prepare(1, FM), Abort(1), Prepare(2, FM))
    why = "change 1 was aborted, and its loading does not end"
    assert answer(worker, LoadExpired(1)) == [Disconnect(why)]


def test_a_load_that_ended_in_time_costs_nothing() -> None:
    worker = after(fresh(), Prepare(1, FM), Abort(1), Loaded(1))
    assert worker.handle(LoadExpired(1)) == (worker, ())


@pytest.mark.parametrize("committed", [True, False])
def test_a_change_that_is_retired_while_loading_is_adopted_once_loaded(committed: bool) -> None:
    """It has become part of the base meanwhile, so the worker must not go without it."""
    worker = after(fresh(), Prepare(1, FM), *([Commit(1)] if committed else []))
    assert answer(worker, Retire(1)) == []
    worker = after(worker, Retire(1))
    assert answer(worker, Loaded(1)) == [
        Hurry(),
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        Say(Switched(1)),
        Drop(1),
    ]
    assert after(worker, Loaded(1)) == Worker("w", effective=frozenset({1}))


def test_a_change_that_is_retired_while_one_before_it_loads_is_switched_to_all_the_same() -> None:
    """It used to be forgotten, and the next task waited for it in vain."""
    commands = Prepare(1, FM), Commit(1), Prepare(2, MC), Commit(2)
    worker = after(fresh(), *commands, Loaded(2), Retire(2))
    assert answer(worker, Loaded(1)) == [
        Hurry(),
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        Say(Switched(1)),
        Switch(2, ("MC",)),
        Say(Switched(2)),
        Drop(2),
    ]


def test_abort_once_loaded() -> None:
    assert answer(prepared(), Abort(1)) == [Drop(1, aborted=True)]
    assert after(prepared(), Abort(1)) == fresh()


def test_a_commit_before_the_load_ends_waits_for_it() -> None:
    worker = after(fresh(), Prepare(1, FM))
    assert answer(worker, Commit(1)) == []
    early = after(worker, Commit(1))
    assert early.early == {1}
    assert answer(early, Loaded(1)) == [
        Hurry(),
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        Say(Switched(1)),
    ]
    done = after(early, Loaded(1))
    assert not done.early
    assert not done.loading
    assert done.effective == {1}


def test_changes_are_switched_to_in_the_order_of_their_numbers_however_they_load() -> None:
    """A worker that joins late gets all changes at once, and loads may end in any order."""
    commands = Prepare(1, FM), Commit(1), Prepare(2, FM), Commit(2)
    worker = after(fresh(), *commands)
    assert answer(worker, Loaded(2)) == [Hurry(), Say(Prepared(2))], "not before the first"
    assert answer(after(worker, Loaded(2)), Loaded(1)) == [
        Hurry(),
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        Say(Switched(1)),
        Switch(2, ("FM",)),
        Say(Switched(2)),
    ]


def test_a_commit_waits_for_the_load_of_an_earlier_change() -> None:
    worker = after(fresh(), Prepare(1, FM), Commit(1), Prepare(2, FM), Loaded(2))
    assert answer(worker, Commit(2)) == []
    assert after(worker, Commit(2), Loaded(1)).effective == {1, 2}


# Between two chunks


def test_a_running_task_switches_between_two_chunks_and_says_so_only_then() -> None:
    worker = running(prepared())
    assert answer(worker, Commit(1)) == []
    worker = after(worker, Commit(1))
    assert worker.due == (Switch(1, ("FM",)),)
    assert worker.effective == frozenset()
    assert answer(worker, ChunkBoundary()) == [Switch(1, ("FM",)), Say(Switched(1))]
    assert after(worker, ChunkBoundary()).due == ()


def test_what_is_due_takes_effect_in_order() -> None:
    worker = after(running(prepared()), Commit(1), Prepare(2, FM), Abort(2), Retire(1))
    assert answer(worker, ChunkBoundary()) == [
        Switch(1, ("FM",)),
        Say(Switched(1)),
        Drop(2, aborted=True),
        Drop(1),
    ]


def test_a_boundary_at_which_nothing_is_due_changes_nothing() -> None:
    worker = running()
    assert worker.handle(ChunkBoundary()) == (worker, ())


def test_what_is_due_takes_effect_without_the_controller() -> None:
    """Whoever committed it had decided. The task cannot complete, for nobody knows its cut."""
    worker = after(running(prepared()), Commit(1), ConnectionLost("it is gone"))
    assert answer(worker, ChunkBoundary()) == [Switch(1, ("FM",))]


# Tasks


def test_a_task_that_needs_no_change_starts_with_the_answer() -> None:
    assert answer(fresh(), TaskBegins(TASK)) == [Say(TASK)]
    worker = after(fresh(), TaskBegins(TASK))
    assert answer(worker, Go((), ())) == [TaskMayStart(Go((), ()))]
    assert after(worker, Go((), ())).activity is Activity.RUNNING


@pytest.mark.parametrize("go", [Go((1,), ()), Go((), (1,))])
def test_a_task_starts_when_every_change_that_it_begins_with_has_taken_effect(go: Go) -> None:
    worker = after(fresh(), Prepare(1, FM), TaskBegins(TASK))
    assert answer(worker, go) == []
    worker = after(worker, go)
    assert answer(worker, Commit(1)) == []
    assert answer(after(worker, Commit(1)), Loaded(1)) == [
        Hurry(),
        Say(Prepared(1)),
        Switch(1, ("FM",)),
        Say(Switched(1)),
        TaskMayStart(go),
    ]


def test_a_commit_that_comes_behind_the_answer_waits_for_the_first_chunk() -> None:
    worker = running(prepared())
    assert answer(worker, Commit(1)) == []
    assert answer(after(worker, Commit(1)), ChunkBoundary())[0] == Switch(1, ("FM",))


def test_an_answer_may_overtake_what_it_names() -> None:
    """The pieces of a large change are overtaken, and what waits behind them with them."""
    worker = after(prepared(), TaskBegins(TASK), Go((1,), ()))
    assert worker.activity is Activity.STARTING
    assert answer(worker, Commit(1)) == [
        Switch(1, ("FM",)),
        Say(Switched(1)),
        TaskMayStart(Go((1,), ())),
    ]
    worker = after(worker, Commit(1), Retire(1), TaskEnds(ENDED), TaskBegins(TASK), Go((), ()))
    assert worker.activity is Activity.RUNNING
    assert worker.effective == frozenset()


@pytest.mark.parametrize("first", ["load", "answer"])
def test_a_task_cannot_start_without_a_change_that_cannot_be_loaded_here(first: str) -> None:
    go, failed = Received(Go((), (1,))), Loaded(1, "no module")
    worker = after(fresh(), Prepare(1, FM), Commit(1), TaskBegins(TASK))
    events = (go, failed) if first == "answer" else (failed, go)
    refused = [Say(Refused(1, "no module"))] if first == "answer" else []
    why = "change 1 cannot be loaded here:\nno module"
    problem = "change 1 cannot be loaded in worker w"
    assert answer(after(worker, events[0]), events[1]) == [
        *refused,
        Say(Failed(ANY_BATCH, "", 1, problem, "", "no module")),
        Disconnect(why),
        TaskMustFail(f"no configuration for this task: {why}"),
    ]


def test_a_change_that_no_task_begins_with_may_have_failed() -> None:
    worker = after(fresh(), Prepare(1, FM), Loaded(1, "no module"), TaskBegins(TASK))
    assert answer(worker, Go((), ())) == [TaskMayStart(Go((), ()))]


def test_a_task_that_ends_makes_room_for_what_is_due() -> None:
    worker = after(running(prepared()), Commit(1))
    assert answer(worker, TaskEnds(ENDED)) == [
        Switch(1, ("FM",)),
        Say(Switched(1)),
        Say(ENDED),
        TaskMayEnd(),
    ]


def test_the_next_task_makes_room_for_what_is_due_if_the_last_one_never_ended() -> None:
    worker = after(running(prepared()), Commit(1))
    assert answer(worker, TaskBegins(TASK)) == [Switch(1, ("FM",)), Say(Switched(1)), Say(TASK)]


def test_a_task_that_switched_inside_ends_when_that_is_noted() -> None:
    assert answer(running(), TaskEnds(CUT)) == [Say(CUT)]
    ending = after(running(), TaskEnds(CUT))
    assert answer(ending, Noted()) == [TaskMayEnd()]
    assert answer(ending, Noted(accepted=False)) == [
        TaskMustFail("another attempt of this task has switched at another row")
    ]
    assert after(ending, Noted()).activity is Activity.IDLE


def test_while_a_task_waits_for_that_the_worker_is_idle() -> None:
    ending = after(running(prepared()), TaskEnds(CUT))
    assert answer(ending, Commit(1)) == [Switch(1, ("FM",)), Say(Switched(1))]


def test_a_task_that_failed_waits_for_nobody() -> None:
    assert answer(running(), TaskEnds(FAILED)) == [Say(FAILED), TaskMayEnd()]


def test_a_version_that_fails_is_told_with_the_batch_of_its_task() -> None:
    failure = VersionFailed("FM", 1, "it raised", "row 7", "the story")
    told = Failed(4, "FM", 1, "it raised", "row 7", "the story")
    assert answer(running(), failure) == [Say(told)]


# A task that holds


def test_a_held_task_goes_on_when_another_version_of_its_operator_is_in_use() -> None:
    worker = running(after(prepared(), Commit(1)), 1)
    assert answer(worker, TaskHolds(HOLDS)) == [Say(HOLDS)]
    worker = after(worker, TaskHolds(HOLDS))
    assert answer(worker, Prepare(2, FM)) == [StandBack(), Load(2)]
    worker = after(worker, Prepare(2, FM), Loaded(2))
    assert answer(worker, Commit(2)) == [
        Switch(2, ("FM",)),
        Say(Switched(2)),
        Resume(again=True),
    ]
    assert after(worker, Commit(2)).activity is Activity.RUNNING


def test_a_held_task_goes_on_at_once_if_another_version_was_due() -> None:
    worker = after(running(prepared(change=2)), Commit(2))
    assert answer(worker, TaskHolds(HOLDS)) == [
        Switch(2, ("FM",)),
        Say(Switched(2)),
        Resume(again=True),
    ]
    assert after(worker, TaskHolds(HOLDS)).activity is Activity.RUNNING


def test_a_held_task_is_not_helped_by_other_changes() -> None:
    """It used to process its rows again by the version that had failed, and to fail again."""
    worker = after(running(prepared(MC, 2)), TaskHolds(HOLDS), Prepare(3, FM))
    assert answer(worker, Commit(2)) == [Switch(2, ("MC",)), Say(Switched(2))]
    assert answer(worker, Abort(3)) == [LimitLoad(3), Drop(3, aborted=True)]
    assert after(worker, Commit(2), Abort(3)).activity is Activity.HOLDING


def test_a_held_task_fails_when_its_change_is_not_taken_back() -> None:
    worker = after(running(), TaskHolds(HOLDS))
    assert answer(worker, GivenUp(1)) == [Resume(again=False)]
    assert answer(worker, HoldExpired()) == [Resume(again=False)]
    assert answer(worker, ConnectionLost("it is gone")) == [
        Disconnect("it is gone"),
        Resume(again=False),
    ]


def test_word_of_another_change_is_for_a_task_that_waits_no_longer() -> None:
    """It came too late for the task before, and used to fail the next one."""
    worker = after(running(), TaskHolds(Holds("FM", 2, 0)))
    assert worker.handle(Received(GivenUp(1))) == (worker, ())
    assert running().handle(Received(GivenUp(1))) == (running(), ())
    assert running().handle(HoldExpired()) == (running(), ())


# Without the controller


def gone(worker: Worker) -> Worker:
    return after(worker, ConnectionLost("it is gone"))


def test_a_task_goes_on_without_the_controller() -> None:
    assert answer(running(), ConnectionLost("it is gone")) == [Disconnect("it is gone")]
    lost = gone(running())
    assert lost.handle(ConnectionLost("again")) == (lost, ()), "the first reason counts"
    assert answer(lost, VersionFailed("FM", 1, "it raised", "", "")) == []
    assert answer(lost, TaskHolds(HOLDS)) == [Resume(again=False)]
    assert answer(lost, TaskEnds(ENDED)) == [TaskMayEnd()]
    assert answer(lost, TaskEnds(FAILED)) == [TaskMayEnd()]


def test_a_task_that_switched_inside_fails_without_the_controller() -> None:
    why = TaskMustFail("nobody knows where this task switched: it is gone")
    assert answer(gone(running()), TaskEnds(CUT)) == [why]
    ending = after(running(), TaskEnds(CUT))
    assert answer(ending, ConnectionLost("it is gone")) == [Disconnect("it is gone"), why]


def test_a_task_does_not_begin_without_the_controller() -> None:
    why = TaskMustFail("no configuration for this task: it is gone")
    assert answer(gone(fresh()), TaskBegins(TASK)) == [why]
    starting = after(fresh(), TaskBegins(TASK))
    assert answer(starting, ConnectionLost("it is gone")) == [Disconnect("it is gone"), why]


@pytest.mark.parametrize(
    "event",
    [Received(Commit(1)), Received(Go((), ())), Received(Prepare(3, FM)), Loaded(2), Loaded(2, "")],
    ids=str,
)
def test_what_comes_too_late_means_nothing(event: WorkerEvent) -> None:
    lost = gone(after(prepared(), Prepare(2, FM)))
    assert lost.handle(event) == (lost, ())


def test_a_task_that_was_left_while_it_waited_costs_the_connection() -> None:
    """The answer to it may be under way: the next task would take it for its own."""
    why = "a task was left while it waited for an answer"
    starting = after(fresh(), TaskBegins(TASK))
    assert answer(starting, TaskBegins(TASK)) == [
        Disconnect(why),
        TaskMustFail(f"no configuration for this task: {why}"),
    ]
    holding = after(running(), TaskHolds(HOLDS))
    assert answer(holding, TaskEnds(ENDED)) == [Disconnect(why), TaskMayEnd()]


# What the protocol does not allow


@pytest.mark.parametrize(
    ("worker", "message", "problem"),
    [
        (prepared(), Prepare(1, FM), "change 1 was prepared twice"),
        (fresh(), Commit(1), "change 1 was never prepared here"),
        (after(prepared(), Commit(1)), Commit(1), "change 1 was committed twice"),
        (after(running(prepared()), Commit(1)), Commit(1), "change 1 was committed twice"),
        (after(fresh(), Prepare(1, FM), Commit(1)), Commit(1), "change 1 was committed twice"),
        (after(prepared(), Commit(1), Retire(1)), Commit(1), "change 1 was never prepared here"),
        (after(fresh(), Welcome(())), Welcome(()), "it was welcomed twice, or too late"),
        (prepared(), Welcome((2,)), "it was welcomed twice, or too late"),
        (fresh(), Go((), ()), "no task waits to begin"),
        (running(), Go((), ()), "no task waits to begin"),
        (after(fresh(), TaskBegins(TASK), Go((1,), ())), Go((), ()), "no task waits to begin"),
        (running(), Noted(), "no task waits to end"),
        (fresh(), StartCheckpoint(1), "checkpoints are not taken here"),
        (fresh(), CancelCheckpoint(1), "checkpoints are not taken here"),
    ],
)
def test_what_cannot_be_is_refused(worker: Worker, message: Message, problem: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        worker.handle(Received(message))
    assert str(raised.value) == f"w: {problem}"
    assert pickle.loads(pickle.dumps(raised.value)).problem == problem


# States and messages as values


def test_states_are_values() -> None:
    """The explorer keeps states in sets: equal ones must be equal, and none may change."""
    worker = fresh()
    events: list[WorkerEvent] = [
        Received(Prepare(1, FM)),
        Received(Prepare(2, MC)),
        Loaded(1),
        TaskBegins(TASK),
        Received(Go((), ())),
        Received(Commit(1)),
        Received(Retire(1)),
        TaskHolds(HOLDS),
        TaskEnds(CUT),
        Received(Abort(2)),
        ConnectionLost("it is gone"),
    ]
    seen = {worker}
    for event in events:
        again, same = worker.handle(event)
        worker, instructions = worker.handle(event)
        assert (again, same) == (worker, instructions)
        assert hash(again) == hash(worker)
        seen.add(worker)
    assert len(seen) == len(events) + 1


PART = Part(("FM", "MC"), True, frozenset({3, 1}), (4, 5), frozenset({6}))


@pytest.mark.parametrize(
    "message",
    [
        Prepare(1, PART),
        Prepare(2, Part()),
        Commit(3),
        Abort(4),
        Retire(5),
        StartCheckpoint(6),
        CancelCheckpoint(7),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_to_workers_survive_the_wire(message: ToWorker) -> None:
    received: ToWorker = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToWorker)
    assert received == message
    assert type(received) is type(message)
    assert hash(received) == hash(message)


@pytest.mark.parametrize(
    "message",
    [Prepared(1), Refused(2, "naïve: no model"), Switched(3), Snapshotted(4)],
    ids=lambda message: type(message).__name__,
)
def test_messages_from_workers_survive_the_wire(message: FromWorker) -> None:
    received: FromWorker = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromWorker)
    assert received == message
    assert type(received) is type(message)
    assert hash(received) == hash(message)


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode(Prepared(1)),
        msgspec.msgpack.encode({"type": "Shutdown", "change": 1}),
        msgspec.msgpack.encode({"type": "Commit", "change": "one"}),
        msgspec.msgpack.encode({"type": "Commit"}),
    ],
    ids=["wrong direction", "unknown type", "wrong field", "missing field"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=ToWorker)
