"""How long changes take while strangers besiege the controller's port.

``python -m benchmarks.hostile [SOURCES ...]``: the controller and its workers run in one process,
the attackers in another, all on loopback. With folders of sources (``src`` of another commit), the
same is measured with each of them, in turn. "elsewhere" is the same attack on another port of the
same machine: what it costs beside what is let in.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

WORKERS: Final = 2
CHANGES: Final = 60
PAUSE_SECONDS: Final = 0.02
ROUNDS: Final = 1
SILENT: Final = 2_000
"""Connections that a slow attacker holds, or tries to."""
Address = tuple[str, int]


def flood(address: Address) -> None:
    """Connect and leave, as fast as possible."""
    while True:
        with suppress(OSError):
            socket.create_connection(address, timeout=1).close()


def garbage(address: Address) -> None:
    """Connect, send something, wait for an answer."""
    noise = os.urandom(4096)
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=0.2) as line:
            line.sendall(noise)
            line.recv(64)


def forged(address: Address) -> None:
    """Send a proof of the right form, so that it must be checked."""
    proof = b"\0\0\0\x20" + os.urandom(32)
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=0.2) as line:
            line.sendall(proof + proof)
            line.recv(128)


def slowloris(address: Address) -> None:
    """Hold very many connections, and send a byte on each now and then."""
    held: list[socket.socket] = []
    while True:
        while len(held) < SILENT:
            line = socket.socket()
            line.setblocking(False)
            with suppress(OSError):
                line.connect(address)
            held.append(line)
            if len(held) % 20 == 0:
                time.sleep(0.005)
        alive = []
        for line in held:
            try:
                line.send(b"\0")
                alive.append(line)
            except BlockingIOError:
                alive.append(line)
            except OSError:
                line.close()
        held = alive
        time.sleep(0.05)


ATTACKS: Final[dict[str, Callable[[Address], None]]] = {
    "flood": flood,
    "garbage": garbage,
    "forged proofs": forged,
    "slowloris": slowloris,
}


class Nothing:
    """A runtime that has nothing to load."""

    def define(self, *_: object) -> None:
        """Begin."""

    load = adopt = switch = drop = define


def serve() -> None:
    """Run a controller and workers; for each line of attack names, measure and print."""
    from fries.change.model import Order
    from fries.control.client import ControlClient
    from fries.control.seal import new_secret
    from fries.control.server import ControlServer

    secret = new_secret()
    server = ControlServer("hostile", secret)
    server.start()
    clients = [ControlClient(server.address, secret, "hostile", Nothing()) for _ in range(WORKERS)]
    members = frozenset({frozenset({"F"})})
    print(server.address[1], flush=True)
    for line in sys.stdin:
        waits = []
        for _ in range(CHANGES):
            began = time.perf_counter()
            change = server.request(Order(("F",), b"x" * 500, members, requested=time.time()))
            change.wait(time.monotonic() + 30)
            waits.append(1000 * (time.perf_counter() - began))
            server.batches_committed(float("inf"))
            time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        with suppress(Exception):
            ControlClient(server.address, secret, "hostile", Nothing()).close()
        joined = 1000 * (time.perf_counter() - began)
        print(json.dumps({"what": line.strip(), "waits": waits, "join": joined}), flush=True)
    for client in clients:
        client.close()
    server.stop()


def elsewhere(stack: ExitStack) -> Address:
    """Another port, where everybody is accepted and hung up on, in a process of its own."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
    address: Address = listener.getsockname()
    _start(stack, _hang_up, listener)
    return address


def _hang_up(listener: socket.socket) -> None:
    while True:
        with suppress(OSError):
            listener.accept()[0].close()


def _start(stack: ExitStack, what: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("fork").Process(target=what, args=arguments, daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.terminate)


class Site:
    """A controller with its workers, of some sources."""

    def __init__(self, sources: Path, stack: ExitStack) -> None:
        here = Path(__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{here}"}
        self._run = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", "from benchmarks.hostile import serve; serve()"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._end)
        self.address: Address = ("127.0.0.1", int(self._line()))

    def measure(self, what: str) -> tuple[list[float], float]:
        """Milliseconds of each change, and of a worker that joins."""
        assert self._run.stdin is not None
        self._run.stdin.write(f"{what}\n")
        self._run.stdin.flush()
        found = json.loads(self._line())
        return found["waits"], found["join"]

    def _line(self) -> str:
        assert self._run.stdout is not None
        return self._run.stdout.readline()

    def _end(self) -> None:
        assert self._run.stdin is not None
        self._run.stdin.close()
        self._run.wait()


def measured(sources: Path) -> dict[str, tuple[list[float], float]]:
    """By attack, what changes took."""
    found = {}
    with ExitStack() as stack:
        site = Site(sources, stack)
        other = elsewhere(stack)
        found["quiet"] = site.measure("quiet")
        for name, attack in ATTACKS.items():
            for where, address in (("", site.address), (" elsewhere", other)):
                with ExitStack() as attackers:
                    _start(attackers, attack, address)
                    time.sleep(0.5)
                    found[name + where] = site.measure(name)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sources", nargs="*", type=Path, default=[Path(__file__).parents[1] / "src"]
    )
    trees = [path.resolve() for path in parser.parse_args(arguments).sources]
    sums: dict[tuple[Path, str], tuple[list[float], list[float]]] = {}
    for _ in range(ROUNDS):
        for tree in trees:
            for what, (waits, join) in measured(tree).items():
                kept = sums.setdefault((tree, what), ([], []))
                kept[0].extend(waits)
                kept[1].append(join)
    table = Table("sources", "attack", "median ms", "p90 ms", "worst ms", "join ms")
    for (tree, what), (waits, joins) in sums.items():
        cells = (
            statistics.median(waits),
            statistics.quantiles(waits, n=10)[-1],
            max(waits),
            max(joins),
        )
        table.add_row(str(tree), what, *(f"{cell:.1f}" for cell in cells))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
