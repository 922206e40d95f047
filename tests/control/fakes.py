"""What tests of the control channel are made of: an engine that only takes notes, and orders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fries.change.model import Change, Order, Phase
from fries.control.client import ControlClient
from fries.control.seal import new_secret
from tests import waiting

SECRET = new_secret()
PATIENCE = waiting.PATIENCE
SETTLED = frozenset({Phase.COMMITTED, Phase.DONE, Phase.ABORTED})


class FakeEngine:
    """Notes what it is told; payload ``b"bad"`` cannot be loaded."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.payloads: dict[int, bytes] = {}
        self.parts: dict[int, list[bytes]] = {}
        self.loading = threading.Lock()
        """Held by a test that wants loading to take long."""
        self._begun = threading.Event()
        self._more = threading.Condition()

    def define(self, definition: bytes, skipped: dict[str, int]) -> None:  # noqa: ARG002
        """Begin with nothing."""
        assert definition == b""

    def load(
        self, change: int, bit: int, payload: memoryview, parts: Sequence[memoryview] = ()
    ) -> None:
        """Load, unless the payload is bad."""
        assert 0 <= bit < 63
        self.payloads[change] = bytes(payload)
        self.parts[change] = [bytes(part) for part in parts]
        if bytes(payload) == b"bad":
            raise ImportError("no module named 'missing'")
        self._begun.set()
        with self.loading:
            self._tell("load", change)

    def adopt(self, change: int) -> None:
        """Note that a change is in the base."""
        self._tell("adopt", change)

    def switch(self, change: int) -> None:
        """Note a switch."""
        self._tell("switch", change)

    def drop(self, change: int) -> None:
        """Note a drop."""
        self._tell("drop", change)

    def wait_for(self, what: str, change: int) -> None:
        """Wait until it has been told something."""
        with self._more:
            assert self._more.wait_for(lambda: (what, change) in self.told, PATIENCE)

    def wait_until_it_loads(self) -> None:
        """Wait until it has begun to load something."""
        assert self._begun.wait(PATIENCE)

    def _tell(self, what: str, change: int) -> None:
        with self._more:
            self.told.append((what, change))
            self._more.notify_all()


class Join(Protocol):
    """Connects a worker; ``held`` keeps it from loading anything."""

    def __call__(self, held: bool = False) -> tuple[ControlClient, FakeEngine]:
        """Connect."""
        ...


def order(*names: str, payload: bytes = b"good", at_boundary: bool = False) -> Order:
    members = frozenset({frozenset(names)})
    return Order(
        names,
        payload,
        members,
        at_boundary=at_boundary,
        timeout=PATIENCE,
        requested=time.time(),
        stages=frozenset({0}),
    )


def settled(change: Change) -> Phase:
    until(lambda: change.phase in SETTLED)
    return change.phase


def until(condition: Callable[[], bool], *polling: ControlClient) -> None:
    """Wait for what other threads do, while some workers poll as between two chunks."""
    while not condition():
        for client in polling:
            client.poll()
        threading.Event().wait(0.002)


class Stubborn(FakeEngine):
    """An engine that loads nothing."""

    def load(
        self, change: int, bit: int, payload: memoryview, parts: Sequence[memoryview] = ()
    ) -> None:
        """Refuse."""
        raise ImportError(f"not today: {change}, {bit}, {len(payload)}, {len(parts)}")
