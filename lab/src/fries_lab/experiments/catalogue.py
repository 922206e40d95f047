"""All experiments, in the order of the paper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fries_lab.errors import ExperimentError
from fries_lab.experiments import (
    alternatives,
    answers,
    choke,
    delay_tables,
    growth,
    invalid,
    surge,
    sweeps,
)
from fries_lab.experiments.experiment import Experiment

ALL: Final = "all"
EXPERIMENTS: Final[dict[str, Experiment]] = {
    experiment.name: experiment
    for experiment in (
        choke.EXPERIMENT,
        surge.EXPERIMENT,
        invalid.EXPERIMENT,
        sweeps.BY_RATE,
        sweeps.BY_COST,
        delay_tables.TPCDS,
        delay_tables.UNNEST,
        delay_tables.PRUNED,
        growth.EXPERIMENT,
        alternatives.EXPERIMENT,
        answers.EXPERIMENT,
    )
}


def chosen(names: Iterable[str]) -> list[Experiment]:
    """Experiments by name, each once; ``all`` are all of them."""
    given = dict.fromkeys(names)
    unknown = [name for name in given if name not in EXPERIMENTS and name != ALL]
    if unknown:
        choices = ", ".join([*EXPERIMENTS, ALL])
        problem = f"there is no such experiment; choose from {choices}"
        raise ExperimentError(", ".join(unknown), problem)
    if ALL in given or not given:
        return list(EXPERIMENTS.values())
    return [EXPERIMENTS[name] for name in EXPERIMENTS if name in given]
