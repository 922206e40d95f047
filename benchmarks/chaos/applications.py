"""The applications of crash runs: what runs a driver, and which processes can be killed there."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession

from benchmarks.chaos.driver import drive
from benchmarks.chaos.scenario import Victim
from benchmarks.cluster import EXECUTOR, PYTHON, environment
from benchmarks.processes import Guard, Process, end_sessions, processes

LOG_LINES: Final = 25
"""Lines of a driver's log that are shown where it failed by itself."""


class Application(Protocol):
    """A driver that runs what is in a folder, with all that it started."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def run(self, folder: Path) -> None:
        """Let it run what is in a folder."""

    def end(self) -> None:
        """End what is left of it."""

    def story(self) -> str:
        """Why it ended by itself, if it did."""

    def pids(self, victim: Victim) -> list[int]:
        """Of what may be killed."""


class Separate:
    """A process of its own; one that has died is started again when it is needed."""

    def __init__(self, guard: Guard, settings: Mapping[str, str], folder: Path) -> None:
        self._guard, self._folder = guard, folder
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "none.log"
        self._settings = folder / "settings.json"
        self._settings.write_text(json.dumps(dict(settings)))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def run(self, folder: Path) -> None:
        """Let it run what is in a folder."""
        if not self.alive:
            self.end()
            self._log = self._folder / f"driver-{next(self._numbers)}.log"
            command = (sys.executable, "-m", "benchmarks.chaos.driver")
            self._process = self._guard.start(
                [*command, "--settings", str(self._settings)],
                self._log,
                environment(),
                stdin=subprocess.PIPE,
            )
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def end(self) -> None:
        """End what is left of it, its Java process included."""
        if self._process is not None:
            end_sessions({self._process.pid})
            self._process.wait()

    def story(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def pids(self, victim: Victim) -> list[int]:
        """Of what may be killed."""
        match victim:
            case Victim.DRIVER:
                return [] if self._process is None else [self._process.pid]
            case Victim.EXECUTOR:
                return [one.pid for one in self._guard.below() if EXECUTOR in one.command]
            case Victim.PYTHON:
                return _python_workers(self._guard.below())


class InThread:
    """A thread with a Spark session that others use, too: cheap, but only workers can be killed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._thread: threading.Thread | None = None
        self._story = ""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and self._thread.is_alive()

    def run(self, folder: Path) -> None:
        """Let it run what is in a folder."""
        self._thread = threading.Thread(target=self._run, args=(folder,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop its query: then it ends by itself."""
        for query in self._spark.streams.active:
            query.stop()

    def story(self) -> str:
        """Why it ended by itself, if it did."""
        return self._story

    def pids(self, victim: Victim) -> list[int]:
        """Of the Python workers below this process."""
        assert victim is Victim.PYTHON
        return _python_workers(_below(os.getpid()))

    def _run(self, folder: Path) -> None:
        try:
            drive(self._spark, folder)
        except Exception:
            self._story = traceback.format_exc()


def _python_workers(found: Iterable[Process]) -> list[int]:
    """Pids of the Python workers: a daemon forks them."""
    pythons = {process.pid: process for process in found if PYTHON in process.command}
    return [process.pid for process in pythons.values() if process.parent in pythons]


def _below(pid: int) -> list[Process]:
    """All that a process has started, and what that has started."""
    by_parent: dict[int, list[Process]] = {}
    for process in processes():
        by_parent.setdefault(process.parent, []).append(process)
    found, parents = list[Process](), [pid]
    while parents:
        found += (more := by_parent.get(parents.pop(), []))
        parents += [process.pid for process in more]
    return found
