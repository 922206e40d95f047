"""Two drivers on one log: the one that came last has it, and nothing of the other counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from fries.errors import LogDamagedError, LogError, LogTakenError
from fries.log import owners
from fries.log.files import LocalFiles
from fries.log.log import Log
from fries.log.owners import HANDOVER_SECONDS, Ownership, claim, may_live, take_over, wait_for
from fries.log.reading import Reading
from fries.log.records import Ended, Owned, decode
from tests.files import SHAPE, MemoryFiles, commit, intent

HERE = Owned(1, 0.0, socket.gethostname(), owners.process())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fries.log.owners.HANDOVER_SECONDS", 0.0)


@dataclass
class Driver:
    """A driver with a log."""

    log: Log
    owner: Ownership


def driver(files: MemoryFiles) -> Driver:
    read, owner = take_over(files, None, Reading.refuse_damage)
    return Driver(Log(files, SHAPE, reading=read, owner=owner), owner)


def committed(files: MemoryFiles) -> list[int]:
    return [one.number for one in Reading(files).changes if one.happened]


def test_the_first_is_fenced_when_a_second_comes() -> None:
    files = MemoryFiles()
    first = driver(files)
    commit(first.log, 1)
    second = driver(files)
    with pytest.raises(LogTakenError, match=rf"another driver \(process {os.getpid()} on "):
        first.log.intend(intent(2), (b"functions",))
    writes: tuple[Callable[[], None], ...] = (
        lambda: first.log.end(Ended(1, 1.0, "rolled back")),
        lambda: first.log.shrink(intent(1)),
        lambda: first.log.take_effect(2, 3),
        first.owner.check,
    )
    for write in writes:
        with pytest.raises(LogTakenError):
            write()
    commit(second.log, 2)
    assert committed(files) == [1, 2]


class Meanwhile(MemoryFiles):
    """Something happens right before a record is there, or right after."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}

    def write(self, name: str, parts: object, replace: bool = False) -> None:
        """Write, between what happens."""
        self.before.pop(name, lambda: None)()
        super().write(name, parts, replace)  # type: ignore[arg-type]
        self.after.pop(name, lambda: None)()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_in_the_moment_of_the_handover_is_told_to_nobody(when: str) -> None:
    """Before it: the second has not read it, so it never happened. After it: it has read it."""
    files = Meanwhile()
    first = driver(files)
    first.log.intend(intent(1), (b"functions",))
    second: list[Driver] = []
    moments = files.before if when == "before" else files.after
    moments["00000001.commit"] = lambda: second.append(driver(files))
    with pytest.raises(LogTakenError):
        first.log.commit(1)
    expected = [] if when == "before" else [1]
    assert [one.number for one in second[0].log.changes if one.happened] == expected
    assert committed(files) == expected
    commit(second[0].log, 2)
    assert committed(files) == [*expected, 2]
    assert committed(files) == [one.number for one in driver(files).log.changes if one.happened], (
        "and so it is for whoever comes next"
    )


def test_a_commit_that_the_next_driver_did_not_live_to_read_is_finished_later() -> None:
    files = Meanwhile()
    first = driver(files)
    first.log.intend(intent(1), (b"functions",))
    files.before["00000001.commit"] = lambda: claim(files, Reading(files))
    with pytest.raises(LogTakenError):
        first.log.commit(1)
    assert committed(files) == [1]
    assert driver(files).owner.number == 3


def test_two_that_start_at_once_do_not_both_get_it() -> None:
    files = MemoryFiles()
    read = Reading(files)
    claim(files, read)
    with pytest.raises(LogError, match="another driver runs on this checkpoint"):
        claim(files, read)


def test_a_start_that_is_refused_leaves_the_driver_that_runs_alone() -> None:
    files = MemoryFiles()
    first = driver(files)

    def refuse(read: Reading) -> None:
        raise LogDamagedError(read.place, ("everything",))

    with pytest.raises(LogDamagedError):
        take_over(files, None, refuse)
    commit(first.log, 1)
    assert committed(files) == [1]


def test_a_start_that_is_refused_in_the_end_lets_the_next_one_in_at_once() -> None:
    files, seen = MemoryFiles(), list[Reading]()
    driver(files)

    def refuse_later(read: Reading) -> None:
        seen.append(read)
        if len(seen) > 1:
            raise LogDamagedError(read.place, ("by now",))

    with pytest.raises(LogDamagedError):
        take_over(files, None, refuse_later)
    record, _ = decode(files.contents["00000002.owner"])
    assert isinstance(record, Owned)
    assert record.left


def test_a_driver_that_ended_well_is_not_waited_for() -> None:
    files = MemoryFiles()
    first = driver(files)
    first.log.close()
    read, _ = take_over(files, None, Reading.refuse_damage)
    assert read.owners[1].left, "and what was read before is good enough"


def test_what_the_first_writes_until_it_has_stopped_is_read() -> None:
    files = Meanwhile()
    first = driver(files)
    commit(first.log, 1)
    files.before["00000002.owner"] = lambda: commit(first.log, 2)
    second = driver(files)
    assert [one.number for one in second.log.changes] == [1, 2]
    assert second.log.last == 2


def test_a_driver_that_left_may_stay_if_nobody_came() -> None:
    files = MemoryFiles()
    first = driver(files)
    first.owner.leave()
    first.owner.stay()
    record, _ = decode(files.contents["00000001.owner"])
    assert isinstance(record, Owned)
    assert not record.left
    first.owner.leave()
    driver(files)
    with pytest.raises(LogTakenError):
        first.owner.stay()


def test_a_driver_that_lives_is_waited_for_until_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fries.log.owners.HANDOVER_SECONDS", HANDOVER_SECONDS)
    files = MemoryFiles()
    first = driver(files)
    waits: list[float] = []

    def leave(seconds: float) -> None:
        waits.append(seconds)
        first.owner.leave()

    assert wait_for(files, HERE, leave).left
    assert len(waits) == 1


def test_whether_a_driver_may_live() -> None:
    assert may_live(HERE)
    assert may_live(replace(HERE, host="elsewhere")), "nobody can tell"
    number, _, began = HERE.process.partition(" ")
    assert not may_live(replace(HERE, process=f"{number} 1")), "an older process of that number"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert not may_live(replace(HERE, process=f"{ended.pid} {began}"))
    assert not may_live(replace(HERE, process="nonsense"))


def test_an_owner_record_that_is_torn_keeps_its_number() -> None:
    files = MemoryFiles()
    driver(files)
    files.contents["00000001.owner"] = b"torn"
    assert driver(files).owner.number == 2


def test_commits_of_an_older_fries_count_whoever_came_after(tmp_path: Path) -> None:
    """Such a driver writes no owner; it may have run after one that did."""
    files = LocalFiles(tmp_path)
    read, owner = take_over(files, None, Reading.refuse_damage)
    Log(files, SHAPE, reading=read, owner=owner).close()
    commit(Log(files, SHAPE), 1)
    read, _ = take_over(files, None, Reading.refuse_damage)
    assert [one.happened for one in read.changes if one.number] == [True]
