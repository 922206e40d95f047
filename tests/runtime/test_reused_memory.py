"""Functions that use their memory again: what they gave before stays as it was."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.keyed import results
from fries.runtime.layout import Result
from fries.runtime.shipped import Shipped
from fries.runtime.spec import DeadLetters, EdgeSpec, Keying, Kind, OperatorSpec, StageSpec, Style
from fries.runtime.stage import Stage
from fries.runtime.task import Execution, Task
from fries.stages import physical
from tests.runtime.test_chains import same, spec, stage
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import Script, pickled
from tests.runtime.test_tasks import Line

Row = dict[str, Any]
N: Final = schema(n=pa.int64())
ROWS: Final = 40
IN: Final = EdgeSpec(0, "", "A")


class Buffer:
    """Doubles numbers, always in the same memory."""

    def __init__(self) -> None:
        self._memory: npt.NDArray[np.int64] = np.zeros(ROWS, dtype=np.int64)

    def arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """For ``batch="arrow"``."""
        return pa.RecordBatch.from_arrays([pa.array(self._doubled(batch.column("n")))], names=["n"])

    def pandas(self, frame: pd.DataFrame) -> pd.DataFrame:
        """For ``batch="pandas"``."""
        return pd.DataFrame({"n": self._doubled(frame["n"])}, copy=False)

    def split_in_two(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """For a ``flat_map``."""
        arrays = [self.arrow(batch).column("n"), pa.array(np.arange(len(batch)))]
        return pa.RecordBatch.from_arrays(arrays, names=["n", "_row"])

    def _doubled(self, numbers: Any) -> npt.NDArray[np.int64]:  # noqa: ANN401
        part = self._memory[: len(numbers)]
        np.multiply(np.asarray(numbers), 2, out=part)
        return part


def reusing(name: str, style: Style, **more: Any) -> OperatorSpec:  # noqa: ANN401
    buffer = Buffer()
    function = buffer.arrow if style is Style.ARROW else buffer.pandas
    return spec(name, function, N, style=style, **more)


def task(*operators: OperatorSpec) -> Task:
    """Of a flow that is one line."""
    names = ["", *(one.name for one in operators), "out"]
    edges = [EdgeSpec(n, *pair) for n, pair in enumerate(itertools.pairwise(names))]
    flow = physical(operators, edges)
    gives = Result({edge.number: ("out", flow.schemas[edge.number]) for edge in flow.outputs})
    return Task(flow.stages[0], gives, Execution(0, 0), Configuration(operators), Line())


def listed(leaving: Iterable[tuple[EdgeSpec, Chunk]], to: str = "out") -> Iterator[int]:
    """The numbers that leave, as Spark takes them: each chunk before the next one."""
    for edge, made in leaving:
        if edge.target == to:
            yield from map(int, made.batch.column("n").to_numpy())


def numbers(count: int = ROWS) -> Chunk:
    return Chunk.fresh(pa.RecordBatch.from_pydict({"n": list(range(count))}, schema=N))


@pytest.mark.parametrize("style", [Style.ARROW, Style.PANDAS])
def test_what_waits_to_be_sent_is_not_overwritten(style: Style) -> None:
    """The first chunks are of a few rows, and wait for more to leave with."""
    more: tuple[tuple[OperatorSpec, ...], ...] = (
        (),
        (spec("F", lambda row: True, N, kind=Kind.FILTER),),
        (OperatorSpec("P", Kind.PASS, N),),
    )
    for behind in more:
        whole = task(reusing("A", style), *behind)
        sent = [n for made in whole.rows([(0, numbers())]) for n in made.column("n").to_pylist()]
        assert sent == list(range(0, 2 * ROWS, 2))


def test_what_a_flat_map_gave_is_not_overwritten() -> None:
    whole = task(spec("A", Buffer().split_in_two, N, style=Style.ARROW, kind=Kind.FLAT_MAP))
    sent = [n for made in whole.rows([(0, numbers())]) for n in made.column("n").to_pylist()]
    assert sent == list(range(0, 2 * ROWS, 2))


@pytest.mark.parametrize("style", [Style.ARROW, Style.PANDAS])
def test_parts_of_a_batch_that_failed_do_not_overwrite_each_other(style: Style) -> None:
    inner = reusing("A", style)
    assert inner.function is not None
    function = inner.function

    def picky(rows: Any) -> Any:  # noqa: ANN401
        if 13 in list(np.asarray(rows["n"])):
            raise ValueError(13)
        return function(rows)

    made, _ = stage(replace(inner, function=picky, on_error=DeadLetters("drop")))
    found = list(listed(made.run(IN, numbers())))
    assert found == [2 * n for n in range(ROWS) if n != 13]


@pytest.mark.parametrize("style", [Style.ARROW, Style.PANDAS])
def test_rows_that_come_over_two_edges_do_not_overwrite_each_other(style: Style) -> None:
    pairs = ("", "P"), ("P", "B"), ("P", "C"), ("B", "U"), ("C", "U"), ("U", "A"), ("A", "out")
    operators = (
        *(OperatorSpec("P", Kind.PASS, N), spec("B", same, N), spec("C", _negative, N)),
        *(OperatorSpec("U", Kind.PASS, N), reusing("A", style)),
    )
    edges = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(pairs))
    made, _ = stage(*operators, edges=edges)
    found = list(listed(made.run(edges[0], numbers())))
    assert sorted(found) == sorted([2 * n for n in range(ROWS)] + [-2 * n for n in range(ROWS)])


def test_two_versions_with_one_memory_do_not_overwrite_each_other() -> None:
    operator = spec("A", _shared, N, style=Style.ARROW)
    edges = IN, EdgeSpec(1, "A", "out")
    configuration = Configuration([operator])
    configuration.load(1, 0, pickled(Shipped({"A": operator})))
    made = Stage(StageSpec(0, (operator,), edges), configuration, Script())
    rows = Chunk(numbers().batch, np.arange(ROWS) % 2)
    found = list(listed(made.run(IN, rows)))
    assert sorted(found) == list(range(0, 2 * ROWS, 2))


def test_rows_of_two_versions_are_parted_before_the_first_of_them_is_called() -> None:
    """It may write where the rows for the other one are."""
    operators = tuple(spec(name, _shared_frame, N, style=Style.PANDAS) for name in "AB")
    edges = IN, EdgeSpec(1, "A", "B"), EdgeSpec(2, "B", "out")
    configuration = Configuration(operators)
    configuration.load(1, 0, pickled(Shipped({"B": operators[1]})))
    made = Stage(StageSpec(0, operators, edges), configuration, Script())
    rows = Chunk(numbers().batch, np.arange(ROWS) % 2)
    found = list(listed(made.run(IN, rows)))
    assert sorted(found) == list(range(0, 4 * ROWS, 4))


def test_one_function_twice_leaves_what_others_read() -> None:
    buffer = Buffer()
    pairs = ("", "A"), ("A", "B"), ("A", "C"), ("B", "b"), ("C", "c")
    operators = (
        spec("A", buffer.arrow, N, style=Style.ARROW),
        spec("B", buffer.arrow, N, style=Style.ARROW),
        spec("C", lambda batch: batch, N, style=Style.ARROW),
    )
    edges = tuple(EdgeSpec(n, *pair) for n, pair in enumerate(pairs))
    made, _ = stage(*operators, edges=edges)
    assert list(listed(made.run(edges[0], numbers()), "c")) == list(range(0, 2 * ROWS, 2))


@pytest.mark.parametrize("style", [Style.ARROW, Style.PANDAS])
def test_one_function_in_two_branches_leaves_what_waits_for_them_to_meet(style: Style) -> None:
    shared = reusing("B", style)
    pairs = ("", "P"), ("P", "A"), ("P", "B"), ("A", "N"), ("N", "C"), ("B", "U"), ("C", "U")
    operators = (
        *(OperatorSpec("P", Kind.PASS, N), spec("A", _negative, N), shared, spec("N", same, N)),
        *(replace(shared, name="C"), OperatorSpec("U", Kind.PASS, N)),
    )
    edges = (*(EdgeSpec(n, *pair) for n, pair in enumerate(pairs)), EdgeSpec(9, "U", "out"))
    made, _ = stage(*operators, edges=edges)
    found = list(listed(made.run(edges[0], numbers())))
    assert sorted(found) == sorted([2 * n for n in range(ROWS)] + [-2 * n for n in range(ROWS)])


def _negative(row: Row) -> Row:
    return {"n": -row["n"]}


_BUFFER: Final = Buffer()


def _shared(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _BUFFER.arrow(batch)


def _shared_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return _BUFFER.pandas(frame)


RAW: Final = schema(n=pa.int64(), raw=pa.binary())
MANY_ROWS: Final = 2_000
"""So many that the functions of a run are called as one."""


class Bytes:
    """Gives a number as bytes, always in the same object."""

    def __init__(self, view: bool) -> None:
        self._memory = bytearray(8)
        self._given = memoryview(self._memory) if view else self._memory

    def __call__(self, row: Row) -> Row:
        """The row with other bytes."""
        self._memory[:] = row["n"].to_bytes(8, "big")
        return {**row, "raw": self._given}

    def both(self, row: Row) -> list[Row]:
        """For a ``flat_map``."""
        return [self(row)]


def through(*operators: OperatorSpec, strict: bool) -> list[int]:
    """The bytes that leave, as numbers."""
    made, script = stage(*operators)
    made.on_probation = strict
    rows = [{"n": n, "raw": b""} for n in range(MANY_ROWS)]
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW)
    leaving = list(made.run(IN, Chunk.fresh(batch)))
    assert script.failures == []
    return [
        int.from_bytes(one["raw"], "big") for _, part in leaving for one in part.batch.to_pylist()
    ]


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_bytes_in_an_object_that_is_used_again_are_those_of_their_row(
    view: bool, alone: bool
) -> None:
    """However its functions are called."""
    chains = (
        (spec("A", Bytes(view), RAW),),
        (spec("A", Bytes(view), RAW), spec("B", same, RAW)),
        (spec("A", same, RAW), spec("B", Bytes(view), RAW)),
        (
            spec("A", Bytes(view), RAW),
            spec("B", lambda row: {**row, "raw": bytes(row["raw"])}, RAW),
        ),
        (spec("A", Bytes(view).both, RAW, kind=Kind.FLAT_MAP),),
        (spec("A", Bytes(view), RAW, on_error=DeadLetters("drop")),),
    )
    for chain in chains:
        assert through(*chain, strict=alone) == list(range(MANY_ROWS))


@pytest.mark.parametrize("alone", [True, False])
def test_a_list_for_the_next_function_is_that_of_its_row(alone: bool) -> None:
    """It is no column, and may be used again all the same."""
    seen: list[int] = []

    def hands_over(row: Row) -> Row:
        seen.append(row["n"])
        return {**row, "more": seen}

    def takes_over(row: Row) -> Row:
        return {"n": row["n"], "raw": row["more"][-1].to_bytes(8, "big")}

    chain = spec("A", hands_over, RAW), spec("B", takes_over, RAW)
    assert through(*chain, strict=alone) == list(range(MANY_ROWS))


def test_a_number_in_an_array_that_is_used_again_is_that_of_its_row() -> None:
    number = np.zeros((), dtype=np.int64)

    def gives(row: Row) -> Row:
        number[()] = row["n"]
        return {"n": number}

    made, _ = stage(spec("A", gives, N))
    assert list(listed(made.run(IN, numbers()))) == list(range(ROWS))


def test_results_of_an_aggregate_are_of_their_own() -> None:
    reused: list[int] = []

    def result(state: int) -> Row:
        reused[:] = [state]
        return {"all": reused}

    keying = Keying(("n",))
    columns = pa.schema({"n": pa.int64(), "all": pa.list_(pa.int64())})
    total = OperatorSpec("T", Kind.AGGREGATE, columns, keying=keying, result=result)
    assert results(total, {1: 10, 2: 20}).column("all").to_pylist() == [[10], [20]]
