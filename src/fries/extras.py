"""What Fries needs beside its own dependencies: a PySpark that it was tested with."""

from __future__ import annotations

import importlib
import re
from typing import Final

from fries.errors import SparkVersionError

SPARKS: Final = ("4.2", "4.3")
"""Minor versions of PySpark that the tests run on. Keyed stages speak a private protocol of Spark
(``fries.spark.store``), so another version may lose states, not only raise."""
WITH_SPARK: Final = ("pyspark", "py4j", "pandas", "google")
"""Packages that come with the extra ``spark``."""


def require_spark() -> None:
    """Raise unless a supported PySpark can be imported: in one line, with what to install."""
    try:
        pyspark = importlib.import_module("pyspark")
        importlib.import_module("pandas")
        importlib.import_module("google.protobuf")  # keyed stages speak it with Spark
    except ModuleNotFoundError as error:
        raise needs_spark(error) from None
    installed = str(pyspark.__version__)
    found = re.match(r"\d+\.\d+", installed)
    if found is None or found[0] not in SPARKS:
        raise SparkVersionError(SPARKS, f"pyspark {installed} is installed")


def needs_spark(error: ModuleNotFoundError) -> Exception:
    """What to raise for a module that is not there: what to install, if it comes with Spark."""
    package = (error.name or "").partition(".")[0]
    if package not in WITH_SPARK:
        return error
    return SparkVersionError(SPARKS, f"{package} is not installed")
