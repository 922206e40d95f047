"""Functions that may fail on some rows: those are set apart, and the others go on.

A function of a row is called once for each. One over batches is called again on halves of a batch
on which it fails, down to single rows: it must give the same for a row whatever rows come with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fries.errors import OperatorError
from fries.failing import is_a, name_of, shortened, words_of
from fries.runtime.arrow import concat_batches
from fries.runtime.data import Data
from fries.runtime.dead_letters import DeadLetter, plain
from fries.runtime.functions import (
    LOOKS,
    Call,
    Interrupted,
    Output,
    never,
)
from fries.runtime.keeping import keeper
from fries.runtime.returned import failure, from_rows
from fries.runtime.spec import Function, Kind, OperatorSpec, Style

Step: TypeAlias = "Callable[[Any], tuple[Sequence[Any], int]]"
"""What a row becomes, and the branch that it takes; raises if it fails."""
SURELY_FITS: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.int64(): lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    pa.float64(): lambda value: type(value) is float,
    pa.string(): lambda value: type(value) is str and value.isascii(),
    pa.bool_(): lambda value: type(value) is bool,
}
"""By type of a column, whether a value surely fits; others are tried."""


def sparing(spec: OperatorSpec, call: Call) -> Call:
    """The call of an operator, with the rows that fail set apart."""
    return _by_row(spec) if spec.style is Style.ROW else _by_halves(spec, call)


def letter_of(spec: OperatorSpec, number: int, row: object, error: BaseException) -> DeadLetter:
    """A row that failed; raises if that is no matter of the row."""
    cause = cause_of(error)
    if not is_a(cause, Exception) or is_a(cause, MemoryError):
        raise error if is_a(error, OperatorError) else failure(spec, error, row) from None
    if is_a(cause, OperatorError):
        return DeadLetter(number, row, "WrongResult", plain(cause.problem))
    return DeadLetter(number, row, plain(name_of(type(cause))), plain(words_of(cause)))


def cause_of(error: BaseException) -> BaseException:
    """What a user's function has raised; an error of Fries if it has returned something wrong."""
    if is_a(error, OperatorError) and error.story:  # made where that was caught
        for cause in (error.__cause__, error.__context__):
            if cause is not None:  # it may say of itself that it is false
                return cause
    return error


def fitting(spec: OperatorSpec) -> Callable[[Sequence[Any]], None]:
    """Raises if one of some rows has other columns or types than declared."""
    names = set(spec.schema.names)
    tests = [(field.name, SURELY_FITS.get(field.type)) for field in spec.schema]

    def check(rows: Sequence[Any]) -> None:
        for row in rows:
            sure = isinstance(row, dict) and row.keys() == names
            if not sure or not all(
                row[name] is None or (test is not None and test(row[name])) for name, test in tests
            ):
                from_rows(spec, [row])

    return check


def _by_row(spec: OperatorSpec) -> Call:
    assert spec.function is not None
    step = _STEPS[spec.kind](spec, spec.function)

    def call(
        rows: pa.RecordBatch | Data,
        interrupted: Interrupted,
        strict: bool = True,  # noqa: ARG001 - each row is checked by itself
        raw: bool = False,  # noqa: ARG001
    ) -> Output:
        batch = Data.of(rows).batch
        listed = batch.to_pylist()
        some = 1 + len(listed) // LOOKS
        made: list[Any] = []
        parents: list[int] = []
        branches: list[int] = []
        letters: list[DeadLetter] = []
        taken = 0
        for number, row in enumerate(listed):
            try:
                given, branch = step(row)
            except BaseException as error:  # the user's code may raise anything, even SystemExit
                as_it_came = batch.slice(number, 1).to_pylist()[0]
                letters.append(letter_of(spec, number, as_it_came, error))
            else:
                made.extend(given)
                parents.extend([number] * len(given))
                branches.extend([branch] * len(given))
            taken = number + 1
            if taken % some == 0 and interrupted():
                break
        kept = np.array(parents, dtype=np.int64)
        if spec.kind in (Kind.MAP, Kind.FLAT_MAP):
            return Output(Data.of(from_rows(spec, made)), kept, None, taken, tuple(letters))
        ways = np.array(branches, dtype=np.int64) if spec.kind is Kind.SPLIT else None
        return Output(Data.of(batch.take(kept)), kept, ways, taken, tuple(letters))

    return call


def _map(spec: OperatorSpec, function: Function) -> Step:
    keep, check = keeper(spec), fitting(spec)

    def step(row: Any) -> tuple[Sequence[Any], int]:  # noqa: ANN401
        made = (keep(function(row)),)
        check(made)
        return made, 0

    return step


def _flat_map(spec: OperatorSpec, function: Function) -> Step:
    keep, check = keeper(spec), fitting(spec)

    def step(row: Any) -> tuple[Sequence[Any], int]:  # noqa: ANN401
        made = [keep(one) for one in function(row)]
        check(made)
        return made, 0

    return step


def _filter(spec: OperatorSpec, function: Function) -> Step:  # noqa: ARG001
    def step(row: Any) -> tuple[Sequence[Any], int]:  # noqa: ANN401
        return ((None,) if function(row) else ()), 0

    return step


def _split(spec: OperatorSpec, function: Function) -> Step:
    def step(row: Any) -> tuple[Sequence[Any], int]:  # noqa: ANN401
        given = function(row)
        branch = int(given)
        if branch != given or not 0 <= branch < spec.branches:
            raise OperatorError(
                spec.name,
                f"it returned the branch {shortened(given)}; there are 0 to {spec.branches - 1}",
            )
        return (None,), branch

    return step


_STEPS: dict[Kind, Callable[[OperatorSpec, Function], Step]] = {
    Kind.MAP: _map,
    Kind.FLAT_MAP: _flat_map,
    Kind.FILTER: _filter,
    Kind.SPLIT: _split,
}


def _by_halves(spec: OperatorSpec, call: Call) -> Call:
    def spare(
        rows: pa.RecordBatch | Data,
        interrupted: Interrupted,  # noqa: ARG001
        strict: bool = True,  # noqa: ARG001
        raw: bool = False,  # noqa: ARG001
    ) -> Output:
        batch = Data.of(rows).batch
        made: list[tuple[int, Output]] = []
        letters: list[DeadLetter] = []
        waiting = [(0, batch.num_rows)]
        while waiting:
            start, count = waiting.pop()
            part = batch.slice(start, count)
            try:
                output = call(part, never)
                own = output.data.owned() if waiting else output.data  # it is called again
                made.append((start, output._replace(data=own)))
            except OperatorError as error:
                if not count:
                    raise
                letter = letter_of(spec, start, part.slice(0, 1).to_pylist()[0], error)
                if count == 1:
                    letters.append(letter)
                    continue
                half = count // 2
                waiting += [(start + half, count - half), (start, half)]
        whole = len(made) == 1 and not letters
        return made[0][1] if whole else _together(spec, batch, made, letters)

    return spare


def _together(
    spec: OperatorSpec,
    batch: pa.RecordBatch,
    made: Sequence[tuple[int, Output]],
    letters: Sequence[DeadLetter],
) -> Output:
    """The outputs of parts of a batch as one."""
    if not made:
        new = spec.kind in (Kind.MAP, Kind.FLAT_MAP)
        nothing = pa.RecordBatch.from_pylist([], schema=spec.schema) if new else batch.slice(0, 0)
        ways = np.zeros(0, dtype=np.int64) if spec.kind is Kind.SPLIT else None
        return Output(Data.of(nothing), np.zeros(0, dtype=np.int64), ways, None, tuple(letters))
    outputs = [output for _, output in made]
    parents = [
        start + (np.arange(output.batch.num_rows) if output.parents is None else output.parents)
        for start, output in made
    ]
    taken = [output.branches for output in outputs if output.branches is not None]
    return Output(
        Data.of(concat_batches([output.batch for output in outputs])),
        np.concatenate(parents),
        np.concatenate(taken) if taken else None,
        None,
        tuple(letters),
    )
