"""Explore the protocol: ``python -m fries_lab.world --minutes 60``; ``make explore`` does it.

All interleavings of the small scenarios, then random ones of the large ones until the time is over,
and last every mutant. It prints a table, and ends with 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count

from fries_lab.world.cases import LARGE, WHOLE
from fries_lab.world.explore import Violation, explore, walk
from fries_lab.world.mutants import MUTANTS, Mutant


def main() -> int:
    """Explore, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = [*_whole(), *_random(given.minutes, given.seed)]
    for violation in wrong:
        print(violation, file=sys.stderr)
    missed = _mutants()
    return 1 if wrong or missed else 0


def _whole() -> list[Violation]:
    print("| scenario, all of it | states | transitions | ends |\n|---|---|---|---|")
    wrong = []
    for name, scenario in WHOLE.items():
        found = explore(scenario)
        print(f"| {name} | {found.states:,} | {found.transitions:,} | {found.ends:,} |", flush=True)
        wrong += [found.violation] if found.violation else []
    return wrong


def _random(minutes: float, seed: int) -> list[Violation]:
    print("\n| scenario, at random | walks | wrong |\n|---|---|---|")
    wrong = []
    for name, scenario in LARGE.items():
        deadline = time.monotonic() + 60 * minutes / len(LARGE)
        found: list[Violation] = []
        walks = 0
        for number in count(seed):
            if time.monotonic() > deadline or len(found) == 3:
                break
            walks += 1
            found += [violation] if (violation := walk(scenario, number)) else []
        print(f"| {name} | {walks:,} | {len(found)} |", flush=True)
        wrong += found
    return wrong


def _mutants() -> int:
    print("\n| the machine, broken on purpose | noticed by | after walks |\n|---|---|---|")
    missed = 0
    for mutant in MUTANTS:
        name, walks = caught(mutant) or ("**nothing**", 0)
        missed += not walks
        print(f"| {mutant.name} | {name} | {walks} |", flush=True)
    return missed


def caught(mutant: Mutant, most: int = 200) -> tuple[str, int] | None:
    """The scenario that notices a mutant, and after how many walks."""
    walks = 0
    with mutant.at_work():
        for seed in range(most):
            for name, scenario in LARGE.items():
                walks += 1
                if walk(scenario, seed):
                    return name, walks
    return None


if __name__ == "__main__":
    sys.exit(main())
