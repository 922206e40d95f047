"""A task that has failed holds its chunk, and hears whether the change is taken back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fries.control.client import ControlClient
from fries.control.server import Held
from fries.errors import OperatorError
from tests.control.fakes import FakeEngine, order, until
from tests.control.sites import Site

ERROR = OperatorError("FM", "it raised", "row 7", "the story")


def failing(site: Site) -> tuple[ControlClient, FakeEngine]:
    """A worker whose task has just failed with change 1."""
    client, engine = site.join()
    client.begin(5, 0, 0)
    site.change(client)
    client.failed(1, ERROR)
    return client, engine


def test_without_a_supervisor_it_fails_at_once(site: Site) -> None:
    client, _ = failing(site)
    assert not client.hold("FM", 1, 0)
    assert not client.broken


def test_it_goes_on_when_something_else_is_in_use(site: Site) -> None:
    client, engine = failing(site)
    told: list[Held] = []

    def take_back(held: Held) -> None:
        told.append(held)
        threading.Thread(target=lambda: site.server.request(order("FM"))).start()

    site.server.take_back(take_back, 0)
    assert client.hold("FM", 1, 0)
    assert engine.told[-2:] == [("load", 2), ("switch", 2)]
    (held,) = told
    assert (held.worker, held.stage, held.failed.change) == (client.name, 0, 1)
    assert (held.failed.operator, held.failed.row) == ("FM", "row 7")


@pytest.mark.parametrize("how", ["given up", "connection lost"])
def test_it_fails_when_it_hears_that_there_is_no_way_back(site: Site, how: str) -> None:
    client, _ = failing(site)

    def refuse(held: Held) -> None:
        ways: dict[str, Callable[[], None]] = {
            "given up": lambda: site.server.give_up(held.worker, 1),
            "connection lost": client.close,
        }
        ways[how]()

    site.server.take_back(refuse, 0)
    assert not client.hold("FM", 1, 0)


def test_a_failure_that_was_never_told_is_nobodys(site: Site) -> None:
    client, _ = site.join()
    client.begin(5, 0, 0)
    site.server.take_back(lambda held: pytest.fail(f"nobody told of {held}"), 0)
    assert not client.hold("FM", 1, 0)


def test_tasks_know_whether_a_version_is_on_probation(site: Site) -> None:
    client, _ = site.join()
    assert not client.begin(5, 0, 0).on_probation
    site.change(client)
    site.server.take_back(None, 2)
    assert client.begin(5, 0, 1).on_probation, "batch 5 is the first one with the change"
    found = [client.begin(number, 0, 0).on_probation for number in (6, 7, 8)]
    assert found == [True, True, False]


def test_a_driver_that_comes_later_knows_it_too(site: Site) -> None:
    client, _ = site.join()
    client.begin(5, 0, 0)
    site.change(client)
    client.begin(5, 0, 1)
    until(lambda: "00000001.since" in site.files.contents)
    site.restart(finished=5)
    site.server.take_back(None, 2)
    client, _ = site.join()
    found = [client.begin(number, 0, 0).on_probation for number in (6, 7, 8)]
    assert found == [True, True, False]
