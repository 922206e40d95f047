"""The durable log: what it says after a restart, and whom it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fries.errors import LogError, LogMismatchError
from fries.log.files import PARTIAL, LocalFiles
from fries.log.log import Log
from fries.log.pieces import PIECE_BYTES, REST, unhurried
from fries.log.reading import Logged
from fries.log.records import MAGIC, Committed, Ended, Founded, Shape, decode, encode
from tests.files import SHAPE, MemoryFiles, commit, happened, intent

DONE = Ended(1, 2000.0, "done", delay=0.25)
BACK = Ended(1, 2000.0, "rolled back", "it raised")


def only(log: Log) -> Logged:
    (found,) = log.changes
    return found


def raw(record: Founded | Committed | Ended) -> bytes:
    return b"".join(bytes(part) for part in encode(record))


# Large parts


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_pieces_are_the_parts_in_order(size: int) -> None:
    numbers = np.arange(size, dtype=np.uint8).reshape(1, size)
    pieces = [bytes(piece) for piece in unhurried([b"first", numbers.data, b"last"])]
    assert b"".join(pieces) == b"first" + numbers.tobytes() + b"last"
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_who_reads_a_large_part_rests_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rests = iter([0.0, 0.5, 2.0, 2.25, 9.0]), list[float]()
    monkeypatch.setattr("fries.log.pieces.time.thread_time", lambda: next(clock))
    monkeypatch.setattr("fries.log.pieces.time.sleep", rests.append)
    assert len([*unhurried([bytes(2 * PIECE_BYTES + 1)])]) == 3
    assert rests == [REST * 0.5, REST * 0.25]


# Records


def test_a_record_comes_back_with_its_payload_in_parts() -> None:
    numbers = np.arange(6, dtype=np.float64).reshape(2, 3)
    payload = (b"functions", numbers.data, memoryview(b""), memoryview(b"xyz")[1:])
    data = b"".join(bytes(part) for part in encode(intent(7, "F", "G"), payload))
    record, parts = decode(data)
    assert record == intent(7, "F", "G")
    assert [bytes(part) for part in parts] == [b"functions", numbers.tobytes(), b"", b"yz"]


def test_a_payload_is_not_copied() -> None:
    model = bytearray(b"model")
    view = encode(intent(1), (memoryview(model),))[-1]
    model[0] = ord("n")
    assert bytes(view) == b"nodel"


def test_a_record_of_another_version_is_refused() -> None:
    class Newer(msgspec.Struct, tag=True):
        number: int

    pieces = encode(Newer(1))  # type: ignore[arg-type]
    with pytest.raises(LogError, match="this version of Fries cannot read it"):
        decode(b"".join(bytes(part) for part in pieces))


def test_a_record_that_is_nested_too_deeply_is_refused() -> None:
    shallow = msgspec.msgpack.encode({"type": "Ended", "more": None})
    pieces = encode(msgspec.Raw(shallow[:-1] + b"\x91" * 100_000 + b"\xc0"))  # type: ignore[arg-type]
    with pytest.raises(LogError, match="this version of Fries cannot read it"):
        decode(b"".join(bytes(part) for part in pieces))


def test_text_that_is_no_text_is_refused() -> None:
    """The digest fits: somebody else wrote it, or a later version."""
    whole = encode(Ended(1, 1.0, "done", "xyz"))
    forged = msgspec.Raw(bytes(whole[-1]).replace(b"xyz", b"\xff\xfe\xfd"))
    pieces = encode(forged)  # type: ignore[arg-type]
    with pytest.raises(LogError, match="this version of Fries cannot read it"):
        decode(b"".join(bytes(part) for part in pieces))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "does not begin as a record"),
        (b"something else", "does not begin as a record"),
        (MAGIC, "cut short"),
        (MAGIC + bytes(4), "cut short"),
        (MAGIC + b"\xff" * 200, "cut short"),
        (raw(DONE) + b"\x00", "too long"),
    ],
)
def test_what_is_wrong_with_a_record_is_told(data: bytes, problem: str) -> None:
    with pytest.raises(LogError, match=problem):
        decode(data)


# What happened


def test_a_new_log_has_nothing_and_says_whose_it_is() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    assert (log.changes, log.last) == ([], 0)
    record, _ = decode(files.contents["00000000.flow"])
    assert isinstance(record, Founded)
    assert (record.shape, record.replaces) == (SHAPE, 0)


def test_a_change_happened_once_its_commit_is_there() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    log.intend(intent(1), (b"functions", memoryview(b"model")))
    assert happened(files) == []
    log.commit(1)
    log.take_effect(1, 4)
    again = only(Log(files, SHAPE))
    assert (again.happened, again.number, again.intent) == (True, 1, intent(1))
    assert [bytes(part) for part in again.payload] == [b"functions", b"model"]
    assert again.commit is not None
    assert again.since == 4
    assert again.end is None


def test_the_end_of_a_change_is_told() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    log.end(DONE)
    again = only(Log(files, SHAPE))
    assert (again.end, again.happened) == (DONE, True)


def test_what_was_rolled_back_did_not_happen() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    log.end(DONE)
    log.end(BACK)
    again = only(Log(files, SHAPE))
    assert (again.end, again.happened) == (BACK, False)


def test_what_was_aborted_did_not_happen_whatever_is_left_of_its_commit() -> None:
    """The commit was written and could not be made safe: the change was aborted for that."""
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    log.end(Ended(1, 2000.0, "aborted", "the commit cannot be logged"))
    assert happened(files) == []


def test_changes_come_back_in_the_order_of_their_numbers() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    for number in range(1, 13):
        commit(log, number)
    files.contents = dict(sorted(files.contents.items(), reverse=True))
    log = Log(files, SHAPE)
    assert [one.number for one in log.changes] == list(range(1, 13))
    assert log.last == 12


@pytest.mark.parametrize("name", ["00000009.intent", "00000009.commit", "00000009.end"])
def test_a_number_is_never_used_again_whatever_was_written_of_it(name: str) -> None:
    files = MemoryFiles()
    Log(files, SHAPE)
    files.contents[name] = b"torn"
    assert Log(files, SHAPE).last == 9


def test_a_change_that_was_shrunk_has_its_residue_left() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1, (b"functions", b"model"))
    log.shrink(intent(1))
    again = only(Log(files, SHAPE))
    assert (again.happened, again.payload) == (True, ())
    assert again.intent is not None
    assert again.intent.residue == b"left"


def test_what_was_read_can_be_forgotten() -> None:
    files = MemoryFiles()
    commit(Log(files, SHAPE), 1)
    log = Log(files, SHAPE)
    log.forget()
    assert (log.changes, log.last) == ([], 1)


def test_files_of_others_are_left_alone() -> None:
    files = MemoryFiles({"README": b"hello", "1.commit": b"", "00000001.commit.crc": b""})
    assert Log(files, SHAPE).changes == []
    assert files.contents["README"] == b"hello"


# Functions that the code has now


def test_newer_code_replaces_the_functions_of_all_changes_before() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    commit(log, 2)
    log = Log(files, SHAPE, replace_functions=True)
    assert [(one.happened, one.payload) for one in log.changes] == [(True, ()), (True, ())]
    commit(log, 3)
    again = Log(files, SHAPE)
    assert [bool(one.payload) for one in again.changes] == [False, False, True]
    assert [bool(one.payload) for one in Log(files, SHAPE, True).changes] == [False] * 3


def test_newer_code_on_a_new_log_replaces_nothing() -> None:
    files = MemoryFiles()
    commit(Log(files, SHAPE, replace_functions=True), 1)
    assert only(Log(files, SHAPE)).payload


# Damage


def whole_log() -> MemoryFiles:
    """Three changes that are done, and one that was never committed."""
    files = MemoryFiles()
    log = Log(files, SHAPE)
    for number in (1, 2, 3):
        commit(log, number)
        log.end(msgspec.structs.replace(DONE, number=number))
    log.intend(intent(4), (b"functions",))
    return files


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kind", ["intent", "commit"])
@pytest.mark.parametrize("harm", ["damaged", "lost"])
def test_damage_to_what_happened_is_refused_by_name(number: int, kind: str, harm: str) -> None:
    files, name = whole_log(), f"{number:08}.{kind}"
    if harm == "damaged":
        files.contents[name] = files.contents[name][:-1]
    else:
        del files.contents[name]
    expected = name if harm == "damaged" else f"the {kind} of change {number} is missing"
    with pytest.raises(LogError, match=f"the log in memory is damaged .*{expected}"):
        Log(files, SHAPE)


def test_damage_is_told_even_if_the_end_is_damaged_too() -> None:
    files = whole_log()
    files.contents["00000002.commit"] = files.contents["00000002.end"] = b"torn"
    with pytest.raises(LogError, match=r"00000002\.commit"):
        Log(files, SHAPE)


def test_a_change_that_was_rolled_back_does_not_come_back_because_its_end_is_damaged() -> None:
    files = whole_log()
    Log(files, SHAPE).end(msgspec.structs.replace(BACK, number=2))
    assert happened(files) == [1, 3]
    files.contents["00000002.end"] = files.contents["00000002.end"][:-1]
    with pytest.raises(LogError, match=r"damaged \(00000002\.end: it is cut short"):
        Log(files, SHAPE)


def test_the_end_of_the_newest_change_that_a_crash_has_torn_does_no_harm_later_either() -> None:
    """As if the driver had died before it: the change was committed, so it happened."""
    files = whole_log()
    files.contents["00000003.end"] = b"torn"
    log = Log(files, SHAPE)
    commit(log, 5)
    assert happened(files) == [1, 2, 3, 5]
    (mended,) = (one.end for one in Log(files, SHAPE).changes if one.number == 3)
    assert mended is not None
    assert "a crash has cut its end short (00000003.end" in mended.reason


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("00000001.intent", "00000002.intent"),
        ("00000001.commit", "00000002.commit"),
        ("00000001.end", "00000002.end"),
        ("00000001.commit", "00000001.intent"),
        ("00000003.commit", "00000000.flow"),
    ],
)
def test_files_that_were_mixed_up_are_damage(name: str, other: str) -> None:
    """They are whole, but not what they are called."""
    files = whole_log()
    files.contents[name] = files.contents[other]
    with pytest.raises(LogError, match=f"{name}: it holds a record of another name"):
        Log(files, SHAPE)


def test_a_commit_of_another_change_commits_nothing() -> None:
    files = whole_log()
    files.contents["00000004.commit"] = files.contents["00000003.commit"]
    assert happened(files) == [1, 2, 3]


def test_digits_of_other_scripts_are_no_numbers() -> None:
    files = whole_log()
    del files.contents["00000004.intent"]
    files.contents["\u0660" * 7 + "\u0664.intent"] = b"somebody else's"
    assert Log(files, SHAPE).last == 3


def test_a_damaged_intent_that_was_never_committed_does_no_harm() -> None:
    files = whole_log()
    files.contents["00000004.intent"] = b"torn"
    log = Log(files, SHAPE)
    assert ([one.number for one in log.changes], log.last) == ([1, 2, 3], 4)
    commit(log, 5)
    assert happened(files) == [1, 2, 3, 5]


@pytest.mark.parametrize("kind", ["commit", "intent"])
def test_what_a_crash_has_torn_is_forgotten_for_good(kind: str) -> None:
    """It is the newest when the driver comes back, and must not look like damage later."""
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    log.intend(intent(2), ())
    files.contents[f"00000002.{kind}"] = b"torn"
    log = Log(files, SHAPE)
    assert (happened(files), log.last) == ([1], 2)
    commit(log, 3)
    assert happened(files) == [1, 3]


def test_a_torn_replacement_of_functions_is_forgotten_for_good() -> None:
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1)
    files.contents["00000001.flow"] = b"torn"
    log = Log(files, SHAPE)
    assert only(log).payload, "as if nobody had replaced anything"
    commit(log, 2)
    assert [bool(one.payload) for one in Log(files, SHAPE).changes] == [True, True]


def test_a_replacement_of_functions_that_is_damaged_later_is_refused() -> None:
    """The functions that were replaced must not come back."""
    files = MemoryFiles()
    commit(Log(files, SHAPE), 1)
    commit(Log(files, SHAPE, replace_functions=True), 2)
    files.contents["00000001.flow"] = b"torn"
    with pytest.raises(LogError, match=r"00000001\.flow"):
        Log(files, SHAPE)


def test_changes_of_an_unknown_flow_are_refused() -> None:
    files = whole_log()
    files.contents["00000000.flow"] = b"torn"
    with pytest.raises(LogError, match=r"00000000\.flow"):
        Log(files, SHAPE)
    del files.contents["00000000.flow"]
    with pytest.raises(LogError, match="changes of an unknown flow"):
        Log(files, SHAPE)


def test_a_log_of_another_version_is_refused_and_left_as_it_was() -> None:
    files = whole_log()
    older = {name: MAGIC[:6] + b"\x01" + data[7:] for name, data in files.contents.items()}
    files = MemoryFiles(older)
    with pytest.raises(
        LogError, match=r"unknown flow: .*this version of Fries\), and nothing was started"
    ):
        Log(files, SHAPE)
    assert files.contents == older


def test_a_torn_first_record_is_written_again() -> None:
    files = MemoryFiles({"00000000.flow": b"torn"})
    commit(Log(files, SHAPE), 1)
    assert happened(files) == [1]


# Whose log it is


def test_a_flow_that_does_not_fit_leaves_the_log_as_it_was() -> None:
    files = whole_log()
    before = dict(files.contents)
    with pytest.raises(LogMismatchError, match="the log of changes in memory belongs to another"):
        Log(files, Shape(8, {}, ()), replace_functions=True)
    assert files.contents == before


# A folder on a disk


def test_a_folder_that_is_not_there_is_empty_and_is_made(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "checkpoint" / "fries")
    assert files.names() == []
    commit(Log(files, SHAPE), 1)
    kinds = ("commit", "intent", "since")
    assert sorted(files.names()) == ["00000000.flow", *(f"00000001.{kind}" for kind in kinds)]
    assert only(Log(files, SHAPE)).happened


def test_what_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / f"00000001.commit.77{PARTIAL}").write_bytes(b"tor")
    assert LocalFiles(tmp_path).names() == []


def test_a_file_of_another_driver_is_never_overwritten(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write("00000001.intent", [b"theirs"])
    with pytest.raises(LogError, match="another driver runs on this checkpoint"):
        files.write("00000001.intent", [b"ours"])
    assert files.read("00000001.intent") == b"theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.intent"], "no rest"


def test_two_drivers_that_write_at_once_do_not_mix_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may even have the same process number, in containers of their own."""
    files, flush = LocalFiles(tmp_path), os.fsync

    def interrupted(number: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        files.write("00000001.intent", [b"theirs"])
        flush(number)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(LogError, match="another driver runs on this checkpoint"):
        files.write("00000001.intent", [b"ours"])
    assert files.read("00000001.intent") == b"theirs"


def test_a_file_that_may_be_replaced_is(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for text in (b"old", b"new"):
        files.write("00000001.end", [text, memoryview(b"!")], replace=True)
    assert files.read("00000001.end") == b"new!"


def test_a_file_that_is_removed_may_be_gone_already(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write("00000001.end", [b"text"])
    for _ in range(2):
        files.remove("00000001.end")
        assert files.names() == []
    (tmp_path / "00000002.end").mkdir()
    with pytest.raises(LogError, match=r"00000002\.end cannot be removed"):
        files.remove("00000002.end")


def fails(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_full_disk_leaves_no_file_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    failing: Callable[..., None] = fails
    monkeypatch.setattr(os, step, failing)
    with pytest.raises(LogError, match=r"00000001\.commit cannot be written: .*No space left"):
        LocalFiles(tmp_path).write("00000001.commit", [b"bytes"])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"00000001\.commit cannot be read"):
        LocalFiles(tmp_path).read("00000001.commit")
