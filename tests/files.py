"""Files in memory that remember every write and fail on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fries.errors import LogError
from fries.log.log import Log
from fries.log.pieces import Buffer
from fries.log.records import Intent, Shape
from tests import waiting

PATIENCE = waiting.PATIENCE
SHAPE = Shape(4, {"F": {"kind": "map"}}, (("", "F", 0), ("F", "out", 0)))


class MemoryFiles:
    """A folder that is a dict. Kinds of records (``commit``) can be made to fail or to wait."""

    place = "memory"

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents = dict(contents or {})
        self.written: list[tuple[str, bytes]] = []
        """Every write, in order."""
        self.removed: list[str] = []
        """Every removal, in order."""
        self.reads = 0
        self.when_written: dict[str, Callable[[], object]] = {}
        """By name, what happens when a file is there."""
        self.faults: dict[str, Exception] = {}
        """By kind, what is raised instead of writing."""
        self.late_faults: dict[str, Exception] = {}
        """By kind, what is raised although the file is there afterwards."""
        self.gates: dict[str, threading.Event] = {}
        """By kind, what a write waits for."""
        self._held: set[str] = set()
        self._more = threading.Condition()

    def names(self) -> list[str]:
        """The files that are there."""
        return list(self.contents)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return name in self.contents

    def read(self, name: str) -> Buffer:
        """All bytes of a file."""
        self.reads += 1
        if name not in self.contents:
            raise LogError(f"{name} is gone")
        return self.contents[name]

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file, if no fault is injected."""
        kind = name.partition(".")[2]
        if kind in self.gates:
            with self._more:
                self._held.add(name)
                self._more.notify_all()
            assert self.gates[kind].wait(PATIENCE)
        if kind in self.faults:
            raise self.faults[kind]
        if name in self.contents and not replace:
            raise LogError(f"{name} is there already: another driver runs on this checkpoint")
        with self._more:
            self.contents[name] = b"".join(bytes(part) for part in parts)
            self.written.append((name, self.contents[name]))
            self.when_written.pop(name, lambda: None)()
            self._more.notify_all()
        if kind in self.late_faults:
            raise self.late_faults[kind]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.removed.append(name)
        self.contents.pop(name, None)

    def wait_for(self, name: str) -> None:
        """Wait until a file was written."""
        with self._more:
            assert self._more.wait_for(lambda: name in self.contents, PATIENCE)

    def held(self, name: str) -> bool:
        """Whether somebody has tried to write a file that must wait."""
        return name in self._held

    def wait_until_held(self, name: str) -> None:
        """Wait until somebody tries to write a file that must wait."""
        with self._more:
            assert self._more.wait_for(lambda: name in self._held, PATIENCE)


def intent(number: int, *targets: str, residue: bytes = b"left") -> Intent:
    """A change of some operators."""
    names = targets or ("F",)
    return Intent(
        number,
        1000.0 + number,
        names,
        "fries",
        ((names, names[:1]),),
        dict.fromkeys(names, number),
        residue,
        note=f"note {number}",
    )


def happened(files: MemoryFiles) -> list[int]:
    """The changes that a driver would go on with, if it came back now."""
    return [one.number for one in Log(MemoryFiles(files.contents), SHAPE).changes if one.happened]


def commit(log: Log, number: int, payload: Sequence[Buffer] = (b"functions",)) -> None:
    """A change from its request to its commit."""
    log.intend(intent(number), payload)
    log.commit(number)
    log.take_effect(number, number)


def hold(files: MemoryFiles, kind: str) -> threading.Event:
    """Let records of a kind wait until the event is set."""
    files.gates[kind] = threading.Event()
    return files.gates[kind]
