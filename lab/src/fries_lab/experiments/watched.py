"""A row function that keeps a log of its own: when each of its versions was used first and last.

It knows nothing of who runs it, so that Fries and everything else are measured by the same clock.
The log of a process that is killed is there as well.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fries.runtime.audit import Use

_USE: Final = struct.Struct("dd")
_SUFFIX: Final = ".use"


class Watched:
    """Sleeps for each row, and notes in a folder that one of its version was processed."""

    def __init__(self, folder: Path, version: int, cost: float) -> None:
        self._folder, self._version, self._cost = folder, version, cost
        self._file: int | None = None
        self._first = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Whoever gets a copy keeps a log of its own."""
        return {**self.__dict__, "_file": None}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row as it is, and which version has processed it."""
        if self._file is None:
            path = self._folder / f"{self._version}-{uuid.uuid4().hex}{_SUFFIX}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
            self._first = time.time()
        time.sleep(self._cost)
        os.pwrite(self._file, _USE.pack(self._first, time.time()), 0)
        return {**row, "version": self._version}


def uses(folder: Path) -> dict[int, Use]:
    """By version, when any process has used it."""
    found: dict[int, Use] = {}
    for path in folder.glob(f"*{_SUFFIX}"):
        noted = path.read_bytes()
        if len(noted) < _USE.size:
            continue  # its first row is under way
        use, version = Use(*_USE.unpack(noted)), int(path.name.partition("-")[0])
        found[version] = use if version not in found else found[version].joined(use)
    return found


def delays(asked: Mapping[int, float], used: Mapping[int, Use], until_new: bool) -> list[float]:
    """By request, the seconds until no row was processed by an older version.

    With ``until_new``, or until the first one was by the new version, if that is later.
    """
    made = []
    for version, moment in asked.items():
        ends = [use.last for older, use in used.items() if older < version]
        if until_new:
            ends.append(used[version].first)
        made.append(max(0.0, max(ends) - moment))
    return made
