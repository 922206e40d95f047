"""The command lines of the lab run as they are printed in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fries_lab import cli
from fries_lab.workloads.simulated import QUICK

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def commands() -> dict[str, list[str]]:
    """The lines of ``fries-lab``, by their command: what follows it, without comments."""
    text = PAGE.read_text().partition("\n## The command line of the lab\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^ {4}fries-lab (.+)$", text, re.MULTILINE)
    words = [line.partition("#")[0].split() for line in lines]
    return {first: [first, *others] for first, *others in words}


def run(name: str) -> Result:
    """Run the README's line of that command; it must not fail."""
    result = CliRunner().invoke(cli.app, commands()[name])
    assert result.exit_code == 0, result.output
    return result


def test_every_line_is_run_here_but_the_long_one() -> None:
    assert list(commands()) == ["plan", "simulate", "bench"]


def test_the_plan_says_what_is_synchronised_and_what_not() -> None:
    printed = run("plan").stdout
    assert printed.startswith("fries: update J5, J6, J7, J8 at once\n")
    assert "{[J5], [J6], [J7], U1a, U1b, J8}, longest path 3" in printed
    synchronised, of = re.findall(r"channels +([\d,]+) of ([\d,]+)", printed)[0]
    assert (synchronised, of) == ("1,760", "8,200")
    for beside in ("J9", "sums", "sink"):
        assert beside not in printed


def test_the_simulation_prints_the_pruning_table_beside_the_paper_s_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "FULL", QUICK)  # the same line with few workers: half a minute less
    printed = run("simulate").stdout
    assert "W5: delay with and without pruning" in printed
    table = [
        [cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in printed.splitlines()
    ]
    rows = {cells[0]: cells[1:] for cells in table if cells and cells[0]}
    assert list(rows) == ["targets", "FD4", "F3", "F4", "FD3, FD4", "E1"]
    assert rows["targets"][2:] == ["pruned ms", "paper", "unpruned ms", "paper"]
    papers = {name: (cells[3], cells[5]) for name, cells in rows.items() if name != "targets"}
    assert papers == {
        "FD4": ("158", "450,149"),
        "F3": ("94", "383,781"),
        "F4": ("10", "446"),
        "FD3, FD4": ("661,892", "663,460"),
        "E1": ("85", "1,122,686"),
    }
    assert rows["E1"][0] == "{[E1]}"
    assert (tmp_path / "out" / "simulated" / "w5.json").exists()
