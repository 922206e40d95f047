"""The history of a flow that is changed again and again: complete, and small."""

from __future__ import annotations

import gc
import logging
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from fries.change.model import MOST_REASON, Phase
from fries.control.client import ControlClient
from fries.control.ledger import Ledger
from fries.control.live import LiveChange
from fries.control.server import ControlServer
from fries.control.wire import RECEIVE_BYTES
from fries.history import entry_of
from fries.log.log import Log
from fries.log.pieces import Buffer
from fries.runtime.spec import Kind, OperatorSpec
from fries.versions import Applied, Kept, Versions
from tests.control.fakes import SECRET, order, until
from tests.control.sites import Site, batch
from tests.files import PATIENCE, SHAPE, MemoryFiles

FM = OperatorSpec("FM", Kind.MAP, pa.schema({"k": pa.int64()}), lambda row: row)
WARM_UP = 300
CHANGES = 600
MOST_BYTES = 1_500
"""That a change may leave behind in driver and worker together."""


class NoFiles(MemoryFiles):
    """A folder that takes everything and keeps nothing."""

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Forget it."""


class ForgetfulEngine:
    """Loads everything but ``b"bad"``, and remembers nothing."""

    def define(self, definition: bytes, skipped: dict[str, int]) -> None:
        """Begin with nothing."""

    def load(
        self,
        change: int,  # noqa: ARG002
        bit: int,  # noqa: ARG002
        payload: memoryview,
        parts: Sequence[memoryview] = (),  # noqa: ARG002
    ) -> None:
        """Load, unless the payload is bad."""
        if bytes(payload) == b"bad":
            raise ImportError("no module named 'missing'" * 1000)

    def adopt(self, change: int) -> None:
        """Make it part of the base."""

    def switch(self, change: int) -> None:
        """Switch."""

    def drop(self, change: int) -> None:
        """Drop."""


class Driver:
    """What the driver of a flow keeps, and a worker; every change comes in a batch of its own."""

    def __init__(self, logged: bool) -> None:
        self.server = ControlServer("fraud", SECRET)
        self.server.start()
        if logged:
            self.server.restore(Ledger(Log(NoFiles(), SHAPE)), [], 0, -1)
        self.client = ControlClient(self.server.address, SECRET, "fraud", ForgetfulEngine())
        self.versions = Versions((FM,))
        self.batch = 0

    def change(self, payload: bytes = b"good") -> LiveChange:
        """One change, and the batch after it."""
        self.versions.current(self.server.finished)
        number = self.server.updates_of("FM") + 1
        what = replace(order("FM", payload=payload), versions={"FM": number}, note=f"no. {number}")
        change = self.server.request(replace(what, timeout=3600.0))
        new = {"FM": replace(FM, function=lambda row: (row, number))}
        kept = Kept(b"%032d" % number, {}, len, None, None, None)
        self.versions.add(Applied(change, new, {"FM": FM}, {}, {}, {"FM": kept}))
        until(lambda: bool(change.switched) or change.over, self.client)
        self.batch += 1
        batch(self.client, self.batch)
        return change

    def run(self, changes: int) -> None:
        """Many changes; every tenth cannot be loaded."""
        for number in range(changes):
            self.change(b"bad" if number % 10 == 0 else b"good")

    def close(self) -> None:
        """End everything."""
        self.client.close()
        self.server.stop()


@pytest.fixture(params=[False, True], ids=["in memory", "logged"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = Driver(request.param)
    yield made
    made.close()


def test_a_change_leaves_little_behind(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "fries.events")  # pytest would keep what is logged
    driver.run(WARM_UP)
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        driver.run(CHANGES)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    receiving = RECEIVE_BYTES  # somebody may just be listening
    assert after - before < MOST_BYTES * CHANGES + receiving
    assert [one.number for one in driver.server.history()] == list(range(1, 901))


def test_what_is_small_is_told_as_before(driver: Driver) -> None:
    changes = [driver.change() for _ in range(3)]
    told = [entry_of(change.summary()) for change in changes]
    driver.change(b"bad")
    driver.run(20)
    batch(driver.client, driver.batch + 1)  # so the last change's batch is committed
    assert [entry_of(one) for one in driver.server.history()[:3]] == told
    assert driver.server.updates() == {"FM": 3 + 18}
    assert driver.server.updates_of("FM") == 3 + 18
    assert len(driver.server.committed_changes()) == 2, "an undo may need the one before the last"
    aborted = driver.server.history()[3]
    assert aborted.phase is Phase.ABORTED
    assert len(aborted.reason) == MOST_REASON


def test_a_handle_outlives_what_the_controller_keeps(driver: Driver) -> None:
    good, bad = driver.change(), driver.change(b"bad")
    driver.run(20)
    assert good.phase is Phase.DONE
    assert good.wait(time.monotonic() + PATIENCE)
    assert good.switched.keys() == {driver.client.name}
    assert good.delay is not None
    assert bad.phase is Phase.ABORTED
    assert len(bad.reason) > MOST_REASON


def test_migrations_stay_for_workers_that_come_later(site: Site) -> None:
    client, _ = site.join()
    migrating = replace(order("FM"), residue=b"migrations", migrates=True)
    for number in range(5):
        site.change(client, migrating if number == 1 else order("FM"))
        batch(client, number)
    batch(client, 5)
    batch(client, 6)
    _, late = site.join()
    late.wait_for("adopt", 5)
    assert late.told == [(what, n) for n in (2, 4, 5) for what in ("load", "adopt")]
    assert [one.number for one in site.server.history()] == [1, 2, 3, 4, 5]


def test_a_restored_history_is_small_at_once(site: Site) -> None:
    client, _ = site.join()
    for number in range(5):
        site.change(client)
        batch(client, number)
    site.change(client, order("FM", payload=b"bad"))
    server = site.restart(finished=5)
    assert [one.number for one in server.history()] == [1, 2, 3, 4, 5, 6]
    assert [one.number for one in server.committed_changes()] == [4, 5]
    assert server.updates() == {"FM": 5}
    assert server.updates_of("FM") == 5


def test_what_was_replaced_for_good_cannot_be_taken_back(driver: Driver) -> None:
    driver.run(20)
    assert not driver.server.revoke({2: "too late"})
    assert driver.server.updates() == {"FM": 18}
