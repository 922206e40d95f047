"""How much is run: ``quick`` for two cores and 22 minutes, ``paper`` for a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fries.errors import ExperimentError


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
    """Changes per row of a table and scheduler."""
    together: int
    """How many of them come in one micro-batch, where they take effect at once."""
    apart: int
    """Changes that take a micro-batch each, per query: such that restart it, or are wanted alone.
    At the boundary there are twice as many: how long that takes does not depend on what is
    changed."""
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
    sales=60_000,
    batch=800,
    requests=8,
    together=8,
    apart=3,
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
    together=5,
    apart=10,
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
