"""User functions, whatever their kind and style, as functions from Arrow batch to output.

What comes out also says which input row each output row comes from, because children
inherit the epoch and the transaction of their parent. A function of a row can be interrupted
between two rows: then what comes out is made of the first rows only, and says of how many.
"""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fries.errors import OperatorError
from fries.runtime.arrow import Array, Field, Integers
from fries.runtime.integers import fractions
from fries.runtime.spec import Function, Kind, OperatorSpec, Style

PARENT: Final = "_row"
"""Column in which a flat_map over batches says from which input row an output row comes."""
LOOKS: Final = 32
"""How often a function of a row may be interrupted in a batch."""
_ANY_NUMBER: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Output(NamedTuple):
    """What an operator makes of a batch."""

    batch: pa.RecordBatch
    parents: Integers | None = None
    """For each output row the number of its input row; ``None``: one for one, in order."""
    branches: Integers | None = None
    """Of a split: for each output row its branch."""
    taken: int | None = None
    """How many input rows it is made of, the first ones; ``None``: all."""


Interrupted: TypeAlias = "Callable[[], bool]"
"""Whether to stop after the row at hand."""
Call: TypeAlias = "Callable[[pa.RecordBatch, Interrupted], Output]"


def never() -> bool:
    """Of a batch that must be processed as a whole."""
    return False


def make_call(spec: OperatorSpec) -> Call:
    """Wrap a function so that it can be called on a batch and fails with a full story."""
    make = {
        Kind.MAP: _map,
        Kind.FILTER: _filter,
        Kind.FLAT_MAP: _flat_map,
        Kind.SPLIT: _split,
        Kind.LOOKUP: _lookup,
    }.get(spec.kind)
    if make is None or spec.function is None:
        return lambda batch, _: Output(batch)
    call = make(spec, spec.function)

    def guarded(batch: pa.RecordBatch, interrupted: Interrupted) -> Output:
        try:
            return call(batch, interrupted)
        except OperatorError:
            raise
        except Exception as error:
            raise failure(spec, error) from error

    return guarded


def _each(
    spec: OperatorSpec, function: Function, batch: pa.RecordBatch, interrupted: Interrupted
) -> list[Any]:
    """Call a function on one row after the other; a failure names the row."""
    rows = batch.to_pylist()
    made: list[Any] = []
    keep = keeper(spec)
    some = 1 + len(rows) // LOOKS
    try:
        while len(made) < len(rows):
            for row in rows[len(made) : len(made) + some]:
                made.append(keep(function(row)))  # noqa: PERF401 - its length says which failed
            if interrupted():
                break
    except Exception as error:
        raise failure(spec, error, rows[len(made)]) from error
    return made


def keeper(spec: OperatorSpec) -> Callable[[Any], Any]:
    """Keeps a returned row as it is now: its function may change it with the next one."""
    nested = [field.name for field in spec.schema if pa.types.is_nested(field.type)]

    def keep(row: Any) -> Any:  # noqa: ANN401
        if not isinstance(row, dict):
            return row
        kept = dict(row)
        for name in nested:
            if name in kept:
                kept[name] = copy.deepcopy(kept[name])
        return kept

    return keep


def accepts(function: Function, count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it tells."""
    if isinstance(function, FunctionType) and not vars(function):
        code = function.__code__
        if not (code.co_kwonlyargcount or code.co_flags & _ANY_NUMBER):  # far sooner than below
            return code.co_argcount - len(function.__defaults__ or ()) <= count <= code.co_argcount
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some builtins do not tell
        return True
    return True


def failure(spec: OperatorSpec, error: Exception, row: object = None) -> OperatorError:
    """The full story of a function that raised."""
    story = "".join(traceback.format_exception(error))
    return OperatorError(spec.name, repr(error), "" if row is None else shortened(row), story)


def _map(spec: OperatorSpec, function: Function) -> Call:
    def by_row(batch: pa.RecordBatch, interrupted: Interrupted) -> Output:
        rows = _each(spec, function, batch, interrupted)
        return Output(from_rows(spec, rows), taken=len(rows))

    def by_batch(batch: pa.RecordBatch, _: Interrupted) -> Output:
        made = _to_arrow(spec, function(_to_style(spec, batch)))
        if made.num_rows != batch.num_rows:
            raise OperatorError(
                spec.name,
                f"a map returned {made.num_rows} rows for {batch.num_rows}; use flat_map or filter",
            )
        return Output(made)

    return by_row if spec.style is Style.ROW else by_batch


def _filter(spec: OperatorSpec, function: Function) -> Call:
    def call(batch: pa.RecordBatch, interrupted: Interrupted) -> Output:
        found = _column(spec, function, batch, interrupted)
        if spec.style is Style.ROW:  # as Python sees it: a list of values would make a matrix
            found = [bool(value) for value in found]
        kept = np.flatnonzero(np.asarray(found, dtype=bool))
        if len(kept) == batch.num_rows:
            return Output(batch)
        return Output(batch.take(kept), kept, taken=len(found))

    return call


def _split(spec: OperatorSpec, function: Function) -> Call:
    def call(batch: pa.RecordBatch, interrupted: Interrupted) -> Output:
        found = _column(spec, function, batch, interrupted)
        branches = _numbers(spec, "branch", found, spec.branches)
        return Output(batch.slice(0, len(branches)), None, branches, len(branches))

    return call


def _flat_map(spec: OperatorSpec, function: Function) -> Call:
    def by_row(batch: pa.RecordBatch, interrupted: Interrupted) -> Output:
        rows: list[Any] = []
        parents: list[int] = []
        keep = keeper(spec)
        listed = _each(spec, lambda row: [keep(made) for made in function(row)], batch, interrupted)
        for number, made in enumerate(listed):
            rows.extend(made)
            parents.extend([number] * len(made))
        numbers = np.array(parents, dtype=np.int64)
        return Output(from_rows(spec, rows), numbers, taken=len(listed))

    def by_batch(batch: pa.RecordBatch, _: Interrupted) -> Output:
        made = function(_to_style(spec, batch))
        if PARENT not in (made.columns if spec.style is Style.PANDAS else made.schema.names):
            raise OperatorError(
                spec.name,
                f"a flat_map over batches must return a column {PARENT!r}: for each output row "
                "the number of the input row that it comes from",
            )
        parents = _numbers(spec, f"number in {PARENT!r}", made[PARENT], batch.num_rows)
        return Output(_to_arrow(spec, made), parents)

    return by_row if spec.style is Style.ROW else by_batch


def _lookup(spec: OperatorSpec, function: Function) -> Call:  # noqa: ARG001
    def call(batch: pa.RecordBatch, _: Interrupted) -> Output:
        return Output(*function(batch))

    return call


def _column(
    spec: OperatorSpec, function: Function, batch: pa.RecordBatch, interrupted: Interrupted
) -> Any:  # noqa: ANN401
    """One value for each row, from a function of a row or of a batch."""
    if spec.style is Style.ROW:
        return _each(spec, function, batch, interrupted)
    values = np.asarray(function(_to_style(spec, batch)))
    if values.shape != (batch.num_rows,):
        raise OperatorError(
            spec.name,
            f"the function returned values of shape {values.shape} for {batch.num_rows} rows; "
            "give one for each row",
        )
    return values


def _numbers(spec: OperatorSpec, what: str, given: Any, end: int) -> Integers:  # noqa: ANN401
    """Numbers that point somewhere; others are refused, instead of losing rows."""
    values = np.asarray(given)
    with np.errstate(invalid="ignore"):  # what is no number differs from what it is cast to
        numbers = values.astype(np.int64)
    wrong = values[(numbers < 0) | (numbers >= end) | (numbers != values)]
    if len(wrong):
        raise OperatorError(
            spec.name, f"it returned the {what} {wrong[0]}; there are 0 to {end - 1}"
        )
    return numbers


def _to_style(spec: OperatorSpec, batch: pa.RecordBatch) -> Any:  # noqa: ANN401
    return batch.to_pandas() if spec.style is Style.PANDAS else batch


def from_rows(spec: OperatorSpec, rows: list[Any]) -> pa.RecordBatch:
    """Rows as a batch; a row with other columns than declared is refused, not cut."""
    names = set(spec.schema.names)
    for row in rows:
        if not isinstance(row, dict):
            raise OperatorError(spec.name, f"it must return rows as dicts, not {shortened(row)}")
        if row.keys() != names:
            raise OperatorError(
                spec.name,
                f"it returned the columns {sorted(row)}, declared are {sorted(names)}",
            )
    return pa.RecordBatch.from_arrays(
        [_column_of(spec, field, [row[field.name] for row in rows]) for field in spec.schema],
        schema=spec.schema,
    )


def _column_of(spec: OperatorSpec, field: Field, values: list[Any]) -> Array:
    """Values as a column; Arrow would cut the fraction off a number without a word."""
    try:
        for value in fractions(field.type, values):
            raise OperatorError(
                spec.name, f"it returned {value} for the column {field.name!r} of {field.type}"
            )
        column: Array = pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OperatorError(spec.name, _misfit(field, values, error)) from error
    return column


def _misfit(field: Field, values: list[Any], error: Exception) -> str:
    """Which value does not fit its column."""
    for value in values:
        try:
            pa.array([value], type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            return (
                f"it returned {shortened(value)} for the column {field.name!r} of type "
                f"{field.type}: {reason}"
            )
    return f"its values for the column {field.name!r} do not fit: {error}"


def _to_arrow(spec: OperatorSpec, made: Any) -> pa.RecordBatch:  # noqa: ANN401
    """A returned batch with exactly the declared columns and types."""
    if spec.style is Style.PANDAS:
        return pa.RecordBatch.from_pandas(made, schema=spec.schema, preserve_index=False)
    batch: pa.RecordBatch = made
    if batch.schema.equals(spec.schema):
        return batch
    missing = [name for name in spec.schema.names if name not in batch.schema.names]
    if missing:
        raise OperatorError(spec.name, f"the returned batch lacks the columns {missing}")
    return batch.select(spec.schema.names).cast(spec.schema)


def shortened(row: object, most: int = 300) -> str:
    """A value for a message."""
    text = repr(row)
    return text if len(text) <= most else text[:most] + "..."
