"""What an experiment is: parts that are run once and kept, and a report on what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fries_lab.experiments.profiles import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

Found: TypeAlias = Any
"""What a part has found: plain data, to be kept as JSON."""
SHARED: Final = "shared"
"""Stands for the experiment of a part that several of them have."""


class Bench(Protocol):
    """What a part of an experiment gets to work with."""

    @property
    def profile(self) -> Profile:
        """How much is to be run."""

    @property
    def spark(self) -> SparkSession:
        """A session with as many workers as the part wants."""

    @property
    def folder(self) -> Path:
        """An empty folder that is deleted afterwards."""

    def found(self, part: str) -> Found:
        """What an earlier part of the same experiment has found."""

    def payments(self, rows: int) -> Path:
        """Dataset 1 with at least so many payments."""

    def users(self, rows: int) -> Path:
        """Dataset 2, of at least so many payments."""

    def tpcds(self, scale: float) -> Path:
        """Dataset 3."""


@dataclass(frozen=True)
class Part:
    """Something that is run in one go: where a run was interrupted, finished parts are kept."""

    name: str
    seconds: float
    """How long it takes on two cores, about: for the estimate of the time left."""
    run: Callable[[Bench], Found]
    workers: int | None = None
    """Python workers per stage, and tasks at once; those of the profile if nothing is said."""
    shared: bool = False
    """Whether other experiments have the same part: it is run once for all of them."""

    def place(self, experiment: str) -> tuple[str, str]:
        """What it is kept under, if it belongs to this experiment: two names."""
        return SHARED if self.shared else experiment, self.name


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As Markdown."""
        lines = [f"**{self.title}**", "", _row(self.columns), _row(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_row(row) for row in self.rows)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Report:
    """What an experiment has shown."""

    tables: Sequence[Table]
    """The paper's result, the simulated one and the measured one beside each other."""
    verdict: str
    """What agrees with the paper and what does not, and why."""
    scaling: str = ""
    """By what factor rates, costs and times differ from the paper's."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Everything else for the record: single measurements, curves."""


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments, or one beyond it."""

    name: str
    title: str
    paper: str
    """Where the paper has it."""
    parts: Callable[[Profile], Sequence[Part]]
    report: Callable[[Profile, Mapping[str, Found]], Report]
    """From what the parts have found, by their names."""
    figure: Callable[[Report], Figure] | None = None
