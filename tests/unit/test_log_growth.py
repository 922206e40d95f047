"""What a log takes after many changes: files, reads and writes are counted, as they are in use."""

from __future__ import annotations

import pytest

from fries.log.reading import Reading
from fries.log.records import Ended
from fries.log.tidying import AT_ONCE, DUE, FAN, MOST_BYTES
from tests.lives import Site, at_once, grown


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are written at once."""
    at_once(monkeypatch)


def test_files_and_reads_hardly_grow_with_the_number_of_changes() -> None:
    site = grown(1500)
    assert len(site.files.contents) < 60
    site.files.reads = site.copies.reads = 0
    found = Reading(site.files, site.copies)
    assert [one.number for one in found.changes if one.happened] == list(range(1, 1501))
    assert site.files.reads < 60
    assert site.copies.reads == 0


def test_a_change_does_as_much_to_the_files_after_many_others_as_at_first() -> None:
    operations, sizes = [], []
    site = Site()
    for _ in range(4):
        before = len(site.journal.main)
        for _ in range(256):
            number = site.change("F")
            site.shrink(max(number - 4, 1))
            site.tidy()
        done = site.journal.main[before:]
        operations.append(len(done))
        sizes.append(sum(len(one.data or b"") for one in done))
    assert max(operations) < 1.05 * operations[0]
    assert max(sizes) < 2 * sizes[0], "each record is written again once for each level"


def test_a_step_writes_one_bounded_segment_or_removes_a_few_files() -> None:
    site = Site()
    for number in range(1, 700):
        site.change("F")
        site.shrink(max(number - 4, 1))
    more, longest = True, 0
    while more:
        before = len(site.journal.main)
        more = site.log.tidy()
        done = site.journal.main[before:]
        written = [one.data for one in done if one.data is not None]
        longest = max([longest, *map(len, written)])
        assert len(written) <= 1
        assert len(done) - len(written) <= (0 if written else AT_ONCE)
    assert 50_000 < longest < 1.1 * MOST_BYTES
    assert len(site.files.contents) < DUE + 5 * FAN


def test_large_migrations_are_written_into_a_segment_once() -> None:
    """What is large is never merged, so a commit never waits for much of it."""
    site = Site()
    for _ in range(200):
        number = site.request("F")
        site.log.commit(number)
        site.log.take_effect(number, number)
        site.log.end(Ended(number, 1.0, "done"))
        site.tidy()
    assert all(len(one.data or b"") < MOST_BYTES for one in site.journal.main)
