"""What is to happen in a crash run, and the events by which the processes of a run follow it.

The driver tells what it does in a file of JSON lines; whoever kills reads it. So nothing but a
folder connects the two, and a killed driver leaves its story behind.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

HOLD_SECONDS: Final = 10.0
"""For this long a driver stays in the moment of the kill; only a killer that fails lets it pass."""


class Victim(StrEnum):
    """What is killed."""

    PYTHON = "Python worker"
    EXECUTOR = "executor"
    DRIVER = "driver"


class Moment(StrEnum):
    """When it is killed, in the life of a change."""

    BEFORE_PREPARE = "before PREPARE"
    BEFORE_COMMIT = "between PREPARE and COMMIT"
    SWITCH = "during the switch"
    BETWEEN_STAGES = "between stages"
    AFTER_SWITCH = "after the switch"
    BEFORE_BATCH_COMMIT = "before Spark's batch commit"
    LOG_WRITE = "during log writing"


CELLS: Final = tuple((victim, moment) for victim in Victim for moment in Moment)
"""Of the crash matrix, in the order in which they come."""


class Kind(StrEnum):
    """What a driver tells."""

    STARTED = "started"
    """The driver is there; ``pid``, ``version`` of the operators that it begins with."""
    BATCH = "batch"
    """A micro-batch begins; ``batch``."""
    STAGE = "stage"
    """The second keyed stage gets its first rows since a change was committed; ``batch``."""
    WRITTEN = "written"
    """The sink has the rows of a ``batch``, and Spark has not committed it yet."""
    FINISHED_BATCH = "finished batch"
    """Spark has committed a ``batch``."""
    REQUESTING = "requesting"
    """The driver is about to ask for the change to a ``version``."""
    REQUESTED = "requested"
    PREPARING = "preparing"
    COMMITTED = "committed"
    LOGGING = "logging"
    """The log has half of a record, which the seed chooses."""
    SWITCHED = "switched"
    DONE = "done"
    ABORTED = "aborted"
    """The phases of that change; the last one with a ``reason``."""
    FAILED = "failed"
    """The query has failed and is started again; ``reason``."""
    AUDIT = "audit"
    """What the audit says; ``clean`` and ``verdict``."""
    FINISHED = "finished"
    """All input is processed."""


TRIGGERS: Final = {
    Moment.BEFORE_PREPARE: Kind.REQUESTING,
    Moment.BEFORE_COMMIT: Kind.PREPARING,
    Moment.SWITCH: Kind.COMMITTED,
    Moment.BETWEEN_STAGES: Kind.STAGE,
    Moment.AFTER_SWITCH: Kind.SWITCHED,
    Moment.BEFORE_BATCH_COMMIT: Kind.WRITTEN,
    Moment.LOG_WRITE: Kind.LOGGING,
}
"""The event that begins a moment."""
HELD: Final = (Kind.REQUESTING, Kind.WRITTEN, Kind.LOGGING)
"""Events in whose moment the driver can stay until the kill has happened."""


@dataclass(frozen=True)
class Scenario:
    """One crash run; everything random in it follows from the seed."""

    seed: int
    victim: Victim
    moment: Moment
    scheduler: str = "fries"
    batches: int = 3
    rows: int = 600
    """In each micro-batch."""
    row_seconds: float = 0.002
    """What an operator takes for a row: a batch lasts long enough to be hit."""
    changed_batch: int = 1
    """The micro-batch in which the change is requested."""

    @property
    def request_seconds(self) -> float:
        """From the news that FC has done a quarter of that batch to the request."""
        return float(self._random("request").uniform(0.0, 0.2))

    @property
    def kill_seconds(self) -> float:
        """From the event to the kill: long where the moment is long."""
        longest = {Moment.BETWEEN_STAGES: 0.3, Moment.AFTER_SWITCH: 1.0, Moment.SWITCH: 0.02}
        return float(self._random("kill").uniform(0.0, longest.get(self.moment, 0.2)))

    @property
    def load_seconds(self) -> float:
        """How long a worker takes to load the new version."""
        return 0.5 if self.moment is Moment.BEFORE_COMMIT else 0.0

    @property
    def torn_record(self) -> str:
        """The record in whose middle the log stops, if that is the moment."""
        return str(self._random("log").choice(["00000001.intent", "00000001.commit"]))

    def choose(self, pids: list[int]) -> int:
        """A victim."""
        return pids[int(self._random("victim").integers(len(pids)))]

    def _random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose.encode()])

    def write(self, folder: Path) -> None:
        """Leave it for the driver."""
        (folder / "scenario.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Scenario:
        """What the runner has left."""
        fields: dict[str, Any] = json.loads((folder / "scenario.json").read_text())
        victim, moment = Victim(fields.pop("victim")), Moment(fields.pop("moment"))
        return cls(victim=victim, moment=moment, **fields)


@dataclass(frozen=True)
class Event:
    """Something that a driver has told."""

    kind: Kind
    fields: dict[str, Any]
    time: float
    """Seconds since 1970."""


class Teller:
    """The driver's end: tells events, and waits in the moment of the kill."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder, self._scenario = folder, scenario

    def tell(self, kind: Kind, **fields: object) -> None:
        """Write an event, at once."""
        line = json.dumps({"event": kind, "time": time.time(), **fields}) + "\n"
        with (self._folder / "events.jsonl").open("a") as file:
            file.write(line)
        mine = fields.get("batch", self._scenario.changed_batch) == self._scenario.changed_batch
        if kind in HELD and kind is TRIGGERS[self._scenario.moment] and mine:
            deadline = time.monotonic() + HOLD_SECONDS
            while not killed(self._folder) and time.monotonic() < deadline:
                time.sleep(0.005)


def events(folder: Path) -> list[Event]:
    """All that was told so far; a line that a killed driver has not finished does not count."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n")[:-1]:
        try:
            fields: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue  # the driver died in the middle of it, and the next one went on behind it
        found.append(Event(Kind(fields.pop("event")), fields, fields.pop("time")))
    return found


def mark_killed(folder: Path) -> None:
    """The kill has happened: nobody waits for it any more."""
    (folder / "killed").touch()


def killed(folder: Path) -> bool:
    """Whether the kill has happened."""
    return (folder / "killed").exists()
