"""Drivers that come one after the other on one log, with workers that connect to them."""

from __future__ import annotations

from dataclasses import replace

from fries.change.model import Order
from fries.control.client import ControlClient
from fries.control.ledger import Ledger
from fries.control.live import LiveChange
from fries.control.messages import Cut, Ended, Go
from fries.control.server import ControlServer
from fries.log.log import Log
from fries.spark.recovery import _restored
from tests.control.fakes import SECRET, FakeEngine, order, until
from tests.files import SHAPE, MemoryFiles


class Site:
    """Drivers that come one after the other, on one log, with their workers."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.servers: list[ControlServer] = []
        self.clients: list[ControlClient] = []
        self.start()

    @property
    def server(self) -> ControlServer:
        """The driver of the moment."""
        return self.servers[-1]

    def start(self, finished: int = -1) -> ControlServer:
        """A driver takes over what the log holds."""
        log = Log(self.files, SHAPE)
        changes = [_restored(logged) for logged in log.changes]
        self.servers.append(ControlServer("fraud", SECRET))
        self.server.start()
        self.server.restore(Ledger(log), changes, log.last, finished)
        return self.server

    def restart(self, finished: int = -1) -> ControlServer:
        """The driver ends, and the next one comes."""
        self.server.stop()
        return self.start(finished)

    def join(self) -> tuple[ControlClient, FakeEngine]:
        """Connect a worker."""
        engine = FakeEngine()
        self.clients.append(ControlClient(self.server.address, SECRET, "fraud", engine))
        return self.clients[-1], engine

    def change(self, client: ControlClient, what: Order | None = None) -> LiveChange:
        """A change that is committed while a task runs."""
        change = self.server.request(what or order("FM"))
        until(lambda: change.switched.keys() == {client.name} or change.over, client)
        return change

    def revoke(self, first: int, reason: str) -> bool:
        """Take back a change and all that came after it."""
        history = self.server.history()
        return self.server.revoke({c.number: reason for c in history if c.number >= first})

    def close(self) -> None:
        """End everything."""
        for gate in self.files.gates.values():
            gate.set()
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop()


def model(text: bytes, *names: str) -> Order:
    """A change that ships something to know it by."""
    return replace(order(*names or ("FM",)), buffers=(memoryview(text),), residue=b"migrations")


def met(number: int, *changes: int) -> Ended:
    """A task that has begun to stamp rows for some changes after its first one."""
    return Ended(number, 0, 0, {}, cuts=tuple(Cut(1, change) for change in changes))


def batch(client: ControlClient, number: int) -> Go:
    """One task of a batch, from its begin to its end."""
    go = client.begin(number, 0, 0)
    client.ended(Ended(number, 0, 0, {}))
    return go
