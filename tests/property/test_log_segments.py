"""Any life of a log that is tidied at any moment, with crashes: it says what single records say."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fries.log.reading import Reading
from fries.log.records import Committed, Ended, Intent
from fries.log.segments import Past, pack, unpack
from tests.files import MemoryFiles
from tests.lives import Operation, Site, after, model, said, small

STEPS = st.sampled_from(
    ["change", "change", "abort", "request", "roll back", "back", "fail", "shrink", "tidy", "start"]
)


def do(site: Site, step: str, number: int) -> None:
    """One step; the number chooses a change that happened, or how much is tidied."""
    done = [one.number for one in Reading(site.files, site.copies).changes if one.happened]
    match step:
        case "change":
            site.change()
        case "roll back":
            site.change(end="rolled back")
        case "abort":
            site.abort()
        case "request":
            site.request()
        case "tidy":
            site.tidy(number)
        case "start":
            site.start()
        case _ if done:
            {"back": site.back, "fail": site.fail, "shrink": site.shrink}[step](
                done[-1 - number % min(len(done), 6)]
            )


def crashed(site: Site, behind: int) -> Site:
    """The next driver, after one that ended with its copy some operations behind."""
    copies = site.journal.copy[: max(len(site.journal.copy) - behind, 0)]
    later = Site(site.files.contents, after(copies))
    earlier = [one for one in site.journal.main if one.data is not None]
    later.journal.main[:0] = [Operation(one.name, one.data, 0) for one in earlier]
    later.journal.copy[:0] = copies
    return later


@given(st.lists(st.tuples(STEPS | st.just("crash"), st.integers(0, 9)), max_size=60))
@example([("change", 0), ("change", 0), ("tidy", 1), ("back", 0), ("crash", 1)])
@settings(deadline=None, max_examples=150)
def test_a_log_that_is_tidied_says_what_its_records_say(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        site = Site()
        for step, number in steps:
            if step == "crash":
                site = crashed(site, number)
            else:
                do(site, step, number)
            assert said(Reading(site.files, site.copies)) == model(site.journal.main)
        site.tidy()
        expected = model(site.journal.main)
        assert said(Reading(site.files, site.copies)) == expected
        site.start()
        site.tidy()
        assert said(Reading(site.files)) == expected, "without the copy, too"
        lost = said(Reading(MemoryFiles(), site.copies))[1]
        happened = {number: one for number, one in expected[1].items() if one[1]}
        assert {number: one[:3] for number, one in lost.items() if one[1]} == {
            number: one[:3] for number, one in happened.items()
        }, "the copy alone knows what happened"


PASTS = st.builds(
    Past,
    st.integers(0, 2**40),
    st.none()
    | st.builds(
        Intent,
        st.integers(0, 9),
        st.floats(0, 9),
        st.just(("F",)),
        st.text(max_size=3),
        st.just(((("F",), ("F",)),)),
        st.just({"F": 1}),
        st.binary(max_size=9),
    ),
    st.none() | st.builds(Committed, st.integers(0, 9), st.floats(0, 9), st.integers(-1, 9)),
    st.none(),
    st.none() | st.builds(Ended, st.integers(0, 9), st.floats(0, 9), st.text(max_size=5)),
    st.booleans(),
)


@given(st.lists(PASTS, max_size=5))
def test_what_is_packed_is_what_is_unpacked(pasts: list[Past]) -> None:
    assert unpack(memoryview(pack(pasts))) == pasts
