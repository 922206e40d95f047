"""The controller's machine: events in, the exact instructions out."""

from __future__ import annotations

from fries.change.controller import Controller
from fries.change.events import (
    AbortLogged,
    CancelTimer,
    ControllerInstruction,
    Decided,
    EffectLogged,
    Expired,
    Greet,
    Heard,
    Joined,
    LogAbort,
    LogCommit,
    LogEffect,
    LogEnd,
    LogIntent,
    Requested,
    Send,
    SetTimer,
    Ship,
    Tell,
)
from fries.change.model import Change, Order, Phase
from fries.control.messages import Begin, Go
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

PREPARE = Prepare(1, Part(("F",), head=True))


def change(number: int = 1) -> Change:
    return Change(number, Order(("F",), b"", frozenset({frozenset({"F"})}), stages=frozenset({0})))


def made(durable: bool = True, *workers: str) -> Controller:
    """A controller that some workers have joined."""
    machine = Controller(durable=durable)
    for worker in workers:
        assert machine.handle(Joined(worker)) == [Greet(worker, (), {})]
    return machine


def asked(machine: Controller) -> Change:
    """A change that its worker has loaded, and that the log is asked to commit."""
    one = change()
    machine.handle(Requested(one))
    assert machine.handle(Heard("a", Prepared(1))) == [LogCommit(1)]
    return one


def untold(instructions: list[ControllerInstruction]) -> list[ControllerInstruction]:
    """Without what users are told."""
    return [one for one in instructions if not isinstance(one, Tell)]


def test_a_change_from_its_request_to_its_end() -> None:
    machine, one = made(True, "a", "b"), change()
    everybody = ("a", "b")
    assert untold(machine.handle(Requested(one))) == [
        SetTimer(one),
        LogIntent(1, one.order),
        Ship(everybody, 1, 0, PREPARE),
    ]
    assert machine.handle(Heard("a", Prepared(1))) == []
    assert machine.handle(Heard("b", Prepared(1))) == [LogCommit(1)]
    assert untold(machine.handle(Decided(1), 0.5)) == [Send(everybody, Commit(1))]
    assert one.phase is Phase.COMMITTED
    assert machine.handle(Heard("a", Switched(1, 1.0)), 2.0) == []
    assert one.settled is None
    assert machine.handle(Heard("b", Switched(1, 1.5)), 2.0) == []
    assert one.settled == 1.5
    begin = machine.handle(Heard("a", Begin(0, 0, 0)))
    assert untold(begin) == [
        CancelTimer(1),
        LogEnd(one),
        Send(everybody, Retire(1)),
        LogEffect(1, (1,), 0),
    ]
    assert machine.handle(EffectLogged(1)) == [Send(("a",), Go((1,), ()))]
    assert (one.phase, one.since) == (Phase.DONE, 0)


def test_an_abort_is_told_when_the_log_cannot_have_the_commit() -> None:
    machine = made(True, "a")
    one = asked(machine)
    why = "the commit cannot be logged: the disk is full"
    assert machine.handle(Decided(1, "the disk is full")) == [LogAbort(1, why, again=False)]
    assert one.phase is Phase.PREPARING, "the log may have it"
    assert machine.handle(Expired(1)) == []
    assert machine.handle(AbortLogged(1, "still full")) == [LogAbort(1, why, again=True)]
    assert untold(machine.handle(AbortLogged(1))) == [
        CancelTimer(1),
        LogEnd(one),
        Send(("a",), Abort(1)),
    ]
    assert (one.phase, one.reason) == (Phase.ABORTED, why)


def test_a_late_worker_that_cannot_load_does_not_abort_what_the_log_may_have() -> None:
    machine = made(True, "a")
    one = asked(machine)
    assert machine.handle(Joined("b")) == [Greet("b", (), {}), Ship(("b",), 1, 0, PREPARE)]
    assert machine.handle(Heard("b", Refused(1, "no such module"))) == []
    assert untold(machine.handle(Decided(1))) == [Send(("a", "b"), Commit(1))]
    assert one.phase is Phase.COMMITTED


def test_a_worker_that_cannot_load_aborts_before_that() -> None:
    machine, one = made(True, "a", "b"), change()
    machine.handle(Requested(one))
    assert untold(machine.handle(Heard("b", Refused(1, "no such module")))) == [
        CancelTimer(1),
        LogEnd(one),
        Send(("a", "b"), Abort(1)),
    ]
    assert one.reason == "b: no such module"


def test_without_a_log_the_last_answer_commits() -> None:
    machine, one = made(False, "a"), change()
    assert untold(machine.handle(Requested(one))) == [SetTimer(one), Ship(("a",), 1, 0, PREPARE)]
    assert untold(machine.handle(Heard("a", Prepared(1)))) == [Send(("a",), Commit(1))]
    assert one.ready
