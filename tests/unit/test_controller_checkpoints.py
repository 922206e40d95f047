"""The controller's machine and checkpoints: cancelled and held back around a commit."""

from __future__ import annotations

from fries.protocol.messages import (
    CancelCheckpoint,
    Commit,
    Prepared,
    Refused,
    Retire,
    Snapshotted,
    StartCheckpoint,
    Switched,
)
from fries_lab.sim.controller import (
    CheckpointComplete,
    CheckpointDue,
    Heard,
    Left,
    Phase,
    Record,
    Send,
)
from tests.unit.test_controller_machine import (
    CHANGE,
    TEAM,
    Run,
    prepared,
    request,
)


def snapshots(checkpoint: int, *workers: str) -> list[Heard]:
    return [Heard(worker, Snapshotted(checkpoint)) for worker in workers]


def test_a_checkpoint_starts_at_the_sources_and_ends_with_the_last_snapshot() -> None:
    run = Run(*TEAM)
    assert run.tell(CheckpointDue()) == [Send("s", StartCheckpoint(1))]
    assert run.state.unsaved == {"s", "a", "b"}
    assert run.tell(*snapshots(1, "s", "a")) == []
    assert run.tell(*snapshots(1, "b")) == [CheckpointComplete(1)]
    assert run.tell(*snapshots(1, "b")) == [], "again"
    assert run.tell(CheckpointDue()) == [Send("s", StartCheckpoint(2))]


def test_one_checkpoint_at_a_time() -> None:
    run = Run(*TEAM, CheckpointDue())
    assert run.tell(CheckpointDue()) == []
    assert run.tell(*snapshots(1, "s", "a", "b")) == [
        CheckpointComplete(1),
        Send("s", StartCheckpoint(2)),
    ]


def test_a_checkpoint_without_a_lost_worker_starts_again() -> None:
    run = Run(*TEAM, CheckpointDue(), *snapshots(1, "s"))
    assert run.tell(Left("b")) == [
        Send("s", CancelCheckpoint(1)),
        Send("a", CancelCheckpoint(1)),
        Send("s", StartCheckpoint(2)),
    ]
    assert run.tell(*snapshots(1, "a")) == [], "of the cancelled one"
    assert run.tell(*snapshots(2, "s", "a")) == [CheckpointComplete(2)]


def test_a_checkpoint_may_go_on_without_a_worker_that_has_answered() -> None:
    run = Run(*TEAM, CheckpointDue(), *snapshots(1, "s", "b"))
    assert run.tell(Left("b")) == []
    assert run.tell(*snapshots(1, "a")) == [CheckpointComplete(1)]


def test_a_change_cancels_the_checkpoint_and_holds_the_next_until_all_heads_answered() -> None:
    run = Run(*TEAM, CHANGE, CheckpointDue(), Heard("a", Prepared(1)))
    assert run.tell(Heard("b", Prepared(1))) == [
        Send("s", CancelCheckpoint(1)),
        Send("a", CancelCheckpoint(1)),
        Send("b", CancelCheckpoint(1)),
        Record(1, Phase.COMMITTED),
        Send("a", Commit(1)),
    ], "cancelled before anyone may switch"
    assert run.state.holding
    assert run.tell(*snapshots(1, "s", "a", "b")) == [], "late answers complete nothing"
    assert run.tell(CheckpointDue()) == []
    assert run.tell(Heard("a", Switched(1))) == [Send("s", StartCheckpoint(2))], "all heads have"
    assert not run.state.holding
    assert run.phase() is Phase.COMMITTED, "other members are behind markers, and so are barriers"
    run.tell(Heard("b", Switched(1)))
    assert run.tell(*snapshots(2, "s", "a", "b")) == [CheckpointComplete(2)]


def test_a_checkpoint_due_while_heads_are_missing_is_held() -> None:
    run = Run(*TEAM, CHANGE, *prepared())
    assert run.tell(CheckpointDue()) == []
    assert run.tell(Heard("a", Switched(1))) == [Send("s", StartCheckpoint(1))]


def test_a_checkpoint_is_held_until_the_heads_of_all_changes_answered() -> None:
    run = Run(*TEAM, request("FM"), Heard("a", Prepared(1)), request("MC"))
    run.tell(Heard("b", Prepared(2)), CheckpointDue())
    assert run.tell(Heard("b", Switched(2))) == [Record(2, Phase.DONE), Send("b", Retire(2))]
    assert run.tell(Heard("a", Switched(1))) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("s", StartCheckpoint(1)),
    ]


def test_a_lost_head_does_not_hold_checkpoints() -> None:
    run = Run(*TEAM, CHANGE, *prepared(), CheckpointDue())
    assert run.tell(Left("a")) == [Send("s", StartCheckpoint(1))]


def test_preparing_and_aborting_disturb_no_checkpoint() -> None:
    run = Run(*TEAM, CheckpointDue(), CHANGE, Heard("a", Refused(1, "no")))
    assert run.tell(*snapshots(1, "s", "a", "b")) == [CheckpointComplete(1)]


def test_without_the_guard_checkpoints_ignore_changes() -> None:
    run = Run(*TEAM, CHANGE, CheckpointDue(), guard=False)
    assert run.tell(*prepared()) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]
    assert not run.state.holding
    assert run.tell(*snapshots(1, "s", "a", "b")) == [CheckpointComplete(1)]
    assert run.tell(CheckpointDue()) == [Send("s", StartCheckpoint(2))]
