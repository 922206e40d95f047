"""Local mode: driver and workers are on one machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext


def is_local(context: SparkContext) -> bool:
    """Whether all tasks run on the driver's machine, in one JVM."""
    return context.getConf().get("spark.master", "").startswith("local")


def use_own_python(context: SparkContext) -> None:
    """In local mode, run workers on the driver's Python, unless the user has chosen another."""
    if is_local(context) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # else Spark takes the first python3 of the PATH


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their errors to a file.

    Spark's Java process hands its own down to the Python workers, and some of them talk a lot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
