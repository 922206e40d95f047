"""Networks that fail in the middle of things: rows go on, and nothing is left half done.

Every fault is tried at every stage of a change and of a task. The test's own thread is the one that
processes rows, and must never wait for the network; what must wait does so for its own timeout.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from fries.change.model import Change, Order, Phase
from fries.control import client as client_module
from fries.control.client import ControlClient
from fries.control.messages import Cut, Ended, Go
from fries.control.server import ControlServer
from fries.control.wire import GONE_SECONDS, LARGE_BYTES
from fries.errors import WireError
from fries.protocol.messages import Switched
from tests.control.fakes import PATIENCE, SECRET, SETTLED, FakeEngine, order, until
from tests.control.proxy import Link, Proxy, Way

SOON = 0.3
"""Seconds after which whoever must wait gives up, where a test is about that."""
PREPARED_SOON = 1.0
"""Seconds for a change that cannot be prepared; without a fault it mostly is, in that time."""
UP, DOWN = Way.UP, Way.DOWN


def cut(link: Link) -> None:
    link.cut()


def reset(link: Link) -> None:
    link.cut(reset=True)


def deaf(link: Link) -> None:
    link.hold(UP)


def mute(link: Link) -> None:
    link.hold(DOWN)


def frozen(link: Link) -> None:
    link.hold()


ENDING = (cut, reset)
"""Faults that both sides are told of."""
HALF_OPEN = (deaf, mute, frozen)
"""Faults that nobody is told of. The bytes are not lost, but late."""
FAULTS = (*ENDING, *HALF_OPEN)
Fault = Callable[[Link], None]
any_fault = pytest.mark.parametrize("fault", FAULTS)
anywhere = pytest.mark.parametrize("share", [0.0, 0.5], ids=["before", "within"])


class Process:
    """A worker process between its tasks: what ``fries.spark.tasks`` does with a connection."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.engine = FakeEngine()
        self.clients: list[ControlClient] = []
        self._connect()

    @property
    def client(self) -> ControlClient:
        """The connection of the moment."""
        return self.clients[-1]

    def task(self, batch: int, partition: int = 0) -> Go:
        """Begin a task; if the connection was lost since the last one, on a new one."""
        if self.client.broken:
            self._network.be_patient()
            self._connect()
            return self.client.begin(batch, 0, partition)
        try:
            return self.client.begin(batch, 0, partition)
        except WireError:
            assert self.client.broken, "or the next try would use the same connection"
            self._network.be_patient()
            self._connect()
        return self.client.begin(batch, 0, partition)

    def _connect(self) -> None:
        self.engine = FakeEngine()
        address = self._network.proxy.address
        self.clients.append(ControlClient(address, SECRET, "fraud", self.engine))


class Network:
    """A controller, and processes that reach it through a proxy."""

    def __init__(self, controller: ControlServer, patch: pytest.MonkeyPatch) -> None:
        self.server = controller
        self._patch = patch
        self.proxy = Proxy(controller.address)
        self.be_patient()
        self._processes: list[Process] = []

    def process(self) -> Process:
        """A worker process, connected."""
        self._processes.append(Process(self))
        return self._processes[-1]

    def be_impatient(self, seconds: float = SOON) -> None:
        """Let those who wait for an answer give up soon: there is a fault, and it will not come."""
        self._patch.setattr(client_module, "CONNECT_SECONDS", seconds)

    def give_up_after(self, failed: threading.Event, client: ControlClient) -> None:
        """Let a client that waits give up when a fault has happened that nobody is told of."""

        def give_up() -> None:
            failed.wait()
            self.be_impatient()
            with client._state:
                client._state.notify_all()

        threading.Thread(target=give_up, daemon=True).start()

    def be_patient(self) -> None:
        """Let those who wait for an answer get it, however busy the machine is.

        It is how a network begins: a data thread that waits for what does not come is never done.
        """
        self._patch.setattr(client_module, "CONNECT_SECONDS", PATIENCE)

    def close(self) -> None:
        """End everything."""
        for process in self._processes:
            for client in process.clients:
                client.close()
        self.proxy.close()

    @contextmanager
    def promptly(self) -> Iterator[None]:
        """Calls of the data thread: if they wait for the network, they do not return."""
        before = client_module.CONNECT_SECONDS
        self.be_patient()
        yield
        self._patch.setattr(client_module, "CONNECT_SECONDS", before)

    def rows(self, client: ControlClient) -> None:
        """Some chunks of rows."""
        with self.promptly():
            for _ in range(50):
                client.poll()
                client.count("FM", 10, 10, 0.001)

    def rows_until(self, client: ControlClient, condition: Callable[[], bool]) -> None:
        """Rows while others do something."""
        while not condition():
            self.rows(client)
            threading.Event().wait(0.002)


@pytest.fixture
def network(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)  # every count is told at once
    made = Network(server, monkeypatch)
    yield made
    made.close()


def change_of(size: int, timeout: float) -> Order:
    """A change with a model of so many bytes."""
    return replace(order("FM"), timeout=timeout, buffers=(memoryview(bytes(size)),))


def met_by(failed: threading.Event, network: Network, client: ControlClient, what: Order) -> Change:
    """A change that meets a fault; on a busy machine the first one may not come so far in time."""
    change = network.server.request(what)
    network.rows_until(client, lambda: failed.is_set() or change.phase is Phase.ABORTED)
    if failed.is_set():
        return change
    return met_by(failed, network, client, replace(what, timeout=2 * what.timeout))


def check_next_task(network: Network, process: Process, change: Change) -> None:
    """The next task has a good connection and the right configuration, and the change is over."""
    happened = change.phase is not Phase.ABORTED
    go = process.task(1)
    told = process.engine.told
    assert change.phase is (Phase.DONE if happened else Phase.ABORTED)
    assert go.committed == ()
    began_with = {number for what, number in told if what in ("adopt", "switch")}
    assert began_with == ({change.number} if happened else set())
    until(lambda: process.client.name in network.server.workers)
    network.proxy.each(Link.release)  # what was late arrives after all
    until(lambda: network.server.workers == (process.client.name,))
    again = network.server.request(order("FM"))
    network.rows_until(process.client, lambda: again.settled is not None)
    process.client.ended(Ended(1, 0, 0, {}))
    assert process.task(2).base == (again.number,)
    assert not process.client.broken


# A change


@any_fault
@anywhere
@pytest.mark.parametrize(
    ("way", "name", "skipped"),
    [
        (DOWN, "Shipment", 0),
        (DOWN, "Piece", 2),
        (DOWN, "Prepare", 0),
        (UP, "Prepared", 0),
        (DOWN, "Commit", 0),
        (UP, "Switched", 0),
    ],
    ids=["Shipment", "Piece", "Prepare", "Prepared", "Commit", "Switched"],
)
def test_rows_go_on_and_a_change_completes_or_aborts_in_its_time(
    network: Network,
    way: Way,
    name: str,
    skipped: int,
    share: float,
    fault: Fault,
) -> None:
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    failed = network.proxy.at(way, name, fault, share, skipped)
    timeout = PATIENCE if name in ("Commit", "Switched") else PREPARED_SOON
    size = 3 * LARGE_BYTES if name in ("Shipment", "Piece") else 100
    change = met_by(failed, network, client, change_of(size, timeout))
    network.rows(client)
    network.rows_until(client, lambda: change.phase in SETTLED)
    if change.phase is Phase.ABORTED:
        assert change.reason == f"not prepared in time; waited for {client.name}"
    if fault in ENDING:
        network.rows_until(client, lambda: client.broken and not network.server.workers)
        until(lambda: change.settled is not None or change.over)
    with network.promptly():
        client.ended(Ended(0, 0, 0, {}))
    network.be_impatient()
    check_next_task(network, process, change)


@anywhere
@pytest.mark.parametrize(
    ("way", "name"),
    [
        (DOWN, "Piece"),
        (DOWN, "Prepare"),
        (UP, "Prepared"),
        (DOWN, "Commit"),
        (UP, "Switched"),
    ],
)
def test_a_change_that_is_held_up_goes_on_when_the_network_does(
    network: Network, way: Way, name: str, share: float
) -> None:
    """On the same connection: nobody has given up."""
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    failed = network.proxy.at(way, name, frozen, share)
    size = 3 * LARGE_BYTES if name == "Piece" else 100
    change = network.server.request(change_of(size, PATIENCE))
    network.rows_until(client, failed.is_set)
    network.rows(client)
    assert change.settled is None
    network.proxy.each(Link.release)
    network.rows_until(client, lambda: change.settled is not None)
    assert change.switched.keys() == {client.name}
    assert process.engine.told == [("load", 1), ("switch", 1)]
    client.ended(Ended(0, 0, 0, {}))
    assert process.task(1) == Go((1,), ())
    assert process.clients == [client]


@any_fault
def test_a_worker_whose_network_fails_holds_up_no_other_worker(
    network: Network, fault: Fault
) -> None:
    lost, other = network.process(), network.process()
    lost.client.begin(0, 0, 0)
    other.client.begin(0, 0, 1)
    failed = network.proxy.at(DOWN, "Commit", fault)  # the first to join is the first to be told
    change = network.server.request(order("FM"))
    assert failed.wait(PATIENCE)
    network.rows(lost.client)
    network.rows_until(other.client, lambda: ("switch", 1) in other.engine.told)
    other.client.ended(Ended(0, 0, 1, {}))
    assert other.task(1) == Go((1,), ())
    assert change.phase is Phase.DONE


# A greeting


@any_fault
@anywhere
@pytest.mark.parametrize(
    ("way", "name"),
    [
        (DOWN, "frame 0"),
        (UP, "frame 0"),
        (UP, "frame 1"),
        (DOWN, "frame 1"),
        (UP, "Hello"),
        (DOWN, "Welcome"),
    ],
    ids=["challenge down", "challenge up", "answer up", "answer down", "Hello", "Welcome"],
)
def test_a_worker_whose_greeting_fails_says_so_soon_and_the_next_one_is_welcome(
    network: Network,
    way: Way,
    name: str,
    share: float,
    fault: Fault,
) -> None:
    first = network.process()
    first.client.begin(0, 0, 0)
    base = network.server.request(order("FM"))
    network.rows_until(first.client, lambda: base.settled is not None)
    first.client.ended(Ended(0, 0, 0, {}))
    first.client.begin(1, 0, 0)
    current = network.server.request(order("FM"))
    network.rows_until(first.client, lambda: current.settled is not None)
    failed = network.proxy.at(way, name, fault, share)
    second = _second_process(network, failed)
    assert failed.is_set()
    assert second.task(1, 1) == Go((), (2,))
    assert second.engine.told == [("load", 1), ("adopt", 1), ("load", 2), ("switch", 2)]
    network.proxy.each(Link.release)
    names = {first.client.name, second.client.name}
    until(lambda: set(network.server.workers) == names)
    last = network.server.request(order("FM"))
    until(lambda: last.settled is not None, first.client, second.client)


def _second_process(network: Network, failed: threading.Event) -> Process:
    """Another worker, at the second try if its greeting fails."""
    seconds = SOON
    while not failed.is_set():  # a busy machine may need more time to come to the fault
        network.be_impatient(seconds)
        seconds *= 2
        with suppress(WireError):
            return network.process()
    network.be_patient()
    return network.process()


def test_a_worker_that_connected_first_may_come_in_last(network: Network) -> None:
    """The one that overtook it has changed the configuration meanwhile."""
    let_go = network.proxy.delay_next()
    late: list[Process] = []
    thread = threading.Thread(target=lambda: late.append(network.process()))
    thread.start()
    until(lambda: network.proxy.links == 1)
    early = network.process()
    early.client.begin(0, 0, 0)
    change = network.server.request(order("FM"))
    network.rows_until(early.client, lambda: change.settled is not None)
    early.client.ended(Ended(0, 0, 0, {}))
    assert early.task(1) == Go((1,), ())
    assert network.server.workers == (early.client.name,)
    let_go()
    thread.join(PATIENCE)
    assert late[0].client.begin(1, 0, 1) == Go((), ())
    assert late[0].engine.told == [("load", 1), ("adopt", 1)]
    assert set(network.server.workers) == {early.client.name, late[0].client.name}


def test_a_connection_that_comes_after_its_worker_has_made_another_counts_for_nothing(
    network: Network,
) -> None:
    let_go = network.proxy.delay_next()
    network.be_impatient()
    with pytest.raises(WireError, match="the greeting failed"):
        network.process()
    network.be_patient()
    process = network.process()
    process.client.begin(0, 0, 0)
    let_go()
    change = network.server.request(order("FM"))
    network.rows_until(process.client, lambda: change.settled is not None)
    assert network.server.workers == (process.client.name,)


# A task that begins, and one that ends


def fatal(question: str, answer: str) -> list[tuple[Way, str, Fault]]:
    """Every fault at either message that keeps the answer from coming."""
    asked = [(UP, question, fault) for fault in FAULTS]
    return [*asked, *((DOWN, answer, fault) for fault in FAULTS if fault is not deaf)]


@anywhere
@pytest.mark.parametrize(("way", "name", "fault"), fatal("Begin", "Go"))
def test_a_task_that_waits_for_its_configuration_gets_it_over_a_new_connection(
    network: Network,
    way: Way,
    name: str,
    share: float,
    fault: Fault,
) -> None:
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    change = network.server.request(order("FM"))
    network.rows_until(client, lambda: change.settled is not None)
    client.ended(Ended(0, 0, 0, {}))
    failed = network.proxy.at(way, name, fault, share)
    if fault in HALF_OPEN:
        network.give_up_after(failed, client)
    go = process.task(1)
    assert failed.is_set()
    assert client.broken
    assert len(process.clients) == 2
    assert go.committed == ()
    assert go.pinned in (None, ()), "the first try may have been heard of"
    assert process.engine.told[:2] in ([("load", 1), ("adopt", 1)], [("load", 1), ("switch", 1)])
    assert change.phase is Phase.DONE
    network.proxy.each(Link.release)
    until(lambda: network.server.workers == (process.client.name,))
    again = network.server.request(order("FM"))
    network.rows_until(process.client, lambda: again.settled is not None)


@pytest.mark.parametrize("fault", ENDING)
def test_a_task_that_is_first_to_notice_that_its_connection_is_gone_gets_another(
    network: Network, fault: Fault
) -> None:
    """The thread that listens has not come to it yet."""
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    client.ended(Ended(0, 0, 0, {}))
    with client._state:  # the listening thread waits for this
        network.proxy.each(fault)
        until(lambda: not network.server.workers and client._channel.readable())
        until(lambda: _refuses(client))  # after a farewell the system takes one message more
        assert not client.broken
        assert process.task(1) == Go((), ())
    assert client.broken
    assert len(process.clients) == 2


def _refuses(client: ControlClient) -> bool:
    """Whether nothing can be sent any more."""
    try:
        client._say(Switched(7))
    except WireError:
        return True
    return False


@anywhere
@pytest.mark.parametrize(("way", "name", "fault"), fatal("Ended", "Noted"))
def test_a_task_that_has_switched_inside_fails_if_that_is_not_noted(
    network: Network,
    way: Way,
    name: str,
    share: float,
    fault: Fault,
) -> None:
    """Its repetition goes as the controller knows: with the switch there, or with none."""
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    change = network.server.request(order("FM"))
    network.rows_until(client, lambda: change.settled is not None)
    failed = network.proxy.at(way, name, fault, share)
    if fault in HALF_OPEN:
        network.give_up_after(failed, client)
    cuts = (Cut(10, 1),)
    with pytest.raises(WireError, match=r"nobody knows where|connection is gone"):
        client.ended(Ended(0, 0, 0, {}, cuts=cuts))
    assert failed.is_set()
    until(lambda: client.broken)
    with network.promptly():
        client.poll()
    network.be_patient()
    heard = name == "Noted" or fault is mute
    assert process.task(0) == Go((), (1,), (), cuts if heard else ())
    network.proxy.each(Link.release)
    until(lambda: network.server.workers == (process.client.name,))
    process.client.ended(Ended(0, 0, 0, {}, cuts=cuts if heard else ()))
    assert process.task(1).committed == ()
    assert change.phase is Phase.DONE


@pytest.mark.parametrize(("way", "name"), [(UP, "Begin"), (DOWN, "Go")])
def test_a_late_configuration_is_as_good_as_any(network: Network, way: Way, name: str) -> None:
    process = network.process()
    failed = network.proxy.at(way, name, frozen, share=0.5)
    answers: list[Go] = []
    thread = threading.Thread(target=lambda: answers.append(process.task(3)))
    thread.start()
    assert failed.wait(PATIENCE)
    assert not answers
    network.proxy.each(Link.release)
    thread.join(PATIENCE)
    assert answers == [Go((), ())]
    assert len(process.clients) == 1


@pytest.mark.parametrize(("way", "name"), [(UP, "Ended"), (DOWN, "Noted")])
def test_a_task_completes_when_its_switch_is_noted_however_late(
    network: Network, way: Way, name: str
) -> None:
    process = network.process()
    client = process.client
    client.begin(0, 0, 0)
    change = network.server.request(order("FM"))
    network.rows_until(client, lambda: change.settled is not None)
    failed = network.proxy.at(way, name, frozen, share=0.5)
    complete = threading.Event()

    def end() -> None:
        client.ended(Ended(0, 0, 0, {}, cuts=(Cut(10, 1),)))
        complete.set()

    thread = threading.Thread(target=end)
    thread.start()
    assert failed.wait(PATIENCE)
    assert not complete.is_set()
    network.proxy.each(Link.release)
    thread.join(PATIENCE)
    assert complete.is_set()
    assert process.task(1) == Go((1,), ())
    assert process.clients == [client]


# A machine that vanishes


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has all of it")
def test_both_sides_notice_a_peer_whose_machine_is_gone(server: ControlServer) -> None:
    """Nobody says farewell then, so the system must ask. Here: that it was told to."""
    client = ControlClient(server.address, SECRET, "fraud", FakeEngine())
    near = client._channel._socket
    far = server._peers[client.name]._line._writer.get_extra_info("socket")
    for sock in (near, far):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        idle, between, count = (sock.getsockopt(socket.IPPROTO_TCP, one) for one in options)
        assert idle + between * count == GONE_SECONDS
        unanswered = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert unanswered == 1000 * GONE_SECONDS
    client.close()
