"""The crash matrix: ``python -m benchmarks.chaos --runs 210 --seed 0 --minutes 120``.

Its table is kept in ``out/``, and the same command goes on with it: a matrix can be collected over
several sittings. Cells come in turns, so a matrix that runs out of time is thin and not partial.
Run number n has seed ``seed + n``; ``--repeat n`` makes it once more, after a repair for instance.

Executors are killed on a standalone cluster. Python workers and drivers are killed there in one
round of five, and otherwise in local mode, which needs a third of the time.
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
from benchmarks.chaos.scenario import CELLS, Moment, Scenario, Victim
from benchmarks.chaos.table import Table, scenario
from benchmarks.cluster import LOOPBACK, Cluster
from benchmarks.processes import Guard

OUT: Final = Path("out")
ROUNDS_ON_CLUSTER: Final = 5
"""Of so many rounds of the matrix one is all on the cluster."""
LOCAL: Final = {
    "spark.master": "local[2,4]",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
"""Two cores, and tasks that are tried four times, as on a cluster."""
IMPATIENT: Final = {"spark.shuffle.io.maxRetries": "1", "spark.shuffle.io.retryWait": "1s"}
"""An executor that was killed is not asked for its rows for a quarter of a minute."""


def collect(table: Table, seed: int, numbers: Iterable[int], minutes: float) -> None:
    """Make crash runs until the time is over; all on one cluster, by drivers while they live."""
    deadline = time.monotonic() + 60 * minutes
    folder = Path(tempfile.mkdtemp(prefix="fries-chaos-"))
    guard = Guard()
    try:
        with Cluster() as cluster:
            settings = {**cluster.settings, **IMPATIENT}
            on_cluster = Separate(cluster.guard, settings, _made(folder / "cluster"))
            local = Separate(guard, LOCAL, _made(folder / "local"))
            for number in numbers:
                if time.monotonic() > deadline:
                    break
                place = _made(folder / str(number))
                chosen = scenario(seed, number)
                application = on_cluster if _needs_cluster(number, chosen) else local
                outcome = CrashRun(application, chosen, place).run()
                table.add(number, outcome)
                _tell(number, outcome)
                shutil.rmtree(place)
    finally:
        guard.close()
        shutil.rmtree(folder, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _needs_cluster(number: int, chosen: Scenario) -> bool:
    complete = number // len(CELLS) % ROUNDS_ON_CLUSTER == 0
    return complete or chosen.victim is Victim.EXECUTOR


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
