"""The durable log under crashes: cut anywhere, it says exactly what was safe."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import LogError
from fries.log.files import PARTIAL, LocalFiles
from fries.log.log import Log
from fries.log.records import (
    MAGIC,
    Committed,
    Ended,
    Founded,
    Intent,
    Record,
    Shape,
    decode,
    encode,
)
from tests.files import SHAPE, MemoryFiles, commit, intent

NUMBERS = st.integers(0, 2**53)
MOMENTS = st.floats(0, 1e12)
NAMES = st.text(max_size=5)
SOME_NAMES = st.lists(NAMES, max_size=3).map(tuple)
SHAPES = st.builds(
    Shape,
    NUMBERS,
    st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=2), max_size=2),
    st.lists(st.tuples(NAMES, NAMES, NUMBERS), max_size=3).map(tuple),
)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Founded, SHAPES, MOMENTS, NUMBERS),
    st.builds(
        Intent,
        NUMBERS,
        MOMENTS,
        SOME_NAMES,
        NAMES,
        st.lists(st.tuples(SOME_NAMES, SOME_NAMES), max_size=2).map(tuple),
        st.dictionaries(NAMES, NUMBERS, max_size=2),
        st.binary(max_size=20),
        st.booleans(),
        NAMES,
    ),
    st.builds(Committed, NUMBERS, MOMENTS, st.integers(-1, 2**53)),
    st.builds(Ended, NUMBERS, MOMENTS, NAMES, NAMES, st.none() | MOMENTS),
)
PAYLOADS = st.lists(st.binary(max_size=30), max_size=4)


def encoded(record: Record, payload: list[bytes]) -> bytes:
    return b"".join(bytes(part) for part in encode(record, [memoryview(one) for one in payload]))


# Records


@given(RECORDS, PAYLOADS)
def test_what_is_written_is_what_is_read(record: Record, payload: list[bytes]) -> None:
    again, parts = decode(memoryview(encoded(record, payload)))
    assert again == record
    assert [bytes(part) for part in parts] == payload


@given(RECORDS, PAYLOADS)
@settings(deadline=None, max_examples=40)
def test_a_record_that_is_cut_short_anywhere_is_refused(
    record: Record, payload: list[bytes]
) -> None:
    data = encoded(record, payload)
    for size in range(len(data)):
        with pytest.raises(LogError):
            decode(data[:size])


@given(RECORDS, PAYLOADS, st.integers(1, 255))
@settings(deadline=None, max_examples=40)
def test_a_record_with_a_changed_byte_anywhere_is_refused(
    record: Record, payload: list[bytes], change: int
) -> None:
    data = encoded(record, payload)
    for place in range(len(data)):
        forged = bytearray(data)
        forged[place] ^= change
        with pytest.raises(LogError):
            decode(forged)  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.sampled_from([b"", MAGIC, MAGIC + b"\x00\x00\x00\x01"]))
def test_any_other_bytes_are_refused(data: bytes, start: bytes) -> None:
    with pytest.raises(LogError):
        decode(start + data)


@given(st.binary(max_size=60))
def test_any_message_is_read_or_refused(message: bytes) -> None:
    """The digest fits: what another version of Fries may have written."""
    forged = b"".join(bytes(part) for part in encode(msgspec.Raw(message)))  # type: ignore[arg-type]
    try:
        record, parts = decode(forged)
    except LogError:
        return
    assert isinstance(record, Founded | Intent | Committed | Ended)
    assert parts == []


# Crashes


@cache
def journal() -> tuple[tuple[str, bytes], ...]:
    """A long life of a flow: every file that was written, in order."""
    files = MemoryFiles()
    log = Log(files, SHAPE)
    commit(log, 1, (b"first functions", b"a model"))
    log.end(Ended(1, 1.0, "done", delay=0.5))
    log.intend(intent(2), (b"refused by a worker",))
    log.end(Ended(2, 2.0, "aborted", "a: no"))
    log.intend(intent(3), (b"third",))
    log.intend(intent(4), (b"queued behind the third",))
    log.commit(3)
    log.take_effect(3, 7)
    log.commit(4)
    log.take_effect(4, 7)
    log.end(Ended(3, 3.0, "done"))
    log.end(Ended(4, 4.0, "done"))
    log.end(Ended(4, 5.0, "rolled back", "it raised"))
    log.shrink(intent(1))
    log = Log(files, SHAPE, replace_functions=True)
    commit(log, 5, (b"fifth", b"", b"with a larger model" * 5))
    log.end(Ended(5, 6.0, "done"))
    return tuple(files.written)


def after(writes: int) -> dict[str, bytes]:
    """The folder after some of the writes."""
    return dict(journal()[:writes])


class Model:
    """What a log must say, worked out from its whole records one by one."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.committed: set[int] = set()
        self.back: set[int] = set()
        self.last = 0
        for name, data in contents.items():
            self.last = max(self.last, int(name[:8]))
            self._see(decode(data)[0])

    def _see(self, record: Record) -> None:
        match record:
            case Committed(number):
                self.committed.add(number)
            case Ended(number, _, "rolled back"):
                self.back.add(number)

    @property
    def happened(self) -> list[int]:
        """Numbers of the changes that happened."""
        return sorted(self.committed - self.back)


def said(files: LocalFiles | MemoryFiles) -> tuple[list[int], int]:
    log = Log(files, SHAPE)
    return [one.number for one in log.changes if one.happened], log.last


def torn() -> Iterator[tuple[int, int]]:
    """How many writes were whole, and how many bytes there are of the next one."""
    for writes, (_, data) in enumerate(journal()):
        yield from ((writes, size) for size in range(len(data)))


def goes_on(contents: dict[str, bytes], expected: list[int], last: int) -> None:
    """A driver comes back, makes another change, and so does the next one."""
    files = MemoryFiles(contents)
    for number in (last + 1, last + 2):
        assert said(files) == (expected, number - 1)
        commit(Log(files, SHAPE), number)
        expected = [*expected, number]
    assert said(files) == (expected, last + 2)


def test_the_journal_tells_of_everything() -> None:
    whole = Model(after(len(journal())))
    assert (whole.happened, whole.last) == ([1, 3, 5], 5)
    assert len(journal()) == 22
    assert len(after(len(journal()))) == 20, "two files were replaced"


def test_a_crash_between_any_two_writes_loses_nothing_that_was_safe() -> None:
    for writes in range(len(journal()) + 1):
        model = Model(after(writes))
        goes_on(after(writes), model.happened, model.last)


def copied_journal() -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """A life with a second copy: what was written to either folder, in order."""
    files, copies = MemoryFiles(), MemoryFiles()
    log = Log(files, SHAPE, copies=copies)
    for number in (1, 2, 3):
        commit(log, number, (b"functions",))
        log.end(Ended(number, 1.0, "rolled back" if number == 2 else "done"))
    log.intend(intent(4), (b"refused",))
    log.end(Ended(4, 1.0, "aborted"))
    commit(log, 5)
    log.close()
    return files.written, copies.written


def test_a_crash_with_the_copy_as_far_behind_as_may_be_loses_nothing_that_was_safe() -> None:
    """A copy is written after its record, an intent's after its commit; copies come in order."""
    main, copied = copied_journal()
    order = {name: number for number, (name, _) in enumerate(main)}
    for writes in range(len(main) + 1):
        model, there = Model(dict(main[:writes])), dict(main[:writes])
        safe = [(name, order[name.replace("intent", "commit")]) for name, _ in copied]
        possible = [name for name, place in safe if place < writes]
        for behind in range(len(possible) + 1):
            names = possible[:behind]
            copies = {name: data for name, data in copied if name in names and name in there}
            if any(name not in there for name in names):
                continue
            files = MemoryFiles(there)
            log = Log(files, SHAPE, copies=MemoryFiles(copies))
            log.close()
            assert [one.number for one in log.changes if one.happened] == model.happened
            assert log.last == model.last
            assert files.contents.keys() == {*there, "00000000.flow"}, "nothing had to be mended"


def has_later_commit(contents: dict[str, bytes], name: str) -> bool:
    """Whether an end tells of a change that others came after: it may have been rolled back."""
    commits = [int(other[:8]) for other in contents if other.endswith(".commit")]
    mine = f"{name[:8]}.commit" in contents
    return name.endswith(".end") and mine and max(commits) > int(name[:8])


def test_a_new_file_that_is_torn_at_any_byte_never_happened() -> None:
    """On a file system that shows a file before it is whole; ends of older changes are missed."""
    for writes, size in torn():
        name, data = journal()[writes]
        before = after(writes)
        if name not in before:
            contents = {**before, name: data[:size]}
            if has_later_commit(before, name) and not name.endswith(".since"):
                with pytest.raises(LogError, match=name):
                    Log(MemoryFiles(contents), SHAPE)
                continue
            model = Model(before)
            goes_on(contents, model.happened, max(model.last, int(name[:8])))


def test_a_replaced_file_that_is_torn_at_any_byte_does_no_harm_or_is_named() -> None:
    for writes, size in torn():
        name, data = journal()[writes]
        before = after(writes)
        if name in before:
            contents = {**before, name: data[:size]}
            if name.endswith(".end"):
                del before[name]
                model = Model(before)
                goes_on(contents, model.happened, model.last)
            else:
                with pytest.raises(LogError, match=name):
                    Log(MemoryFiles(contents), SHAPE)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_on_a_disk_a_crash_leaves_a_part_under_another_name(data: st.DataObject) -> None:
    writes, size = data.draw(st.sampled_from(list(torn())))
    name, content = journal()[writes]
    model = Model(after(writes))
    with TemporaryDirectory() as folder:
        for other, whole in after(writes).items():
            Path(folder, other).write_bytes(whole)
        Path(folder, f"{name}.0123{PARTIAL}").write_bytes(content[:size])
        assert said(LocalFiles(Path(folder))) == (model.happened, model.last)
        if writes:  # the next driver takes the number and is not in the way of the rest
            commit(Log(LocalFiles(Path(folder)), SHAPE), model.last + 1)
            assert said(LocalFiles(Path(folder)))[0] == [*model.happened, model.last + 1]


HARMLESS = {"00000000.flow", "00000002.intent", "00000004.commit"}
"""Of an older flow, of a change that was aborted, of one that was rolled back: of no use now."""


def test_a_changed_byte_anywhere_is_named_or_does_no_harm() -> None:
    """Ends only say how a change went; that it was rolled back is the exception."""
    whole = after(len(journal()))
    expected = Model(whole).happened
    for name, data in whole.items():
        for place in range(0, len(data), 3):
            forged = data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]
            files = MemoryFiles({**whole, name: forged})
            if (
                name in HARMLESS
                or name.endswith(".since")
                or (name.endswith(".end") and not has_later_commit(whole, name))
            ):
                back = [4] if name == "00000004.end" else []
                assert said(files)[0] == sorted([*expected, *back])
            else:
                with pytest.raises(LogError, match=name):
                    Log(files, SHAPE)


LIVES = st.lists(st.sampled_from(["commit", "intend", "abort", "roll back", "crash"]), max_size=25)


@given(LIVES)
@settings(deadline=None)
def test_numbers_are_never_used_again_in_any_life(steps: list[str]) -> None:
    files, expected, used = MemoryFiles(), list[int](), set[int]()
    log = Log(files, SHAPE)
    for step in steps:
        if step == "crash":
            log = Log(files, SHAPE)
            continue
        number = log.last + 1
        assert number not in used
        used.add(number)
        log.intend(intent(number), (b"functions",))
        if step in ("commit", "roll back"):
            log.commit(number)
            log.take_effect(number, 0)
        if step in ("abort", "roll back"):
            log.end(Ended(number, 0.0, "aborted" if step == "abort" else "rolled back"))
        if step == "commit":
            expected.append(number)
    assert said(files)[0] == expected
