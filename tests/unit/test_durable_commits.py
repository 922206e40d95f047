"""The controller's machine with a slow log: nothing is committed before the log has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import ProtocolError
from fries.protocol.messages import Abort, Commit, Prepare, Prepared, Refused, Retire, Switched
from fries_lab.sim.controller import (
    Controller,
    ControllerEvent,
    ControllerInstruction,
    Decide,
    Decided,
    Decision,
    Drained,
    Expired,
    Heard,
    Joined,
    Left,
    Phase,
    Record,
    Released,
    Requested,
    Revoked,
    Send,
)
from tests.unit.test_controller_machine import (
    CHANGE,
    HEAD,
    TAIL,
    TEAM,
    Run,
    prepared,
    request,
    switched,
)

DURABLE = replace(CHANGE, durable=True)
HELD = replace(DURABLE, held=True)
TAGGED = replace(DURABLE, tagged=True)
COMMITS = [Record(1, Phase.COMMITTED), Send("a", Commit(1))]
FULL = "the commit cannot be logged: disk full"


def asked(what: Requested = DURABLE) -> Run:
    """All have loaded the change, and the log is writing its commit."""
    run = Run(*TEAM, what, *prepared())
    assert run.said == [Decide(1)]
    return run


def decision(run: Run, change: int = 1) -> Decision:
    found = run.state.change(change)
    assert found is not None
    return found.decision


# A change's way


def test_a_durable_change_from_the_request_to_the_end() -> None:
    run = Run(*TEAM)
    assert run.tell(DURABLE) == [
        Record(1, Phase.QUEUED),
        Record(1, Phase.PREPARING),
        Send("a", Prepare(1, HEAD)),
        Send("b", Prepare(1, TAIL)),
    ]
    assert run.tell(Heard("a", Prepared(1))) == []
    assert run.tell(Heard("b", Prepared(1))) == [Decide(1)], "asked, and nobody else hears of it"
    assert (run.phase(), decision(run)) == (Phase.PREPARING, Decision.ASKED)
    assert run.tell(Decided(1)) == COMMITS
    assert run.tell(*switched()) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("b", Retire(1)),
    ]
    assert run.state == Controller(workers=TEAM, last=1)


def test_the_log_is_asked_once() -> None:
    run = asked()
    for event in (Heard("a", Prepared(1)), Joined("s2", "source"), Left("s2"), Released(1)):
        assert run.tell(event) == []
    assert decision(run) is Decision.ASKED


def test_a_durable_change_that_nobody_takes_part_in_is_logged_all_the_same() -> None:
    run = Run()
    assert run.tell(DURABLE) == [
        Record(1, Phase.QUEUED),
        Record(1, Phase.PREPARING),
        Decide(1),
    ]
    assert run.tell(Decided(1)) == [Record(1, Phase.COMMITTED), Record(1, Phase.DONE)]


def test_a_log_that_fails_aborts_the_change_and_the_next_one_is_prepared() -> None:
    run = asked()
    run.tell(DURABLE)
    assert run.tell(Decided(1, "disk full")) == [
        Record(1, Phase.ABORTED, FULL),
        Send("a", Abort(1)),
        Send("b", Abort(1)),
        Record(2, Phase.PREPARING),
        Send("a", Prepare(2, HEAD)),
        Send("b", Prepare(2, TAIL)),
    ]
    assert run.state.change(1) is None


def test_a_change_without_a_log_is_never_asked_about() -> None:
    assert Run(*TEAM, CHANGE, *prepared()).said == COMMITS


def test_nothing_else_is_prepared_while_the_log_writes() -> None:
    run = asked()
    assert run.tell(replace(request("s"), durable=True)) == [Record(2, Phase.QUEUED)]
    assert run.tell(Decided(1))[:2] == COMMITS


@pytest.mark.parametrize("number", [1, 2])
def test_a_decision_that_nobody_asked_for_is_refused(number: int) -> None:
    run = Run(*TEAM, DURABLE)
    with pytest.raises(ProtocolError, match=f"nobody asked for a decision on change {number}"):
        run.tell(Decided(number))


def test_a_decision_is_made_once() -> None:
    run = asked(HELD)
    run.tell(Decided(1))
    with pytest.raises(ProtocolError, match="nobody asked"):
        run.tell(Decided(1))


# Workers that come, go and refuse meanwhile


def test_a_worker_that_joins_while_the_log_writes_gets_the_commit_like_the_others() -> None:
    run = asked()
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD))]
    assert run.tell(Decided(1)) == [*COMMITS, Send("a2", Commit(1))]
    assert run.waiting() == {"a", "b", "a2"}
    assert run.tell(Heard("a2", Prepared(1))) == [], "too late to count"
    assert run.tell(*switched()) == []
    assert run.tell(Heard("a2", Switched(1)))[0] == Record(1, Phase.DONE)


def test_a_worker_that_joins_and_cannot_load_does_not_undo_the_decision() -> None:
    run = asked()
    run.tell(Joined("a2", "FM"))
    assert run.tell(Heard("a2", Refused(1, "no"))) == []
    assert run.tell(Decided(1)) == [*COMMITS, Send("a2", Commit(1))]


def test_a_log_that_fails_aborts_for_those_that_joined_too() -> None:
    run = asked()
    run.tell(Joined("a2", "FM"))
    assert run.tell(Decided(1, "disk full")) == [
        Record(1, Phase.ABORTED, FULL),
        *(Send(worker, Abort(1)) for worker in ("a", "b", "a2")),
    ]


def test_workers_that_leave_while_the_log_writes_are_not_told() -> None:
    run = asked()
    assert run.tell(Left("a")) == []
    assert run.tell(Decided(1)) == [Record(1, Phase.COMMITTED)]
    assert run.waiting() == {"b"}


def test_the_last_worker_to_answer_leaves_and_the_log_is_asked() -> None:
    run = Run(*TEAM, DURABLE, Heard("a", Prepared(1)))
    assert run.tell(Left("b")) == [Decide(1)]


def test_a_refusal_before_the_log_is_asked_aborts() -> None:
    run = Run(*TEAM, DURABLE, Heard("a", Prepared(1)))
    assert run.tell(Heard("b", Refused(1, "no"))) == [
        Record(1, Phase.ABORTED, "b: no"),
        Send("a", Abort(1)),
        Send("b", Abort(1)),
    ]


# Time


@pytest.mark.parametrize("what", [DURABLE, HELD])
def test_a_deadline_that_passes_while_the_log_writes_aborts_nothing(what: Requested) -> None:
    run = asked(what)
    run.tell(Joined("a2", "FM"))
    before = run.state
    assert run.tell(Expired(1)) == []
    assert run.state == before


def test_a_deadline_aborts_nothing_that_the_log_has() -> None:
    run = asked(HELD)
    run.tell(Decided(1), Joined("a2", "FM"))
    assert run.tell(Expired(1)) == []
    assert run.phase() is Phase.PREPARING


def test_a_deadline_before_the_log_is_asked_aborts() -> None:
    run = Run(*TEAM, DURABLE, Heard("a", Prepared(1)))
    assert run.tell(Expired(1))[0] == Record(1, Phase.ABORTED, "not prepared in time; waited for b")


# Changes that are held


def test_a_held_change_is_decided_early_and_commits_when_released() -> None:
    run = asked(HELD)
    assert run.tell(Decided(1)) == []
    assert (run.phase(), decision(run)) == (Phase.PREPARING, Decision.MADE)
    assert run.tell(Released(1)) == COMMITS


def test_a_release_before_the_decision_waits_for_the_next_one() -> None:
    """The boundary has passed when the log is done: committing now would split a batch."""
    run = asked(HELD)
    assert run.tell(Released(1)) == []
    assert run.tell(Decided(1)) == []
    assert run.tell(Released(1)) == COMMITS


def test_a_release_before_all_have_loaded_waits_for_the_next_one() -> None:
    run = Run(*TEAM, HELD)
    assert run.tell(Released(1)) == []
    assert run.tell(*prepared()) == [Decide(1)]
    assert run.tell(Decided(1)) == []
    assert run.tell(Released(1)) == COMMITS


def test_the_log_is_not_asked_later_because_a_newcomer_still_loads() -> None:
    run = Run(*TEAM, HELD, Heard("a", Prepared(1)))
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD))]
    assert run.tell(Heard("b", Prepared(1))) == [Decide(1)]
    assert run.tell(Decided(1)) == []
    assert run.tell(Released(1)) == [*COMMITS, Send("a2", Commit(1))]
    assert "a2" in run.waiting()


def test_a_newcomer_that_refuses_a_held_change_aborts_it_only_before_the_log_is_asked() -> None:
    early = Run(*TEAM, HELD, Joined("a2", "FM"))
    assert early.tell(Heard("a2", Refused(1, "no")))[0] == Record(1, Phase.ABORTED, "a2: no")
    late = asked(HELD)
    late.tell(Joined("a2", "FM"), Decided(1))
    assert late.tell(Heard("a2", Refused(1, "no"))) == []
    assert late.tell(Released(1)) == [*COMMITS, Send("a2", Commit(1))]


def test_a_log_that_fails_aborts_a_held_change() -> None:
    assert asked(HELD).tell(Decided(1, "disk full"))[0] == Record(1, Phase.ABORTED, FULL)


# Changes that are taken back


def test_a_change_in_transition_is_revoked_and_nobody_is_told() -> None:
    run = asked(TAGGED)
    run.tell(Decided(1))
    assert run.tell(Revoked(1, "it raised")) == [Record(1, Phase.ROLLED_BACK, "it raised")]
    assert run.state == Controller(workers=TEAM, last=1)


def test_after_a_revocation_the_next_change_is_prepared() -> None:
    run = asked(TAGGED)
    run.tell(Decided(1), request("FM", tagged=True))
    assert run.phase(2) is Phase.QUEUED, "its components overlap"
    said = run.tell(Revoked(1, "it raised"))
    assert said[:2] == [Record(1, Phase.ROLLED_BACK, "it raised"), Record(2, Phase.PREPARING)]


@pytest.mark.parametrize("made", [False, True])
def test_a_change_that_the_log_may_have_is_rolled_back(made: bool) -> None:
    """It was built on one that is taken back: the log must say that it did not happen."""
    run = asked(HELD)
    if made:
        run.tell(Decided(1))
    assert run.tell(Revoked(1, "it raised")) == [Record(1, Phase.ROLLED_BACK, "it raised")]


def test_the_answer_of_the_log_may_come_after_the_revocation() -> None:
    run = asked()
    run.tell(Revoked(1, "it raised"))
    before = run.state
    for late in (Decided(1), Decided(1, "disk full")):
        assert run.tell(late) == []
        assert run.state == before


def test_a_change_that_waits_is_aborted_by_its_revocation() -> None:
    run = Run(*TEAM, DURABLE, CHANGE)
    assert run.tell(Revoked(2, "it raised")) == [Record(2, Phase.ABORTED, "it raised")]
    assert run.tell(Revoked(1, "it raised")) == [Record(1, Phase.ABORTED, "it raised")]
    assert run.state == Controller(workers=TEAM, last=2)


def test_only_what_is_under_way_can_be_revoked() -> None:
    run = Run(*TEAM)
    with pytest.raises(ProtocolError, match="change 1 is not under way"):
        run.tell(Revoked(1, "never requested"))
    run.tell(TAGGED, *prepared(), Decided(1), Drained(1))
    with pytest.raises(ProtocolError, match="change 1 is not under way"):
        run.tell(Revoked(1, "part of the base"))


# Any order of events


class Witness:
    """Sees every instruction, and what the log knew when it was given."""

    def __init__(self) -> None:
        self.run = Run(*TEAM)
        self.asked: list[int] = []
        self.safe: set[int] = set()
        self.failed: set[int] = set()
        self.committed: list[int] = []

    def tell(self, event: ControllerEvent) -> None:
        """Feed an event, and judge what is said."""
        if isinstance(event, Decided):
            (self.failed if event.problem else self.safe).add(event.change)
        for instruction in self.run.tell(event):
            self._judge(instruction)

    def _judge(self, instruction: ControllerInstruction) -> None:
        match instruction:
            case Decide(change):
                assert change not in self.asked, "asked twice"
                self.asked.append(change)
            case Send(_, Commit(change)) | Record(change, Phase.COMMITTED):
                assert change in self.safe, "committed before the log had it"
                if change not in self.committed:
                    self.committed.append(change)
            case Record(change, Phase.ABORTED):
                assert change not in self.asked or change in self.failed, "aborted too late"
                assert change not in self.safe
            case Record(change, Phase.ROLLED_BACK):
                assert change in self.asked, "nothing to take back"

    def pending(self) -> list[int]:
        """What the log is writing."""
        return [one for one in self.asked if one not in self.safe | self.failed]


WORKERS = ("a", "b", "a2", "b2")
ROLES = {"a": "FM", "b": "MC", "a2": "FM", "b2": "MC"}
NAMES = "request held join leave load load load refuse switch log log fail expire release drain"
STEPS = st.sampled_from([*NAMES.split(), "revoke"])
PLACES = st.tuples(STEPS, st.sampled_from(WORKERS), st.integers(1, 4))


def event_of(witness: Witness, step: str, worker: str, number: int) -> ControllerEvent | None:
    """An event that can happen now."""
    state = witness.run.state
    present = any(joined.worker == worker for joined in state.workers)
    change = state.change(number)
    committed = change is not None and change.phase is Phase.COMMITTED
    pending = witness.pending()
    possible: dict[str, tuple[bool, ControllerEvent]] = {
        "request": (True, TAGGED),
        "held": (True, replace(TAGGED, held=True)),
        "join": (not present, Joined(worker, ROLES[worker])),
        "leave": (present, Left(worker)),
        "load": (present, Heard(worker, Prepared(number))),
        "refuse": (present, Heard(worker, Refused(number, "no"))),
        "switch": (present, Heard(worker, Switched(number))),
        "log": (bool(pending), Decided(pending[0] if pending else 0)),
        "fail": (bool(pending), Decided(pending[0] if pending else 0, "disk full")),
        "expire": (True, Expired(number)),
        "release": (True, Released(number)),
        "drain": (committed, Drained(number)),
        "revoke": (change is not None, Revoked(number, "it raised")),
    }
    allowed, event = possible[step]
    return event if allowed else None


@given(st.lists(PLACES, max_size=60))
@settings(deadline=None, max_examples=300)
def test_whatever_happens_the_log_comes_first_and_its_word_is_kept(
    steps: list[tuple[str, str, int]],
) -> None:
    witness = Witness()
    for step, worker, number in steps:
        if event := event_of(witness, step, worker, number):
            witness.tell(event)
    assert witness.committed == sorted(witness.committed), "in the order of their numbers"


@given(st.lists(PLACES, max_size=40))
@settings(deadline=None, max_examples=150)
def test_whatever_happens_every_change_that_is_logged_gets_committed(
    steps: list[tuple[str, str, int]],
) -> None:
    """Once the events stop, letting the log write and releasing is all it takes."""
    witness = Witness()
    for step, worker, number in steps:
        if step != "revoke" and (event := event_of(witness, step, worker, number)):
            witness.tell(event)
    for number in witness.pending():
        witness.tell(Decided(number))
    for number in witness.safe:
        witness.tell(Released(number))
    assert set(witness.committed) == witness.safe
