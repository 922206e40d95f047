"""The crash matrix: ``python -m benchmarks.chaos --runs 210 --seed 0 --minutes 120``.

Its table is kept in ``out/``, and the same command goes on with it: a matrix can be collected over
several sittings. Cells come in turns, so a matrix that runs out of time is thin and not partial.
Run number n has seed ``seed + n``; ``--repeat n`` makes it once more, after a repair for instance.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.chaos.applications import Separate
from benchmarks.chaos.killer import CrashRun, Outcome
from benchmarks.chaos.scenario import Moment, Victim
from benchmarks.chaos.table import Table, scenario
from benchmarks.cluster import Cluster

OUT: Final = Path("out")


def collect(table: Table, seed: int, numbers: Iterable[int], minutes: float) -> None:
    """Make crash runs until the time is over; all on one cluster, by one driver while it lives."""
    deadline = time.monotonic() + 60 * minutes
    folder = Path(tempfile.mkdtemp(prefix="fries-chaos-"))
    try:
        with Cluster() as cluster:
            application = Separate(cluster.guard, cluster.settings, folder)
            for number in numbers:
                if time.monotonic() > deadline:
                    break
                place = folder / str(number)
                place.mkdir()
                outcome = CrashRun(application, scenario(seed, number), place).run()
                table.add(number, outcome)
                _tell(number, outcome)
                shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(number: int, outcome: Outcome) -> None:
    where = outcome.scenario
    word = "passed" if outcome.passed else "FAILED"
    took = f"{word} after {outcome.seconds:.1f} s"
    print(f"run {number}: {where.victim}, {where.moment}: {took}", flush=True)


def main() -> None:
    """Go on with the matrix, and show its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--runs", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=150.0)
    parser.add_argument("--victim", choices=[one.name.lower() for one in Victim])
    parser.add_argument("--moment", choices=[one.name.lower() for one in Moment])
    parser.add_argument("--repeat", type=int, metavar="N", help="make run N again")
    given = parser.parse_args()
    victims = [Victim[given.victim.upper()]] if given.victim else list(Victim)
    moments = [Moment[given.moment.upper()]] if given.moment else list(Moment)
    table = Table(OUT, given.seed)
    missing = table.missing(given.runs, victims, moments)
    numbers = missing if given.repeat is None else [given.repeat]
    if numbers:
        collect(table, given.seed, numbers, given.minutes)
    print(table.text())
    if not all(outcome.passed for outcome in table.outcomes):
        sys.exit("a crash was not survived")


if __name__ == "__main__":
    main()
