"""What can go wrong in the laboratory.

::

    fries.errors.FriesError
     +-- SimulationError      a simulation that cannot be set up or does not end
     +-- DatasetError         a dataset that is missing, incomplete or cannot be written
     +-- ExperimentError      an experiment on Spark that does not get on
"""

from __future__ import annotations

from dataclasses import dataclass

from fries.errors import FriesError


@dataclass(eq=False)
class SimulationError(FriesError):
    """A simulation that cannot be set up, or that does not end."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class DatasetError(FriesError):
    """A dataset that is missing, incomplete or not what was asked for, or cannot be written."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"dataset {self.path}: {self.problem}"


@dataclass(eq=False)
class ExperimentError(FriesError):
    """An experiment that does not exist, does not get on, or cannot be kept."""

    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"
