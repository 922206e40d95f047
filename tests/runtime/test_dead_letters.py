"""Rows that their operator cannot process: set apart one by one, and all others as ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError, StateError
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.dead_letters import (
    COLUMNS,
    LEAST,
    MOST_MESSAGE,
    MOST_ROW,
    DeadLetter,
    FailingShare,
)
from fries.runtime.shipped import Shipped
from fries.runtime.spec import (
    DROP,
    ERRORS,
    DeadLetters,
    EdgeSpec,
    Function,
    Keying,
    Kind,
    OperatorSpec,
    StageSpec,
    Style,
)
from fries.runtime.stage import Stage
from fries.runtime.state import KeyGroup
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import Notes, Script, pickled
from tests.runtime.test_state import MemoryStore, hashes, spread

Row = dict[str, Any]
SCHEMA = schema(k=pa.int64(), n=pa.int64(), text=pa.string(), number=pa.float64())
IN, OUT, OTHER = EdgeSpec(1, "S", "F"), EdgeSpec(2, "F", "output"), EdgeSpec(4, "F", "other", 1)
LETTERS = EdgeSpec(3, "F", "rejected", ERRORS)
ALL = DeadLetters("rejected", limit=1.0)
BIT = 3


class Rejected(ValueError):  # noqa: N818 - as users name theirs
    """What a user's function raises."""


def rows(bad: list[bool], keys: int = 3) -> Chunk:
    """Rows of which some fail; transactions are numbered like rows."""
    made = [
        {"k": number % keys, "n": number, "text": "bad" if one else "good", "number": 0.5}
        for number, one in enumerate(bad)
    ]
    batch = pa.RecordBatch.from_pylist(made, schema=SCHEMA)
    return Chunk(batch, np.zeros(len(bad), dtype=np.int64), np.arange(len(bad)))


def refuse(row: Row) -> None:
    if row["text"] == "bad":
        row["text"] = "changed before it failed"
        raise Rejected(f"row {row['n']}")


def refuse_any(texts: Any) -> None:  # noqa: ANN401
    if "bad" in list(texts):
        raise Rejected("some row")


def map_row(row: Row) -> Row:
    refuse(row)
    return {**row, "number": 1.5}


def wrong_column(row: Row) -> Row:
    return {**row, "more": 1} if row["text"] == "bad" else {**row, "number": 1.5}


def wrong_type(row: Row) -> Row:
    return {**row, "n": "many"} if row["text"] == "bad" else {**row, "number": 1.5}


def fraction(row: Row) -> Row:
    return {**row, "n": 2.5} if row["text"] == "bad" else {**row, "number": 1.5}


def no_dict(row: Row) -> Any:  # noqa: ANN401
    return None if row["text"] == "bad" else {**row, "number": 1.5}


def map_frame(frame: pd.DataFrame) -> pd.DataFrame:
    refuse_any(frame["text"])
    return frame.assign(number=1.5)


def map_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    refuse_any(batch.column("text").to_pylist())
    return batch.set_column(3, "number", pa.array([1.5] * batch.num_rows))


def too_few(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["text"] != "bad"].assign(number=1.5)


def twice(row: Row) -> Any:  # noqa: ANN401
    """Fails when one of its rows is out already."""
    yield {**row, "number": 1.5}
    refuse(row)
    yield {**row, "number": 1.5}


def twice_in_a_frame(frame: pd.DataFrame) -> pd.DataFrame:
    refuse_any(frame["text"])
    made = frame.assign(number=1.5, _row=range(len(frame)))
    return pd.concat([made, made]).sort_values("_row")


def even(row: Row) -> bool:
    refuse(row)
    return bool(row["n"] % 2 == 0)


def even_in_a_batch(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
    refuse_any(batch.column("text").to_pylist())
    return np.asarray(batch.column("n")) % 2 == 0


def way(row: Row) -> int:
    refuse(row)
    return int(row["n"] % 2)


def no_way(row: Row) -> float:
    return 7 if row["text"] == "bad" else row["n"] % 2


def way_in_a_frame(frame: pd.DataFrame) -> Any:  # noqa: ANN401
    refuse_any(frame["text"])
    return frame["n"] % 2


def changed(row: Row) -> list[Row]:
    return [{**row, "number": 1.5}]


def same_if_even(row: Row) -> list[Row]:
    return [row] if row["n"] % 2 == 0 else []


STATELESS: dict[str, tuple[Kind, Style, Function, Callable[[Row], list[Row]]]] = {
    "map": (Kind.MAP, Style.ROW, map_row, changed),
    "wrong column": (Kind.MAP, Style.ROW, wrong_column, changed),
    "wrong type": (Kind.MAP, Style.ROW, wrong_type, changed),
    "fraction": (Kind.MAP, Style.ROW, fraction, changed),
    "no dict": (Kind.MAP, Style.ROW, no_dict, changed),
    "map over pandas": (Kind.MAP, Style.PANDAS, map_frame, changed),
    "map over Arrow": (Kind.MAP, Style.ARROW, map_batch, changed),
    "too few rows": (Kind.MAP, Style.PANDAS, too_few, changed),
    "flat_map": (Kind.FLAT_MAP, Style.ROW, twice, lambda row: 2 * changed(row)),
    "flat_map over pandas": (
        Kind.FLAT_MAP, Style.PANDAS, twice_in_a_frame, lambda row: 2 * changed(row),
    ),
    "filter": (Kind.FILTER, Style.ROW, even, same_if_even),
    "filter over Arrow": (Kind.FILTER, Style.ARROW, even_in_a_batch, same_if_even),
    "split": (Kind.SPLIT, Style.ROW, way, lambda row: [row]),
    "no such branch": (Kind.SPLIT, Style.ROW, no_way, lambda row: [row]),
    "split over pandas": (Kind.SPLIT, Style.PANDAS, way_in_a_frame, lambda row: [row]),
}  # fmt: skip


def spec_of(name: str, rule: DeadLetters | None = ALL) -> OperatorSpec:
    kind, style, function, _ = STATELESS[name]
    return OperatorSpec("F", kind, SCHEMA, function, style, 2, takes=SCHEMA, on_error=rule)


def stage_of(spec: OperatorSpec) -> StageSpec:
    letters = (LETTERS,) if spec.on_error is not None and spec.on_error.output else ()
    other = (OTHER,) if spec.kind is Kind.SPLIT else ()
    return StageSpec(0, (spec,), (IN, OUT, *other, *letters))


class Ran:
    """What a stage has made of rows."""

    def __init__(self, spec: OperatorSpec, chunk: Chunk, configuration: Configuration) -> None:
        self.script, self.notes = Script(), Notes()
        stage = Stage(stage_of(spec), configuration, self.script, self.notes)
        self.leaving = list(stage.run(IN, chunk))

    def over(self, *edges: EdgeSpec) -> list[tuple[int, Row]]:
        """The rows that left over some edges, each with its transaction."""
        return [
            (int(txn), row)
            for edge, chunk in self.leaving
            if edge in edges and chunk.txns is not None
            for txn, row in zip(chunk.txns, chunk.batch.to_pylist(), strict=True)
        ]


def ran(spec: OperatorSpec, chunk: Chunk) -> Ran:
    return Ran(spec, chunk, Configuration([spec]))


@given(st.sampled_from(sorted(STATELESS)), st.lists(st.booleans(), max_size=40))
@settings(deadline=None, max_examples=150)
def test_rows_that_fail_leave_alone_and_whole_and_the_others_as_ever(
    name: str, bad: list[bool]
) -> None:
    chunk = rows(bad)
    came = chunk.batch.to_pylist()
    made = ran(spec_of(name), chunk)
    healthy = STATELESS[name][3]
    expected = [(n, row) for n in range(len(bad)) if not bad[n] for row in healthy(came[n])]
    assert sorted(made.over(OUT, OTHER), key=str) == sorted(expected, key=str)
    letters = made.over(LETTERS)
    assert sorted(n for n, _ in letters) == [n for n, one in enumerate(bad) if one]
    for number, letter in letters:
        assert (letter["error_operator"], letter["error_change"]) == ("F", 0)
        assert json.loads(letter["error_row"]) == came[number], "as it came"
    assert made.script.set_apart["F"] == sum(bad)
    assert made.script.counts["F"][0] == len(bad)
    assert set(made.notes.met) == set(range(len(bad))), "each was processed once, it failed or not"
    assert not made.script.failures


@pytest.mark.parametrize("name", STATELESS)
def test_rows_can_be_dropped(name: str) -> None:
    chunk = rows([False, True, False, True])
    made = ran(spec_of(name, DeadLetters(DROP, limit=1.0)), chunk)
    assert {txn for txn, _ in made.over(OUT, OTHER)} <= {0, 2}
    assert {edge for edge, _ in made.leaving} <= {OUT, OTHER}
    assert made.script.set_apart["F"] == 2


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("map", "Rejected", "row 1"),
        ("map over pandas", "Rejected", "some row"),
        ("wrong type", "WrongResult", "for the column 'n' of type int64"),
        ("wrong column", "WrongResult", "declared are"),
        ("no such branch", "WrongResult", "the branch 7"),
    ],
)
def test_a_row_says_what_happened(name: str, kind: str, message: str) -> None:
    ((_, letter),) = ran(spec_of(name), rows([False, True])).over(LETTERS)
    assert list(letter) == COLUMNS.names
    assert letter["error_type"] == kind
    assert message in letter["error_message"]


def test_what_a_row_says_is_short() -> None:
    def wordy(_: Row) -> Row:
        raise Rejected("!" * 10_000_000)

    spec = replace(spec_of("map"), function=wordy)
    chunk = rows([True])
    long = pa.array(["long " * 10_000])
    chunk = Chunk(chunk.batch.set_column(2, "text", long), chunk.epochs, chunk.txns)
    ((_, letter),) = ran(spec, chunk).over(LETTERS)
    assert len(letter["error_message"]) == MOST_MESSAGE
    assert len(letter["error_row"]) == MOST_ROW


def test_what_a_row_says_need_be_no_text() -> None:
    def mumble(_: Row) -> Row:
        raise Rejected("\udcff")

    ((_, letter),) = ran(replace(spec_of("map"), function=mumble), rows([True])).over(LETTERS)
    assert letter["error_message"] == "\\udcff"


def test_an_exception_that_cannot_speak_is_a_letter_too() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise SystemExit

        __repr__ = __str__

    def mute(_: Row) -> Row:
        raise Mute

    ((_, letter),) = ran(replace(spec_of("map"), function=mute), rows([True])).over(LETTERS)
    assert letter["error_type"] == "Mute"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("style", Style)
def test_what_is_no_matter_of_a_row_fails_the_version(error: BaseException, style: Style) -> None:
    def stop(_: Any) -> Any:  # noqa: ANN401
        raise error

    spec = replace(spec_of("map"), function=stop, style=style)
    with pytest.raises(OperatorError):
        ran(spec, rows([False] * 5))


def test_a_function_over_batches_is_called_again_on_halves_only_when_it_fails() -> None:
    sizes: list[int] = []

    def watched(frame: pd.DataFrame) -> pd.DataFrame:
        sizes.append(len(frame))
        return map_frame(frame)

    spec = replace(spec_of("map over pandas"), function=watched)
    call = Configuration([spec]).body("F", 0).call
    call(rows([False] * 64).batch, lambda: False)
    assert sizes == [64]
    sizes.clear()
    call(rows([False] * 63 + [True]).batch, lambda: False)
    assert len(sizes) <= 1 + 2 * 6


BATCHES = sorted(name for name, one in STATELESS.items() if one[1] is not Style.ROW)


@given(
    st.sampled_from(BATCHES), st.integers(0, 9), st.sets(st.integers(0, 12)),
    st.lists(st.booleans(), max_size=40),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_no_row_is_lost_where_a_call_fails_for_no_row(
    name: str, most: int, failing: set[int], bad: list[bool]
) -> None:
    """A bulk call that takes few rows at once, or that fails now and then: its halves go on."""
    calls: list[int] = []
    _, _, function, healthy = STATELESS[name]

    def unsure(given: Any) -> Any:  # noqa: ANN401
        calls.append(len(given))
        if len(given) > 1 and (len(given) > most or len(calls) in failing):
            raise Rejected("too much at once")
        return function(given)

    chunk = rows(bad)
    came = chunk.batch.to_pylist()
    made = ran(replace(spec_of(name), function=unsure), chunk)
    expected = [(n, row) for n in range(len(bad)) if not bad[n] for row in healthy(came[n])]
    assert sorted(made.over(OUT, OTHER), key=str) == sorted(expected, key=str)
    assert sorted(n for n, _ in made.over(LETTERS)) == [n for n, one in enumerate(bad) if one]
    assert set(made.notes.met) == set(range(len(bad)))


def test_rows_of_a_chunk_that_is_pushed_twice_are_counted_once() -> None:
    """An operator behind fails when it is called for the first time, in the quick way."""
    met: list[int] = []

    def fails_once(row: Row) -> Row:
        met.append(row["n"])
        if met.count(row["n"]) == 1 and row["n"] == 31:
            raise Rejected("once")
        return row

    behind = OperatorSpec("B", Kind.MAP, SCHEMA, fails_once, takes=SCHEMA)
    first = replace(spec_of("map"), on_error=DeadLetters("rejected", limit=0.5))
    edges = IN, EdgeSpec(2, "F", "B"), LETTERS, EdgeSpec(5, "B", "output")
    spec = StageSpec(0, (first, behind), edges)
    script = Script()
    bad = [number % 3 == 0 for number in range(90)]
    leaving = list(Stage(spec, Configuration(spec.operators), script).run(IN, rows(bad)))
    assert met.count(31) == 2, "it went again"
    assert sum(len(chunk) for edge, chunk in leaving if edge == LETTERS) == 30
    assert script.set_apart == {"F": 30, "B": 0}
    assert script.counts["F"][0] == 90


def test_letters_of_each_version_name_its_change() -> None:
    old = spec_of("map")
    configuration = Configuration([old])
    new = {"F": replace(old, function=wrong_type)}
    configuration.load(7, BIT, pickled(Shipped(new, {}, frozenset())))
    chunk = rows([True, True, False])
    chunk = Chunk(chunk.batch, np.array([0, 1 << BIT, 1 << BIT]), chunk.txns)
    made = Ran(old, chunk, configuration)
    letters = {txn: (row["error_change"], row["error_type"]) for txn, row in made.over(LETTERS)}
    assert letters == {0: (0, "Rejected"), 1: (7, "WrongResult")}
    epochs = [int(e) for edge, one in made.leaving if edge == LETTERS for e in one.epochs]
    assert sorted(epochs) == [0, 1 << BIT], "they keep their epoch"


# Too many


def test_a_version_that_fails_on_too_many_rows_has_failed() -> None:
    spec = spec_of("map", DeadLetters("rejected", limit=0.1))
    configuration = Configuration([spec])
    with pytest.raises(OperatorError, match=r"'F' failed on .*last \d+ rows .* limit of 10%"):
        Ran(spec, rows([False, False, True] * 100), configuration)
    Ran(spec, rows([False] * 19 + [True]), configuration)


def test_few_rows_are_never_too_many() -> None:
    spec = spec_of("map", DeadLetters("rejected", limit=0.0))
    assert len(ran(spec, rows([True] * LEAST)).over(LETTERS)) == LEAST
    with pytest.raises(OperatorError, match="'F' failed"):
        ran(spec, rows([True] * (LEAST + 1)))


@pytest.mark.parametrize("limit", [0.0, 0.001, 0.004, 0.01, 0.1])
def test_any_limit_is_kept_in_the_long_run(limit: float) -> None:
    """Twice as many failing rows as it allows, evenly; half as many."""
    rule, share = DeadLetters("rejected", limit=limit), FailingShare()
    letter = DeadLetter(0, {}, "Rejected", "")
    every = round(1 / (2 * limit or 0.005))

    def meet(change: int, rows: int, times: int) -> None:
        for _ in range(times):
            share.note("F", change, rule, rows, [letter])

    with pytest.raises(OperatorError, match=f"a limit of {100 * limit:g}%"):
        meet(7, every, 10_000)
    meet(8, 4 * every, 10_000 if limit else LEAST)


def test_a_version_that_begins_to_fail_after_many_good_rows_is_found_out() -> None:
    spec = spec_of("map", DeadLetters("rejected", limit=0.5))
    configuration = Configuration([spec])
    Ran(spec, rows([True] + [False] * 50_000), configuration)
    with pytest.raises(OperatorError, match="'F' failed"):
        Ran(spec, rows([True] * 3_000), configuration)


def test_a_few_bad_rows_after_many_good_ones_are_no_share() -> None:
    spec = spec_of("map", DeadLetters("rejected", limit=0.1))
    configuration = Configuration([spec])
    Ran(spec, rows([False] * 2_000), configuration)
    assert len(Ran(spec, rows([True] * (3 * LEAST)), configuration).over(LETTERS)) == 3 * LEAST


def test_a_version_is_not_judged_by_the_one_before_it() -> None:
    old = replace(spec_of("map"), on_error=DeadLetters("rejected", limit=0.5))
    configuration = Configuration([old])
    Ran(old, rows([True] * LEAST), configuration)
    new = {"F": replace(old, function=wrong_type)}
    configuration.load(7, BIT, pickled(Shipped(new, {}, frozenset())))
    configuration.begin([7])
    made = Ran(old, rows([True] * LEAST), configuration)
    assert {row["error_change"] for _, row in made.over(LETTERS)} == {7}


def test_too_many_are_blamed_on_the_version() -> None:
    old = spec_of("map", DeadLetters("rejected", limit=0.1))
    configuration = Configuration([old])
    new = {"F": replace(old, function=wrong_type)}
    configuration.load(7, BIT, pickled(Shipped(new, {}, frozenset())))
    configuration.begin([7])
    script = Script()
    stage = Stage(stage_of(old), configuration, script)
    with pytest.raises(OperatorError):
        list(stage.run(IN, rows([True] * 100)))
    ((change, error),) = script.failures
    assert (change, error.operator) == (7, "F")
    assert json.loads(error.row)["text"] == "bad"


def test_a_version_that_failed_too_often_is_not_taken_back_in_place() -> None:
    """Some of its rows have left as failing ones: the batch as a whole must go again."""

    class Holding(Script):
        def hold(self, operator: str, change: int, stage: int) -> bool:
            raise AssertionError((operator, change, stage))

    old = spec_of("map", DeadLetters("rejected", limit=0.1))
    configuration = Configuration([old])
    new = {"F": replace(old, function=wrong_type)}
    configuration.load(7, BIT, pickled(Shipped(new, {}, frozenset({IN.number}))))
    configuration.switch(7)
    stage = Stage(stage_of(old), configuration, Holding())
    stage.on_probation = True
    with pytest.raises(OperatorError, match="with a limit of 10%"):
        list(stage.run(IN, rows([True] * 100)))


# Keyed operators


def remember(state: dict[str, Any] | None, row: Row) -> tuple[dict[str, Any], Row]:
    """Keeps its state in place, and fails when it has changed it already."""
    state = {"seen": []} if state is None else state
    state["seen"].append(row["n"])
    refuse(row)
    return state, {**row, "number": float(len(state["seen"]))}


def misremember(state: list[int], row: Row) -> Any:  # noqa: ANN401
    state.append(row["n"])
    if row["text"] == "bad":
        return state, {**row, "n": "many"}
    return state, {**row, "number": float(len(state))}


def collect(state: list[int], row: Row) -> list[int]:
    state.append(row["n"])
    refuse(row)
    return state


def process(function: Function, initial: object = None) -> OperatorSpec:
    keying = Keying(("k",), initial=initial)
    return OperatorSpec(
        "F", Kind.PROCESS, SCHEMA, function, takes=SCHEMA, keying=keying, on_error=ALL
    )


def folded(spec: OperatorSpec, chunk: Chunk, store: MemoryStore | None) -> tuple[Ran, KeyGroup]:
    made = Ran.__new__(Ran)
    made.script, made.notes = Script(), Notes()
    group = KeyGroup("F", store)
    stage = Stage(stage_of(spec), Configuration([spec]), made.script, made.notes)
    keys: list[Any] = chunk.batch.column("k").to_pylist()
    made.leaving = list(stage.run_group(spec, IN, chunk, group, hashes(keys, spread)))
    return made, group


@given(
    st.sampled_from([(remember, None), (misremember, [])]),
    st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=80)
def test_the_state_of_a_key_is_as_if_the_row_had_never_come(
    how: tuple[Function, object], batches: list[list[bool]]
) -> None:
    """Over batches: in the first one states are new, in later ones they come from the store."""
    store, oracle = MemoryStore(), dict[int, int]()
    for bad in batches:
        chunk = rows(bad)
        made, _ = folded(process(*how), chunk, store)
        expected = []
        for number, row in enumerate(chunk.batch.to_pylist()):
            if not bad[number]:
                oracle[row["k"]] = oracle.get(row["k"], 0) + 1
                expected.append((number, float(oracle[row["k"]])))
        assert [(txn, row["number"]) for txn, row in made.over(OUT)] == expected
        assert [txn for txn, _ in made.over(LETTERS)] == [n for n, one in enumerate(bad) if one]


def test_a_fold_of_an_aggregate_may_fail_on_rows() -> None:
    totals = schema(k=pa.int64(), count=pa.int64())
    spec = OperatorSpec(
        "F", Kind.AGGREGATE, totals, collect, takes=SCHEMA, on_error=ALL,
        keying=Keying(("k",), initial=[]), result=lambda seen: {"count": len(seen)},
    )  # fmt: skip
    made, _ = folded(spec, rows([False, True, False, False, True, True, False]), None)
    sums = [row for edge, one in made.leaving if edge == OUT for row in one.batch.to_pylist()]
    assert sums == [{"k": 0, "count": 3}, {"k": 2, "count": 1}]
    assert [txn for txn, _ in made.over(LETTERS)] == [1, 4, 5]


def test_a_state_that_cannot_be_read_is_no_matter_of_a_row() -> None:
    store = MemoryStore()
    spec = process(remember)
    folded(spec, rows([False]), store)
    bucket = store.values[0]
    store.values[0] = bucket.replace(b"seen", b"se\xff\xff")
    with pytest.raises(StateError):
        folded(spec, rows([False]), store)


def test_a_migration_that_fails_is_no_matter_of_a_row() -> None:
    spec = process(remember)
    store = MemoryStore()
    folded(spec, rows([False]), store)
    assert spec.keying is not None
    newer = replace(spec, keying=replace(spec.keying, migrations=(lambda state: state["no"],)))
    with pytest.raises(OperatorError, match="KeyError"):
        folded(newer, rows([False]), store)


def test_rows_over_arrow_columns_that_python_cannot_hold_exactly() -> None:
    """The unit tests of values let through only what surely fits."""
    for value in (2**63, "\ud800", True, np.int64(3), 1):
        columns = schema(a=pa.int64(), b=pa.string(), c=pa.float64())
        for column in columns.names:
            made = {"a": 1, "b": "x", "c": 0.5} | {column: value}
            spec = OperatorSpec("F", Kind.MAP, columns, lambda _, m=made: m, on_error=ALL)
            call = Configuration([spec]).body("F", 0).call
            one = pa.RecordBatch.from_pylist([{"a": 1, "b": "", "c": 0.0}], schema=columns)
            output = call(one, lambda: False)
            try:
                expected = pa.array([value], type=columns.field(column).type).to_pylist()
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                assert len(output.letters) == 1
            else:
                assert output.batch.column(column).to_pylist() == expected
