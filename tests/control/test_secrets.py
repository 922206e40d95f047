"""The job's secret shows itself nowhere."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Any

import pytest

from fries.control.client import ControlClient
from fries.control.door import Door
from fries.control.seal import CONTROLLER, WORKER, Proof, Secret, new_secret
from fries.control.server import ControlServer
from fries.errors import AuthenticationError, WireError
from fries.flow import Flow
from fries.runtime.layout import Layout
from fries.spark.tasks import Session, ShuffledStage, Work
from fries.stages import PhysicalStage
from tests.control.fakes import SECRET, FakeEngine, Join


def shows(text: str, secret: bytes = SECRET) -> bool:
    """Whether a text gives the secret, or a good part of it, away."""
    raw = bytes(secret)
    forms = (repr(raw)[2:-1], raw.hex(), raw[:8].hex(), repr(raw[:8])[2:-1], str(list(raw))[1:-1])
    return any(form in text for form in forms)


def test_what_would_show_a_secret_is_noticed() -> None:
    assert shows(f"{[bytes(SECRET)]}")
    assert shows(bytes(SECRET).hex())


def session(secret: bytes = SECRET) -> Session:
    return Session("fraud", ("10.0.0.1", 4711), secret, ("FM", "MC"))


@pytest.mark.parametrize("secret", [SECRET, bytes(SECRET)], ids=["wrapped", "bare"])
def test_closures_do_not_show_it(secret: bytes) -> None:
    """Spark prints what it runs: in plans, in logs, in its pages."""
    stage = ShuffledStage(Work(session(secret), _of(PhysicalStage), _of(Layout)), _of(Layout))
    for thing in (session(secret), stage.work, stage, [stage], {"stage": stage}):
        assert not shows(repr(thing))
        assert not shows(f"{thing}")


def _of(kind: type) -> Any:  # noqa: ANN401
    """Something that only needs to be there."""
    return kind.__name__


def test_a_session_keeps_it_over_the_wire() -> None:
    copy = pickle.loads(pickle.dumps(session()))
    assert copy == session()
    assert isinstance(copy.secret, Secret)


def test_the_parts_of_the_control_plane_do_not_show_it(server: ControlServer, join: Join) -> None:
    client, _ = join()
    proof, door = Proof(SECRET, WORKER), Door(SECRET, None, server._attend)
    for thing in (server, client, proof, door, Flow("fraud"), vars(server), vars(proof)):
        assert not shows(repr(thing))


def test_errors_and_logs_do_not_show_it(
    server: ControlServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    other = new_secret()
    with pytest.raises(WireError) as refused:
        ControlClient(server.address, other, "fraud", FakeEngine())
    with pytest.raises(AuthenticationError) as unproved:
        Proof(SECRET, CONTROLLER).answer()
    for caught in (refused, unproved):
        story = "".join(traceback.format_exception(caught.value))
        for secret in (SECRET, other):
            assert not shows(story, secret)
            assert not shows(caplog.text, secret)
            assert not shows(repr(pickle.dumps(caught.value)), secret)
