"""Local mode: driver and workers are on one machine."""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext


def is_local(context: SparkContext) -> bool:
    """Whether all tasks run on the driver's machine, in one JVM."""
    return context.getConf().get("spark.master", "").startswith("local")


def use_own_python(context: SparkContext) -> None:
    """In local mode, run workers on the driver's Python, unless the user has chosen another."""
    if is_local(context) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # else Spark takes the first python3 of the PATH
