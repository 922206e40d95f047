"""Tasks that are executed again: what the controller remembers of them, and who waits for it."""

from __future__ import annotations

import threading

import pytest

from fries.change.model import Phase
from fries.change.tasks import Attempts, Place, Repetition
from fries.control.client import ControlClient
from fries.control.messages import Cut, Ended, Go
from fries.errors import WireError
from fries.protocol.worker_events import TaskMayEnd
from tests.control.fakes import order, until
from tests.control.sites import Site
from tests.files import hold

HERE = Place(batch=3, execution=0, stage=1, partition=2)
CUTS = (Cut(10, 2), Cut(25, 3))


# Rules


def test_a_first_attempt_is_free() -> None:
    assert Attempts().begin(HERE, (1,)) == Repetition(None, ())


def test_an_attempt_of_which_nothing_was_heard_is_repeated_as_it_began() -> None:
    """It did not complete, or it never switched."""
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    assert attempts.begin(HERE, (1, 2)) == Repetition((1,), ())
    assert attempts.begin(HERE, (1, 2, 3)) == Repetition((1,), ()), "and again"


def test_an_attempt_that_completed_is_repeated_as_it_went() -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.end(HERE, complete=True, cuts=CUTS)
    for _ in range(2):
        assert attempts.begin(HERE, (1, 2, 3, 4)) == Repetition((1,), CUTS)


def test_an_attempt_that_failed_gave_no_rows_that_count() -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.end(HERE, complete=False, cuts=CUTS)
    assert attempts.begin(HERE, (1, 2)) == Repetition(None, ())
    attempts.end(HERE, complete=True, cuts=())
    assert attempts.begin(HERE, (1, 2, 3)) == Repetition((1, 2), ()), "as the second one went"


def test_a_repetition_that_fails_frees_nobody() -> None:
    """The attempt before it may have completed without a word."""
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.begin(HERE, (1, 2))
    assert attempts.end(HERE, complete=False, cuts=())
    assert attempts.begin(HERE, (1, 2, 3)) == Repetition((1,), ())


def test_who_was_taken_for_lost_may_not_complete_otherwise_than_the_repetition() -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.begin(HERE, (1, 2))
    assert not attempts.end(HERE, complete=True, cuts=CUTS), "it has switched meanwhile"
    assert attempts.end(HERE, complete=True, cuts=()), "the repetition"
    assert not attempts.end(HERE, complete=True, cuts=CUTS)
    assert attempts.begin(HERE, (1, 2, 3)) == Repetition((1,), ())


def test_a_repetition_that_fails_does_not_undo_the_attempt_that_completed() -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.end(HERE, complete=True, cuts=CUTS)
    attempts.begin(HERE, (1, 2, 3))
    attempts.end(HERE, complete=False, cuts=())
    assert attempts.begin(HERE, (1, 2, 3)) == Repetition((1,), CUTS)


def test_an_end_without_a_beginning_says_nothing() -> None:
    """It came after the batch was thrown away."""
    attempts = Attempts()
    attempts.end(HERE, complete=True, cuts=CUTS)
    assert attempts.begin(HERE, ()) == Repetition(None, ())


@pytest.mark.parametrize("field", Place._fields)
def test_other_tasks_are_other_tasks(field: str) -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    assert attempts.begin(HERE._replace(**{field: 9}), (1,)) == Repetition(None, ())


def test_a_batch_that_is_over_is_forgotten() -> None:
    attempts = Attempts()
    attempts.begin(HERE, (1,))
    attempts.end(HERE, complete=True, cuts=CUTS)
    attempts.forget()
    assert attempts.begin(HERE, (1,)) == Repetition(None, ())


# Over real sockets


def ended(client: ControlClient, *cuts: Cut, complete: bool = True, batch: int = 0) -> None:
    client.ended(Ended(batch, 0, 0, {}, complete=complete, cuts=cuts))


def test_a_task_that_switched_inside_is_repeated_with_its_cuts(site: Site) -> None:
    (client, _), (other, engine) = site.join(), site.join()
    assert client.begin(0, 0, 0) == Go((), ())
    change = site.server.request(order("FM"))
    until(lambda: client.name in change.switched, client)
    ended(client, Cut(10, 1))
    assert other.begin(0, 0, 0) == Go((), (1,), (), (Cut(10, 1),))
    assert ("switch", 1) in engine.told, "it has the functions, and will be told when"


def test_a_task_that_is_lost_is_repeated_as_it_began(site: Site) -> None:
    (client, _), (other, _) = site.join(), site.join()
    client.begin(0, 0, 0)
    change = site.server.request(order("FM"))
    until(lambda: len(change.switched) == 2, client)
    client.close()
    until(lambda: site.server.workers == (other.name,))
    assert other.begin(0, 0, 0) == Go((), (1,), ())


def test_a_task_that_failed_is_free_to_begin_with_all_that_is_committed(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.change(client)
    ended(client, Cut(10, 1), complete=False)
    assert client.begin(0, 0, 0) == Go((), (1,))


@pytest.mark.parametrize("how", ["cut", "next batch"])
def test_the_next_batch_repeats_nothing(site: Site, how: str) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.change(client)
    ended(client, Cut(10, 1))
    if how == "cut":
        site.server.query_begins()
    assert client.begin(0 if how == "cut" else 1, 0, 0) == Go((1,), ())


def test_a_late_task_of_an_older_batch_repeats_nothing(site: Site) -> None:
    """What it was like is forgotten with its batch, or the controller would grow for ever."""
    client, _ = site.join()
    for batch in (0, 1, 0):
        assert client.begin(batch, 0, 0) == Go((), ())
        ended(client, batch=batch)


def test_a_query_that_begins_anew_repeats_nothing_even_if_old_tasks_still_run(site: Site) -> None:
    (client, _), (other, _) = site.join(), site.join()
    client.begin(-1, 0, 0)
    site.server.query_begins()
    assert other.begin(-1, 0, 0) == Go((), ())


def test_actions_on_one_batch_do_not_repeat_each_other(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0, 11)
    site.change(client)
    client.ended(Ended(0, 0, 0, {}, 11, cuts=(Cut(10, 1),)))
    assert client.begin(0, 0, 0, 12) == Go((), (1,))
    client.ended(Ended(0, 0, 0, {}, 12))
    assert client.begin(0, 0, 0, 11) == Go((), (1,), (), (Cut(10, 1),))


def test_a_commit_right_behind_the_answer_may_take_effect_before_the_first_row(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not name it, so a task must look for itself what it begins with."""
    client, engine = site.join()
    gate = hold(site.files, "commit")
    change = site.server.request(order("FM"))
    site.files.wait_until_held("00000001.commit")
    take, looking = client._take_arrived, threading.Event()
    monkeypatch.setattr(client, "_take_arrived", lambda *_, **__: looking.is_set() and take())
    answers: list[Go] = []
    task = threading.Thread(target=lambda: answers.append(client.begin(0, 0, 0)))
    task.start()
    until(lambda: site.server._machine.batches.running(client.name) == 1)
    gate.set()
    until(lambda: change.phase is Phase.COMMITTED)
    looking.set()
    task.join()
    until(lambda: ("switch", 1) in engine.told, client)
    assert answers == [Go((), ())]


# Who waits


def test_a_task_that_switched_inside_completes_only_when_that_is_noted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is kept from reading: the task must wait for it."""
    client, _ = site.join()
    client.begin(0, 0, 0)
    reading, go_on = threading.Event(), threading.Event()

    def busy() -> None:
        reading.set()
        assert go_on.wait(20)

    asking = threading.Thread(target=lambda: site.server._loop.ask(busy))
    asking.start()
    assert reading.wait(20)
    waits: list[object] = []
    wait, task = client._state.wait, threading.current_thread()

    def noticed(seconds: float | None = None) -> bool:
        if threading.current_thread() is task:
            waits.append(client._answer)
            go_on.set()
        return wait(seconds)

    monkeypatch.setattr(client._state, "wait", noticed)
    ended(client, Cut(10, 1))
    asking.join()
    assert set(waits) == {None}, "it began to wait before the controller could answer"
    assert client._answer == TaskMayEnd()


@pytest.mark.parametrize(
    ("cuts", "complete"), [((), True), ((Cut(10, 1),), False)], ids=["no switch", "failed"]
)
def test_other_tasks_wait_for_nobody(site: Site, cuts: tuple[Cut, ...], complete: bool) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.server.stop()
    until(lambda: client.broken, client)
    ended(client, *cuts, complete=complete)


def test_a_task_that_switched_inside_fails_if_the_controller_is_gone(site: Site) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    site.server.stop()
    until(lambda: client.broken, client)
    with pytest.raises(WireError):
        ended(client, Cut(10, 1))


def test_a_task_that_switched_inside_fails_if_the_controller_goes_while_it_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = site.join()
    client.begin(0, 0, 0)
    monkeypatch.setattr(site.server._machine, "_ended", lambda *_: None)  # it notes nothing
    said = client._say
    stopping = threading.Thread(target=site.server.stop)

    def say_and_stop(message: object) -> None:
        said(message)  # type: ignore[arg-type]
        if isinstance(message, Ended):
            stopping.start()

    monkeypatch.setattr(client, "_say", say_and_stop)
    with pytest.raises(WireError, match="nobody knows where this task switched"):
        ended(client, Cut(10, 1))
    stopping.join()
