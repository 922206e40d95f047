"""The crash matrix: ``python -m benchmarks.chaos --runs 200 --seed 0 --minutes 120``.

Cells of the matrix come in turns, so a matrix that runs out of time is thin and not partial. Run
number n has seed ``seed + n``: ``--seed`` with ``--runs 1`` and its cell repeats a failure.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.chaos.applications import Separate
from benchmarks.chaos.killer import CrashRun, Outcome
from benchmarks.chaos.report import markdown
from benchmarks.chaos.scenario import Moment, Scenario, Victim
from benchmarks.cluster import Cluster

OUT: Final = Path("out/chaos.md")


def matrix(
    runs: int, seed: int, minutes: float, victims: list[Victim], moments: list[Moment]
) -> list[Outcome]:
    """Crash runs until there are enough of them, or the time is over."""
    deadline = time.monotonic() + 60 * minutes
    cells = itertools.cycle(itertools.product(victims, moments))
    folder = Path(tempfile.mkdtemp(prefix="fries-chaos-"))
    outcomes: list[Outcome] = []
    try:
        with Cluster() as cluster:
            application = Separate(cluster.guard, cluster.settings, folder)
            for number, (victim, moment) in zip(range(runs), cells, strict=False):
                if time.monotonic() > deadline:
                    break
                place = folder / str(number)
                place.mkdir()
                scenario = Scenario(seed + number, victim, moment)
                outcomes.append(CrashRun(application, scenario, place).run())
                _tell(outcomes[-1])
                shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def _tell(outcome: Outcome) -> None:
    where = outcome.scenario
    word = "passed" if outcome.passed else "FAILED"
    print(f"seed {where.seed}: {where.victim}, {where.moment}: {word}", flush=True)


def main() -> None:
    """Run the matrix and write its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--runs", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=150.0)
    parser.add_argument("--victim", choices=[one.name.lower() for one in Victim])
    parser.add_argument("--moment", choices=[one.name.lower() for one in Moment])
    given = parser.parse_args()
    victims = [Victim[given.victim.upper()]] if given.victim else list(Victim)
    moments = [Moment[given.moment.upper()]] if given.moment else list(Moment)
    outcomes = matrix(given.runs, given.seed, given.minutes, victims, moments)
    table = markdown(outcomes)
    print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(table)
    if not all(outcome.passed for outcome in outcomes):
        sys.exit("a crash was not survived")


if __name__ == "__main__":
    main()
