"""The frame of the experiments: finished parts are kept, reports are written, errors are clear."""

from __future__ import annotations

import io
import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fries_lab.errors import DatasetError, ExperimentError
from fries_lab.experiments.catalogue import EXPERIMENTS, chosen
from fries_lab.experiments.comparisons import ENOUGH
from fries_lab.experiments.experiment import Bench, Experiment, Part, Report, Table
from fries_lab.experiments.lab import Lab
from fries_lab.experiments.machine import UNKNOWN, commit, cpu, machine
from fries_lab.experiments.page import write_page
from fries_lab.experiments.profiles import PAPER, QUICK, Profile, profile_of
from fries_lab.experiments.queries import nearest
from fries_lab.experiments.runner import Runner
from fries_lab.workloads import graphs


class NoSpark:
    """Stands where a session would: nothing here needs one."""

    def stop(self) -> None:
        """Do nothing."""


class Counting:
    """An experiment whose parts count how often they are run."""

    def __init__(self, *names: str) -> None:
        self.runs = dict.fromkeys(names, 0)
        self.broken = ""
        self.experiment = Experiment(
            "counting", "Counting, done twice", "nowhere", self._parts, self._report
        )

    def _parts(self, _: Profile) -> Sequence[Part]:
        return [Part(name, 1.0, partial(self._run, name)) for name in self.runs]

    def _run(self, name: str, _: Bench) -> dict[str, Any]:
        if name == self.broken:
            raise ExperimentError(name, "it is broken")
        self.runs[name] += 1
        return {"runs": self.runs[name], "pair": (1, 2)}

    def _report(self, _: Profile, found: Mapping[str, Any]) -> Report:
        rows = [[name, str(part["runs"])] for name, part in found.items()]
        return Report([Table("Runs", ["part", "runs"], rows)], "All agrees.", "Nothing is scaled.")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "_started", lambda self, workers: NoSpark())


def run(counting: Counting, place: Path, profile: Profile = QUICK) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    lab = Lab(profile, place / "parts", place / "data", console)
    Runner(lab, place / "out", console).run([counting.experiment])
    lab.close()
    return screen.getvalue()


def test_a_finished_part_is_not_run_again(tmp_path: Path) -> None:
    counting = Counting("a", "b")
    run(counting, tmp_path)
    said = run(counting, tmp_path)
    assert counting.runs == {"a": 1, "b": 1}
    assert "2 parts are there from an earlier run, 0 to go" in said


def test_a_shared_part_is_run_once_for_all_experiments(tmp_path: Path) -> None:
    made: list[str] = []
    screen = Console(file=io.StringIO(), width=200)
    lab = Lab(QUICK, tmp_path / "parts", tmp_path / "data", screen)

    def measure(_: Bench) -> int:
        made.append("common")
        return 7

    def use(bench: Bench) -> int:
        made.append("own")
        return int(bench.found("common")) + 1

    def report(_: Profile, found: Mapping[str, Any]) -> Report:
        return Report([], f"{found['common']} and {found['own']}")

    def experiment(name: str) -> Experiment:
        parts = [Part("common", 1.0, measure, shared=True), Part("own", 1.0, use)]
        return Experiment(name, name, "nowhere", lambda _: parts, report)

    both = [experiment("first"), experiment("second")]
    reports = Runner(lab, tmp_path / "out", screen).run(both)
    assert made == ["common", "own", "own"]
    assert [one.verdict for one in reports.values()] == ["7 and 8", "7 and 8"]
    later = Lab(QUICK, tmp_path / "parts", tmp_path / "data", screen)
    Runner(later, tmp_path / "out", screen).run([*both, experiment("third")])
    assert made == ["common", "own", "own", "own"]
    lab.close()
    later.close()


def test_what_is_read_again_is_what_was_found(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    first = (tmp_path / "out/quick/counting.json").read_text()
    run(counting, tmp_path)
    assert (tmp_path / "out/quick/counting.json").read_text() == first
    assert json.loads(first)["found"]["a"] == {"runs": 1, "pair": [1, 2]}


def test_parts_before_a_failure_are_kept(tmp_path: Path) -> None:
    counting = Counting("a", "b")
    counting.broken = "b"
    with pytest.raises(ExperimentError, match="it is broken"):
        run(counting, tmp_path)
    counting.broken = ""
    run(counting, tmp_path)
    assert counting.runs == {"a": 1, "b": 1}


def test_another_size_is_run_anew(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    run(counting, tmp_path, replace(QUICK, requests=QUICK.requests + 1))
    assert counting.runs == {"a": 2}


def test_a_record_that_was_cut_off_is_run_anew(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    path = tmp_path / "parts/quick/counting/a.json"
    path.write_text(path.read_text()[:20])
    run(counting, tmp_path)
    assert counting.runs == {"a": 2}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("a file")
    with pytest.raises(ExperimentError, match="finished parts are kept"):
        run(Counting("a"), tmp_path)


def test_progress_tells_the_part_and_the_time_left(tmp_path: Path) -> None:
    said = run(Counting("a", "b"), tmp_path)
    assert "counting: a (about 0 min 02 s left)" in said
    assert "counting: b (about 0 min 0" in said


def test_the_page_has_tables_verdict_and_a_way_to_the_record(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    page = write_page(tmp_path / "out", QUICK, [counting.experiment]).read_text()
    assert "[Counting, done twice](#counting-done-twice)" in page
    assert "| a | 1 |" in page
    assert "All agrees." in page
    assert "(counting.json)" in page


def test_the_page_names_machine_spark_commit_and_day(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    page = write_page(tmp_path / "out", QUICK, [counting.experiment]).read_text()
    here = machine()
    assert f"{here['cores']} cores of {here['cpu']}" in page
    assert f"Spark {here['spark']}, Python {here['python']}" in page
    assert f"at commit {here['commit']}" in page
    assert f"Measured on {time.strftime('%Y-%m', time.gmtime())}" in page
    assert "Wilcoxon-Mann-Whitney" in page


def test_parts_of_another_commit_are_not_passed_off_as_of_this_one(tmp_path: Path) -> None:
    counting = Counting("a", "b")
    run(counting, tmp_path)
    path = tmp_path / "parts/quick/counting/a.json"
    record = json.loads(path.read_text())
    record["machine"]["commit"] = "0123456789ab"
    record["started"] = "2020-02-29T10:00:00Z"
    path.write_text(json.dumps(record))
    run(counting, tmp_path)
    page = write_page(tmp_path / "out", QUICK, [counting.experiment]).read_text()
    assert "commit 0123456789ab; " in page
    assert f"at commit {machine()['commit']}." in page
    assert "Measured on 2020-02-29 to " in page


def test_sections_of_different_commits_each_say_theirs(tmp_path: Path) -> None:
    old, new = Counting("a"), Counting("a")
    new.experiment = replace(new.experiment, name="anew", title="Counting anew")
    pages = [old.experiment, new.experiment]
    for counting in (old, new):
        run(counting, tmp_path)
    alike = write_page(tmp_path / "out", QUICK, pages).read_text()
    assert alike.count("Measured on ") == alike.count(machine()["commit"]) == 1
    path = tmp_path / "out/quick/counting.json"
    record = json.loads(path.read_text())
    record["measured"]["machines"][0]["commit"] = "0123456789ab"
    path.write_text(json.dumps(record))
    page = write_page(tmp_path / "out", QUICK, pages).read_text()
    head, first, second = re.split("^## .*$", page, flags=re.MULTILINE)
    assert "Each section says which of them are its own." in head
    assert "at commit 0123456789ab." in first
    assert machine()["commit"] not in first
    assert f"at commit {machine()['commit']}." in second
    assert "0123456789ab" not in second


def test_a_record_without_a_commit_is_not_on_the_page(tmp_path: Path) -> None:
    counting = Counting("a")
    run(counting, tmp_path)
    path = tmp_path / "out/quick/counting.json"
    record = json.loads(path.read_text())
    del record["measured"]
    path.write_text(json.dumps(record))
    page = write_page(tmp_path / "out", QUICK, [counting.experiment]).read_text()
    assert "Nothing was measured yet." in page
    assert "##" not in page


def test_a_commit_says_when_the_code_was_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    assert commit(tmp_path) == UNKNOWN, "it is no clone"
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "a")
    commit.cache_clear()
    clean = commit(tmp_path / "code")
    assert len(clean) == 12
    (tmp_path / "results.md").write_text("results do not count")
    (tmp_path / "code/a.py").write_text("2")
    commit.cache_clear()
    assert commit(tmp_path / "code") == f"{clean} with changes"
    commit.cache_clear()


def test_the_model_of_the_processor_is_read(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU: 3 GHz\nmodel name : Other\n")
    assert cpu(info) == "Some CPU: 3 GHz"
    assert cpu(tmp_path / "missing")


def test_the_page_leaves_out_what_was_not_run(tmp_path: Path) -> None:
    page = write_page(tmp_path, QUICK, EXPERIMENTS.values()).read_text()
    assert "##" not in page


def test_data_for_the_paper_must_be_there(tmp_path: Path) -> None:
    lab = Lab(PAPER, tmp_path / "parts", tmp_path / "data", Console())
    with pytest.raises(DatasetError, match="fries-lab data payments"):
        lab.payments(10)
    with pytest.raises(DatasetError, match="fries-lab data tpcds"):
        lab.tpcds(100)


@pytest.mark.parametrize("profile", [QUICK, PAPER], ids=lambda profile: profile.name)
def test_delays_are_compared_with_enough_measurements(profile: Profile) -> None:
    assert profile.requests >= ENOUGH
    assert profile.repeats >= 5, "with four, the rank test cannot find anything among several"


def test_experiments_are_chosen_by_name_in_the_papers_order() -> None:
    assert [one.name for one in chosen(["pruning", "choke", "choke"])] == ["choke", "pruning"]
    assert chosen(["all"]) == chosen([]) == list(EXPERIMENTS.values())


def test_an_unknown_experiment_is_refused_with_the_choices() -> None:
    with pytest.raises(ExperimentError, match=r"chokes: there is no such experiment; .*choke"):
        chosen(["chokes"])


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ExperimentError, match="slow: there is no such profile"):
        profile_of("slow")


def test_parts_have_names_of_their_own_and_take_time() -> None:
    for profile in (QUICK, PAPER):
        for experiment in EXPERIMENTS.values():
            parts = experiment.parts(profile)
            assert len({part.name for part in parts}) == len(parts)
            assert all(part.seconds > 0 for part in parts)


def test_the_quick_profile_takes_about_an_hour_by_what_its_parts_say() -> None:
    """As the help and the documentation say."""
    parts = {
        part.place(experiment.name): part.seconds
        for experiment in EXPERIMENTS.values()
        for part in experiment.parts(QUICK)
    }
    assert 45 < sum(parts.values()) / 60 < 75
    assert max(parts.values()) < 300, "an interruption costs minutes"


def test_the_nearest_targets_upstream_are_seen_through_unions() -> None:
    graph = graphs.w3(1)
    targets = {"J5", "J6", "J7", "J8"}
    assert set(nearest(graph, "J8", targets)) == {"J5", "J6", "J7"}
    assert nearest(graph, "J5", targets) == []


def _bench_is_what_a_lab_is(lab: Lab) -> Bench:
    return lab
