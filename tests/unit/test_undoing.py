"""Which changes go with one that is taken back, and which stay."""

from __future__ import annotations

import pytest

from fries.change.model import Phase
from fries.errors import UpdateRefusedError
from fries.runtime.spec import EdgeSpec
from fries.undoing import built_on, feeding, undoable
from fries.versions import Applied, Versions
from tests.unit.test_versions import F, G, applied, named, undo


def always(later: Applied, without: frozenset[int]) -> bool:
    return later.change.number not in without


def made(*changes: Applied) -> Versions:
    versions = Versions((F, G))
    for one in changes:
        versions.add(one)
    return versions


def committed(number: int, *names: str) -> Applied:
    specs = {"F": F, "G": G}
    return applied(number, *(named(specs[name], number) for name in names), phase=Phase.COMMITTED)


def test_a_later_change_of_another_operator_stays() -> None:
    bad = committed(1, "F")
    assert built_on(bad, made(bad, committed(2, "G")).after(1), always) == {}


def test_a_later_change_of_the_same_operator_goes_and_says_why() -> None:
    bad = committed(1, "F", "G")
    found = built_on(bad, made(bad, committed(2, "G")).after(1), always)
    reason = "it was made for operator 'G' as of change 1, and change 1 was taken back"
    assert found == {2: reason}


def test_what_was_built_on_one_that_goes_goes_too() -> None:
    bad = committed(1, "F")
    changes = made(bad, committed(2, "F", "G"), committed(3, "G"))
    found = built_on(bad, changes.after(1), always)
    assert found.keys() == {2, 3}
    assert found[3].startswith("it was made for operator 'G' as of change 2")


def test_a_change_whose_columns_do_not_fit_alone_goes() -> None:
    bad = committed(1, "F")
    asked: list[frozenset[int]] = []

    def never(later: Applied, without: frozenset[int]) -> bool:
        asked.append(without)
        return later.change.number == 0

    found = built_on(bad, made(bad, committed(2, "G")).after(1), never)
    assert found == {2: "its columns do not fit without change 1, and change 1 was taken back"}
    assert asked == [frozenset({1})]


def test_earlier_changes_and_those_that_never_happened_do_not_go() -> None:
    bad = committed(2, "F")
    gone = applied(3, named(F, 3), phase=Phase.ABORTED)
    assert built_on(bad, made(committed(1, "F"), bad, gone).after(2), always) == {}


def test_only_what_is_in_force_can_be_undone() -> None:
    versions = made(committed(1, "F"), committed(2, "F"))
    assert undoable(versions, ("F",), 2).change.number == 2
    with pytest.raises(UpdateRefusedError, match="change 2 came after change 1; undo that first"):
        undoable(versions, ("F",), 1)
    versions.add(undo(3, named(F, 1), of=2))
    assert undoable(versions, ("F",), 1).change.number == 1, "it is in force again"
    with pytest.raises(UpdateRefusedError, match="change 9 is not in place"):
        undoable(versions, ("F",), 9)


def test_an_operator_is_fed_by_all_that_come_before_it() -> None:
    pairs = ("A", "B"), ("B", "C"), ("A", "D"), ("D", "C"), ("C", "E"), ("X", "Y")
    edges = [EdgeSpec(n, *pair) for n, pair in enumerate(pairs)]
    assert feeding(["C"], edges) == {"A", "B", "D"}
    assert feeding(["A", "Y"], edges) == {"X"}
    assert feeding([], edges) == set()
