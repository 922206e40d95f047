"""Where experiments run: their data, their Spark sessions, and the parts that are finished.

A part that is finished is kept as JSON, with the profile that it was run with. The same command
again runs what is not there yet.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from fries_lab.errors import ExperimentError
from fries_lab.experiments.experiment import SHARED, Experiment, Found, Part
from fries_lab.experiments.machine import machine
from fries_lab.experiments.profiles import Profile
from fries_lab.workloads import folders, generate, tpcds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local"
"""Spark in this process, with as many cores as a part wants workers."""
WORK: Final = "work"
"""Beside the datasets: the folders of parts that run on a cluster, while they run."""
LOG: Final = "spark.log"
"""Beside the parts: what Spark and its workers write to the terminal otherwise."""


class Lab:
    """Runs parts of experiments, each once."""

    def __init__(
        self, profile: Profile, parts: Path, data: Path, console: Console, master: str = LOCAL
    ) -> None:
        self.profile = profile
        self._parts = parts / profile.name
        self._data = data
        self._console = console
        self._master = master
        self._session: tuple[int, SparkSession] | None = None
        self._folder: Path | None = None
        self._found: dict[tuple[str, str], Found] = {}
        """By experiment and part, of this run and earlier ones."""
        self._records: dict[tuple[str, str], dict[str, Any]] = {}
        """The same, with when and where they were found."""
        self._experiment = ""

    @property
    def spark(self) -> SparkSession:
        """The session of the part that runs."""
        assert self._session is not None, "a part runs"
        return self._session[1]

    @property
    def folder(self) -> Path:
        """The folder of the part that runs."""
        assert self._folder is not None, "a part runs"
        return self._folder

    def found(self, part: str) -> Found:
        """What a part of the experiment that runs has found, now or in an earlier run."""
        for place in ((self._experiment, part), (SHARED, part)):
            if place in self._found:
                return self._found[place]
        raise ExperimentError(self._experiment, f"it needs its part {part!r} first")

    def payments(self, rows: int) -> Path:
        """Dataset 1; one that is there must have enough rows."""
        folder = self._data / generate.PAYMENTS
        if self.profile.makes_data and not folder.exists():
            wanted = max(rows, self.profile.payments)
            generate.write_payments(self.spark, folder, wanted, console=self._console)
        return _large_enough(folder, generate.PAYMENTS, rows)

    def users(self, rows: int) -> Path:
        """Dataset 2; one that is there must have enough rows."""
        folder = self._data / generate.USERS
        if self.profile.makes_data and not folder.exists():
            generate.write_users(self.spark, self.payments(rows), folder, self._console)
        return _large_enough(folder, generate.USERS, rows)

    def tpcds(self, scale: float) -> Path:
        """Dataset 3."""
        folder = self._data / f"{tpcds.KIND}-{scale:g}"
        if self.profile.makes_data:
            tpcds.write_tpcds(folder, scale, self._console)
        folders.require(folder, tpcds.KIND)
        return folder

    def kept(self, experiment: Experiment, part: Part) -> Found | None:
        """What a part has found, if it was run with this profile before."""
        path = self._path(experiment, part)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None  # one that cannot be understood is run again
        except OSError as error:
            raise unwritable(path, error) from error
        if record["profile"] != _plain(asdict(self.profile)):
            return None
        self._keep(experiment, part, record)
        return record["found"]

    def measured(self, places: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """On which machines, when, and in how many seconds some parts were run."""
        records = [self._records[place] for place in places]
        machines: list[dict[str, Any]] = []
        for record in records:
            if record["machine"] not in machines:
                machines.append(record["machine"])
        started = sorted(record["started"] for record in records)
        seconds = round(sum(record["seconds"] for record in records))
        return {"machines": machines, "days": [started[0], started[-1]], "seconds": seconds}

    def run(self, experiment: Experiment, part: Part) -> Found:
        """Run a part, and keep what it finds."""
        started = time.time()
        with self._at_work(part) as folder:
            self._folder, self._experiment = folder, experiment.name
            found = _plain(part.run(self))
        record = {
            "experiment": experiment.name,
            "part": part.name,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "seconds": round(time.time() - started, 1),
            "machine": machine(),
            "profile": _plain(asdict(self.profile)),
            "found": found,
        }
        write_json(self._path(experiment, part), record)
        self._keep(experiment, part, record)
        return found

    def close(self) -> None:
        """Stop Spark."""
        if self._session is not None:
            self._session[1].stop()
            self._session = None

    def _keep(self, experiment: Experiment, part: Part, record: dict[str, Any]) -> None:
        place = part.place(experiment.name)
        self._found[place], self._records[place] = record["found"], record

    def _path(self, experiment: Experiment, part: Part) -> Path:
        home, name = part.place(experiment.name)
        return self._parts / home / f"{name}.json"

    @contextmanager
    def _at_work(self, part: Part) -> Iterator[Path]:
        workers = part.workers or self.profile.tasks
        if self._session is None or self._session[0] != workers:
            self.close()
            self._session = workers, self._started(workers)
        folder = Path(tempfile.mkdtemp(prefix="fries-experiment-", dir=self._shared()))
        try:
            yield folder
        finally:
            self._folder = None
            shutil.rmtree(folder, ignore_errors=True)

    def _shared(self) -> Path | None:
        """Where the folders of parts are: workers elsewhere must see them, as they see the data."""
        if self._master == LOCAL:
            return None
        place = self._data / WORK
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(place, error) from error
        return place

    def _started(self, workers: int) -> SparkSession:
        from fries_lab.spark.sessions import experiment_session

        master = f"local[{workers}]" if self._master == LOCAL else self._master
        return experiment_session(master, workers, self._parts / LOG)


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - anything that JSON can hold
    """Write a file whole or not at all."""
    write_whole(path, lambda new: new.write_text(json.dumps(value, indent=1) + "\n", "utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name, and rename it when it is whole."""
    new = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(new)
        new.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> ExperimentError:
    """Why something cannot be kept, and what is."""
    problem = f"{error.strerror or error}; finished parts are kept, run it again to go on"
    return ExperimentError(str(path), problem)


def _plain(value: Found) -> Found:
    """The same as it will be when it is read again: lists for tuples, text for keys."""
    return json.loads(json.dumps(value))


def _large_enough(folder: Path, kind: str, rows: int) -> Path:
    """A dataset that is complete and has as many payments as an experiment needs."""
    found = int(folders.require(folder, kind)["rows"])
    if found < rows:
        raise ExperimentError(
            str(folder), f"it has {found:,} payments, and it takes {rows:,}: make a larger one"
        )
    return folder
