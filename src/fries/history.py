"""What has been changed in a flow, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fries.control.changes import Summary
from fries.protocol.controller import Phase


@dataclass(frozen=True)
class Entry:
    """One reconfiguration in a flow's history."""

    number: int
    time: datetime
    """When it was requested."""
    versions: Mapping[str, int]
    """By target, the version that it brought: 1 is the first update."""
    scheduler: str
    state: str
    delay: float | None
    """Seconds from the request until no target used its old version, as far as known."""
    note: str
    reason: str
    """Why it was aborted or rolled back."""

    def __str__(self) -> str:
        took = "" if self.delay is None else f" after {self.delay * 1000:.1f} ms"
        targets = ", ".join(f"{name} v{version}" for name, version in self.versions.items())
        note = f" ({self.note})" if self.note else ""
        return f"{self.number}. {self.time:%Y-%m-%d %H:%M:%S} {targets}: {self.state}{took}{note}"


def entry_of(change: Summary) -> Entry:
    """A change as its history tells it."""
    return Entry(
        change.number,
        datetime.fromtimestamp(change.requested, UTC),
        change.versions,
        change.scheduler,
        Phase.ROLLED_BACK.value if change.failed else change.phase.value,
        change.delay,
        change.note,
        change.reason,
    )
