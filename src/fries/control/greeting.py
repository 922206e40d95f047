"""How a worker reaches the controller: a connection, and the proof that both belong to the job."""

from __future__ import annotations

import random
import socket
import ssl
import time
from typing import Final, NamedTuple

from fries.control.channel import Channel
from fries.control.seal import WORKER, Opener, Proof
from fries.control.tls import Tls
from fries.control.wire import MAX_GREETING, Unframer, frame, prepare_socket
from fries.errors import WireError

BUSY_SECONDS: Final = 0.2
"""At the most, until the next try to reach a controller that more workers come to than it takes."""


class Connection(NamedTuple):
    """A connection to a controller that has proved itself."""

    channel: Channel
    unframer: Unframer
    """Whole frames of what the channel receives."""
    opener: Opener


def connect(
    address: tuple[str, int], secret: bytes, tls: Tls | None, deadline: float
) -> Connection:
    """Connect, prove that we belong to the job, and see that the controller does too.

    A controller that hangs up before it has said anything is busy with others: try again.
    """
    context = None if tls is None else tls.context(server=False)
    while True:
        sock = _reach(address, deadline)
        try:
            sock, unframer, challenge = _first_words(sock, context, deadline)
        except (EOFError, ConnectionError, ssl.SSLEOFError) as error:
            sock.close()
            if time.monotonic() + 2 * BUSY_SECONDS > deadline:  # no time to wait and to try
                raise WireError("the controller turned this worker away") from error
            time.sleep(random.uniform(0, BUSY_SECONDS))
            continue
        except WireError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            raise WireError(f"the greeting failed: {error}") from error
        return _prove(sock, unframer, challenge, Proof(secret, WORKER), deadline)


def _reach(address: tuple[str, int], deadline: float) -> socket.socket:
    try:
        sock = socket.create_connection(address, timeout=_left(deadline))
    except OSError as error:
        host, port = address
        raise WireError(
            f"the controller at {host}:{port} cannot be reached ({error}); the flow was stopped, "
            "or this worker cannot connect to spark.driver.host"
        ) from error
    prepare_socket(sock)
    return sock


def _first_words(
    sock: socket.socket, context: ssl.SSLContext | None, deadline: float
) -> tuple[socket.socket, Unframer, bytes]:
    unframer = Unframer()
    if context is None:
        return sock, unframer, _greeting(sock, unframer, deadline)
    sock = context.wrap_socket(sock)
    try:
        return sock, unframer, _greeting(sock, unframer, deadline)
    except (EOFError, OSError) as error:  # with TLS 1.3 the worker's certificate is judged last
        sock.close()
        raise WireError(f"the controller refuses this worker's certificate: {error}") from error


def _prove(
    sock: socket.socket, unframer: Unframer, challenge: bytes, proof: Proof, deadline: float
) -> Connection:
    try:
        proof.meet(challenge)
        sock.sendall(frame(proof.challenge) + frame(proof.answer()))
        proof.check(_greeting(sock, unframer, deadline))
        sealer, opener = proof.seal()
        return Connection(Channel(sock, sealer), unframer, opener)
    except WireError:
        sock.close()
        raise
    except (EOFError, OSError) as error:
        sock.close()
        raise WireError(f"the greeting failed: {error}") from error


def _greeting(sock: socket.socket, unframer: Unframer, deadline: float) -> bytes:
    while (body := unframer.take(MAX_GREETING)) is None:
        sock.settimeout(_left(deadline))
        if not unframer.receive(sock):
            raise EOFError("it has hung up")
    return bytes(body)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
