"""Every file of a log damaged in every way: a start goes on as if nothing was, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from fries.cli import app
from fries.errors import LogDamagedError, LogError
from fries.log.check import BY_HAND, examine, repair
from fries.log.files import COPIES, FOLDER, LocalFiles
from fries.log.log import Code, Log
from fries.log.owners import take_over
from fries.log.reading import Reading
from fries.log.records import Committed, Ended, encode
from tests.files import SHAPE, MemoryFiles, commit, intent

Folder = dict[str, bytes]
TAKEN_BACK = 2
SURVIVAL = Path(__file__).parents[2] / "docs" / "survival.md"
NEWEST = 4
"""Its commit is the last record: it took effect, and no batch after it has begun."""


@cache
def life() -> tuple[Folder, Folder]:
    """A log and its copy: changes that are done, rolled back, aborted and committed last."""
    files, copies = MemoryFiles(), MemoryFiles()
    read, owner = take_over(files, copies, Reading.refuse_damage)
    log = Log(
        files, SHAPE, copies=copies, reading=read, owner=owner, code=Code({"F": "v1"}, (b"",))
    )
    for number, targets in ((1, "F"), (TAKEN_BACK, "G"), (3, "G")):
        log.intend(intent(number, targets), (b"functions of %d" % number, b"model"))
        log.commit(number)
        log.take_effect(number, number)
        log.end(Ended(number, 1.0, "rolled back" if number == TAKEN_BACK else "done"))
    log.intend(intent(NEWEST, "F", "H"), (b"functions of 4",))
    log.commit(NEWEST)
    log.take_effect(NEWEST, NEWEST)
    log.intend(intent(5, "G"), (b"functions of 5",))
    log.end(Ended(5, 1.0, "aborted"))
    log.close()
    return files.contents, copies.contents


Said = list[tuple[int, int | None, tuple[str, ...], list[bytes]]]


def start(files: Folder, copies: Folder) -> Said:
    """What a driver goes on with: changes that happened, and their functions as far as needed."""
    log_files, copy_files = MemoryFiles(files), MemoryFiles(copies)

    def check(read: Reading) -> None:
        read.refuse_damage()
        read.refuse_lost()

    read, owner = take_over(log_files, copy_files, check)
    log = Log(log_files, SHAPE, copies=copy_files, reading=read, owner=owner)
    said = [
        (one.number, one.since, one.intent.targets, [bytes(part) for part in one.payload])
        for one in log.changes
        if one.happened and one.intent is not None
    ]
    log.close()
    again = Reading(log_files, copy_files)
    assert not again.problems()
    assert [one.number for one in again.changes if one.happened] == [one[0] for one in said]
    return said


def flipped(place: int) -> Callable[[bytes], bytes]:
    def harm(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return harm


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda _: None,
    "emptied": lambda _: b"",
    "cut in its first word": lambda data: data[:3],
    "cut in its sizes": lambda data: data[:11],
    "cut in its digest": lambda data: data[:40],
    "cut in half": lambda data: data[: len(data) // 2],
    "its end cut off": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "a bit flipped at its begin": flipped(2),
    "a bit flipped in its digest": flipped(30),
    "a bit flipped in its message": flipped(70),
    "a bit flipped at its end": flipped(-1),
    "of zeros": lambda data: bytes(len(data)),
}


def harmed(folder: Folder, name: str, harm: Callable[[bytes], bytes | None]) -> Folder:
    data = harm(folder[name])
    return {key: value for key, value in {**folder, name: data}.items() if value is not None}


NEEDED = ("00000003.intent", "00000004.intent")
"""Functions in force. Those of change 1 were replaced, and of 2 and 5 they are of no use."""
MAIN, COPY = life()


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
@pytest.mark.parametrize("name", sorted(MAIN))
def test_a_damaged_file_of_the_log(name: str, harm: Callable[[bytes], bytes | None]) -> None:
    files, whole = harmed(MAIN, name, harm), start(MAIN, COPY)
    if name in NEEDED:
        with pytest.raises(LogDamagedError, match=f"functions .* are lost, for {name}"):
            start(files, COPY)
    else:
        without = [one for one in whole if not name.startswith(f"{one[0]:08}.intent")]
        assert [one for one in start(files, COPY) if one in without] == without
        assert [one[:3] for one in start(files, COPY)] == [one[:3] for one in whole]


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
@pytest.mark.parametrize("name", sorted(COPY))
def test_a_damaged_file_of_the_copy(name: str, harm: Callable[[bytes], bytes | None]) -> None:
    assert start(MAIN, harmed(COPY, name, harm)) == start(MAIN, COPY)


@pytest.mark.parametrize(("one", "other"), list(combinations(sorted(MAIN), 2)))
def test_two_files_that_were_swapped(one: str, other: str) -> None:
    files = {**MAIN, one: MAIN[other], other: MAIN[one]}
    if {one, other} & set(NEEDED):
        with pytest.raises(LogDamagedError, match=r"functions .* are lost"):
            start(files, COPY)
    else:
        assert [said[:3] for said in start(files, COPY)] == [said[:3] for said in start(MAIN, COPY)]


def without(folder: Folder, *numbers: int) -> Folder:
    """A folder from which all files of some changes are gone."""
    gone = tuple(f"{number:08}." for number in numbers)
    return {name: data for name, data in folder.items() if not name.startswith(gone)}


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [((1,), None), ((2,), None), ((3,), 3), ((4,), 4), ((5,), None), ((3, 4), 3), ((4, 5), 4)],
)
def test_a_change_of_which_nothing_is_left_in_the_log(
    numbers: tuple[int, ...], lost: int | None
) -> None:
    """The newest as well as one in the middle; what others have replaced is not missed."""
    files = without(MAIN, *numbers)
    if lost is None:
        assert [said[:3] for said in start(files, COPY)] == [said[:3] for said in start(MAIN, COPY)]
    else:
        with pytest.raises(LogDamagedError, match=f"for {lost:08}.intent is missing"):
            start(files, COPY)


TELLS = {
    "the log's first batch": (FOLDER, "since"),
    "the copy's first batch": (COPIES, "since"),
    "the copy's intent": (COPIES, "intent"),
    "the log's end": (FOLDER, "end"),
}
"""Records that are written only when the commit is."""


def without_commit(number: int, harm: Callable[[bytes], bytes | None], *left: str) -> list[Folder]:
    """A log and its copy after a commit was lost in both, with some of what tells of it."""
    folders = {
        FOLDER: harmed(MAIN, f"{number:08}.commit", harm),
        COPIES: harmed(COPY, f"{number:08}.commit", harm),
    }
    for name, (folder, kind) in TELLS.items():
        if name not in left:
            folders[folder].pop(f"{number:08}.{kind}", None)
    return list(folders.values())


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
@pytest.mark.parametrize("left", [*list(TELLS)[:3], "a first batch that cannot be read"])
@pytest.mark.parametrize("number", [1, 3, NEWEST])
def test_a_commit_that_is_lost_in_both_places_is_refused_if_anything_tells_of_it(
    number: int, left: str, harm: Callable[[bytes], bytes | None]
) -> None:
    files, copies = without_commit(number, harm, left)
    if left not in TELLS:
        files[f"{number:08}.since"] = b"torn"
    before = dict(files), dict(copies)
    with pytest.raises(LogDamagedError, match=f"{number:08}.commit|commit of change {number} is"):
        start(files, copies)
    assert (files, copies) == before, "refused before anything was written"
    said = examine(Reading(MemoryFiles(files), MemoryFiles(copies)))
    assert f"{number:>5}  damaged " in "\n".join(said.changes)
    assert any("from a backup" in way for way in said.ways)


def test_a_commit_of_which_nothing_tells_never_happened() -> None:
    files, copies = without_commit(NEWEST, lambda _: None)
    assert [one[0] for one in start(files, copies)] == [1, 3]


def test_a_commit_that_was_taken_back_may_be_lost_in_both_places() -> None:
    files, copies = without_commit(TAKEN_BACK, lambda _: None, *TELLS)
    assert start(files, copies) == start(MAIN, COPY)


def test_a_commit_of_a_driver_that_was_replaced_is_not_missed() -> None:
    """It is void: its copies tell of it, and it never happened all the same."""
    files, copies = MemoryFiles(MAIN), MemoryFiles(COPY)
    _, owner = take_over(files, copies, Reading.refuse_damage)
    late = Log(files, SHAPE, copies=copies, owner=owner)
    late.intend(intent(6), (b"functions",))
    owner.leave()  # or the next one waits for it
    _, newer = take_over(files, copies, Reading.refuse_damage)
    newer.leave()
    files.write("00000006.commit", encode(Committed(6, 1.0, None, owner.number)))
    copies.write("00000006.intent", encode(intent(6)))
    assert [one[0] for one in start(files.contents, copies.contents)] == [1, 3, NEWEST]


class Meanwhile(MemoryFiles):
    """A folder to which a driver writes when it has just been listed."""

    then: Callable[[], None] = staticmethod(lambda: None)

    def names(self) -> list[str]:
        """The files that were there."""
        found, then = super().names(), self.then
        self.then = lambda: None
        then()
        return found


def test_what_a_driver_writes_while_its_log_is_read_is_not_taken_for_lost() -> None:
    files, copies = Meanwhile(MAIN), MemoryFiles(COPY)
    log = Log(files, SHAPE, copies=copies)

    def write() -> None:
        commit(log, 6)
        log.close()

    files.then = write
    read = Reading(files, copies)
    assert (read.problems(), read.restored) == ([], [])
    assert "00000006.commit" in copies.contents


def test_the_whole_log_is_gone() -> None:
    with pytest.raises(LogDamagedError) as caught:
        start({}, COPY)
    assert [f"{number:08}.intent is missing" in str(caught.value) for number in (3, 4)]
    assert "replace_functions=True" in str(caught.value)
    assert "`fries log check memory`" in str(caught.value)


def test_the_whole_copy_is_gone_and_is_made_again() -> None:
    files, copies = MemoryFiles(MAIN), MemoryFiles()
    read, owner = take_over(files, copies, Reading.refuse_damage)
    Log(files, SHAPE, copies=copies, reading=read, owner=owner).close()
    made = {name for name in COPY if not name.startswith("00000005")}
    assert made <= copies.contents.keys()
    assert start(without(MAIN, 1), copies.contents) == start(without(MAIN, 1), COPY)


def test_functions_that_were_lost_may_be_in_the_code_by_now() -> None:
    """Then the migrations go on, which the copy has."""
    files = MemoryFiles(harmed(MAIN, "00000004.intent", lambda _: None))
    log = Log(files, SHAPE, replace_functions=True, copies=MemoryFiles(COPY))
    log.close()
    newest = log.changes[-2]
    assert (newest.number, newest.happened, newest.payload) == (NEWEST, True, ())
    assert newest.intent is not None
    assert newest.intent.residue == b"left"


def test_a_copy_that_cannot_be_written_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files, copies = MemoryFiles(), MemoryFiles()
    copies.faults["flow"] = LogError("disk full")
    log = Log(files, SHAPE, copies=copies)
    copies.faults.clear()
    commit(log, 1)
    log.close()
    assert "its copy was not written: disk full" in caplog.text
    assert copies.contents.keys() == {
        "00000000.flow",
        "00000001.intent",
        "00000001.commit",
        "00000001.since",
    }


class Unlisted(MemoryFiles):
    """A folder that cannot be listed."""

    def names(self) -> list[str]:
        """Fail."""
        raise LogError("no permission")


def test_a_copy_that_cannot_be_listed_keeps_nobody_from_going_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert len(Reading(MemoryFiles(MAIN), Unlisted()).changes) == 6
    assert "no permission" in caplog.text


# By hand


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for folder, contents in ((FOLDER, MAIN), (COPIES, COPY)):
        (tmp_path / folder).mkdir()
        for name, data in contents.items():
            (tmp_path / folder / name).write_bytes(data)
    return tmp_path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["log", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_whole_log_is_shown(checkpoint: Path) -> None:
    code, said = run("check", checkpoint)
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines()] == [
        ["1", "done"],
        ["2", "rolled"],
        ["3", "done"],
        ["4", "committed"],
        ["5", "aborted"],
        ["the", "log"],
    ]
    assert "F v1 (note 1)" in said


def everything(checkpoint: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(checkpoint.rglob("*.*")):
        yield path.name, path.read_bytes()


def test_a_check_changes_nothing_and_a_repair_writes_what_is_known(checkpoint: Path) -> None:
    (checkpoint / FOLDER / "00000004.commit").write_bytes(b"torn")
    (checkpoint / COPIES / "00000001.commit").unlink()
    (checkpoint / COPIES / "00000003.commit").write_bytes(b"torn")
    before = list(everything(checkpoint))
    code, said = run("check", checkpoint)
    assert code == 1
    assert "mended at the next start: 00000004.commit: it does not begin" in said
    assert "records without a copy: 2\n" in said
    assert list(everything(checkpoint)) == before
    code, said = run("repair", checkpoint)
    assert code == 0
    assert "wrote 00000004.commit again" in said
    assert "copied 00000001.commit\ncopied 00000003.commit\n" in said
    assert said.endswith("the log is whole\n")
    assert (checkpoint / FOLDER / "00000004.commit").read_bytes() == MAIN["00000004.commit"]


def test_a_change_whose_functions_are_lost_is_taken_back_by_hand(checkpoint: Path) -> None:
    (checkpoint / FOLDER / "00000004.intent").unlink()
    code, said = run("check", checkpoint)
    assert code == 1
    assert "damaged: 00000004.intent is missing: the functions of 'F' are lost" in said
    assert "way out: or `fries log repair --take-back 4`" in said
    assert run("repair", checkpoint)[0] == 1
    code, said = run("repair", checkpoint, "--take-back", 4)
    assert code == 0
    assert "took change 4 back" in said
    files, copies = LocalFiles(checkpoint / FOLDER), LocalFiles(checkpoint / COPIES)
    read = Reading(files, copies)
    read.refuse_lost()
    assert [one.number for one in read.changes if one.happened] == [1, 3]
    (back,) = (one.end for one in read.changes if one.number == NEWEST)
    assert back is not None
    assert back.reason == BY_HAND


def test_the_lines_of_the_page_on_survival_run(checkpoint: Path) -> None:
    lines = re.findall(r"^ {4}fries log (.+?)(?: +#.*)?$", SURVIVAL.read_text(), re.MULTILINE)
    check, mend, take_back = (line.replace("/data/checkpoint", str(checkpoint)) for line in lines)
    assert run(*check.split())[1].endswith("the log is whole\n")
    (checkpoint / FOLDER / "00000004.commit").unlink()
    assert "wrote 00000004.commit again" in run(*mend.split())[1]
    (checkpoint / FOLDER / "00000004.intent").unlink()
    code, said = run(*re.sub(r"\d+$", "4", take_back).split())
    assert (code, said.splitlines()[0]) == (0, "took change 4 back")


@pytest.mark.parametrize(
    ("number", "problem"),
    [(9, "there is no change 9 in force"), (2, "no change 2 in force"), (3, "change 3 is whole")],
)
def test_what_is_not_lost_is_not_taken_back(checkpoint: Path, number: int, problem: str) -> None:
    code, said = run("repair", checkpoint, "--take-back", number)
    assert code == 2
    assert problem in said


def test_a_change_that_migrated_states_is_not_taken_back_by_hand() -> None:
    files, copies = MemoryFiles(), MemoryFiles()
    log = Log(files, SHAPE, copies=copies)
    log.intend(replace(intent(1), migrates=True), (b"functions",))
    log.commit(1)
    log.close()
    del files.contents["00000001.intent"]
    assert not any("--take-back" in way for way in examine(Reading(files, copies)).ways)
    with pytest.raises(LogError, match="change 1 has migrated states"):
        repair(files, copies, 1, force=False)


def test_a_folder_without_a_log_and_damage_beyond_repair_are_told(
    checkpoint: Path, tmp_path: Path
) -> None:
    assert run("check", tmp_path / "nothing") == (
        2,
        f"fries: there is no log of changes in {tmp_path / 'nothing' / FOLDER}\n",
    )
    for folder in (FOLDER, COPIES):
        (checkpoint / folder / "00000001.commit").write_bytes(b"torn")
    for command in ("check", "repair"):
        code, said = run(command, checkpoint)
        assert code == 1
        assert "damaged: 00000001.commit: it does not begin as a record" in said
        assert "way out: or start on a new checkpoint" in said


def test_a_log_is_not_repaired_under_a_driver_that_runs() -> None:
    files, copies = MemoryFiles(MAIN), MemoryFiles(COPY)
    take_over(files, copies, Reading.refuse_damage)
    with pytest.raises(LogError, match="a driver may still run on it"):
        repair(files, copies, None, force=False)
    assert repair(files, copies, None, force=True) == []
