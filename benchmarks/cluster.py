"""A standalone Spark cluster on the loopback interface, to try what local mode cannot show.

Master and workers are processes of their own, as on real machines, and so are the executors that
the workers start for an application and the Python workers below each executor. They can be
found and killed one by one::

    with Cluster(workers=2) as cluster:
        session = configured(SparkSession.builder, cluster.settings).getOrCreate()
        ...
        kill(cluster.executors()[0])

Whatever happens to the process that made it, nothing of a cluster is left behind.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark
from pyspark.sql import SparkSession

from benchmarks.processes import Guard

LOOPBACK: Final = "127.0.0.1"
SPARK: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
REGISTERED: Final = "(Successfully registered)"
"""What a worker says when the master knows it."""
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""What the command line of an executor contains."""
PYTHON: Final = "pyspark.daemon"
"""What the command line of a Python worker contains, and that of the daemon that forks them."""


class Cluster:
    """A master and some workers, each with one executor for an application.

    Each worker has a loopback address of its own, for Spark treats executors on one host
    differently: it starts no speculative copies there, for instance.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self._workers, self._cores, self._memory = workers, cores, memory
        self._folder = Path()
        self._names = itertools.count()
        self.master = ""
        """Where applications find it: ``spark://host:port``."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="fries-cluster-"))
        self.guard = Guard()
        try:
            master = self._start("master", LOOPBACK, MASTER, "--port", "0")
            self.master = master.says(r"Starting Spark master at (spark://\S+)")
            started = [self._start_worker() for _ in range(self._workers)]
            for worker in started:
                worker.says(REGISTERED)
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

    def add_worker(self) -> None:
        """Start one more worker daemon, and wait until the master knows it."""
        self._start_worker().says(REGISTERED)

    def _start_worker(self) -> Daemon:
        number = next(self._names)
        name, host = f"worker-{number}", f"127.0.0.{number + 2}"
        size = ("--cores", str(self._cores), "--memory", self._memory)
        place = ("--work-dir", str(self._folder / name), self.master)
        return self._start(name, host, WORKER, *size, *place)

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
        return [process.pid for process in self.guard.below() if EXECUTOR in process.command]

    def python_workers(self, executor: int | None = None) -> list[int]:
        """Pids of the Python workers below one executor, or below all."""
        processes = self.guard.below()
        pythons = [process for process in processes if PYTHON in process.command]
        below = [executor] if executor is not None else self.executors()
        daemons = {process.pid for process in pythons if process.parent in below}
        return [process.pid for process in pythons if process.parent in daemons]

    def _start(self, name: str, host: str, main: str, *arguments: str) -> Daemon:
        log = self._folder / f"{name}.log"
        java = (str(SPARK / "bin" / "spark-class"), main, "--host", host, "--webui-port", "0")
        settings = {**environment(), "SPARK_LOCAL_IP": host}
        return Daemon(self.guard.start([*java, *arguments], log, settings), log)

    def _clean_up(self) -> None:
        self.guard.close()
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


@dataclass(frozen=True)
class Daemon:
    """A master or a worker."""

    process: subprocess.Popen[bytes]
    log: Path

    def says(self, pattern: str) -> str:
        """Wait for a line in its log, as long as it runs."""
        while not (match := re.search(pattern, self.log.read_text())):
            if self.process.poll() is not None:
                raise RuntimeError(f"a daemon does not come up:\n{self.log.read_text()}")
            time.sleep(0.05)
        return match.group(1)
