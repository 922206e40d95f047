"""Folders of datasets: whole files only, finished ones are kept, the rest is said clearly."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fries_lab.errors import DatasetError
from fries_lab.workloads import folders

RECIPE = {"kind": "payments", "rows": 7}


def test_a_dataset_is_there_when_its_marker_is(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    with pytest.raises(DatasetError, match="no dataset; make it with: fries-lab data payments"):
        folders.require(folder, "payments")
    folders.begin(folder, RECIPE)
    with pytest.raises(DatasetError, match="not complete"):
        folders.require(folder, "payments")
    folders.end(folder)
    assert folders.require(folder, "payments") == RECIPE
    with pytest.raises(DatasetError, match="it holds payments, and not users"):
        folders.require(folder, "users")


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    folders.begin(tmp_path / "data", RECIPE)
    with folders.whole_file(tmp_path / "data" / "one") as path:
        path.write_text("all of it")
        assert folders.missing(tmp_path / "data", ["one", "two"]) == ["one", "two"]

    def interrupted() -> None:
        with folders.whole_file(tmp_path / "data" / "two") as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert folders.missing(tmp_path / "data", ["one", "two"]) == ["two"]
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [folders.RECIPE, "one"]


def test_a_full_disk_is_named_and_finished_files_stay(tmp_path: Path) -> None:
    def fill_up() -> None:
        with folders.whole_file(tmp_path / "one") as path:
            path.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DatasetError, match=r"one: the disk is full; finished files are kept"):
        fill_up()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared_and_the_rest_goes_on(tmp_path: Path) -> None:
    folders.begin(tmp_path, RECIPE)
    (tmp_path / "one").write_text("whole")
    (tmp_path / f"{folders.UNFINISHED}two").write_text("half")
    (tmp_path / f"{folders.UNFINISHED}scratch").mkdir()
    folders.begin(tmp_path, RECIPE)
    assert sorted(file.name for file in tmp_path.iterdir()) == [folders.RECIPE, "one"]


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DatasetError, match="other files"):
        folders.begin(tmp_path, RECIPE)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_recipe_is_refused(tmp_path: Path) -> None:
    folders.begin(tmp_path, RECIPE)
    with pytest.raises(DatasetError, match=r"made as .*7.* and not as .*8"):
        folders.begin(tmp_path, {**RECIPE, "rows": 8})


def test_a_broken_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / folders.RECIPE).write_text("{")
    with pytest.raises(DatasetError, match="cannot be read"):
        folders.begin(tmp_path, RECIPE)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot be"):
        folders.begin(tmp_path / "file" / "data", RECIPE)
