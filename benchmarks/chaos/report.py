"""The crash matrix as a Markdown table: victim by moment, with the seeds of what failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from benchmarks.chaos.killer import Outcome
from benchmarks.chaos.scenario import CELLS, Moment, Victim


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A table of all runs, and under it what went wrong in each that failed."""
    cells: dict[tuple[Victim, Moment], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.scenario.victim, outcome.scenario.moment].append(outcome)
    lines = [
        "| victim | moment | runs | passed | failed (seed) | mean s |",
        "|---|---|---:|---:|---|---:|",
        *(_line(*cell, cells[cell]) for cell in CELLS if cell in cells),
    ]
    failed = [outcome for outcome in outcomes if not outcome.passed]
    count = len(outcomes)
    lines += ["", f"{count - len(failed)} of {count} runs passed."]
    for outcome in failed:
        lines += ["", *_story(outcome)]
    return "\n".join(lines) + "\n"


def _line(victim: Victim, moment: Moment, outcomes: list[Outcome]) -> str:
    failed = [str(outcome.scenario.seed) for outcome in outcomes if not outcome.passed]
    mean = sum(outcome.seconds for outcome in outcomes) / len(outcomes)
    passed = len(outcomes) - len(failed)
    cells = (victim, moment, len(outcomes), passed, ", ".join(failed), f"{mean:.0f}")
    return "| " + " | ".join(map(str, cells)) + " |"


def _story(outcome: Outcome) -> list[str]:
    where = outcome.scenario
    why = outcome.problems or ("the moment never came, so nothing was killed",)
    return [f"Seed {where.seed}, {where.victim}, {where.moment}:", *(f"- {one}" for one in why)]
