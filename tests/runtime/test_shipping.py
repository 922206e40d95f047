"""Functions on their way: told apart with and without pickling them, refused if they cannot go."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import UpdateRefusedError
from fries.log.pieces import PIECE_BYTES
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Function, Keying, Kind, OperatorSpec, Style
from fries.schedulers import scheduler
from fries.spark.shipping import differ_plainly, kept_of, packed, pickled_all, try_to_load
from fries.traits import graph_of
from fries.updates import Revision

Row = dict[str, Any]
SCHEMA = pa.schema([("n", pa.int64())])
LOCK = threading.Lock()


def adding(value: object) -> Function:
    return lambda row: (row, value)


def taking(value: object) -> Function:
    return lambda row: (value, row)


def later() -> Function:
    """A function that uses a name from around it before there is such a thing."""
    missing: int

    def function(row: object) -> object:
        return row, missing

    if LOCK.locked():
        missing = 1
    return function


FUNCTIONS: dict[str, Callable[[object], Function]] = {
    "adding": adding,
    "taking": taking,
    "a part": lambda value: partial(adding, value),
    "later": lambda _: later(),
    "a builtin": lambda _: len,
}
VALUES = st.one_of(
    st.integers(-2, 2),
    st.floats(allow_nan=False),
    st.booleans(),
    st.sampled_from(["", "a", b"", b"a", None, 1.0, -0.0]),
    st.lists(st.integers(0, 1), max_size=2),
)


@settings(deadline=None)
@given(st.sampled_from(sorted(FUNCTIONS)), VALUES, st.sampled_from(sorted(FUNCTIONS)), VALUES)
def test_what_differs_plainly_has_another_digest(
    kind: str, value: object, other_kind: str, other_value: object
) -> None:
    one, other = FUNCTIONS[kind](value), FUNCTIONS[other_kind](other_value)
    kept = kept_of({"one": Revision(one), "other": Revision(other)})
    if differ_plainly(one, other):
        assert kept["one"].digest != kept["other"].digest
    assert differ_plainly(kept["one"].function, other) == differ_plainly(one, other)


def test_other_code_and_other_numbers_differ_plainly() -> None:
    assert differ_plainly(adding(1), taking(1))
    assert differ_plainly(adding(1), adding(2))
    assert differ_plainly(adding("a"), adding("b"))


def test_what_must_be_looked_into_does_not_differ_plainly() -> None:
    assert not differ_plainly(adding(1), adding(1))
    assert not differ_plainly(adding([1]), adding([2]))
    assert not differ_plainly(adding(1), adding(True))
    assert not differ_plainly(later(), later())
    assert not differ_plainly(partial(adding, 1), partial(adding, 2))
    assert not differ_plainly(None, adding(1))


@pytest.mark.parametrize("where", ["function", "migrate", "inverse"])
def test_who_cannot_be_pickled_is_named(where: str) -> None:
    given = {"function": adding(1), "migrate": adding(1), "inverse": adding(1), where: adding(LOCK)}
    good = OperatorSpec("good", Kind.MAP, SCHEMA, adding(1))
    bad = OperatorSpec("bad", Kind.PROCESS, SCHEMA, given["function"])
    shipped = Shipped(
        {"good": good, "bad": bad},
        {"good": None, "bad": given["migrate"]},
        inverses={"good": None, "bad": given["inverse"]},
    )
    with pytest.raises(UpdateRefusedError, match=r"bad.*cannot be pickled.*open them inside"):
        packed(shipped, shipped.operators)


class Stubborn:
    """A function that raises whatever it is told to while it is pickled, or while it is loaded."""

    def __init__(self, error: BaseException, loads: bool) -> None:
        self.error, self.loads = error, loads

    def __call__(self, row: Row) -> Row:
        """Be a function."""
        return row

    def __getstate__(self) -> dict[str, object]:
        if not self.loads:
            raise self.error
        return self.__dict__

    def __setstate__(self, state: dict[str, BaseException]) -> None:
        raise state["error"]


ANYTHING = [ValueError("no"), SystemExit(3), GeneratorExit("no"), asyncio.CancelledError("no")]


@pytest.mark.parametrize("error", ANYTHING, ids=repr)
def test_a_function_may_raise_anything_while_it_is_pickled(error: BaseException) -> None:
    spec = OperatorSpec("F", Kind.MAP, SCHEMA, Stubborn(error, loads=False))
    with pytest.raises(UpdateRefusedError, match=r"F.*cannot be pickled"):
        packed(Shipped({"F": spec}, {}), {"F": spec})
    with pytest.raises(UpdateRefusedError, match=r"F.*cannot be pickled"):
        pickled_all((spec,))


@pytest.mark.parametrize("error", ANYTHING, ids=repr)
def test_a_function_may_raise_anything_while_it_is_loaded(error: BaseException) -> None:
    built = OperatorSpec("F", Kind.MAP, SCHEMA, adding(1))
    new = replace(built, function=Stubborn(error, loads=True))
    operators = {"S": OperatorSpec("S", Kind.PASS, SCHEMA), "F": built}
    edges = [EdgeSpec(0, "", "S"), EdgeSpec(1, "S", "F"), EdgeSpec(2, "F", "output")]
    plan = scheduler("fries")(graph_of(operators, edges, ("S",), ("output",)), ("F",))
    package = packed(Shipped({"F": new}, {}), {"F": built})
    with pytest.raises(UpdateRefusedError, match=f"(?s)cannot be loaded.*{type(error).__name__}"):
        try_to_load([built], plan, package)


def test_who_exits_while_it_is_pickled_is_kept_until_it_is_refused() -> None:
    stubborn = Stubborn(SystemExit(3), loads=False)
    assert kept_of({"F": Revision(stubborn)})["F"].function is stubborn


def test_a_model_travels_as_it_was() -> None:
    """Its owner may go on training it."""
    weights = np.zeros(3 * PIECE_BYTES // 16)
    shipped = Shipped({"F": OperatorSpec("F", Kind.MAP, SCHEMA, adding(weights))}, {})
    package = packed(shipped, shipped.operators)
    weights[:] = 1.0
    (model,) = package.buffers
    assert model.readonly
    assert bytes(model) == bytes(weights.nbytes)


WIDER = pa.schema([("n", pa.int64()), ("m", pa.int64())])
COLUMNS = st.sampled_from([SCHEMA, WIDER, pa.schema([("n", pa.int32())])])


@given(
    st.sampled_from(list(Kind)),
    st.tuples(COLUMNS, COLUMNS, st.none() | COLUMNS, COLUMNS),
    st.sampled_from(list(Style)),
    st.sampled_from(list(Style)),
    st.none() | st.just(len),
)
def test_a_version_arrives_as_it_was_sent(
    kind: Kind,
    columns: tuple[pa.Schema, pa.Schema, pa.Schema | None, pa.Schema],
    style: Style,
    new_style: Style,
    result: Function | None,
) -> None:
    """Whatever differs from the operator as it was built; the rest does not travel."""
    gave, gives, took, takes = columns
    keying = Keying(("n",), ("n",), initial=0)
    built = OperatorSpec("F", kind, gave, abs, style, 2, took, keying, True, len)
    sent = replace(built, function=int, schema=gives, takes=takes, style=new_style, result=result)
    shipped = Shipped({"F": sent}, {"F": abs}, frozenset({1, 2}), {"F": int})
    package = packed(shipped, {"F": built})
    assert Shipped.of(pickle.loads(package.payload), {"F": built}) == shipped
    left = Shipped.of(pickle.loads(package.residue), {"F": built})
    assert left == Shipped({}, {"F": abs})


def test_a_function_keeps_its_style_where_the_code_has_another_one() -> None:
    """A driver that comes later has newer code; the function is still one of rows."""
    row = OperatorSpec("F", Kind.MAP, SCHEMA, adding(1))
    package = packed(Shipped({"F": row}), {"F": row})
    newer = replace(row, function=adding(2), style=Style.PANDAS)
    arrived = Shipped.of(pickle.loads(package.payload), {"F": newer})
    assert arrived.operators["F"].style is Style.ROW


def test_columns_stay_at_home() -> None:
    column = pa.schema([("a column with a long name", pa.int64())])
    spec = OperatorSpec("F", Kind.MAP, column, abs, takes=column)
    package = packed(Shipped({"F": spec}), {"F": spec})
    assert b"long name" not in package.payload
