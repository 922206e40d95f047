"""The table of a crash matrix, kept in files: a matrix can be collected over several sittings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.chaos.killer import Outcome
from benchmarks.chaos.report import markdown
from benchmarks.chaos.scenario import CELLS, Moment, Scenario, Victim


def scenario(seed: int, number: int) -> Scenario:
    """The scenario of a run: cells of the matrix come in turns."""
    victim, moment = CELLS[number % len(CELLS)]
    return Scenario(seed + number, victim, moment)


class Table:
    """The runs of the matrix of one seed, in ``chaos-<seed>.json`` and ``chaos-<seed>.md``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._json, self._markdown = folder / f"chaos-{seed}.json", folder / f"chaos-{seed}.md"
        self._outcomes: dict[int, Outcome] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if self._json.exists():
            for fields in json.loads(self._json.read_text())["runs"]:
                self._outcomes[fields["number"]] = _outcome(seed, fields)

    @property
    def outcomes(self) -> list[Outcome]:
        """All runs so far, in the order of their numbers."""
        return [outcome for _, outcome in sorted(self._outcomes.items())]

    def missing(self, runs: int, victims: Iterable[Victim], moments: Iterable[Moment]) -> list[int]:
        """Numbers of the runs of some cells that are still to be made."""
        wanted = {(victim, moment) for victim in victims for moment in moments}
        return [
            number
            for number in range(runs)
            if number not in self._outcomes and CELLS[number % len(CELLS)] in wanted
        ]

    def add(self, number: int, outcome: Outcome) -> None:
        """A run was made: write everything, so that the next sitting goes on behind it."""
        self._outcomes[number] = outcome
        runs = [_fields(number, one) for number, one in sorted(self._outcomes.items())]
        _replace(self._json, json.dumps({**_summary(self._seed, runs), "runs": runs}, indent=1))
        _replace(self._markdown, self.text())

    def text(self) -> str:
        """The table for people."""
        return f"Crash runs of seed {self._seed}.\n\n{markdown(self.outcomes)}"


def _summary(seed: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many runs each cell has, and which runs have failed."""
    cells = {f"{victim}, {moment}": {"runs": 0, "passed": 0} for victim, moment in CELLS}
    for run in runs:
        cell = cells[f"{run['victim']}, {run['moment']}"]
        cell["runs"] += 1
        cell["passed"] += run["passed"]
    failed = [run["number"] for run in runs if not run["passed"]]
    return {"seed": seed, "count": len(runs), "failed": failed, "cells": cells}


def _fields(number: int, outcome: Outcome) -> dict[str, Any]:
    where = outcome.scenario
    return {
        "number": number,
        "seed": where.seed,
        "victim": where.victim,
        "moment": where.moment,
        "passed": outcome.passed,
        "was_killed": outcome.was_killed,
        "failures": outcome.failures,
        "seconds": round(outcome.seconds, 2),
        "problems": outcome.problems,
    }


def _outcome(seed: int, fields: dict[str, Any]) -> Outcome:
    return Outcome(
        scenario(seed, fields["number"]),
        tuple(fields["problems"]),
        fields["was_killed"],
        fields["failures"],
        fields["seconds"],
    )


def _replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_suffix(f"{path.suffix}.partial")
    partial.write_text(text)
    partial.rename(path)
