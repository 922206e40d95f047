"""Updates before anything changes: what is refused and why, and columns that change on the way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fries.errors import OperatorError, UpdateRefusedError
from fries.runtime.functions import make_call, never
from fries.runtime.lookup import Lookup
from fries.runtime.spec import EdgeSpec, Function, Keying, Kind, OperatorSpec, Style
from fries.updates import Revision, check_columns, revised
from tests.runtime.test_columns import schema

Row = dict[str, Any]
NARROW = schema(n=pa.int64())
WIDE = schema(n=pa.int64(), score=pa.float64())
NAMED = schema(n=pa.int64(), name=pa.string())
WIDE_NAMED = pa.schema([*WIDE, pa.field("name", pa.string())])


def same(row: Row) -> Row:
    return row


def widen(row: Row) -> Row:
    return {**row, "score": 0.5}


def names(numbers: list[int], **columns: list[Any]) -> Lookup:
    """A lookup of names by number."""
    table = pa.table({"n": numbers, **(columns or {"name": [str(n) for n in numbers]})})
    return Lookup(table, ("n",))


def operator(
    kind: Kind,
    function: Function | None = same,
    gives: pa.Schema = NARROW,
    takes: pa.Schema | None = NARROW,
    style: Style = Style.ROW,
    name: str = "op",
) -> OperatorSpec:
    keying = Keying(("n",)) if kind in (Kind.PROCESS, Kind.AGGREGATE, Kind.JOIN) else None
    return OperatorSpec(name, kind, gives, function, style, takes=takes, keying=keying)


LOOKUP = operator(Kind.LOOKUP, names([1, 2]), NAMED)


# One operator


def test_an_update_replaces_the_function_and_nothing_else() -> None:
    spec = operator(Kind.MAP, style=Style.ROW)
    assert revised(spec, Revision(widen)) == replace(spec, function=widen)


def test_an_update_may_bring_columns_a_migration_and_a_result() -> None:
    made = revised(operator(Kind.MAP), Revision(widen, schema=WIDE))
    assert (made.function, made.schema) == (widen, WIDE)
    spec = replace(operator(Kind.AGGREGATE), result=same)
    assert revised(spec, Revision(max, result=widen)).result is widen
    assert revised(spec, Revision(max)).result is same, "the old one stays if there is no other"
    assert revised(operator(Kind.PROCESS), Revision(max, migrate=abs)).function is max


@pytest.mark.parametrize(
    ("spec", "update", "problem"),
    [
        (operator(Kind.PASS, None), Revision(same), "it has no function to replace"),
        (operator(Kind.JOIN, None), Revision(same), "it has no function to replace"),
        (
            operator(Kind.MAP),
            Revision(7),  # type: ignore[arg-type]
            "its function, 7, cannot be called",
        ),
        (
            operator(Kind.MAP),
            Revision(None),  # type: ignore[arg-type]
            "its function, None, cannot be called",
        ),
        (
            operator(Kind.PROCESS),
            Revision(same, migrate="widen"),  # type: ignore[arg-type]
            "its migrate, 'widen', cannot be called",
        ),
        (
            operator(Kind.AGGREGATE),
            Revision(same, result=()),  # type: ignore[arg-type]
            "its result, (), cannot be called",
        ),
        (
            operator(Kind.MAP),
            Revision(same, migrate=abs),
            "a map has no state to migrate",
        ),
        (LOOKUP, Revision(names([1]), migrate=abs), "a lookup has no state to migrate"),
        (operator(Kind.FILTER), Revision(same, result=abs), "a filter has no result function"),
        (operator(Kind.PROCESS), Revision(max, result=abs), "a process has no result function"),
        (operator(Kind.PROCESS), Revision(same), "its function must take 2 arguments"),
        (operator(Kind.MAP), Revision(lambda a, b: a), "its function must take 1 argument"),
        (
            operator(Kind.AGGREGATE, max, WIDE),
            Revision(max, schema=schema(x=pa.int64())),
            "its schema lacks the key columns ['n']",
        ),
        (
            operator(Kind.FILTER),
            Revision(same, schema=WIDE),
            "the columns of a filter follow from its input; drop schema=",
        ),
        (
            LOOKUP,
            Revision(names([1]), schema=WIDE),
            "the columns of a lookup follow from its input; drop schema=",
        ),
    ],
)
def test_what_an_operator_cannot_take_is_refused(
    spec: OperatorSpec, update: Revision, problem: str
) -> None:
    with pytest.raises(UpdateRefusedError) as refused:
        revised(spec, update)
    assert str(refused.value) == f"the update of operator 'op' is refused: {problem}"


# Lookups


def test_a_lookup_is_updated_with_a_table() -> None:
    table = names([5, 6, 7])
    assert revised(LOOKUP, Revision(table)) == replace(LOOKUP, function=table)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (same, "a lookup is updated with a table"),
        (names([1, 1]), "a key occurs twice in the new table, but the lookup was planned as one-"),
        (names([1], alias=["x"]), "the table gives n int64, alias string, planned are n int64, na"),
        (names([1], name=[0.5]), "the table gives n int64, name double, planned are n int64, name"),
        (
            Lookup(pa.table({"n": pa.array([1], pa.int32()), "name": ["a"]}), ("n",)),
            "key 'n' of the stream is int64, and key 'n' of the table is int32; cast one of them",
        ),
        (
            Lookup(pa.table({"m": [1], "name": ["a"]}), ("m",)),
            "the stream has no columns named 'm'; name one of its columns: n",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(function: Function, problem: str) -> None:
    with pytest.raises(UpdateRefusedError, match=re.escape(problem)):
        revised(LOOKUP, Revision(function))


def test_a_lookup_that_was_planned_as_one_to_many_may_become_one_to_one_and_back() -> None:
    many = replace(LOOKUP, function=names([1, 1]), many=True)
    once = revised(many, Revision(names([1, 2])))
    assert once.many, "the plan stays as it is"
    again = names([1, 1])
    assert revised(once, Revision(again)) == replace(many, function=again)


# A whole flow


def source() -> OperatorSpec:
    return OperatorSpec("S", Kind.PASS, NARROW)


class Line:
    """S -> the given operators, one after the other -> output."""

    def __init__(self, *specs: OperatorSpec) -> None:
        self.operators = (source(), *specs)
        ends = ["", *(spec.name for spec in self.operators), "output"]
        self.edges = [EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(ends))]
        self.output = {len(self.edges) - 1: self.operators[-1].schema}

    def check(
        self, updates: Mapping[str, Revision], crossing: Mapping[int, pa.Schema] | None = None
    ) -> dict[str, OperatorSpec]:
        """Update operators as an engine does."""
        current = {spec.name: spec for spec in self.operators}
        new = {name: revised(current[name], update) for name, update in updates.items()}
        planned = self.output if crossing is None else crossing
        return check_columns(self.operators, self.edges, new, planned)


def a_and_b(style: Style = Style.ROW, b: Function = same) -> Line:
    return Line(
        operator(Kind.MAP, name="A"),
        operator(Kind.MAP, b, name="B", style=style),
    )


def drop_score(row: Row) -> Row:
    return {"n": row["n"]}


def test_new_functions_with_the_old_columns_fit() -> None:
    made = a_and_b().check({"A": Revision(abs), "B": Revision(max)})
    assert {name: spec.function for name, spec in made.items()} == {"A": abs, "B": max}
    assert made["A"].takes == NARROW


def test_an_added_column_is_taken_by_an_operator_that_is_updated_with_it() -> None:
    made = a_and_b().check({"A": Revision(widen, schema=WIDE), "B": Revision(drop_score)})
    assert made["A"].schema == WIDE
    assert made["B"].takes == WIDE
    assert made["B"].schema == NARROW


def test_an_added_column_is_refused_by_a_row_function_that_stays() -> None:
    problem = (
        "operator 'A' is refused: behind it 'B' would get n int64, score double instead of n "
        "int64; update 'B' in the same reconfiguration, too"
    )
    with pytest.raises(UpdateRefusedError, match=re.escape(problem)):
        a_and_b().check({"A": Revision(widen, schema=WIDE)})


def test_an_added_column_is_refused_by_a_lookup_that_stays() -> None:
    line = Line(operator(Kind.MAP, name="A"), replace(LOOKUP, name="J"))
    with pytest.raises(UpdateRefusedError, match="'A' is refused: behind it 'J' would get n int"):
        line.check({"A": Revision(widen, schema=WIDE)})


def test_a_function_over_batches_that_stays_may_take_an_added_column() -> None:
    def only_n(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["n"])

    made = a_and_b(Style.ARROW, only_n).check({"A": Revision(widen, schema=WIDE)})
    assert list(made) == ["A"]


def test_a_function_over_batches_that_stays_is_tried_on_an_added_column() -> None:
    def one_column(batch: pa.RecordBatch) -> pa.RecordBatch:
        (column,) = batch.columns
        return pa.RecordBatch.from_arrays([column], names=["n"])

    line = a_and_b(Style.ARROW, one_column)
    line.check({"A": Revision(widen)})
    with pytest.raises(UpdateRefusedError, match="'A' is refused: behind it the dry run of 'B'"):
        line.check({"A": Revision(widen, schema=WIDE)})


@pytest.mark.parametrize("kind", [Kind.FILTER, Kind.SPLIT, Kind.PASS])
def test_columns_pass_through_what_does_not_change_them(kind: Kind) -> None:
    between = operator(kind, None if kind is Kind.PASS else same, name="X")
    line = Line(operator(Kind.MAP, name="A"), between, operator(Kind.MAP, name="B"))
    made = line.check({"A": Revision(widen, schema=WIDE), "B": Revision(drop_score)})
    assert made["B"].takes == WIDE
    with pytest.raises(UpdateRefusedError, match="'A' is refused: behind it 'B' would get n int"):
        line.check({"A": Revision(widen, schema=WIDE)})


def test_a_filter_over_batches_that_stays_is_tried_on_an_added_column() -> None:
    def strict(frame: pd.DataFrame) -> pd.Series[bool]:
        (column,) = frame.columns
        return frame[column] > 0

    between = operator(Kind.FILTER, strict, name="X", style=Style.PANDAS)
    line = Line(operator(Kind.MAP, name="A"), between, operator(Kind.MAP, name="B"))
    line.check({"A": Revision(same)})
    with pytest.raises(UpdateRefusedError, match="'A' is refused: behind it the dry run of 'X'"):
        line.check({"A": Revision(widen, schema=WIDE), "B": Revision(drop_score)})


@pytest.mark.parametrize(
    ("style", "function", "problem"),
    [
        (Style.ARROW, lambda batch: batch.select([]), "the returned batch lacks the columns"),
        (Style.PANDAS, lambda frame: frame["m"], "KeyError('m')"),
        (Style.ARROW, lambda batch: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_new_function_over_batches_is_tried_on_an_empty_one(
    style: Style, function: Function, problem: str
) -> None:
    line = a_and_b(style, lambda batch: batch)
    with pytest.raises(UpdateRefusedError) as refused:
        line.check({"B": Revision(function)})
    assert refused.value.operator == "B"
    assert "its dry run on an empty batch failed: " in refused.value.problem
    assert problem in refused.value.problem


def test_the_dry_run_of_a_function_that_raises_shows_its_traceback() -> None:
    def broken(frame: pd.DataFrame) -> pd.DataFrame:
        raise ValueError(f"no such model for {frame.columns}")

    with pytest.raises(UpdateRefusedError, match=r"(?s)no such model.*in broken") as refused:
        a_and_b(Style.PANDAS).check({"B": Revision(broken)})
    assert isinstance(refused.value.__cause__, OperatorError)


def test_columns_of_the_output_are_fixed() -> None:
    problem = (
        "operator 'B' is refused: it would give n int64, score double to 'output', where the plan "
        "is fixed on n int64 (an exchange or the output, which Spark has planned); keep those "
        "columns, or declare all of them when the flow is built"
    )
    with pytest.raises(UpdateRefusedError, match=re.escape(problem)):
        a_and_b().check({"B": Revision(widen, schema=WIDE)})


def test_columns_between_stages_are_fixed_also_if_both_sides_are_updated() -> None:
    line = Line(operator(Kind.MAP, name="A"), operator(Kind.PROCESS, max, name="F"))
    crossing = {**line.output, 2: NARROW}
    updates = {"A": Revision(widen, schema=WIDE), "F": Revision(min)}
    with pytest.raises(UpdateRefusedError, match=r"'A' is refused: it would give .* to 'F', where"):
        line.check(updates, crossing)
    line.check({"A": Revision(same), "F": Revision(min, migrate=abs)}, crossing)


def test_a_column_that_passes_a_filter_to_an_exchange_is_refused_there() -> None:
    line = Line(
        operator(Kind.MAP, name="A"),
        operator(Kind.FILTER, name="X"),
        operator(Kind.PROCESS, max, name="F"),
    )
    updates = {"A": Revision(widen, schema=WIDE)}
    problem = "'A' is refused: behind it 'X' would give n int64, score double to 'F', where"
    with pytest.raises(UpdateRefusedError, match=problem):
        line.check(updates | {"F": Revision(min)}, {**line.output, 3: NARROW})
    with pytest.raises(UpdateRefusedError, match=problem):  # and no word of an update of F
        line.check(updates, {**line.output, 3: NARROW})


def test_the_order_and_the_types_of_columns_count() -> None:
    line = Line(operator(Kind.MAP, gives=WIDE, name="A"))
    turned = pa.schema([WIDE.field("score"), WIDE.field("n")])
    narrower = schema(n=pa.int32(), score=pa.float64())
    for columns in (turned, narrower):
        with pytest.raises(UpdateRefusedError, match="the plan is fixed on n int64, score double"):
            line.check({"A": Revision(widen, schema=columns)})


def union() -> tuple[list[OperatorSpec], list[EdgeSpec]]:
    """S -> A and S -> B, both -> U -> C -> output."""
    specs = [source(), *(operator(Kind.MAP, name=name) for name in "AB")]
    specs += [operator(Kind.PASS, None, takes=None, name="U"), operator(Kind.MAP, name="C")]
    pairs = [("", "S"), ("S", "A"), ("S", "B"), ("A", "U"), ("B", "U"), ("U", "C"), ("C", "output")]
    return specs, [EdgeSpec(number, *pair) for number, pair in enumerate(pairs)]


def test_all_inputs_of_a_union_must_have_the_same_columns() -> None:
    specs, edges = union()
    wide = {name: replace(operator(Kind.MAP, widen, WIDE), name=name) for name in "AB"}
    last = operator(Kind.MAP, drop_score, name="C")
    with pytest.raises(UpdateRefusedError, match="'A' is refused: the inputs of 'U' would have"):
        check_columns(specs, edges, {"A": wide["A"], "C": last}, {6: NARROW})
    made = check_columns(specs, edges, {**wide, "C": last}, {6: NARROW})
    assert made["C"].takes == WIDE


def around_a_lookup() -> Line:
    """A -> J, which looks names up, -> B."""
    return Line(
        operator(Kind.MAP, name="A"),
        replace(LOOKUP, name="J"),
        operator(Kind.MAP, name="B", takes=NAMED),
    )


def test_a_lookup_that_is_updated_takes_an_added_column_and_hands_it_on() -> None:
    line = around_a_lookup()
    updates = {"A": Revision(widen, schema=WIDE), "J": Revision(names([3]))}
    with pytest.raises(UpdateRefusedError, match="'J' is refused: behind it 'B' would get n int64"):
        line.check(updates)
    made = line.check({**updates, "B": Revision(drop_score)})
    assert made["J"].takes == WIDE
    assert made["B"].takes == WIDE_NAMED
    batch = pa.RecordBatch.from_pylist([{"n": 3, "score": 0.5}], schema=WIDE)
    assert make_call(made["J"])(batch, never).batch.schema == WIDE_NAMED


def test_a_lookup_that_takes_an_added_column_can_be_updated_again() -> None:
    line = around_a_lookup()
    updates = {"A": Revision(widen, schema=WIDE), "J": Revision(names([3]))}
    there = line.check({**updates, "B": Revision(drop_score)})
    line.operators = (line.operators[0], *there.values())
    (again,) = line.check({"J": Revision(names([4]))}).values()
    assert (again.takes, again.schema) == (WIDE, WIDE_NAMED)


def test_an_added_column_that_the_table_of_a_lookup_has_too_is_refused() -> None:
    updates = {"A": Revision(widen, schema=NAMED), "J": Revision(names([3]))}
    problem = "'J' is refused: there would be two columns named 'name'; rename or drop it in the"
    with pytest.raises(UpdateRefusedError, match=problem):
        around_a_lookup().check({**updates, "B": Revision(drop_score)})


def test_an_aggregate_whose_new_columns_lack_its_key_is_refused() -> None:
    line = Line(
        operator(Kind.AGGREGATE, max, WIDE, name="G"),
        operator(Kind.MAP, name="B", takes=WIDE),
    )
    updates = {"G": Revision(max, schema=schema(x=pa.int64())), "B": Revision(same)}
    with pytest.raises(UpdateRefusedError, match=r"'G' is refused: its schema lacks the key col"):
        line.check(updates)


def test_an_update_that_is_taken_back_fits_again() -> None:
    line = a_and_b()
    there = line.check({"A": Revision(widen, schema=WIDE), "B": Revision(drop_score)})
    line.operators = (line.operators[0], there["A"], there["B"])
    with pytest.raises(UpdateRefusedError, match="'A' is refused: behind it 'B' would get n int64"):
        line.check({"A": Revision(same, schema=NARROW)})
    back = line.check({"A": Revision(same, schema=NARROW), "B": Revision(same)})
    assert (back["A"].schema, back["B"].takes) == (NARROW, NARROW)


def test_nothing_updated_is_nothing_refused() -> None:
    assert a_and_b().check({}) == {}
