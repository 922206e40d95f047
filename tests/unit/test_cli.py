"""The command line of the lab: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fries_lab import cli
from fries_lab.bench import simulated
from fries_lab.errors import SimulationError
from fries_lab.workloads import tpcds

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_the_version_is_the_package_s() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"fries-lab {version('fries-lab')}\n"


def refused(result: Result, reason: str) -> None:
    """Exit code 2, one line on stderr that gives the reason, nothing on stdout."""
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("fries-lab: ")
    assert reason in line


def quick(out: Path, *arguments: str) -> Result:
    return run("simulate", *arguments, "--quick", "--out", out)


def test_tables_say_that_they_are_simulated(tmp_path: Path) -> None:
    result = quick(tmp_path, "w2", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Simulated, not measured: one tuple stands for one network") == 2
    assert "NOT the paper's scale" in result.stdout
    for printed in ("{[J1], J2, J3, J4}", "12,361", "68", "Fries ms"):
        assert printed in result.stdout


def test_figures_and_records_are_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "directory"
    result = quick(out, "W1", "W2", "--jobs", "1", "--seed", "3")
    assert result.exit_code == 0, result.output
    figures = sorted(out.glob("*.png"))
    assert [path.stem for path in figures] == [
        "w1-cost",
        "w1-invalid",
        "w1-rate",
        "w1-surge",
        "w2-parallelism",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in figures)
    record = json.loads((out / "w1.json").read_text())
    assert record["simulated"] is True
    assert record["seed"] == 3
    assert record["tuple"] == "one payment"
    assert {run["scheduler"] for run in record["result"]["surge"]} >= {"none", "epoch", "fries"}
    for path in (*figures, out / "w2.json"):
        assert f"wrote {path}" in result.stdout


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        result = quick(tmp_path / jobs, "W4", "W5", "--jobs", jobs)
        assert result.exit_code == 0, result.output
    for name in ("w4.json", "w5.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_all_means_each_workflow_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in simulated.EXPERIMENTS:

        def note(*_: object, name: str = name) -> simulated.PruningTable:
            asked.append(name)
            return simulated.PruningTable(())

        monkeypatch.setitem(simulated.EXPERIMENTS, name, note)
    assert quick(tmp_path, "W3", "all", "w1", "--jobs", "1").exit_code == 0
    assert asked == ["W1", "W2", "W3", "W4", "W5"]


def test_unknown_workflows_are_refused(tmp_path: Path) -> None:
    refused(quick(tmp_path, "W1", "W9"), "no workflow W9; choose from W1, W2, W3, W4, W5, all")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    refused(quick(file / "below", "W4"), f"cannot write to {file / 'below'}")


def test_a_simulation_that_fails_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> simulated.Result:
        raise SimulationError("it did not end")

    monkeypatch.setitem(simulated.EXPERIMENTS, "W5", fail)
    refused(quick(tmp_path, "W5", "--jobs", "1"), "it did not end")


def test_plan_for_people() -> None:
    result = run("plan", "w3", "J5", "J6")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("fries: update J5, J6 at once")
    assert "1. {[J5]}, longest path 0" in result.stdout
    assert "of 8,200" in result.stdout


def test_plan_with_scheduler_and_workers() -> None:
    result = run("plan", "W2", "J1", "J4", "--scheduler", "epoch", "--workers", "4")
    assert result.exit_code == 0, result.output
    assert "channels       68 of 68" in result.stdout


def test_plan_as_a_drawing() -> None:
    assert run("plan", "W5", "E1", "--dot").stdout.startswith("digraph plan {")
    assert run("plan", "W5", "E1", "--mermaid").stdout.startswith("flowchart LR")


def test_plans_that_make_no_sense_are_refused() -> None:
    refused(run("plan", "W6", "J1"), "no workflow W6; choose from W1, W2, W3, W4, W5")
    refused(run("plan", "all", "J1"), "no workflow ALL")
    refused(run("plan", "W2", "J9"), "there is no operator named 'J9'")
    refused(run("plan", "W2", "J1", "--scheduler", "best"), "there is no scheduler 'best'")
    refused(run("plan", "W2", "J1", "--dot", "--mermaid"), "one of --dot and --mermaid")


def test_the_installed_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fries", "plan", "W1", "FD"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "{[FD]}" in capsys.readouterr().out


def test_data_that_is_missing_or_in_the_way_is_named(tmp_path: Path) -> None:
    refused(run("data", "users", tmp_path / "no", tmp_path / "u"), "there is no dataset; make it")
    refused(run("data", "tpcds", tmp_path / "t", "--scale", "-1"), "above 0, not -1.0")
    (tmp_path / "thesis.txt").write_text("years of work")
    refused(run("data", "tpcds", tmp_path), "other files")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_interrupted_run_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tpcds, "write_tpcds", interrupted)
    result = run("data", "tpcds", tmp_path)
    assert result.exit_code == 130
    assert result.stderr == (
        "fries-lab: interrupted; finished files are kept, run it again to go on\n"
    )
