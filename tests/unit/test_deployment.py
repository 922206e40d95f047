"""Starts with other code on a log: what is deployed, what stays, and what can be taken back."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace as but

from fries.change.model import Change
from fries.control.ledger import intent_of
from fries.control.news import News
from fries.errors import LogDamagedError, LogMismatchError
from fries.events import ChangeCommitted, ChangeDone, ChangeRequested, Event
from fries.listening import Announcer
from fries.log.owners import take_over
from fries.log.reading import Reading
from fries.log.records import Ended, Founded, decode, encode
from fries.plan import Plan
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Function, Keying, Kind, OperatorSpec, Style
from fries.schedulers import scheduler
from fries.spark.deployment import Program
from fries.spark.shipping import order_of, packed
from fries.spark.starting import Start
from fries.traits import graph_of
from tests.files import MemoryFiles

ROWS = pa.schema({"k": pa.int64()})
WIDER = pa.schema({"k": pa.int64(), "n": pa.int64()})
SOURCE = OperatorSpec("rows", Kind.PASS, ROWS)
EDGES = (
    EdgeSpec(0, "", "rows"),
    EdgeSpec(1, "rows", "FM"),
    EdgeSpec(2, "FM", "A"),
    EdgeSpec(3, "A", "B"),
    EdgeSpec(4, "B", "output"),
)


def version(number: object) -> Function:
    """A function that can be told from others."""
    return lambda row: (number, row)


def fold(number: object) -> Function:
    """A keyed function."""
    return lambda state, row: (state, (number, row))


def plus(number: int) -> Function:
    """A migration."""
    return lambda state: state + number


def program(
    fm: object = 1,
    a: object = 1,
    b: object = 1,
    migrations: tuple[Function, ...] = (),
    inner: pa.Schema = ROWS,
    outer: pa.Schema = ROWS,
    groups: int = 4,
) -> Program:
    """A flow of a keyed operator and two that share a stage behind it."""
    keying = Keying(("k",), initial=0, migrations=migrations)
    operators = (
        SOURCE,
        OperatorSpec("FM", Kind.PROCESS, ROWS, fold(fm), takes=ROWS, keying=keying),
        OperatorSpec("A", Kind.MAP, inner, version(a), takes=ROWS),
        OperatorSpec("B", Kind.MAP, outer, version(b), takes=inner),
    )
    named = {spec.name: spec for spec in operators}
    graph = graph_of(named, EDGES, ("rows",), ("output",))
    return Program(operators, EDGES, groups, {1: ROWS, 2: ROWS, 4: outer}, graph)


class Driver:
    """One that has started."""

    def __init__(
        self,
        files: MemoryFiles,
        copies: MemoryFiles,
        code: Program,
        replace_functions: bool | None,
    ) -> None:
        starts: list[Start] = []

        def check(read: Reading) -> None:
            read.refuse_damage()
            starts.append(Start(code, read, 5, replace_functions))

        read, owner = take_over(files, copies, check)
        self.start, self.code = starts[-1], code
        self.log = self.start.open(files, copies, read, owner)
        self.deployed: tuple[Plan, Change] | None = self.start.deploy(self.log)
        self.start.tell("fraud", self.deployed)

    def change(
        self,
        name: str,
        function: Function,
        migrate: Function | None = None,
        note: str = "",
        **columns: Any,  # noqa: ANN401
    ) -> int:
        """A live change."""
        number, current = self.log.last + 1, self.start.versions.current(5)
        new = {name: replace(current[name], function=function, **columns)}
        package = packed(Shipped(new, {name: migrate}), self.start.versions.built)
        plan = scheduler("fries")(self.code.graph, [name])
        order = order_of(
            plan,
            package,
            {name: 1},
            labels={name: "a label"},
            requested=1.0,
            note=note,
            timeout=1.0,
            automatic=False,
            undoes=0,
            stages=frozenset(),
        )
        self.log.intend(intent_of(number, order), (order.payload, *order.buffers))
        self.log.commit(number)
        self.log.end(Ended(number, 1.0, "done"))
        return number

    def runs(self) -> dict[str, object]:
        """By operator, which function its rows get."""
        current = self.start.versions.current(5)
        functions = {name: spec.function for name, spec in current.items()}
        return {
            "FM": _number(functions["FM"], None, "row"),
            "A": _number(functions["A"], "row"),
            "B": _number(functions["B"], "row"),
        }

    def migrated(self, state: int) -> int:
        """A state of the first code, brought up as a worker does it."""
        for change in self.start.changes:
            if not change.taken_back:
                shipped = Shipped.of(_loads(change), self.start.versions.built)
                step = shipped.migrations.get("FM")
                state = state if step is None else step(state)
        return state


def _number(function: Function | None, *arguments: object) -> object:
    assert function is not None
    found = function(*arguments)
    return found[1][0] if len(arguments) == 2 else found[0]


def _loads(change: Change) -> Any:  # noqa: ANN401
    return pickle.loads(change.order.payload, buffers=change.order.buffers)


class Site:
    """A checkpoint, and the drivers that come one after the other."""

    def __init__(self) -> None:
        self.files, self.copies = MemoryFiles(), MemoryFiles()
        self._driver: Driver | None = None

    def start(self, code: Program, replace_functions: bool | None = None) -> Driver:
        """The next driver."""
        self.stop()
        self._driver = Driver(self.files, self.copies, code, replace_functions)
        return self._driver

    def stop(self) -> None:
        """The driver ends."""
        if self._driver is not None:
            self._driver.log.close()
        self._driver = None


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.stop()


def note(driver: Driver) -> str:
    assert driver.deployed is not None
    return driver.deployed[1].order.note


def test_a_plain_restart_deploys_nothing_and_writes_nothing(site: Site) -> None:
    assert site.start(program()).deployed is None
    names = set(site.files.contents)
    again = site.start(program())
    assert again.deployed is None
    assert set(site.files.contents) - names == {"00000002.owner"}


def test_new_code_is_deployed_by_a_change_that_says_so(site: Site) -> None:
    site.start(program())
    driver = site.start(program(a=2))
    assert driver.runs() == {"FM": 1, "A": 2, "B": 1}
    assert driver.deployed is not None
    plan, change = driver.deployed
    assert (plan.targets, change.number) == (("A",), 1)
    assert change.order.versions == {"A": 1}
    assert note(driver) == "deployed by a start: A (its code has changed)"
    assert site.start(program(a=2)).deployed is None


def test_new_code_replaces_a_live_change_and_names_it(site: Site) -> None:
    """v1, live change to v2, and the driver is started again with v3."""
    site.start(program()).change("A", version(2), note="ticket 7")
    driver = site.start(program(a=3))
    assert driver.runs()["A"] == 3
    assert "its code has changed; it replaces change 1 (ticket 7)" in note(driver)
    assert driver.deployed is not None
    assert driver.deployed[1].order.versions == {"A": 2}


def test_the_same_code_keeps_a_live_change(site: Site) -> None:
    site.start(program()).change("A", version(2))
    driver = site.start(program())
    assert (driver.runs()["A"], driver.deployed) == (2, None)
    assert site.start(program()).runs()["A"] == 2


def test_a_live_change_after_a_deployment_stays(site: Site) -> None:
    site.start(program())
    site.start(program(a=3)).change("A", version(4))
    assert site.start(program(a=3)).runs()["A"] == 4


def test_code_that_one_start_keeps_back_is_deployed_by_the_next_one(site: Site) -> None:
    site.start(program())
    for _ in range(2):
        assert site.start(program(a=2), replace_functions=False).runs()["A"] == 1
    driver = site.start(program(a=2))
    assert driver.runs()["A"] == 2
    assert note(driver) == "deployed by a start: A (its code has changed)"


def test_the_note_of_a_deployment_does_not_tell_those_before_it_again(site: Site) -> None:
    site.start(program()).change("A", version(2), note="ticket 7 " * 50)
    notes = [note(site.start(program(a=number))) for number in range(3, 7)]
    assert max(map(len, notes)) < 200
    assert notes[1:] == [
        f"deployed by a start: A (its code has changed; it replaces change {number} (a deployment))"
        for number in (2, 3, 4)
    ]


def test_a_live_change_that_moved_into_the_code_is_no_deployment(site: Site) -> None:
    """And from then on it is the code: the next live change stays."""
    site.start(program()).change("A", version(2))
    driver = site.start(program(a=2))
    assert (driver.runs()["A"], driver.deployed) == (2, None)
    driver.change("A", version(5))
    assert site.start(program(a=2)).runs()["A"] == 5
    assert site.start(program(a=1)).runs()["A"] == 1, "the first code again is other code"


def test_only_operators_with_new_code_get_it(site: Site) -> None:
    driver = site.start(program())
    driver.change("A", version(2))
    driver.change("B", version(2))
    assert site.start(program(b=3)).runs() == {"FM": 1, "A": 2, "B": 3}


def test_the_flag_takes_live_changes_back_and_names_them_each_time(site: Site) -> None:
    site.start(program()).change("A", version(2), note="hot fix")
    driver = site.start(program(), replace_functions=True)
    assert driver.runs()["A"] == 1
    assert "replace_functions=True asks for the code; it replaces change 1 (hot fix)" in note(
        driver
    )
    driver.change("A", version(3))
    driver = site.start(program(), replace_functions=True)
    assert driver.runs()["A"] == 1
    assert "it replaces change 3" in note(driver)
    assert site.start(program(), replace_functions=True).deployed is None


def test_without_deployment_what_is_logged_stays(site: Site) -> None:
    site.start(program()).change("A", version(2))
    driver = site.start(program(a=3, b=3), replace_functions=False)
    assert (driver.runs(), driver.deployed) == ({"FM": 1, "A": 2, "B": 1}, None)


def test_a_deployment_that_was_rolled_back_is_not_tried_again(site: Site) -> None:
    site.start(program()).change("A", version(2))
    driver = site.start(program(a=3))
    assert driver.deployed is not None
    number = driver.deployed[1].number
    driver.log.end(Ended(number, 1.0, "rolled back", "it raised"))
    again = site.start(program(a=3))
    assert (again.runs()["A"], again.deployed) == (2, None)
    assert site.start(program(a=4)).runs()["A"] == 4


def test_the_first_code_is_there_to_go_back_to(site: Site) -> None:
    site.start(program(a=1))
    driver = site.start(program(a=2))
    assert driver.deployed is not None
    applied = driver.start.versions.find(driver.deployed[1].number)
    assert applied is not None
    before = applied.inverted()["A"].function
    assert before(0) == (1, 0)
    driver.log.end(Ended(1, 1.0, "rolled back", "it raised"))
    assert site.start(program(a=2)).runs()["A"] == 1


def test_a_crash_before_the_code_is_noted_loses_nothing(site: Site) -> None:
    site.start(program())
    site.start(program(a=2))
    site.stop()
    del site.files.contents["00000001.flow"], site.copies.contents["00000001.flow"]
    driver = site.start(program(a=2))
    assert (driver.runs()["A"], driver.deployed) == (2, None)
    driver.change("A", version(5))
    assert site.start(program(a=2)).runs()["A"] == 5


def test_a_crash_before_the_commit_of_a_deployment_repeats_it(site: Site) -> None:
    site.start(program())
    site.stop()
    before = dict(site.files.contents)
    site.start(program(a=2))
    site.stop()
    site.files.contents = before | {"00000001.intent": site.files.contents["00000001.intent"]}
    site.copies.contents = {"00000000.flow": site.copies.contents["00000000.flow"]}
    driver = site.start(program(a=2))
    assert driver.deployed is not None
    assert driver.deployed[1].number == 2


# Columns


def test_new_code_may_bring_other_columns_inside_a_stage(site: Site) -> None:
    site.start(program())
    driver = site.start(program(a=2, inner=WIDER))
    assert driver.deployed is not None
    assert driver.deployed[0].targets == ("A", "B"), "B gets other columns now"
    current = driver.start.versions.current(5)
    assert (current["A"].schema, current["B"].takes) == (WIDER, WIDER)
    assert site.start(program(a=2, inner=WIDER)).deployed is None


def test_new_code_that_does_not_fit_a_live_change_is_refused(site: Site) -> None:
    """A live change of A gives two columns, and the new code of B takes one."""
    driver, code = site.start(program()), program()
    driver.change("A", version(2), schema=WIDER)
    driver.change("B", version(2), takes=WIDER)
    arrow = replace(
        code.operators[-1], style=Style.ARROW, function=lambda batch: batch.rename_columns(["k"])
    )
    code = code._replace(operators=(*code.operators[:-1], arrow))
    with pytest.raises(LogMismatchError, match="replace_functions=True all code is deployed"):
        site.start(code)
    deployed = site.start(code, replace_functions=True).deployed
    assert deployed is not None
    assert deployed[0].targets == ("A", "B")


def test_other_columns_of_the_plan_are_refused_and_then_deployed_without_a_way_back(
    site: Site,
) -> None:
    site.start(program()).change("A", version(2))
    files = dict(site.files.contents)
    with pytest.raises(LogMismatchError, match="there is no way back"):
        site.start(program(b=2, outer=WIDER))
    site.files.contents = {k: v for k, v in site.files.contents.items() if k in files}
    driver = site.start(program(b=2, outer=WIDER), replace_functions=True)
    assert driver.runs() == {"FM": 1, "A": 1, "B": 2}
    assert "no version before fits" in note(driver)
    driver.change("A", version(7))
    assert site.start(program(b=2, outer=WIDER)).runs() == {"FM": 1, "A": 7, "B": 2}


def test_another_flow_is_refused_before_anything_is_written(site: Site) -> None:
    site.start(program())
    site.stop()
    before = dict(site.files.contents)
    for code in (program(groups=8), program(groups=8, a=2)):
        with pytest.raises(LogMismatchError, match="it had 4 key groups, now 8"):
            site.start(code)
    assert site.files.contents == before


# States


def test_a_migration_that_moved_into_the_code_is_not_repeated(site: Site) -> None:
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    driver = site.start(program(fm=2, migrations=(plus(1),)))
    assert driver.deployed is None
    assert driver.migrated(0) == 1


def test_new_code_with_a_new_migration_behind_the_logged_ones(site: Site) -> None:
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    driver = site.start(program(fm=3, migrations=(plus(1), plus(10), plus(100))))
    assert driver.deployed is not None
    assert driver.migrated(0) == 111
    again = site.start(program(fm=3, migrations=(plus(1), plus(10), plus(100))))
    assert (again.deployed, again.migrated(0)) == (None, 111)
    more = site.start(program(fm=3, migrations=(plus(1), plus(10), plus(100), plus(1000))))
    assert more.migrated(0) == 1111
    assert site.start(program(fm=4)).migrated(0) == 1111, "the code need not have them"


def test_a_new_migration_waits_with_its_code_if_nothing_is_to_be_deployed(site: Site) -> None:
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    code = program(fm=3, migrations=(plus(1), plus(10)))
    driver = site.start(code, replace_functions=False)
    assert (driver.deployed, driver.runs()["FM"], driver.migrated(0)) == (None, 2, 1)
    driver = site.start(code)
    assert (driver.runs()["FM"], driver.migrated(0)) == (3, 11)


@pytest.mark.parametrize("fm", [1, 2])
def test_a_new_migration_is_new_code_and_the_note_says_so(
    site: Site, caplog: pytest.LogCaptureFixture, fm: int
) -> None:
    """Whether the function is the one that a live change has replaced, or the one it brought."""
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    code = program(fm=fm, migrations=(plus(1), plus(10)))
    held = site.start(code, replace_functions=False)
    assert (held.deployed, held.runs()["FM"], held.migrated(0)) == (None, 2, 1)
    starts: list[Driver] = []
    told = told_by(lambda: starts.append(site.start(code)), caplog)
    (driver,) = starts
    assert (driver.runs()["FM"], driver.migrated(0)) == (fm, 11)
    assert note(driver) == (
        "deployed by a start: FM (its code has new migrations; it replaces change 1)"
    )
    (line,) = told["WARNING"]
    assert "FM runs the code that it has, and its live change no more" in line
    assert site.start(code).deployed is None


def test_new_code_without_a_migration_keeps_those_of_the_log(site: Site) -> None:
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    assert site.start(program(fm=3)).migrated(0) == 1


@pytest.mark.parametrize("migrations", [(plus(2),), (plus(2), plus(1)), (plus(10), plus(100))])
def test_migrations_that_may_have_been_seen_or_not_are_refused(
    site: Site, migrations: tuple[Function, ...]
) -> None:
    site.start(program()).change("FM", fold(2), migrate=plus(1))
    with pytest.raises(LogMismatchError, match="its states have seen 1 migrations"):
        site.start(program(fm=3, migrations=migrations))


def test_fewer_migrations_than_the_first_code_had_are_refused(site: Site) -> None:
    site.start(program(migrations=(plus(1), plus(2))))
    with pytest.raises(LogMismatchError, match="its states have seen 2 migrations"):
        site.start(program(migrations=(plus(1),)))


# What is lost, and logs of before


def test_functions_that_were_lost_are_replaced_by_new_code_or_on_demand(site: Site) -> None:
    site.start(program()).change("A", version(2))
    site.stop()
    del site.files.contents["00000001.intent"]
    files, copies = dict(site.files.contents), dict(site.copies.contents)
    with pytest.raises(LogDamagedError, match="functions of operator 'A' since change 1 are lost"):
        site.start(program())
    for code, flag in ((program(a=3), None), (program(), True)):
        site.files, site.copies = MemoryFiles(files), MemoryFiles(copies)
        driver = site.start(code, flag)
        assert driver.deployed is not None
        assert driver.deployed[1].number == 2
        assert driver.runs()["A"] == (3 if flag is None else 1)
        assert site.start(code).runs() == driver.runs()


def test_the_code_of_the_first_start_was_lost(site: Site) -> None:
    site.start(program())
    site.stop()
    site.files.contents["00000000.flow"] = b"torn"
    driver = site.start(program(a=2))
    assert driver.runs()["A"] == 2
    assert "what it was before is lost" in note(driver)
    assert site.start(program(a=2)).deployed is None


def test_a_log_of_an_older_fries_keeps_its_changes_and_notes_the_code(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start(program()).change("A", version(2))
    site.stop()
    founded, _ = decode(site.files.contents["00000000.flow"])
    assert isinstance(founded, Founded)
    old = b"".join(map(bytes, encode(but(founded, digests={}))))
    site.files.contents["00000000.flow"] = site.copies.contents["00000000.flow"] = old
    with caplog.at_level(logging.INFO):
        driver = site.start(program(a=3))
    assert driver.runs()["A"] == 2
    assert "an older Fries did not note which code it replaced" in caplog.text
    driver.change("A", version(4))
    assert site.start(program(a=3)).runs()["A"] == 4
    assert site.start(program(a=5)).runs()["A"] == 5


def told_by(start: Callable[[], object], caplog: pytest.LogCaptureFixture) -> dict[str, list[str]]:
    """What is logged meanwhile, by level."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        start()
    found: dict[str, list[str]] = {"INFO": [], "WARNING": []}
    for record in caplog.records:
        found[record.levelname].append(record.getMessage())
    return found


def test_a_start_tells_of_each_operator_in_a_line(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    driver = site.start(program())
    driver.change("A", version(2), note="hot")
    driver.change("B", version(2))
    told = told_by(lambda: site.start(program(b=3)), caplog)
    fm, a, b = told["INFO"]
    assert fm.startswith("flow fraud, operator FM: version 0, code ")
    assert fm.endswith(", the code is as it was")
    assert "operator A: version 1" in a
    assert a.endswith("change 1 (hot) stays: the code is the one that it replaced")
    assert "operator B: version 2" in b
    assert b.endswith("deployed as change 3: its code has changed; it replaces change 2")
    assert told["WARNING"] == [
        "flow fraud: A does not run the code that it has (change 1 (hot) stays: the code is the "
        "one that it replaced); B runs the code that it has, and its live change no more "
        "(its code has changed; it replaces change 2)"
    ]


def test_a_start_warns_of_code_that_it_keeps_back_and_of_none_that_runs(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    kept_back = "A does not run the code that it has (the version before stays"
    assert not told_by(lambda: site.start(program()), caplog)["WARNING"]
    assert not told_by(lambda: site.start(program()), caplog)["WARNING"]
    (line,) = told_by(lambda: site.start(program(a=2), False), caplog)["WARNING"]
    assert kept_back in line
    assert not told_by(lambda: site.start(program(a=2)), caplog)["WARNING"], "it runs"
    driver = site.start(program(a=3))
    assert driver.deployed is not None
    driver.log.end(Ended(driver.deployed[1].number, 1.0, "rolled back", "it raised"))
    (line,) = told_by(lambda: site.start(program(a=3)), caplog)["WARNING"]
    assert "A does not run the code that it has (change 1 (a deployment) stays" in line
    assert not told_by(lambda: site.start(program(a=4)), caplog)["WARNING"], "the next deployment"


def test_a_start_without_a_way_back_warns_of_the_live_changes_that_it_drops(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start(program()).change("A", version(2))
    code = program(b=2, outer=WIDER)
    (line,) = told_by(lambda: site.start(code, replace_functions=True), caplog)["WARNING"]
    assert "A runs the code that it has, and its live change no more (no version before" in line
    assert "B runs" not in line


def test_listeners_hear_of_a_deployment_and_of_no_change_of_an_earlier_driver(site: Site) -> None:
    site.start(program()).change("A", version(2))
    driver = site.start(program(b=2))
    assert driver.deployed is not None
    announcer, heard = Announcer("fraud"), list[Event]()
    announcer.listen(heard.append)
    news = News(announcer)
    news.deployed(driver.deployed[1])
    for change in driver.start.changes:  # as when a worker has told of their rows
        news.moved(change, change.state)
    announcer.close()
    assert [type(event) for event in heard] == [ChangeRequested, ChangeCommitted, ChangeDone]
    requested = heard[0]
    assert isinstance(requested, ChangeRequested)
    assert (requested.number, requested.targets) == (2, ("B",))
    assert requested.note == "deployed by a start: B (its code has changed)"
