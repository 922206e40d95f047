"""What the tests of the control channel share: a site, and certificates, made when needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fries.control.client import ControlClient
from fries.control.server import ControlServer
from fries.control.tls import Tls
from tests.control.fakes import SECRET, FakeEngine, Join
from tests.control.sites import Site
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limits of the library do not pass while a test goes on that is not about them."""
    monkeypatch.setattr("fries.control.client.CONNECT_SECONDS", PATIENCE)
    monkeypatch.setattr("fries.control.door.GREETING_SECONDS", PATIENCE)
    monkeypatch.setattr("fries.control.loop.ANSWER_SECONDS", PATIENCE)


@pytest.fixture
def server() -> Iterator[ControlServer]:
    running = ControlServer("fraud", SECRET)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def join(server: ControlServer) -> Iterator[Join]:
    clients: list[ControlClient] = []

    def connect(held: bool = False) -> tuple[ControlClient, FakeEngine]:
        engine = FakeEngine()
        if held:
            engine.loading.acquire()
        clients.append(ControlClient(server.address, SECRET, "fraud", engine))
        return clients[-1], engine

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@dataclass(frozen=True)
class Authority:
    """Somebody who signs certificates."""

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        """What those who trust it need."""
        return self.folder / f"{self.name}.pem"

    def found(self) -> Authority:
        """Make its key and its own certificate."""
        _openssl(
            "req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", f"/CN={self.name}",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-keyout", self._key, "-out", self.certificate,
        )  # fmt: skip
        return self

    def sign(self, name: str, *, days: int = 2, usage: str = "serverAuth,clientAuth") -> Tls:
        """A certificate, its key, and whom it trusts: the same authority."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        tls = Tls(self.folder / f"{name}.pem", self.folder / f"{name}.key", self.certificate)
        extensions.write_text(f"extendedKeyUsage={usage}\n")
        _openssl("req", *_KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", tls.key, "-new",
                 "-out", request)  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
            "-CAcreateserial", "-days", days, "-extfile", extensions, "-out", tls.certificate,
        )  # fmt: skip
        return tls

    @property
    def _key(self) -> Path:
        return self.folder / f"{self.name}.key"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the driver and the workers of a test trust."""
    return _authority(tmp_path_factory, "authority")


@pytest.fixture(scope="session")
def stranger_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another one, which they do not trust."""
    return _authority(tmp_path_factory, "stranger")


@pytest.fixture(scope="session")
def tls(authority: Authority) -> Tls:
    """What a flow is given."""
    return authority.sign("flow")


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _authority(factory: pytest.TempPathFactory, name: str) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    return Authority(factory.mktemp(name), name).found()


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
