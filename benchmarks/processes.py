"""Processes as the operating system sees them, and a guard that leaves none behind.

Whoever leads a session of the operating system takes everything along that it starts. The guard is
a process of its own that is told which sessions to end when its standard input is closed, which
happens however the process that started it ends. It imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that runs."""

    pid: int
    parent: int
    session: int
    command: str


def processes() -> Iterator[Process]:
    """All processes of the machine, in the order of their pids."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        state, parent, _, session = status.rpartition(")")[2].split()[:4]
        if state != "Z":
            text = command.replace(b"\0", b" ").decode(errors="replace")
            yield Process(pid, int(parent), int(session), text)


def kill(pid: int) -> None:
    """End a process at once; one that is gone is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Guard:
    """Starts processes that lead sessions, and ends all that they have started."""

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).absolute())],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a process that writes to a log."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=stdin,
                start_new_session=True,
            )
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % process.pid)
        self._guard.stdin.flush()
        self._started.append(process)
        return process

    def below(self) -> list[Process]:
        """All that runs in the sessions of what was started."""
        sessions = {process.pid for process in self._started}
        return [process for process in processes() if process.session in sessions]

    def close(self) -> None:
        """End everything, and wait for it."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        for process in self._started:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def end_sessions(sessions: set[int]) -> None:
    """Kill all processes of some sessions, until there are none."""
    while left := [process for process in processes() if process.session in sessions]:
        for process in left:
            kill(process.pid)
        time.sleep(0.01)  # one of them may have started another in this moment


if __name__ == "__main__":
    end_sessions({int(line) for line in sys.stdin})
