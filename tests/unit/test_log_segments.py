"""Changes that are over, many in one file: whatever happens meanwhile, the log says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fries.cli import app
from fries.errors import LogDamagedError, LogError, LogTakenError
from fries.log.check import examine, repair
from fries.log.files import COPIES, FOLDER, LocalFiles
from fries.log.log import Log
from fries.log.owners import take_over
from fries.log.reading import Reading
from fries.log.records import Committed, Segment, encode
from fries.log.segments import NAME as SEGMENT
from fries.log.segments import Past, pack
from tests.files import SHAPE, MemoryFiles
from tests.lives import Folder, Journal, Site, grown, model, said, small


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few changes."""
    small(monkeypatch)


def read(main: Folder, copies: Folder) -> Reading:
    return Reading(MemoryFiles(main), MemoryFiles(copies))


def segments(folder: Folder) -> list[str]:
    return [name for name in folder if SEGMENT.fullmatch(name)]


def live(site: Site) -> None:
    """Changes of every kind, tidied as they come, by two drivers."""
    for _ in range(3):
        site.change("F")
        site.tidy()
    site.abort("G")
    taken_back = site.change("G", end="rolled back")
    site.tidy()
    for number in range(1, 4):
        site.change("F")
        site.shrink(number)
        site.tidy(2)
    site.fail(2)
    site.back(site.change("H"))
    site.tidy()
    assert taken_back == 5
    site.request("F")  # the driver ends
    site.start()
    for _ in range(3):
        site.change("G")
        site.tidy(3)
    site.back(8)
    site.abort("F")
    site.change("F")
    site.shrink(6)
    site.tidy()


@cache
def journal() -> Journal:
    """What such a life does to the files."""
    site = Site()
    live(site)
    assert len(segments(site.files.contents)) > 1
    return site.journal


# Crashes


def test_a_crash_between_any_two_operations_leaves_a_log_that_says_the_same() -> None:
    """However far behind the copy is."""
    done = journal()
    assert any(one.data is None for one in done.main)
    assert any(one.data is None for one in done.copy)
    for count in range(1, len(done.main) + 1):
        expected, folder = model(done.main[:count]), done.folder(count)
        for copies in done.copies(count):
            assert said(read(folder, copies)) == expected, count


def test_whoever_comes_back_after_a_crash_goes_on_and_tidies_up() -> None:
    done = journal()
    for count in range(1, len(done.main) + 1):
        last, expected = model(done.main[:count])
        for copies in [*done.copies(count)][:6]:
            site = Site(done.folder(count), copies)
            site.tidy()
            assert said(Reading(site.files, site.copies)) == (last, expected)
            number = site.change("F")
            assert number == last + 1
            site.tidy()
            again = read(site.files.contents, site.copies.contents)
            found_last, found = said(again)
            assert (found_last, found.pop(number)[1], found) == (number, True, expected)
            assert again.spare() == again.spare_copies() == [], "nothing is left over"


def test_a_segment_that_is_torn_was_never_written() -> None:
    """On a file system that shows a file before it is whole."""
    done = journal()
    for count, (name, data, _) in enumerate(done.main):
        if SEGMENT.fullmatch(name) and data is not None:
            expected = model(done.main[:count])
            for size in range(0, len(data), 17):
                folder = {**done.folder(count), name: data[:size]}
                for copies in [*done.copies(count)][:2]:
                    assert said(read(folder, copies)) == expected
            site = Site({**done.folder(count), name: data[:-1]}, next(done.copies(count)))
            site.change("F")
            site.tidy()
            assert name not in site.files.contents, "what is torn is removed"


def test_a_copy_of_a_segment_that_is_torn_does_no_harm() -> None:
    done = journal()
    for place, (name, data, count) in enumerate(done.copy):
        if SEGMENT.fullmatch(name) and data is not None:
            copies = {**Journal([], done.copy[:place]).folder(0), name: data[: len(data) // 2]}
            assert said(read(done.folder(count), copies)) == model(done.main[:count])


def test_files_that_were_removed_and_are_back_do_not_count() -> None:
    """A removal need not be safe."""
    done = journal()
    ghosts: Folder = {}
    for count, (name, data, _) in enumerate(done.main, 1):
        if data is None:
            ghosts[name] = done.folder(count - 1)[name]
            folder = {**ghosts, **done.folder(count)}
            assert said(read(folder, {})) == model(done.main[:count])


# Damage


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda _: None,
    "emptied": lambda _: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "its end cut off": lambda data: data[:-1],
    "a bit flipped": lambda data: data[:70] + bytes([data[70] ^ 16]) + data[71:],
}


def harmed(folder: Folder, name: str, harm: Callable[[bytes], bytes | None]) -> Folder:
    data = harm(folder[name])
    return {key: value for key, value in {**folder, name: data}.items() if value is not None}


def whole() -> tuple[Folder, Folder]:
    """A log with segments and its copy."""
    done = journal()
    return done.folder(len(done.main)), next(done.copies(len(done.main)))


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_any_file_of_the_log_is_known_from_the_copy_but_for_functions(
    harm: Callable[[bytes], bytes | None],
) -> None:
    main, copies = whole()
    expected = said(read(main, copies))
    for name in main:
        damaged = read(harmed(main, name, harm), copies)
        last, found = said(damaged)
        if name.endswith(".intent"):
            number = int(name[:8])
            found[number] = (*found[number][:-1], expected[1][number][-1])
        if name.endswith(".end"):  # a good end is not copied
            number = int(name[:8])
            found[number] = (*found[number][:3], *expected[1][number][3:])
        assert (last, found) == expected, name


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_segment_that_is_mended_is_what_it_was(harm: Callable[[bytes], bytes | None]) -> None:
    main, copies = whole()
    for name in segments(main):
        files, others = MemoryFiles(harmed(main, name, harm)), MemoryFiles(copies)
        before, owner = take_over(files, others, Reading.refuse_damage)
        assert any(name in one.why for one in before.restored)
        Log(files, SHAPE, copies=others, reading=before, owner=owner).close()
        assert files.contents[name] == main[name]
        files, others = MemoryFiles(main), MemoryFiles(harmed(copies, name, lambda _: None))
        before, owner = take_over(files, others, Reading.refuse_damage)
        Log(files, SHAPE, copies=others, reading=before, owner=owner).close()
        assert others.contents[name] == copies[name]


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_segment_that_is_lost_in_both_places_is_refused(
    harm: Callable[[bytes], bytes | None],
) -> None:
    main, copies = whole()
    for name in segments(main):
        files, others = harmed(main, name, harm), harmed(copies, name, harm)
        told = f"{name}|the commit of change 15 is missing"  # its intent's copy tells of the newest
        with pytest.raises(LogDamagedError, match=told):
            read(files, others).refuse_damage()


def test_functions_that_are_needed_and_lost_are_refused() -> None:
    main, copies = whole()
    needed = [name for name in main if name.endswith(".intent")]
    newest = max(needed)
    with pytest.raises(LogDamagedError, match=f"are lost, for {newest} is missing"):
        read(harmed(main, newest, lambda _: None), copies).refuse_lost()


def test_a_segment_of_another_version_is_damage() -> None:
    site = Site()
    record = Segment(1, 0, (1,))
    for folder in (site.files, site.copies):
        folder.write("00000001.segment", encode(record, (b"\x93\x01\x02\x03",)))
    with pytest.raises(LogDamagedError, match=r"00000001\.segment: this version of Fries cannot"):
        Reading(site.files, site.copies).refuse_damage()


# Two drivers


def stalled(count: int, newer: Callable[[Site], None]) -> Iterator[Site]:
    """A driver that stops before an operation of its tidying, and goes on when another has come."""
    site = Site()
    for number in range(1, 9):
        site.change("F")
        if number > 3:
            site.shrink(number - 3)
    site.abort("G")
    old, left = site.log, [count]

    def before(what: str, _: str) -> None:
        if what in ("write", "remove", "has"):
            left[0] -= 1
            if left[0] == -1:
                site.files.before = lambda *_: None
                newer(site)
                site.files.before = lambda *_: None

    site.files.before = before
    with suppress(LogError):  # it finds out by the operation that is under way, or after it
        while old.tidy():
            pass
    if left[0] < 0:
        yield site


def idle(site: Site) -> None:
    """Another driver comes, and takes back what the first one is just moving."""
    site.start()
    site.back(8)


def busy(site: Site) -> None:
    """Another driver comes, and changes what the first one is just moving."""
    site.start()
    site.back(8)
    site.fail(7)
    for _ in range(4):
        site.change("F")
        site.shrink(site.log.last - 4)
    site.tidy(5)
    site.abort("F")
    site.back(site.log.last - 1)


@pytest.mark.parametrize("newer", [idle, busy])
def test_a_driver_that_was_stopped_while_tidying_changes_nothing_when_it_goes_on(
    newer: Callable[[Site], None],
) -> None:
    """The rest of the operation that it was at happens after the other driver has written."""
    tried = 0
    for count in range(200):
        for site in stalled(count, newer):
            tried += 1
            written = [one for one in site.journal.main if one.data is not None]
            expected = model(written)
            assert said(Reading(site.files, site.copies)) == expected
            site.start()
            site.tidy()
            assert said(Reading(site.files, site.copies)) == expected
            assert said(read(site.files.contents, {})) == expected, "the log alone says so"
    assert tried > 20


def test_a_driver_that_has_been_replaced_moves_nothing() -> None:
    site = Site()
    for _ in range(5):
        site.change("F")
    old = site.log
    site.start()
    before = dict(site.files.contents)
    with pytest.raises(LogTakenError):
        old.tidy()
    assert site.files.contents == before


def test_a_log_that_is_read_while_it_is_tidied_is_read_right() -> None:
    """Some steps in the moment before any operation of the reader."""
    for moment in range(60):
        for steps in (1, 2, 3, 5, 100):
            site = Site()
            for number in range(1, 13):
                site.change("F")
                site.shrink(max(number - 3, 1))
            site.tidy(1)
            site.change("F")
            left, log = [moment], site.log

            def before(
                what: str, _: str, left: list[int] = left, steps: int = steps, site: Site = site
            ) -> None:
                if what in ("list", "read"):
                    left[0] -= 1
                    if left[0] == -1:
                        site.tidy(steps)

            expected = said(Reading(site.files, site.copies))
            site.files.before = before
            found = Reading(site.files, site.copies)
            assert (said(found), found.restored) == (expected, [])
            assert log is site.log


class Restless(MemoryFiles):
    """A folder in which there are ever other segments."""

    count = 0

    def names(self) -> list[str]:
        """Other ones each time."""
        self.count += 1
        return [f"{self.count:08}.segment"]


def test_a_log_that_changes_all_the_time_is_given_up() -> None:
    with pytest.raises(LogError, match="changes faster than it can be read"):
        Reading(Restless())


# What is left


def test_a_start_writes_nothing_of_the_changes_before() -> None:
    site = grown(40)
    before = len(site.journal.main)
    site.start()
    for number in range(1, 37):
        site.shrink(number)
    names = [one.name for one in site.journal.main[before:]]
    assert names == ["00000002.owner", "00000002.owner"]


def test_a_log_of_single_files_is_taken_over_and_becomes_short() -> None:
    """As a Fries before this one has left it: with ends but no owners in its records."""
    site = Site()
    for number in range(1, 40):
        site.change("F")
        site.shrink(max(number - 4, 1))
    site.abort("F")
    expected = said(Reading(site.files, site.copies))
    assert len(site.files.contents) > 100
    later = Site(site.files.contents, site.copies.contents)
    assert said(Reading(later.files, later.copies)) == expected
    later.tidy()
    assert said(Reading(later.files, later.copies)) == expected
    assert len(later.files.contents) < 25
    assert len(later.copies.contents) < 25


def test_changes_that_were_never_committed_do_not_gather_either() -> None:
    site = Site()
    for _ in range(20):
        site.request("F")
        site.start()
    site.tidy()
    assert len([name for name in site.files.contents if name.endswith(".intent")]) < 6
    found = Reading(site.files, site.copies)
    assert found.last == 20
    assert not any(one.happened for one in found.changes)


def test_records_of_older_starts_are_removed_when_a_newer_one_is_safe() -> None:
    site = Site()
    for _ in range(4):
        site.change("F")
        read_now, owner = take_over(site.files, site.copies, Reading.refuse_damage)
        site.log = Log(site.files, SHAPE, True, site.copies, read_now, owner)
    site.start()
    site.tidy()
    flows = [name for name in site.files.contents if name.endswith(".flow")]
    assert flows == ["00000000.flow", "00000004.flow"], "the first has what changes build on"
    assert [name for name in site.copies.contents if name.endswith(".flow")] == flows
    assert [one.payload for one in site.log.changes] == [()] * 4


def test_functions_that_the_code_has_by_now_are_removed() -> None:
    site = grown(8)
    assert sum(name.endswith(".intent") for name in site.files.contents) >= 4
    found, owner = take_over(site.files, site.copies, Reading.refuse_damage)
    site.log = Log(site.files, SHAPE, True, site.copies, found, owner)
    for _ in range(4):
        site.abort("F")
    site.tidy()
    left = [name for name in site.files.contents if name.endswith(".intent")]
    assert [name for name in left if int(name[:8]) <= 8] == []


def test_what_a_driver_commits_tells_of_the_newest_segment() -> None:
    site = grown(12)
    number = site.change("F")
    commit = Reading(site.files).changes[number].commit
    assert isinstance(commit, Committed)
    newest = max(segments(site.files.contents))
    assert f"{commit.segment:08}.segment" == newest
    del site.files.contents[newest], site.copies.contents[newest]
    with pytest.raises(LogDamagedError, match=newest):
        Reading(site.files, site.copies).refuse_damage()


@pytest.mark.parametrize("late", [False, True])
def test_a_segment_that_cannot_be_written_is_written_later(late: bool) -> None:
    """It may be there all the same: what comes meanwhile counts in any case."""
    site = Site()
    for _ in range(3):
        site.change("F")
    faults = site.files.late_faults if late else site.files.faults
    faults["segment"] = LogError("disk full")
    with pytest.raises(LogError, match="disk full"):
        site.tidy()
    site.back(3)
    assert said(Reading(site.files, site.copies)) == model(site.journal.main)
    faults.clear()
    site.tidy()
    assert [one.happened for one in Reading(site.files, site.copies).changes[1:]] == [
        True,
        True,
        False,
    ]
    site.start()
    site.tidy()
    assert len(segments(site.files.contents)) == 1, "what is left of the first try is removed"


# By hand


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for folder, contents in zip((FOLDER, COPIES), whole(), strict=True):
        files = LocalFiles(tmp_path / folder)
        for name, data in contents.items():
            files.write(name, [data])
    return tmp_path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["log", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_check_shows_what_segments_have_and_a_repair_writes_them_again(checkpoint: Path) -> None:
    code, shown = run("check", checkpoint)
    assert code == 0
    numbers = [int(line.split()[0]) for line in shown.splitlines()[:-1]]
    assert numbers == list(range(1, numbers[-1] + 1))
    (newest, *_) = sorted(segments(whole()[0]), reverse=True)
    (oldest, *_) = sorted(segments(whole()[0]))
    (checkpoint / FOLDER / newest).unlink()
    (checkpoint / COPIES / oldest).write_bytes(b"torn")
    code, shown = run("check", checkpoint)
    assert code == 1
    assert f"mended at the next start: {newest} is missing" in shown
    assert "records without a copy: 1\n" in shown
    code, shown = run("repair", checkpoint, "--force")
    assert code == 0
    assert f"wrote {newest} again" in shown
    assert f"copied {oldest}\n" in shown
    assert shown.endswith("the log is whole\n")


def test_a_change_in_a_segment_is_taken_back_by_hand() -> None:
    main, copies = (MemoryFiles(folder) for folder in whole())
    found = Reading(main, copies)
    number = max(one.number for one in found.changes if one.covered and one.functions)
    del main.contents[f"{number:08}.intent"]
    assert not examine(Reading(main, copies)).sound
    assert repair(main, copies, number, force=True) == [f"took change {number} back"]
    back = Reading(main, copies)
    assert number not in [one.number for one in back.changes if one.happened]
    site = Site(main.contents, copies.contents)
    for _ in range(3):
        site.abort("F")
    site.tidy()
    again = Reading(site.files, site.copies)
    assert number not in [one.number for one in again.changes if one.happened]
    assert not any(name.startswith(f"{number:08}.") for name in site.files.contents)


def test_what_a_segment_has_is_packed_without_functions() -> None:
    assert pack([Past(7)]) == b"\x91\x96\x07\xc0\xc0\xc0\xc0\xc2"
