"""In which micro-batch a change takes effect: the first one in which anything could meet it.

Until Spark has committed that batch the change can be taken back without a trace, whoever asks:
this driver, or one that comes after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import NamedTuple

import pytest

from fries.change.model import Phase
from fries.control.client import ControlClient
from fries.control.messages import Cut, Ended, Go
from fries.errors import LogError, WireError
from fries.log.log import Log
from tests.control.fakes import order, until
from tests.control.sites import Site, met
from tests.files import SHAPE, hold

N = 5
"""The batch that runs; those before it are committed."""
Step = Callable[[Site, ControlClient], None]


def begins(stage: int = 0, batch: int = N) -> Step:
    return lambda _, client: _begin(client, batch, stage)


def _begin(client: ControlClient, batch: int, stage: int) -> None:
    client.begin(batch, stage, 0)


def ends(stage: int = 0, *cuts: Cut, complete: bool = True) -> Step:
    return lambda _, client: client.ended(Ended(N, stage, 0, {}, 0, complete, cuts))


def commits(stage: int = 0) -> Step:
    """A change whose components rows enter in some stage."""
    return lambda site, client: _commit(site, client, stage)


def _commit(site: Site, client: ControlClient, stage: int) -> None:
    change = site.change(client, replace(order("FM"), stages=frozenset({stage})))
    assert change.phase in (Phase.COMMITTED, Phase.DONE)


def spark_commits(site: Site, _: ControlClient) -> None:
    site.server.batches_committed(N)


def query_fails(site: Site, _: ControlClient) -> None:
    site.server.query_begins()


CUT = Cut(1, 1)


class Moment(NamedTuple):
    """When a change is committed, and the first batch that has it."""

    steps: tuple[Step, ...]
    batch: int | None


MOMENTS: dict[str, Moment] = {
    "before the first task": Moment((commits(), begins()), N),
    "while the first stage runs": Moment((begins(), commits(), ends(0, CUT)), N),
    "after its last row": Moment((begins(), commits(), ends()), None),
    "between two of its tasks": Moment((begins(), ends(), commits(), begins()), N),
    "in a task that fails": Moment((begins(), commits(), ends(0, CUT, complete=False)), None),
    "in a task that is repeated": Moment(
        (begins(), commits(), ends(0, CUT, complete=False), begins()), N
    ),
    "between two stages": Moment((begins(), ends(), commits(), begins(1), ends(1)), None),
    "before a stage where rows enter": Moment((begins(), ends(), commits(1), begins(1)), N),
    "in the second stage, for the first": Moment((begins(), ends(), begins(1), commits()), None),
    "after the last task": Moment((begins(), ends(), commits()), None),
    "during the sink, and the batch fails": Moment(
        (begins(), ends(), commits(), query_fails, begins()), N
    ),
    "during the sink": Moment((begins(), ends(), commits(), spark_commits), None),
    "after Spark's commit": Moment((begins(), ends(), spark_commits, commits()), None),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_a_change_takes_effect_in_the_first_batch_that_could_meet_it(site: Site, name: str) -> None:
    steps, batch = MOMENTS[name]
    client, _ = site.join()
    site.server.batches_committed(N - 1)
    for step in steps:
        step(site, client)
    (change,) = site.server.committed_changes()
    assert change.since == batch
    (logged,) = Log(site.files, SHAPE).changes
    assert logged.since == batch


@pytest.mark.parametrize("restarts", [False, True], ids=["same driver", "another driver"])
@pytest.mark.parametrize("name", MOMENTS)
def test_what_no_committed_batch_has_can_be_taken_back(
    site: Site, name: str, restarts: bool
) -> None:
    """Every row of the next batch fails, and the change has no inverse."""
    steps, batch = MOMENTS[name]
    client, _ = site.join()
    site.server.batches_committed(N - 1)
    for step in steps:
        step(site, client)
    site.server.batches_committed(N)
    if restarts:
        site.restart(finished=N)
        client, _ = site.join()
    assert client.begin(N + 1, 0, 0).base in ((1,), ())
    assert site.revoke(1, "every row fails") is (batch is None)


@pytest.mark.parametrize("name", MOMENTS)
def test_while_its_batch_is_not_committed_it_can_be_taken_back(site: Site, name: str) -> None:
    client, _ = site.join()
    site.server.batches_committed(N - 1)
    for step in MOMENTS[name].steps:
        if step is not spark_commits:
            step(site, client)
    site.restart(finished=N - 1)
    client, _ = site.join()
    assert client.begin(N, 0, 0) == Go((), ())
    assert site.revoke(1, "every row fails")


def test_the_log_has_the_batch_before_a_task_with_the_change_begins(site: Site) -> None:
    client, _ = site.join()
    site.server.batches_committed(N - 1)
    site.change(client)
    gate = hold(site.files, "since")
    other, _ = site.join()
    answers: list[Go] = []

    def begin() -> None:
        answers.append(other.begin(N, 0, 1))

    waiting = Thread(target=begin)
    waiting.start()
    site.files.wait_until_held("00000001.since")
    assert answers == []
    gate.set()
    waiting.join()
    assert len(answers) == 1
    assert client.begin(N, 0, 0) == Go((1,), ()), "the others need not wait"


def test_a_task_that_has_met_a_change_ends_when_the_log_has_its_batch(site: Site) -> None:
    client, _ = site.join()
    client.begin(N, 0, 0)
    site.change(client)
    client.ended(met(N, 1))
    assert "00000001.since" in site.files.contents


@pytest.mark.parametrize("error", [LogError("disk full"), OSError("disk full")])
def test_a_task_fails_if_the_log_cannot_have_the_batch(site: Site, error: Exception) -> None:
    """Else a later driver could erase a change that committed states have met."""
    client, _ = site.join()
    client.begin(N, 0, 0)
    change = site.change(client)
    site.files.faults["since"] = error
    with pytest.raises(WireError, match="nobody knows where this task switched"):
        client.ended(met(N, 1))
    assert change.since is None
    del site.files.faults["since"]
    site.server.query_begins()
    until(lambda: site.server.workers == ())
    again, _ = site.join()
    again.begin(N, 0, 0)
    assert change.since == N
