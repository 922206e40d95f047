"""What the driver knows about versions, and how it tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fries.change.model import Change, Order, Phase
from fries.control.messages import Failed
from fries.errors import UpdateRefusedError
from fries.history import entry_of
from fries.runtime.spec import Function, Keying, Kind, OperatorSpec
from fries.updates import Revision, revised
from fries.versions import MOST_CHAINED, MOST_CHAINED_BYTES, Applied, Kept, Versions

ROWS = pa.schema({"k": pa.int64()})
WIDER = pa.schema({"k": pa.int64(), "n": pa.int64()})


def original(row: object) -> object:
    return row


def updated(row: object) -> object:
    return row


def fold(state: object, row: object) -> object:
    return (state, row)


def migrate(state: object) -> object:
    return state


def inverse(state: object) -> object:
    return state


def result(state: object) -> object:
    return state


F = OperatorSpec("F", Kind.PROCESS, ROWS, original, keying=Keying(("k",)))
G = OperatorSpec("G", Kind.MAP, ROWS, original)
H = OperatorSpec("H", Kind.PASS, ROWS)


def named(spec: OperatorSpec, number: int) -> OperatorSpec:
    """A version that can be told from others."""
    return replace(spec, branches=number)


def applied(
    number: int,
    *specs: OperatorSpec,
    phase: Phase = Phase.PREPARING,
    since: int = 0,
    before: Mapping[str, OperatorSpec] | None = None,
    migrations: Mapping[str, Function | None] | None = None,
    inverses: Mapping[str, Function | None] | None = None,
) -> Applied:
    """A change that brings some versions; its digests are its number."""
    names = tuple(spec.name for spec in specs)
    change = Change(number, Order(names, b"", frozenset()))
    change.phase, change.since = phase, since
    olds = {F.name: F, G.name: G}
    return Applied(
        change,
        {spec.name: spec for spec in specs},
        before or {name: olds[name] for name in names},
        migrations or {},
        inverses or {},
        dict.fromkeys(names, Kept(b"%d" % number, {}, max, None, None, None)),
    )


def numbers(versions: Versions, finished: float = 0, decided_only: bool = False) -> dict[str, int]:
    current = versions.current(finished, decided_only)
    return {name: spec.branches for name, spec in current.items()}


# Current versions


def test_a_flow_begins_with_its_own_versions() -> None:
    versions = Versions((F, G, H))
    assert versions.current(-1) == {"F": F, "G": G, "H": H}
    assert list(versions.current(-1)) == ["F", "G", "H"], "in topological order"
    assert not versions.undecided
    assert versions.newest("F") is None
    assert versions.find(1) is None
    assert not versions.has("F", b"1")


@pytest.mark.parametrize(
    ("phase", "usual", "decided"),
    [
        (Phase.QUEUED, 5, 1),
        (Phase.PREPARING, 5, 1),
        (Phase.COMMITTED, 5, 5),
        (Phase.DONE, 5, 5),
        (Phase.ABORTED, 1, 1),
        (Phase.ROLLED_BACK, 1, 1),
    ],
)
@pytest.mark.parametrize("finished", [-1, 7])
def test_a_change_counts_from_its_request_until_it_is_taken_back(
    phase: Phase, usual: int, decided: int, finished: int
) -> None:
    versions = Versions((F, G))
    versions.add(applied(1, named(F, 5), phase=phase, since=3))
    assert numbers(versions, finished, decided_only=True) == {"F": decided, "G": 1}
    assert numbers(versions, finished) == {"F": usual, "G": 1}
    assert versions.undecided is (phase in (Phase.QUEUED, Phase.PREPARING))


def test_the_newest_of_several_changes_counts() -> None:
    versions = Versions((F, G))
    versions.add(applied(1, named(F, 2), named(G, 2), phase=Phase.DONE))
    versions.add(applied(2, named(F, 3), phase=Phase.COMMITTED))
    versions.add(applied(3, named(F, 4)))
    assert numbers(versions) == {"F": 4, "G": 2}
    assert numbers(versions, decided_only=True) == {"F": 3, "G": 2}


def test_a_change_whose_batch_is_not_finished_can_still_be_rolled_back() -> None:
    versions = Versions((F,))
    one = applied(1, named(F, 2), phase=Phase.DONE, since=4)
    versions.add(one)
    assert numbers(versions, finished=3) == {"F": 2}
    one.change.phase = Phase.ROLLED_BACK
    assert numbers(versions, finished=3) == {"F": 1}
    assert versions.newest("F") is None


def test_a_change_whose_batch_is_finished_stays() -> None:
    versions = Versions((F,))
    one = applied(1, named(F, 2), phase=Phase.DONE, since=4)
    versions.add(one)
    assert numbers(versions, finished=4) == {"F": 2}
    assert numbers(versions, finished=4, decided_only=True) == {"F": 2}
    assert _number(versions.newest("F")) == 1
    assert _number(versions.find(1)) == 1


def test_changes_settle_in_their_order() -> None:
    versions = Versions((F,))
    first = applied(1, named(F, 2), phase=Phase.COMMITTED)
    versions.add(first)
    versions.add(applied(2, named(F, 3), phase=Phase.DONE))
    assert numbers(versions) == {"F": 3}
    first.change.phase = Phase.DONE
    assert numbers(versions) == {"F": 3}, "the older one does not come back"


# Whether an update is there already


def test_an_update_is_known_again_by_its_digest() -> None:
    versions = Versions((F, G))
    versions.add(applied(1, named(F, 2), phase=Phase.DONE))
    assert versions.has("F", b"1")
    assert not versions.has("F", b"2")
    assert not versions.has("G", b"1")
    versions.current(0)
    assert versions.has("F", b"1"), "also when it has settled"


def test_only_the_newest_update_counts_as_there() -> None:
    versions = Versions((F,))
    versions.add(applied(1, named(F, 2), phase=Phase.DONE))
    second = applied(2, named(F, 3))
    versions.add(second)
    assert versions.has("F", b"2")
    assert not versions.has("F", b"1"), "to go back to it is a change"
    second.change.phase = Phase.ABORTED
    assert versions.has("F", b"1")


# Which change brought a version


def test_the_newest_change_of_an_operator() -> None:
    versions = Versions((F, G))
    first = applied(1, named(F, 2), named(G, 2), phase=Phase.DONE)
    second = applied(2, named(F, 3), phase=Phase.DONE)
    versions.add(first)
    versions.add(second)
    for finished in (-1, 0):
        versions.current(finished)
        assert _number(versions.newest("F")) == 2
        assert _number(versions.newest("G")) == 1
        assert _number(versions.find(1)) == 1, "one of its versions is still the newest"
        assert _number(versions.find(2)) == 2


def _number(applied: Applied | None) -> int:
    assert applied is not None
    return applied.change.number


def test_what_was_there_before_a_change_is_known_when_those_before_it_are_decided() -> None:
    versions = Versions((F,))
    first = applied(1, named(F, 2), phase=Phase.PREPARING)
    second = applied(2, named(F, 3), phase=Phase.DONE)
    versions.add(first)
    versions.add(second)
    first.change.phase = Phase.ABORTED
    for finished in (-1, 0):
        versions.current(finished)
        found = versions.find(2)
        assert found is not None
        assert found.before["F"] is F, "the first never ran"


def test_a_change_whose_versions_were_all_replaced_for_good_is_forgotten() -> None:
    versions = Versions((F,))
    for number in range(1, MOST_CHAINED + 2):
        versions.add(applied(number, named(F, number), phase=Phase.DONE))
    versions.current(0)
    assert versions.find(1) is None
    assert versions.find(2) is not None


def test_large_functions_of_fewer_versions_are_kept() -> None:
    versions = Versions((F,))
    for number in range(1, 9):
        made = applied(number, named(F, number), phase=Phase.DONE)
        versions.add(replace(made, size=MOST_CHAINED_BYTES // 5))
    versions.current(0)
    assert [n for n in range(1, 9) if versions.find(n)] == [4, 5, 6, 7, 8]
    for number in range(9, 13):
        made = applied(number, named(F, number), phase=Phase.DONE)
        versions.add(replace(made, size=MOST_CHAINED_BYTES))
    versions.current(0)
    assert [n for n in range(1, 13) if versions.find(n)] == [10, 11, 12]


def test_a_version_that_the_log_has_forgotten_is_not_taken_for_the_first_one() -> None:
    versions = Versions((F, G))
    versions.skip(("F",))
    versions.add(applied(2, named(F, 2), named(G, 2), phase=Phase.DONE))
    versions.add(applied(3, named(F, 3), phase=Phase.DONE))
    for finished in (-1, 0):
        versions.current(finished)
        second, third = versions.find(2), versions.find(3)
        assert second is not None
        assert third is not None
        assert third.inverted()["F"].function is original
        with pytest.raises(
            UpdateRefusedError, match="no longer has the version from before change"
        ):
            second.inverted()


# What rows get, and what can be taken back next


def undo(number: int, *specs: OperatorSpec, of: int) -> Applied:
    """A change that takes another one back."""
    made = applied(number, *specs, phase=Phase.DONE)
    made.change.order = replace(made.change.order, undoes=of)
    return made


def in_force(versions: Versions) -> list[int]:
    return [one.change.number for one in versions.in_force()]


@pytest.mark.parametrize("finished", [-1, 0])
def test_the_newest_version_of_each_operator_is_in_force(finished: int) -> None:
    versions = Versions((F, G, H))
    versions.add(applied(1, named(F, 2), named(G, 2), phase=Phase.DONE))
    versions.add(applied(2, named(F, 3), phase=Phase.DONE))
    versions.add(applied(3, named(G, 3), phase=Phase.ROLLED_BACK))
    versions.add(applied(4, named(G, 3)))
    versions.current(finished)
    assert in_force(versions) == [2, 1], "not what was taken back, nor what is undecided"


@pytest.mark.parametrize("finished", [-1, 0])
def test_behind_an_undo_the_version_before_is_in_force_again(finished: int) -> None:
    versions = Versions((F,))
    versions.add(applied(1, named(F, 2), phase=Phase.DONE))
    versions.add(applied(2, named(F, 3), phase=Phase.DONE))
    versions.add(undo(3, named(F, 2), of=2))
    versions.current(finished)
    assert in_force(versions) == [1]
    assert versions.is_in_force("F", 1)
    assert _number(versions.newest("F")) == 3, "which can be undone, too"
    assert _number(versions.find(1)) == 1
    versions.add(undo(4, named(F, 1), of=1))
    versions.current(finished)
    assert in_force(versions) == []


def automatic(number: int, *specs: OperatorSpec, of: int) -> Applied:
    """A rollback."""
    made = undo(number, *specs, of=of)
    made.change.order = replace(made.change.order, automatic=True)
    return made


@pytest.mark.parametrize("finished", [-1, 0])
def test_a_rollback_that_fails_blames_the_version_that_it_has_uncovered(finished: int) -> None:
    versions = Versions((F, G))
    for number in (1, 2):
        versions.add(applied(number, named(F, number), named(G, number), phase=Phase.DONE))
    versions.add(automatic(3, named(F, 1), named(G, 1), of=2))
    versions.current(finished)

    def culprit(number: int, operator: str) -> int | None:
        found = versions.culprit(number, operator)
        return None if found is None else found.change.number

    assert culprit(1, "F") == 1
    assert culprit(3, "F") == culprit(3, "G") == 1
    versions.add(applied(4, named(G, 4), phase=Phase.DONE))
    versions.current(finished)
    assert culprit(3, "F") == 1
    assert culprit(3, "G") is None, "another version has taken its place"
    versions.add(automatic(5, F, named(G, 4), of=1))
    versions.current(finished)
    assert culprit(5, "F") is None, "the flow was built with that one"


@pytest.mark.parametrize("finished", [-1, 0])
def test_later_changes_are_those_that_rows_get(finished: int) -> None:
    versions = Versions((F, G))
    versions.add(applied(1, named(F, 11), named(G, 11), phase=Phase.DONE))
    versions.add(applied(2, named(G, 12), phase=Phase.DONE))
    versions.add(applied(3, named(G, 13), phase=Phase.DONE))
    versions.add(undo(4, named(G, 12), of=3))
    versions.current(finished)
    (later,) = versions.later(1)
    assert later.change.number == 2
    assert later.before["G"].branches == 11
    without = versions.current(finished, without=frozenset({1, 2}))
    assert (without["F"], without["G"]) == (F, G)
    assert versions.current(finished, without=frozenset({2}))["G"].branches == 11


def test_an_undo_that_is_undone_is_a_change_like_any_other() -> None:
    versions = Versions((F,))
    versions.add(applied(1, named(F, 2), phase=Phase.DONE))
    versions.add(undo(2, named(F, 1), of=1))
    versions.add(undo(3, named(F, 2), of=2))
    assert in_force(versions) == [3]


@pytest.mark.parametrize("phase", [Phase.ABORTED, Phase.ROLLED_BACK])
def test_a_change_that_was_taken_back_is_not_found(phase: Phase) -> None:
    """There is nothing to undo."""
    versions = Versions((F,))
    versions.add(applied(1, named(F, 2), phase=phase))
    assert versions.find(1) is None
    assert versions.newest("F") is None


# The way back


def test_the_way_back_has_the_functions_from_before() -> None:
    old = replace(F, kind=Kind.AGGREGATE, result=result)
    change = applied(1, replace(old, function=updated), before={"F": old})
    assert change.inverted() == {"F": Revision(original, None, None, result, None)}


def test_the_way_back_says_which_version_it_goes_to() -> None:
    rules = revised(G, Revision(updated, label="rules v2"))
    newest = replace(G, function=migrate)
    built, again = (
        applied(1, newest, before={"G": old}).inverted()["G"].label for old in (G, rules)
    )
    assert again == "rules v2"
    assert built == f"as built {revised(G, Revision(original)).label}"


def test_an_aggregate_that_had_no_result_function_gives_its_states_again() -> None:
    """An update without one would keep the new one."""
    old = replace(F, kind=Kind.AGGREGATE, function=fold)
    change = applied(1, replace(old, result=result), before={"F": old})
    undone = revised(change.specs["F"], change.inverted()["F"])
    assert undone.result is not None
    assert undone.result({"n": 1}) == {"n": 1}


def test_states_go_back_through_the_inverse_and_could_come_again() -> None:
    change = applied(
        1, replace(F, function=updated), migrations={"F": migrate}, inverses={"F": inverse}
    )
    assert change.inverted() == {"F": Revision(original, inverse, None, None, migrate)}


def test_states_that_were_migrated_without_an_inverse_cannot_go_back() -> None:
    change = applied(4, replace(F, function=updated), G, migrations={"F": migrate, "G": None})
    with pytest.raises(UpdateRefusedError, match=r"change 4 migrated its states.*inverse=") as one:
        change.inverted()
    assert one.value.operator == "F"


def test_columns_go_back_if_they_were_changed() -> None:
    change = applied(1, replace(G, function=updated, schema=WIDER))
    assert change.inverted() == {"G": Revision(original, None, ROWS)}


# What people are told


def changed(phase: Phase = Phase.DONE, note: str = "") -> Change:
    order = Order(
        ("F", "G"), b"", frozenset(), requested=1000.0, versions={"F": 2, "G": 1}, note=note
    )
    return Change(3, order, phase=phase)


def test_an_entry_tells_a_change_on_one_line() -> None:
    change = changed(note="for the audit")
    change.settled = 1000.0125
    change.took("F", 5, 0)
    assert entry_of(change.summary()).state == "untried", "no row of G has met it"
    change.took("G", 1, 2)
    entry = entry_of(change.summary())
    assert entry.time == datetime.fromtimestamp(1000.0, UTC)
    assert (entry.number, entry.versions, entry.scheduler) == (3, {"F": 2, "G": 1}, "fries")
    assert (
        str(entry)
        == "3. 1970-01-01 00:16:40 F v2, G v1: done, switched after 12.5 ms (for the audit)"
    )


def test_an_entry_of_a_change_without_a_delay_or_a_note() -> None:
    entry = entry_of(changed(Phase.QUEUED).summary())
    assert str(entry) == "3. 1970-01-01 00:16:40 F v2, G v1: queued"


def test_the_delay_of_an_earlier_life_is_told() -> None:
    change = changed()
    change.logged_delay = 0.5
    assert entry_of(change.summary()).delay == 0.5


def test_an_entry_tells_why_a_change_was_taken_back() -> None:
    aborted = changed(Phase.ABORTED)
    aborted.reason = "a: no"
    entry = entry_of(aborted.summary())
    assert (entry.state, entry.reason) == ("aborted", "a: no")
    failed = changed()
    failure = Failed(5, "F", 3, "division by zero", "row", "story")
    failed.failed(failure, failure.problem)
    entry = entry_of(failed.summary())
    assert (entry.state, entry.reason) == ("rolled back", "division by zero")
    assert str(entry) == "3. 1970-01-01 00:16:40 F v2, G v1: rolled back: division by zero"


def test_an_entry_names_the_versions_by_their_labels() -> None:
    change = changed(Phase.QUEUED)
    change.order = replace(change.order, labels={"F": "rules v2", "G": "#1f0c93ab"})
    entry = entry_of(change.summary())
    assert str(entry) == "3. 1970-01-01 00:16:40 F v2 (rules v2), G v1 (#1f0c93ab): queued"
    assert repr(entry) == str(entry)
