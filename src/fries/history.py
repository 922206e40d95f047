"""What has been changed in a flow, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fries.change.model import Phase, Summary
from fries.events import first_line, named


@dataclass(frozen=True, repr=False)
class Entry:
    """One reconfiguration in a flow's history."""

    number: int
    time: datetime
    """When it was requested."""
    versions: Mapping[str, int]
    """By target, the version that it brought: 1 is the first update."""
    labels: Mapping[str, str]
    """By target, the label of that version, or a short hash of its code."""
    scheduler: str
    state: str
    delay: float | None
    """Seconds from the request until no target used its old version, as far as known."""
    note: str
    reason: str
    """Why it was aborted or rolled back."""

    def __str__(self) -> str:
        versions = tuple(f"{name} v{version}" for name, version in self.versions.items())
        what = named(versions, tuple(self.labels.get(name, "") for name in self.versions))
        note = f" ({self.note})" if self.note else ""
        return f"{self.number}. {self.time:%Y-%m-%d %H:%M:%S} {what}: {self._outcome()}{note}"

    __repr__ = __str__

    def _outcome(self) -> str:
        """What became of it: of one that was taken back the reason, of others how fast it was."""
        if self.state in (Phase.ROLLED_BACK.value, Phase.ABORTED.value):
            return f"{self.state}: {first_line(self.reason)}"
        took = "" if self.delay is None else f", switched after {self.delay * 1000:.1f} ms"
        return f"{self.state}{took}"


def entry_of(change: Summary) -> Entry:
    """A change as its history tells it."""
    return Entry(
        change.number,
        datetime.fromtimestamp(change.requested, UTC),
        change.versions,
        change.labels,
        change.scheduler,
        change.state,
        change.delay,
        change.note,
        change.reason,
    )
