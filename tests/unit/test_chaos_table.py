"""The table of crash runs is kept, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.chaos.killer import Outcome
from benchmarks.chaos.scenario import CELLS, Moment, Victim
from benchmarks.chaos.table import Table, scenario


def made(number: int, *problems: str, was_killed: bool = True) -> Outcome:
    return Outcome(scenario(7, number), problems, was_killed, failures=1, seconds=2.5)


def filled(folder: Path) -> Table:
    table = Table(folder, 7)
    for number in (0, 1, 21):
        table.add(number, made(number))
    table.add(2, made(2, "3 lost", "1 mixed"))
    return table


def test_a_run_follows_from_its_number_and_the_seed() -> None:
    assert len(CELLS) == len(Victim) * len(Moment) == 21
    assert scenario(7, 22) == scenario(28, 1), "the second turn of the same cell"
    assert {(one.victim, one.moment) for one in (scenario(7, n) for n in range(21))} == set(CELLS)


def test_the_next_sitting_goes_on_with_the_table(tmp_path: Path) -> None:
    before = filled(tmp_path).outcomes
    table = Table(tmp_path, 7)
    assert table.outcomes == before
    assert table.missing(24, Victim, Moment) == [*range(3, 21), 22, 23]
    table.add(3, made(3))
    assert 3 not in Table(tmp_path, 7).missing(24, Victim, Moment)


def test_only_some_cells_are_wanted(tmp_path: Path) -> None:
    table = filled(tmp_path)
    first = [Victim.PYTHON], [Moment.BEFORE_PREPARE]
    assert table.missing(63, *first) == [42]
    assert table.missing(63, [Victim.DRIVER], [Moment.BEFORE_PREPARE]) == [14, 35, 56]


def test_another_seed_is_another_table(tmp_path: Path) -> None:
    filled(tmp_path)
    assert Table(tmp_path, 8).outcomes == []


def test_a_run_that_is_made_again_replaces_the_old_one(tmp_path: Path) -> None:
    filled(tmp_path).add(2, made(2))
    assert all(outcome.passed for outcome in Table(tmp_path, 7).outcomes)


def test_the_table_counts_by_victim_and_moment_and_names_what_failed(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.add(4, made(4, was_killed=False))
    told = json.loads((tmp_path / "chaos-7.json").read_text())
    assert (told["seed"], told["count"], told["failed"]) == (7, 5, [2, 4])
    assert told["cells"]["Python worker, before PREPARE"] == {"runs": 2, "passed": 2}
    assert told["cells"]["Python worker, during the switch"] == {"runs": 1, "passed": 0}
    text = (tmp_path / "chaos-7.md").read_text()
    assert "| Python worker | before PREPARE | 2 | 2 |  | 2 |" in text
    assert "3 of 5 runs passed." in text
    assert "- 3 lost" in text
    assert "- the moment never came, so nothing was killed" in text
