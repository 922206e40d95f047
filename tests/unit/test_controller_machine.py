"""The controller's machine: the exact instructions for each event."""

from __future__ import annotations

import pytest

from fries.errors import ProtocolError
from fries.protocol.messages import (
    Abort,
    Commit,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    Switched,
)
from fries_lab.sim.controller import (
    MOST_IN_TRANSITION,
    CheckpointDue,
    Controller,
    ControllerEvent,
    ControllerInstruction,
    Drained,
    Expired,
    Heard,
    Joined,
    Left,
    Phase,
    Record,
    Released,
    Requested,
    Send,
)

HEAD = Part(("FM",), head=True, forwards=(1,))
TAIL = Part(("MC",), awaits=frozenset({1}))


class Run:
    """A controller with what it said last."""

    def __init__(self, *events: ControllerEvent, guard: bool = True) -> None:
        self.state = Controller(guard=guard)
        self.said: list[ControllerInstruction] = []
        for event in events:
            self.tell(event)

    def tell(self, *events: ControllerEvent) -> list[ControllerInstruction]:
        """Feed events; what the controller said to the last of them."""
        for event in events:
            self.state, said = self.state.handle(event)
            self.said = list(said)
        return self.said

    def phase(self, change: int = 1) -> Phase | None:
        """Where a change stands; nothing if it is over or was never requested."""
        found = self.state.change(change)
        return found.phase if found else None

    def waiting(self, change: int = 1) -> set[str]:
        """Whose answers a change lacks."""
        found = self.state.change(change)
        assert found is not None
        return set(found.waiting)


def request(*components: str, tagged: bool = False) -> Requested:
    """A change of components such as ``"FM MC"``: the first of each is its head."""
    parts: list[tuple[str, Part]] = []
    for component in components:
        head, *others = component.split()
        parts.append((head, Part((head,), head=True)))
        parts.extend((name, Part((name,), awaits=frozenset({1}))) for name in others)
    footprint = frozenset(frozenset(component.split()) for component in components)
    return Requested(tuple(parts), footprint, tagged)


CHANGE = Requested((("FM", HEAD), ("MC", TAIL)), frozenset({frozenset({"FM", "MC"})}))
TAGGED = Requested(CHANGE.parts, CHANGE.footprint, tagged=True)
TEAM = (Joined("s", "source", source=True), Joined("a", "FM"), Joined("b", "MC"))


def prepared(change: int = 1) -> tuple[Heard, Heard]:
    return Heard("a", Prepared(change)), Heard("b", Prepared(change))


def switched(change: int = 1) -> tuple[Heard, Heard]:
    return Heard("a", Switched(change)), Heard("b", Switched(change))


# A change's way


def test_a_change_from_the_request_to_the_end() -> None:
    run = Run(*TEAM)
    assert run.tell(CHANGE) == [
        Record(1, Phase.QUEUED),
        Record(1, Phase.PREPARING),
        Send("a", Prepare(1, HEAD)),
        Send("b", Prepare(1, TAIL)),
    ]
    assert run.tell(Heard("b", Prepared(1))) == []
    assert run.waiting() == {"a"}
    assert run.tell(Heard("a", Prepared(1))) == [
        Record(1, Phase.COMMITTED),
        Send("a", Commit(1)),
    ], "logged before it is sent, and sent to heads only"
    assert run.tell(Heard("a", Switched(1))) == []
    assert run.waiting() == {"b"}
    assert run.tell(Heard("b", Switched(1))) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("b", Retire(1)),
    ]
    assert run.state == Controller(workers=TEAM, last=1)


def test_every_worker_of_a_role_takes_part() -> None:
    run = Run(Joined("a1", "FM"), Joined("a2", "FM"))
    assert run.tell(CHANGE)[2:] == [Send("a1", Prepare(1, HEAD)), Send("a2", Prepare(1, HEAD))]
    run.tell(Heard("a1", Prepared(1)))
    assert run.tell(Heard("a2", Prepared(1))) == [
        Record(1, Phase.COMMITTED),
        Send("a1", Commit(1)),
        Send("a2", Commit(1)),
    ]


def test_commit_is_recorded_before_any_commit_message_is_sent() -> None:
    """Also when a change commits while another one is in transition."""
    run = Run(*TEAM, CHANGE, CHANGE)
    for number in (1, 2):
        said = run.tell(*prepared(number))
        sent = [n for n, item in enumerate(said) if item == Send("a", Commit(number))]
        assert said.index(Record(number, Phase.COMMITTED)) < sent[0]


def test_a_change_that_nobody_takes_part_in_is_over_at_once() -> None:
    assert Run().tell(CHANGE) == [
        Record(1, Phase.QUEUED),
        Record(1, Phase.PREPARING),
        Record(1, Phase.COMMITTED),
        Record(1, Phase.DONE),
    ]


def test_refused_aborts_with_the_reason_for_everyone() -> None:
    run = Run(*TEAM, CHANGE, Heard("a", Prepared(1)))
    assert run.tell(Heard("b", Refused(1, "no such model"))) == [
        Record(1, Phase.ABORTED, "b: no such model"),
        Send("a", Abort(1)),
        Send("b", Abort(1)),
    ]
    assert run.state.changes == ()


def test_after_an_abort_the_next_change_is_prepared() -> None:
    run = Run(*TEAM, CHANGE, CHANGE)
    assert run.tell(Heard("b", Refused(1, "no"))) == [
        Record(1, Phase.ABORTED, "b: no"),
        Send("a", Abort(1)),
        Send("b", Abort(1)),
        Record(2, Phase.PREPARING),
        Send("a", Prepare(2, HEAD)),
        Send("b", Prepare(2, TAIL)),
    ]


def test_late_answers_count_for_nothing() -> None:
    run = Run(*TEAM, CHANGE, Heard("a", Prepared(1)))
    for late in (
        Heard("a", Prepared(1)),  # again
        Heard("s", Prepared(1)),  # takes no part
        Heard("x", Prepared(1)),  # never joined
        Heard("b", Switched(1)),  # not committed
        Heard("b", Prepared(7)),  # never requested
        Heard("a", Refused(1, "changed its mind")),  # has loaded it
    ):
        before = run.state
        assert run.tell(late) == []
        assert run.state == before
    run.tell(Heard("b", Prepared(1)))
    for late in (Heard("b", Prepared(1)), Heard("b", Refused(1, "too late"))):
        before = run.state
        assert run.tell(late) == []
        assert run.state == before
    run.tell(*switched())
    assert run.tell(Heard("b", Switched(1))) == []
    assert run.tell(Heard("b", Refused(1, "over"))) == []


# Workers that come and go


def test_a_worker_lost_while_preparing_is_not_waited_for() -> None:
    run = Run(*TEAM, CHANGE, Heard("a", Prepared(1)))
    assert run.tell(Left("b")) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]
    assert run.tell(Heard("a", Switched(1))) == [Record(1, Phase.DONE), Send("a", Retire(1))]


def test_a_worker_lost_when_committed_is_not_waited_for() -> None:
    run = Run(*TEAM, CHANGE, *prepared(), Heard("a", Switched(1)))
    assert run.tell(Left("b")) == [Record(1, Phase.DONE), Send("a", Retire(1))]


def test_a_worker_that_takes_no_part_may_come_and_go() -> None:
    run = Run(*TEAM, CHANGE)
    assert run.tell(Left("s")) == []
    assert run.tell(Joined("s2", "source", source=True)) == []
    assert run.waiting() == {"a", "b"}


def test_a_lost_worker_answers_late_and_in_vain() -> None:
    run = Run(*TEAM, CHANGE, Left("b"))
    assert run.tell(Heard("b", Refused(1, "killed"))) == []
    assert run.phase() is Phase.PREPARING


def test_joining_when_queued_changes_nothing_yet() -> None:
    run = Run(*TEAM, CHANGE, request("FM"))
    assert run.phase(2) is Phase.QUEUED
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD))], "the active one only"
    run.tell(*prepared(), Heard("a2", Prepared(1)), *switched())
    part = Part(("FM",), head=True)
    assert run.tell(Heard("a2", Switched(1))) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("b", Retire(1)),
        Send("a2", Retire(1)),
        Record(2, Phase.PREPARING),
        Send("a", Prepare(2, part)),
        Send("a2", Prepare(2, part)),
    ]


def test_joining_when_preparing_is_waited_for() -> None:
    run = Run(*TEAM, CHANGE, Heard("a", Prepared(1)))
    assert run.tell(Joined("b2", "MC")) == [Send("b2", Prepare(1, TAIL))]
    assert run.tell(Heard("b", Prepared(1))) == []
    assert run.tell(Heard("b2", Prepared(1))) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]


def test_a_head_joining_when_committed_gets_both_messages_and_is_waited_for() -> None:
    run = Run(*TEAM, CHANGE, *prepared())
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD)), Send("a2", Commit(1))]
    assert run.tell(*switched(), Heard("a2", Prepared(1))) == []
    assert run.tell(Heard("a2", Switched(1)))[0] == Record(1, Phase.DONE)


def test_another_member_joining_when_committed_loads_and_awaits_markers() -> None:
    run = Run(*TEAM, CHANGE, *prepared())
    assert run.tell(Joined("b2", "MC")) == [Send("b2", Prepare(1, TAIL))]
    assert run.waiting() == {"a", "b", "b2"}


def test_joining_with_several_changes_in_transition_learns_them_in_order() -> None:
    run = Run(*TEAM, CHANGE, CHANGE, *prepared(1), CHANGE, *prepared(2))
    assert [change.phase for change in run.state.changes] == [
        Phase.COMMITTED,
        Phase.COMMITTED,
        Phase.PREPARING,
    ]
    assert run.tell(Joined("a2", "FM")) == [
        Send("a2", Prepare(1, HEAD)),
        Send("a2", Commit(1)),
        Send("a2", Prepare(2, HEAD)),
        Send("a2", Commit(2)),
        Send("a2", Prepare(3, HEAD)),
    ]


def test_joining_with_nothing_under_way() -> None:
    run = Run(*TEAM)
    assert run.tell(Joined("a2", "FM")) == []
    run.tell(CHANGE, *prepared(), Heard("a2", Prepared(1)), *switched(), Heard("a2", Switched(1)))
    assert run.tell(Joined("a3", "FM")) == [], "what is over is not the controller's to repeat"


# Changes that are held

HELD = Requested(CHANGE.parts, CHANGE.footprint, held=True)


def test_a_held_change_is_prepared_and_commits_when_released() -> None:
    run = Run(*TEAM, HELD)
    assert run.tell(*prepared()) == []
    assert (run.phase(), run.waiting()) == (Phase.PREPARING, set())
    assert run.tell(Released(1)) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]


def test_a_change_released_too_early_waits_for_the_next_release() -> None:
    """A boundary that finds it not prepared has passed: the next one counts."""
    run = Run(*TEAM, HELD)
    assert run.tell(Released(1)) == []
    assert run.tell(*prepared()) == []
    assert run.tell(Released(1)) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]


def test_a_held_change_keeps_its_place_and_can_still_fail() -> None:
    run = Run(*TEAM, HELD, *prepared())
    assert run.tell(CHANGE) == [Record(2, Phase.QUEUED)]
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD))]
    assert run.tell(Heard("a2", Refused(1, "no"))) == [
        Record(1, Phase.ABORTED, "a2: no"),
        *(Send(worker, Abort(1)) for worker in ("a", "b", "a2")),
        Record(2, Phase.PREPARING),
        Send("a", Prepare(2, HEAD)),
        Send("b", Prepare(2, TAIL)),
        Send("a2", Prepare(2, HEAD)),
    ]


def test_a_release_does_not_wait_for_newcomers() -> None:
    """They have not begun to work: their first task will wait until they have loaded it."""
    run = Run(*TEAM, HELD, *prepared(), Joined("a2", "FM"))
    assert run.tell(Released(1))[0] == Record(1, Phase.COMMITTED)
    assert "a2" in run.waiting()


def test_a_held_change_that_is_prepared_waits_for_its_release_however_long() -> None:
    run = Run(*TEAM, HELD, *prepared())
    before = run.state
    assert run.tell(Expired(1)) == []
    assert run.state == before


def test_to_release_what_is_not_held_or_over_changes_nothing() -> None:
    run = Run(*TEAM, CHANGE)
    before = run.state
    for number in (1, 2):
        assert run.tell(Released(number)) == []
        assert run.state == before


# Tagged changes


def test_a_tagged_change_waits_for_its_heads_and_then_for_the_old_tuples() -> None:
    run = Run(*TEAM, TAGGED)
    assert run.tell(*prepared()) == [Record(1, Phase.COMMITTED), Send("a", Commit(1))]
    assert run.waiting() == {"a"}, "no marker will tell the others"
    assert run.tell(Heard("a", Switched(1))) == []
    assert run.phase() is Phase.COMMITTED
    assert run.tell(Drained(1)) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("b", Retire(1)),
    ]


def test_old_tuples_may_be_gone_before_all_heads_have_answered() -> None:
    """A head that is dead or has just joined has no old tuple either."""
    run = Run(*TEAM, TAGGED, *prepared())
    assert run.waiting() == {"a"}
    assert run.tell(Drained(1)) == [
        Record(1, Phase.DONE),
        Send("a", Retire(1)),
        Send("b", Retire(1)),
    ]
    assert run.tell(Heard("a", Switched(1))) == [], "a late answer"


def test_joining_a_tagged_change_when_committed() -> None:
    run = Run(*TEAM, TAGGED, *prepared(), Heard("a", Switched(1)))
    assert run.tell(Joined("b2", "MC")) == [Send("b2", Prepare(1, TAIL))]
    assert run.waiting() == set(), "tags reach it with the tuples; it is not waited for"
    assert run.tell(Joined("a2", "FM")) == [Send("a2", Prepare(1, HEAD)), Send("a2", Commit(1))]
    assert run.waiting() == {"a2"}


@pytest.mark.parametrize(
    "run",
    [
        Run(*TEAM),
        Run(*TEAM, TAGGED),
        Run(*TEAM, TAGGED, *prepared(), Heard("a", Switched(1)), Drained(1)),
    ],
    ids=["unknown", "preparing", "twice"],
)
def test_nothing_else_can_have_drained(run: Run) -> None:
    with pytest.raises(ProtocolError, match=r"^controller: change 1 cannot have drained$"):
        run.tell(Drained(1))


# What may be in transition together


def test_one_change_is_prepared_at_a_time() -> None:
    run = Run(*TEAM, CHANGE)
    assert run.tell(CHANGE) == [Record(2, Phase.QUEUED)]
    assert run.tell(*prepared()) == [
        Record(1, Phase.COMMITTED),
        Send("a", Commit(1)),
        Record(2, Phase.PREPARING),
        Send("a", Prepare(2, HEAD)),
        Send("b", Prepare(2, TAIL)),
    ]


def test_the_same_components_may_be_in_transition_together_and_may_end_in_any_order() -> None:
    run = Run(*TEAM, CHANGE, *prepared(1), CHANGE, *prepared(2))
    assert (run.phase(1), run.phase(2)) == (Phase.COMMITTED, Phase.COMMITTED)
    assert run.tell(*switched(2)) == [
        Record(2, Phase.DONE),
        Send("a", Retire(2)),
        Send("b", Retire(2)),
    ]
    assert run.phase(1) is Phase.COMMITTED


def test_disjoint_components_may_be_in_transition_together() -> None:
    run = Run(*TEAM, request("FM"), Heard("a", Prepared(1)))
    assert run.tell(request("MC")) == [
        Record(2, Phase.QUEUED),
        Record(2, Phase.PREPARING),
        Send("b", Prepare(2, Part(("MC",), head=True))),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (request("FM"), request("FM MC")),
        (request("FM MC"), request("MC")),
        (request("FM MC"), request("FM", "MC")),
        (request("FM", "X"), request("FM")),
    ],
)
def test_overlapping_components_wait_for_each_other(first: Requested, second: Requested) -> None:
    run = Run(*TEAM, first, *prepared(1))
    assert run.phase(1) is Phase.COMMITTED
    assert run.tell(second) == [Record(2, Phase.QUEUED)]
    run.tell(*switched(1))
    assert run.phase(1) is None
    assert run.phase(2) is Phase.PREPARING


def test_the_queue_is_first_come_first_served() -> None:
    """A change that could start does not overtake one that cannot."""
    run = Run(*TEAM, request("FM"), Heard("a", Prepared(1)))
    run.tell(request("FM MC"))
    assert run.tell(request("FM")) == [Record(3, Phase.QUEUED)]
    assert [run.phase(number) for number in (1, 2, 3)] == [
        Phase.COMMITTED,
        Phase.QUEUED,
        Phase.QUEUED,
    ]
    run.tell(Heard("a", Switched(1)))
    assert [run.phase(number) for number in (1, 2, 3)] == [None, Phase.PREPARING, Phase.QUEUED]


def test_sixty_three_changes_in_transition_are_the_most() -> None:
    run = Run(*TEAM)
    for number in range(1, MOST_IN_TRANSITION + 1):
        run.tell(TAGGED, *prepared(number), Heard("a", Switched(number)))
    assert len(run.state.changes) == MOST_IN_TRANSITION == 63
    assert run.tell(TAGGED) == [Record(64, Phase.QUEUED)]
    assert run.tell(Drained(5)) == [
        Record(5, Phase.DONE),
        Send("a", Retire(5)),
        Send("b", Retire(5)),
        Record(64, Phase.PREPARING),
        Send("a", Prepare(64, HEAD)),
        Send("b", Prepare(64, TAIL)),
    ]


# Time is over


def test_a_change_that_is_not_prepared_in_time_is_aborted() -> None:
    run = Run(*TEAM, CHANGE)
    assert run.tell(Expired(1)) == [
        Record(1, Phase.ABORTED, "not prepared in time; waited for a, b"),
        Send("a", Abort(1)),
        Send("b", Abort(1)),
    ]
    assert run.tell(*prepared()) == [], "late answers"


def test_a_queued_change_expires_without_a_message() -> None:
    run = Run(*TEAM, CHANGE, CHANGE)
    assert run.tell(Expired(2)) == [
        Record(2, Phase.ABORTED, "not prepared in time; waited for an earlier change")
    ]
    assert run.phase(1) is Phase.PREPARING


def test_what_is_committed_or_over_cannot_expire() -> None:
    run = Run(*TEAM, CHANGE, *prepared())
    assert run.tell(Expired(1)) == []
    assert run.phase() is Phase.COMMITTED
    run.tell(*switched())
    assert run.tell(Expired(1)) == []


# States as values


def test_states_are_values() -> None:
    """The explorer keeps states in sets: equal ones must be equal, and none may change."""
    run, twin = Run(), Run()
    events: list[ControllerEvent] = [
        *TEAM,
        CheckpointDue(),
        CHANGE,
        *prepared(),
        *switched(),
        TAGGED,
        Expired(2),
    ]
    seen = {run.state}
    for event in events:
        assert run.tell(event) == twin.tell(event)
        assert run.state == twin.state
        assert hash(run.state) == hash(twin.state)
        seen.add(run.state)
    assert len(seen) == len(events) + 1
