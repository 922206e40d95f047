"""TLS between driver and workers, with certificates made on the spot."""

from __future__ import annotations

import pickle
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import fries
from fries.change.model import Phase
from fries.control.channel import Channel
from fries.control.client import ControlClient
from fries.control.messages import Counts, Ended, Go
from fries.control.seal import Sealer
from fries.control.server import ControlServer
from fries.control.tls import Tls
from fries.control.wire import LARGE_BYTES
from fries.errors import TlsError, WireError
from tests.control.conftest import Authority
from tests.control.fakes import SECRET, FakeEngine, order, until
from tests.control.rogue import PATIENCE


@pytest.fixture
def server(tls: Tls) -> Iterator[ControlServer]:
    running = ControlServer("fraud", SECRET, tls=tls)
    running.start()
    yield running
    running.stop()


def join(server: ControlServer, tls: Tls | None) -> tuple[ControlClient, FakeEngine]:
    engine = FakeEngine()
    return ControlClient(server.address, SECRET, "fraud", engine, tls), engine


def test_a_change_with_large_parts_over_tls(server: ControlServer, tls: Tls) -> None:
    (client, first), (other, second) = join(server, tls), join(server, tls)
    large = bytes(range(256)) * (3 * LARGE_BYTES // 256)
    client.begin(0, 0, 0)
    change = server.request(replace(order("FM"), buffers=(memoryview(large),)))
    until(lambda: ("switch", 1) in first.told, client)
    assert change.wait(time.monotonic() + PATIENCE)
    assert change.phase is Phase.COMMITTED
    assert first.parts[1] == second.parts[1] == [large]
    client.ended(Ended(0, 0, 0, {}))
    assert client.begin(1, 0, 0) == Go((1,), ())
    client.close()
    other.close()
    until(lambda: server.workers == ())


def test_threads_that_read_and_write_at_once_over_tls(
    server: ControlServer, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters go up while pieces come down: OpenSSL's object must not be used by both."""
    monkeypatch.setattr("fries.control.reports.COUNT_SECONDS", -1.0)
    client, engine = join(server, tls)
    client.begin(0, 0, 0)
    change = server.request(replace(order("FM"), buffers=(memoryview(bytes(10 * LARGE_BYTES)),)))
    counted = 0
    while ("switch", 1) not in engine.told:
        client.count("FM", 1, 1, 0.0)
        client.poll()
        counted += 1
        assert not client.broken
        threading.Event().wait(0.0001)
    client.ended(Ended(0, 0, 0, {}))
    until(lambda: server.counters == {"FM": Counts(counted, counted, 0.0)})
    assert change.phase is Phase.COMMITTED
    client.close()


def test_the_channel_is_encrypted(server: ControlServer, tls: Tls) -> None:
    """Between worker and controller, somebody who listens finds no word of what is said."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = threading.Thread(target=_relay, args=(listener, server.address, heard))
        relay.start()
        client = ControlClient(listener.getsockname(), SECRET, "fraud", FakeEngine(), tls)
        client.begin(0, 0, 0)
        client.close()
        relay.join(PATIENCE)
    assert len(heard) > 1000
    for word in (b"Hello", b"fraud", b"Welcome", b"Begin", client.name.encode()):
        assert word not in heard


def _relay(listener: socket.socket, to: tuple[str, int], heard: bytearray) -> None:
    near, _ = listener.accept()
    far = socket.create_connection(to)

    def copy(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            heard.extend(data)
            target.sendall(data)
        with suppress(OSError):  # it has hung up
            target.shutdown(socket.SHUT_WR)

    with near, far:
        back = threading.Thread(target=copy, args=(far, near))
        back.start()
        copy(near, far)
        back.join()


def test_a_worker_of_another_authority_is_turned_away(
    server: ControlServer, tls: Tls, authority: Authority, stranger_authority: Authority
) -> None:
    client, _ = join(server, tls)
    foreign = replace(stranger_authority.sign("intruder"), authority=authority.certificate)
    with pytest.raises(WireError, match="refuses this worker's certificate"):
        join(server, foreign)
    assert client.begin(0, 0, 0) == Go((), ())
    client.close()


def test_a_controller_of_another_authority_is_refused(
    server: ControlServer, stranger_authority: Authority
) -> None:
    with pytest.raises(WireError, match="CERTIFICATE_VERIFY_FAILED"):
        join(server, stranger_authority.sign("suspicious"))


def test_a_worker_without_a_certificate_is_turned_away(
    server: ControlServer, tls: Tls, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.certificate)
    monkeypatch.setattr(Tls, "context", lambda self, server: context)
    with pytest.raises(WireError, match="refuses this worker's certificate"):
        join(server, tls)
    assert server.workers == ()


def test_an_older_tls_is_refused(server: ControlServer, tls: Tls) -> None:
    context = tls.context(server=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(server.address, timeout=PATIENCE) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock)


def test_without_tls_nobody_comes_in(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.door.GREETING_SECONDS", 0.05)
    monkeypatch.setattr("fries.control.client.CONNECT_SECONDS", 0.5)
    with pytest.raises(WireError, match="turned this worker away"):
        join(server, None)


def test_a_silent_stranger_has_little_time_for_tls_too(
    server: ControlServer, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fries.control.door.GREETING_SECONDS", 0.05)
    with socket.create_connection(server.address, timeout=PATIENCE) as silent:
        assert silent.recv(1) == b""
    monkeypatch.undo()
    client, _ = join(server, tls)
    client.close()


def test_noise_instead_of_tls_ends_its_own_connection(server: ControlServer, tls: Tls) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE) as noisy:
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while noisy.recv(1024):
            pass
    client, _ = join(server, tls)
    assert client.begin(0, 0, 0) == Go((), ())
    client.close()


def test_a_controller_that_stops_ends_the_connections_over_tls(
    server: ControlServer, tls: Tls
) -> None:
    client, _ = join(server, tls)
    client.begin(0, 0, 0)
    server.stop()
    until(lambda: client.broken, client)
    client.ended(Ended(0, 0, 0, {}))


def tls_pair(tls: Tls) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Two connected sockets with TLS: the controller's, and the worker's."""
    near, far = socket.socketpair()
    made: list[ssl.SSLSocket] = []
    context = tls.context(server=True)
    thread = threading.Thread(
        target=lambda: made.append(context.wrap_socket(near, server_side=True))
    )
    thread.start()
    worker = tls.context(server=False).wrap_socket(far)
    thread.join(PATIENCE)
    return made[0], worker


def test_what_openssl_has_decrypted_counts_as_something_to_read(tls: Tls) -> None:
    """The bare socket has nothing any more; whoever waits for that would wait for ever."""
    controller, worker = tls_pair(tls)
    channel = Channel(worker, Sealer(bytes(32)))
    controller.sendall(b"one record with two messages")
    channel.wait()
    assert channel.recv(10) == b"one record"
    assert channel.readable()
    channel.wait()
    assert channel.recv(100) == b" with two messages"
    assert not channel.readable()
    with pytest.raises(BlockingIOError):
        channel.recv(100)
    controller.close()
    channel.wait()
    assert channel.recv(100) == b""
    channel.close()


def test_many_records_fill_their_place_at_once(tls: Tls) -> None:
    controller, worker = tls_pair(tls)
    channel = Channel(worker, Sealer(bytes(32)))
    sent = bytes(range(256)) * 256
    controller.sendall(sent)
    place = memoryview(bytearray(len(sent)))
    assert channel.recv_into(place) == len(sent)
    assert place == sent
    with pytest.raises(BlockingIOError):
        channel.recv_into(place)
    controller.close()
    channel.close()


def test_a_flow_takes_certificates_that_fit(tls: Tls) -> None:
    fries.Flow("fraud", tls=tls)
    assert pickle.loads(pickle.dumps(tls)) == tls


@pytest.mark.usefixtures("authority")  # which needs the same command
def test_the_commands_of_the_page_make_certificates_that_fit(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    commands = page.split("```sh\n")[1].split("```")[0]
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True)
    files = (tmp_path / name for name in ("flow.pem", "flow.key", "authority.pem"))
    fries.Flow("fraud", tls=Tls(*files))


@pytest.mark.parametrize("missing", ["certificate", "key", "authority"])
def test_a_flow_refuses_files_that_are_not_there(tls: Tls, missing: str) -> None:
    with pytest.raises(TlsError, match=r"gone\.pem cannot be read \(No such file.*every worker"):
        fries.Flow("fraud", tls=replace(tls, **{missing: "gone.pem"}))


def test_a_flow_refuses_the_key_of_another_certificate(tls: Tls, authority: Authority) -> None:
    other = authority.sign("other")
    with pytest.raises(TlsError, match=r"other\.key is not the private key of .*flow\.pem"):
        fries.Flow("fraud", tls=replace(tls, key=other.key))


def test_a_flow_refuses_a_key_with_a_password_and_asks_for_none(tls: Tls, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", tls.key, "-aes256", "-passout", "pass:xyzzy", "-out", locked],
        check=True,
    )
    with pytest.raises(TlsError, match="the key without a password"):
        fries.Flow("fraud", tls=replace(tls, key=locked))


@pytest.mark.parametrize("text", ["", "not a certificate"], ids=["empty", "text"])
def test_a_flow_refuses_files_of_another_kind(tls: Tls, tmp_path: Path, text: str) -> None:
    other = tmp_path / "notes.txt"
    other.write_text(text)
    with pytest.raises(TlsError, match="has no certificates of an authority"):
        fries.Flow("fraud", tls=replace(tls, authority=other))
    with pytest.raises(TlsError, match="give both as PEM files"):
        fries.Flow("fraud", tls=replace(tls, certificate=other))


def test_a_flow_refuses_what_its_own_workers_would_refuse(
    authority: Authority, stranger_authority: Authority
) -> None:
    foreign = replace(stranger_authority.sign("foreign"), authority=authority.certificate)
    for tls in (
        foreign,
        authority.sign("client only", usage="clientAuth"),
        authority.sign("server only", usage="serverAuth"),
    ):
        with pytest.raises(TlsError, match=r"would be refused .*signed by .*authority\.pem"):
            fries.Flow("fraud", tls=tls)
