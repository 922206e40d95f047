"""What the durable log costs after many changes: ``python -m benchmarks.log --changes 10000``.

A flow of three operators is changed in turn through the real ledger on local files, one change in
ten migrating, and a driver that comes back recovers it. Ratios are within one run: the last
changes against the first ones. Times are CPU of the whole process, for the disk is others', too;
``--folder /dev/shm`` leaves out what the disk takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fries.change.model import Change, Order, Phase
from fries.change.store import LOGGED
from fries.control.ledger import Ledger
from fries.control.server import ControlServer
from fries.log.files import COPIES, FOLDER, LocalFiles
from fries.log.log import Log
from fries.log.owners import take_over
from fries.log.pieces import Buffer
from fries.log.reading import Reading
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec
from fries.schedulers import scheduler
from fries.spark.deployment import Program
from fries.spark.shipping import order_of, packed
from fries.spark.starting import Start
from fries.traits import graph_of

MIGRATES_EVERY: Final = 10
WINDOW: Final = 100
"""Changes whose costs are taken together: the first so many, and the last."""
ROWS: Final = pa.schema({"k": pa.int64()})
NAMES: Final = ("A", "B", "C")
EDGES: Final = (
    EdgeSpec(0, "", "rows"),
    EdgeSpec(1, "rows", "A"),
    EdgeSpec(2, "A", "B"),
    EdgeSpec(3, "B", "C"),
    EdgeSpec(4, "C", "output"),
)


class Counted(LocalFiles):
    """A folder that counts what is done to its files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.done: Counter[str] = Counter()

    def read(self, name: str) -> Buffer:
        """Read a file."""
        self.done["read"] += 1
        return super().read(name)

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file."""
        self.done["written"] += 1
        super().write(name, parts, replace)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.done["removed"] += 1
        super().remove(name)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class Folders(NamedTuple):
    """The log of a checkpoint, and its second copy."""

    files: Counted
    copies: Counted

    @classmethod
    def under(cls, folder: Path) -> Folders:
        """Those of a checkpoint."""
        return cls(Counted(folder / FOLDER), Counted(folder / COPIES))

    def done(self) -> Counter[str]:
        """What was done to all files so far."""
        return self.files.done + self.copies.done


def program() -> Program:
    """A keyed operator and two that follow it."""
    keying = Keying(("k",), initial=0)
    operators = (
        OperatorSpec("rows", Kind.PASS, ROWS),
        OperatorSpec("A", Kind.PROCESS, ROWS, lambda s, r: (s, r), takes=ROWS, keying=keying),
        OperatorSpec("B", Kind.MAP, ROWS, lambda row: row, takes=ROWS),
        OperatorSpec("C", Kind.MAP, ROWS, lambda row: row, takes=ROWS),
    )
    graph = graph_of({spec.name: spec for spec in operators}, EDGES, ("rows",), ("output",))
    return Program(operators, EDGES, 4, {1: ROWS, 2: ROWS, 4: ROWS}, graph)


def orders(flow: Program) -> dict[str, Order]:
    """By operator, a change of it; ``migrating`` is one of the keyed operator."""
    built = {spec.name: spec for spec in flow.operators}

    def order(name: str, migrate: Callable[[int], int] | None = None) -> Order:
        marker = time.time()
        spec = built[name]
        kept = spec.function
        new = replace(spec, function=lambda *args: marker and kept and kept(*args))
        package = packed(Shipped({name: new}, {name: migrate}), built)
        plan = scheduler("fries")(flow.graph, [name])
        more: dict[str, Any] = {"timeout": 60.0, "automatic": False, "undoes": 0}
        more |= {"requested": marker, "stages": frozenset(), "note": "a ticket"}
        return order_of(plan, package, {name: 1}, labels={name: "a label"}, **more)

    return {name: order(name) for name in NAMES} | {
        "migrating": order("A", lambda state: state + 1)
    }


@dataclass
class Life:
    """A driver that makes changes, each from its request to the batch in which it took effect."""

    ledger: Ledger
    orders: dict[str, Order]
    number: int = 0

    def __post_init__(self) -> None:
        self._versions: dict[str, deque[tuple[int, Order]]] = {name: deque() for name in NAMES}

    def change(self) -> None:
        """The next change."""
        self.number += 1
        number = self.number
        migrates = number % MIGRATES_EVERY == 0
        order = self.orders["migrating" if migrates else NAMES[number % len(NAMES)]]
        self.ledger.intend(number, order)
        self._wait(lambda then: self.ledger.commit(number, then))
        self._wait(lambda then: self.ledger.take_effect([number], number, then))
        change = Change(number, order)
        change.move(Phase.DONE, "")
        self.ledger.end(change)
        versions = self._versions[order.targets[0]]
        versions.append((number, order))
        if len(versions) > LOGGED:
            self.ledger.shrink(*versions.popleft())

    def _wait(self, ask: Callable[[Callable[[str], None]], None]) -> None:
        answered, problems = threading.Event(), list[str]()

        def then(problem: str) -> None:
            problems.append(problem)
            answered.set()

        ask(then)
        answered.wait()
        if problems[0]:
            raise RuntimeError(problems[0])


def live(folders: Folders, changes: int) -> dict[str, Any]:
    """Make changes; gives what the first and the last of them have cost."""
    flow = program()
    windows: list[dict[str, float]] = []
    read, owner = take_over(*folders, Reading.refuse_damage)
    start = Start(flow, read, -1, None)
    ledger = Ledger(start.open(*folders, read, owner))
    life = Life(ledger, orders(flow))
    for _ in range(max(changes // WINDOW, 1)):
        began, before = time.process_time(), folders.done()
        for _ in range(WINDOW):
            life.change()
        ledger.flush()
        cost = {"cpu_ms": 1000 * (time.process_time() - began) / WINDOW}
        done = folders.done() - before
        windows.append(cost | {what: count / WINDOW for what, count in sorted(done.items())})
    ledger.close()
    tenth = max(len(windows) // 10, 1)
    ratio = _usual(windows[-tenth:]) / _usual(windows[:tenth])
    return {"first": windows[0], "last": windows[-1], "last_tenth_to_first_tenth": ratio}


def _usual(windows: list[dict[str, float]]) -> float:
    return statistics.median(window["cpu_ms"] for window in windows)


def recover(folders: Folders) -> dict[str, Any]:
    """A driver comes back: what it takes until its controller knows all that happened."""
    flow = program()
    server = ControlServer("log", b"a secret of 32 bytes for a bench")
    server.start()
    before = folders.done()
    began, cpu = time.perf_counter(), time.process_time()
    read, owner = take_over(*folders, Reading.refuse_damage)
    taken = time.process_time()
    start = Start(flow, read, read.last, None)
    log: Log = start.open(*folders, read, owner)
    start.deploy(log)
    server.restore(Ledger(log), start.changes, log.last, start.finished)
    found = {
        "cpu_s": time.process_time() - cpu,
        "of_it_reading_s": taken - cpu,
        "wall_s": time.perf_counter() - began,
        "changes": len(server.history()),
        **(folders.done() - before),
    }
    server.stop()
    return found


def measure(folder: Path, changes: int) -> dict[str, Any]:
    """The whole life of a log in an empty folder."""
    folders = Folders.under(folder)
    costs = live(folders, changes)
    left = {"files": len(folders.files.names()), "copies": len(folders.copies.names())}
    left["bytes"] = folders.files.size
    return {"changes": changes, "cost_of_a_change": costs, **left, "recovery": recover(folders)}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the log is made, and removed again")
    given = parser.parse_args()
    with TemporaryDirectory(dir=given.folder) as where:
        json.dump(measure(Path(where), given.changes), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
