"""A standalone Spark cluster on the loopback interface, to try what local mode cannot show.

Master and workers are processes of their own, as on real machines, and so are the executors that
the workers start for an application and the Python workers below each executor. They can be
found and killed one by one::

    with Cluster(workers=2) as cluster:
        session = configured(SparkSession.builder, cluster.settings).getOrCreate()
        ...
        kill(cluster.executors()[0])

Every daemon leads a session of the operating system, and all that it starts stays in it: that is
how everything is found, and how nothing is left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyspark
from pyspark.sql import SparkSession

PATIENCE: Final = 60.0
"""Seconds until a daemon must be up: a busy machine takes a few."""
LOOPBACK: Final = "127.0.0.1"
SPARK: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""What the command line of an executor contains."""
PYTHON: Final = "pyspark.daemon"
"""What the command line of a Python worker contains, and that of the daemon that forks them."""


class Process(NamedTuple):
    """A process as the operating system sees it."""

    pid: int
    parent: int
    session: int
    command: str


class Cluster:
    """A master and some workers, each with one executor for an application."""

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self._workers, self._cores, self._memory = workers, cores, memory
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._folder = Path()
        self.master = ""
        """Where applications find it: ``spark://host:port``."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="fries-cluster-"))
        try:
            log = self._start("master", MASTER, "--host", LOOPBACK, "--port", "0")
            self.master = _found(log, r"Starting Spark master at (spark://\S+)")
            for _ in range(self._workers):
                self.add_worker()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clean_up()

    def add_worker(self) -> int:
        """Start one more worker daemon, and wait until the master knows it; its pid."""
        name = f"worker-{len(self._daemons)}"
        place = ("--host", LOOPBACK, "--work-dir", str(self._folder / name))
        size = ("--cores", str(self._cores), "--memory", self._memory)
        log = self._start(name, WORKER, *place, *size, self.master)
        _found(log, "(Successfully registered)")
        return self._daemons[-1].pid

    @property
    def settings(self) -> dict[str, str]:
        """What an application needs to run here, one executor on each worker."""
        return {
            "spark.master": self.master,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.executor.cores": str(self._cores),
            "spark.executor.memory": self._memory,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(self._workers * self._cores),
            "spark.log.level": "ERROR",
        }

    @property
    def logs(self) -> Path:
        """Folder with the logs of daemons, and below ``worker-*`` those of executors."""
        return self._folder

    def executors(self) -> list[int]:
        """Pids of the executors, oldest first."""
        return [process.pid for process in self._processes() if EXECUTOR in process.command]

    def python_workers(self, executor: int | None = None) -> list[int]:
        """Pids of the Python workers below one executor, or below all."""
        processes = self._processes()
        pythons = [process for process in processes if PYTHON in process.command]
        below = [executor] if executor is not None else self.executors()
        daemons = {process.pid for process in pythons if process.parent in below}
        return [process.pid for process in pythons if process.parent in daemons]

    def _processes(self) -> list[Process]:
        sessions = {daemon.pid for daemon in self._daemons}
        return [process for process in processes() if process.session in sessions]

    def _start(self, name: str, main: str, *arguments: str) -> Path:
        """Start a daemon that leads a session; its log."""
        log = self._folder / f"{name}.log"
        java = (str(SPARK / "bin" / "spark-class"), main, "--webui-port", "0", *arguments)
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                java,
                env={**os.environ, **environment()},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return log

    def _clean_up(self) -> None:
        for process in self._processes():
            kill(process.pid)
        for daemon in self._daemons:
            daemon.wait()
        while left := self._processes():  # a daemon may have started one in this moment
            for process in left:
                kill(process.pid)
            time.sleep(0.01)
        shutil.rmtree(self._folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """What driver and daemons need to run the Python and the modules of this process."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    """A builder with some settings."""
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def kill(pid: int) -> None:
    """End a process at once, wherever it is; one that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def processes() -> Iterator[Process]:
    """All processes of the machine that still run, in the order of their pids."""
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        state, parent, _, session = status.rpartition(")")[2].split()[:4]
        if state != "Z":
            yield Process(pid, int(parent), int(session), command.replace(b"\0", b" ").decode())


def _found(log: Path, pattern: str) -> str:
    """Wait for a line in a log."""
    deadline = time.monotonic() + PATIENCE
    while not (match := re.search(pattern, log.read_text())):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a daemon does not come up:\n{log.read_text()}")
        time.sleep(0.05)
    return match.group(1)
