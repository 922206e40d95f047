"""What functions of a row have returned, as Arrow rows; and what is said if it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fries.errors import OperatorError
from fries.failing import (
    MOST_PROBLEM,
    MOST_VALUE,
    clipped,
    described,
    shortened,
    story_of,
    words_of,
)
from fries.runtime.arrow import Array, Field
from fries.runtime.data import Data
from fries.runtime.integers import fractions
from fries.runtime.misfits import EarlierError, Misfit, Misfits
from fries.runtime.spec import Kind, OperatorSpec


def failure(spec: OperatorSpec, error: BaseException, row: object = None) -> OperatorError:
    """The full story of a function that raised: all of it is text, of bounded length."""
    shown = "" if row is None else shortened(row)
    return OperatorError(spec.name, described(error), shown, story_of(error))


def from_rows(spec: OperatorSpec, rows: list[Any]) -> pa.RecordBatch:
    """Rows as a batch; a row with other columns than declared is refused, not cut.

    Rows and values may be of users' classes, whose methods fail as their functions do.
    """
    try:
        return _as_declared(spec, rows)
    except OperatorError:
        raise
    except BaseException as error:  # the user's code may raise anything, even SystemExit
        raise failure(spec, error) from None


def _as_declared(spec: OperatorSpec, rows: list[Any]) -> pa.RecordBatch:
    names = set(spec.schema.names)
    for row in rows:
        if not isinstance(row, dict):
            raise OperatorError(spec.name, f"it must return rows as dicts, not {shortened(row)}")
        if row.keys() != names:
            raise OperatorError(
                spec.name,
                f"it returned the columns {shortened(sorted(row, key=str), MOST_PROBLEM)}, "
                f"declared are {sorted(names)}",
            )
    return pa.RecordBatch.from_arrays(
        [_column_of(spec, field, [row[field.name] for row in rows]) for field in spec.schema],
        schema=spec.schema,
    )


def strictly(
    spec: OperatorSpec, rows: list[Any], parents: Sequence[int], data: Data, raw: bool
) -> Data:
    """Rows that came of others, converted to Arrow; or as they are, for the next function of a run.

    Then what does not fit is told if the next functions cannot take it.
    """
    return _handed_on(spec, rows, parents, data) if raw else _each_fits(spec, rows, parents, data)


def _each_fits(spec: OperatorSpec, rows: list[Any], parents: Sequence[int], data: Data) -> Data:
    """Rows as a batch; what does not fit names the row that it came of."""
    try:
        return Data.of(from_rows(spec, rows))
    except OperatorError:
        for row, number in zip(rows, parents, strict=True):
            if (misfit := _misfit_of(spec, row, data, number)) is not None:
                raise (EarlierError(misfit) if misfit.earlier else misfit.error) from None
        raise


def _handed_on(spec: OperatorSpec, rows: list[Any], parents: Sequence[int], data: Data) -> Data:
    def find(place: int) -> Misfit | None:
        return _misfit_of(spec, rows[place], data, parents[place])

    for place, row in enumerate(rows):
        if not isinstance(row, dict) and (misfit := find(place)) is not None:
            raise misfit.error
    made = Data.of_rows(spec.schema, rows, raw=True)
    made.misfits = Misfits(find, range(len(rows)))
    return made


def _misfit_of(spec: OperatorSpec, row: Any, data: Data, number: int) -> Misfit | None:  # noqa: ANN401
    """What is wrong with a row that a function made of another: perhaps that was wrong already."""
    try:
        from_rows(spec, [row])
    except OperatorError as error:
        before, problem = data.misfit(number), error.problem
        if before is not None and spec.kind in (Kind.FILTER, Kind.SPLIT):
            problem = f"it passed on what {before.error.operator!r} gave: {before.error.problem}"
        told = OperatorError(spec.name, problem, shortened(data.row(number)), error.story)
        misfit = Misfit(told, _extra(spec, row))
        if before is not None and isinstance(row, dict) and before.causes(misfit):
            misfit.earlier = before
        return misfit
    return None


def _extra(spec: OperatorSpec, row: Any) -> frozenset[str]:  # noqa: ANN401
    """The columns that a row has more than declared, if nothing else is wrong with it."""
    names = set(spec.schema.names)
    if not isinstance(row, dict) or not names < row.keys():
        return frozenset()
    try:
        from_rows(spec, [{name: row[name] for name in names}])
    except OperatorError:
        return frozenset()
    return frozenset(row.keys() - names)


def _column_of(spec: OperatorSpec, field: Field, values: list[Any]) -> Array:
    """Values as a column; Arrow would cut the fraction off a number without a word."""
    try:
        for value in fractions(field.type, values):
            shown = clipped(str(value), MOST_VALUE)
            raise OperatorError(
                spec.name, f"it returned {shown} for the column {field.name!r} of {field.type}"
            )
        column: Array = pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OperatorError(spec.name, _misfit(field, values, error)) from error
    return column


def converted(spec: OperatorSpec, field: Field, values: list[Any]) -> list[Any]:
    """Values as they would come back from Arrow."""
    return _column_of(spec, field, values).to_pylist()


def blamed(own: OperatorError, data: Data, number: int) -> Exception:
    """What to raise if a function failed on a row: perhaps that was wrong already."""
    before = data.misfit(number)
    if before is not None and before.breaks_functions():
        return EarlierError(Misfit(own, frozenset(), before))
    return own


def _misfit(field: Field, values: list[Any], error: Exception) -> str:
    """Which value does not fit its column."""
    for value in values:
        try:
            pa.array([value], type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            return (
                f"it returned {shortened(value)} for the column {field.name!r} of type "
                f"{field.type}: {words_of(reason)}"
            )
    return f"its values for the column {field.name!r} do not fit: {words_of(error)}"
