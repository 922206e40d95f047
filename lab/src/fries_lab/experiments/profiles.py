"""How much is run: ``quick`` for two cores and an hour, ``paper`` for a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fries_lab.errors import ExperimentError


@dataclass(frozen=True)
class Profile:
    """The size of all experiments."""

    name: str
    tasks: int
    """Python workers per stage, and tasks at once."""
    scale: float
    """Scale factor of the TPC-DS tables."""
    payments: int
    """Payments of dataset 1; dataset 2 has the same."""
    sales: int
    """Rows in a micro-batch of W2 and W3, where joins are fused."""
    batch: int
    """Payments in a micro-batch of W4 and W5."""
    requests: int
    """Changes per row of a table and scheduler, each in a micro-batch of its own."""
    rounds: int
    """Queries among which the changes of a table are shared out: what is audited, and lost when
    a run is interrupted, is one of them."""
    restarts: int
    """Restarts per query of a table, and naive changes: they are shown, and not compared."""
    repeats: int
    """Runs per scheduler where a run gives one number."""
    time: float
    """What the paper's times (surge, versions) are multiplied by."""
    workers: tuple[int, ...]
    """Numbers of Python workers per stage with which delays are compared."""
    makes_data: bool
    """Whether datasets that are not there are made on the fly."""


QUICK: Final = Profile(
    "quick",
    tasks=2,
    scale=0.1,
    payments=200_000,
    sales=12_000,
    batch=300,
    requests=30,
    rounds=2,
    restarts=6,
    repeats=5,
    time=0.1,
    workers=(1, 12, 40),
    makes_data=True,
)
PAPER: Final = Profile(
    "paper",
    tasks=40,
    scale=100.0,
    payments=24_000_000,
    sales=10_000_000,
    batch=1_000_000,
    requests=30,
    rounds=2,
    restarts=6,
    repeats=5,
    time=1.0,
    workers=(1, 4, 12, 20, 40),
    makes_data=False,
)
PROFILES: Final = {profile.name: profile for profile in (QUICK, PAPER)}


def profile_of(name: str) -> Profile:
    """A profile by its name."""
    try:
        return PROFILES[name]
    except KeyError:
        problem = f"there is no such profile; choose from {', '.join(PROFILES)}"
        raise ExperimentError(name, problem) from None
