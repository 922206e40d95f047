"""What measurements depend on: the machine, the software, and the commit of this project."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import fries

UNKNOWN: Final = "unknown"
CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Everything that a page of results names."""
    return {
        "cpu": cpu(CPUINFO),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "spark": _version("pyspark"),
        "fries": _version("fries-spark"),
        "commit": commit(Path(fries.__file__).parent),
    }


def cpu(info: Path) -> str:
    """The model of the processor."""
    try:
        lines = info.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # not Linux
    models = [value for line in lines for name, _, value in [line.partition(":")]
              if name.strip() == "model name"]  # fmt: skip
    return (models[0].strip() if models else platform.processor()) or UNKNOWN


@lru_cache
def commit(package: Path) -> str:
    """The commit that the code was at, if it is in a clone, and whether it was changed since."""
    try:
        head = _git(package, "rev-parse", "--short=12", "HEAD")
        changed = _git(package, "status", "--porcelain", "--", str(package))
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN  # installed, or no git
    return f"{head} with changes" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
