"""Keyed operators: folds over the states of keys, and the join of two branches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fries.errors import OperatorError
from fries.failing import shortened
from fries.runtime.arrow import integers, take
from fries.runtime.buckets import Key
from fries.runtime.chunks import Chunk
from fries.runtime.data import Data
from fries.runtime.dead_letters import DeadLetter
from fries.runtime.functions import Output
from fries.runtime.keeping import keeper
from fries.runtime.returned import failure, from_rows
from fries.runtime.sparing import fitting, letter_of
from fries.runtime.spec import Kind, OperatorSpec
from fries.runtime.state import KeyGroup

Migrate: TypeAlias = "Callable[[int, Any], Any]"
"""Brings a state of some version up to the version of the rows at hand."""
Fold: TypeAlias = "Callable[[pa.RecordBatch, KeyGroup, int, Migrate], Output]"
"""Rows, the states of their keys, the version of the rows, how to bring states up to it."""
PLAIN = (type(None), bool, int, float, str, bytes)
"""Initial states of these types can be shared: nobody can change them."""


def keys_of(columns: Sequence[str], batch: pa.RecordBatch) -> list[Key]:
    """The key of each row: a value, or a tuple of several."""
    values = [batch.column(name).to_pylist() for name in columns]
    if not values:
        return [()] * int(batch.num_rows)
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


class MigrationError(Exception):
    """The migration that came with some change raised; not always the one of the newest."""

    def __init__(self, change: int, error: BaseException) -> None:
        super().__init__(change, error)
        self.change, self.error = change, error


def make_fold(spec: OperatorSpec) -> Fold:
    """A keyed function as a function of rows and states."""
    if spec.on_error is not None:
        return _sparing_fold(spec)
    keying, function = spec.keying, spec.function
    assert keying is not None
    assert function is not None
    initial, first = keying.initial, len(keying.migrations)
    shared = isinstance(initial, PLAIN)
    step = _row_and_state(spec) if spec.kind is Kind.PROCESS else _only_state

    def fold(batch: pa.RecordBatch, group: KeyGroup, version: int, migrate: Migrate) -> Output:
        rows = batch.to_pylist()
        made: list[Any] = []
        parents: list[int] = []
        keep = keeper(spec)
        for number, (key, row) in enumerate(zip(keys_of(keying.columns, batch), rows, strict=True)):
            entry = group.get(key)
            try:
                if entry is None:
                    state = initial if shared else copy.deepcopy(initial)
                    written = version if state is None else first
                else:
                    written, state, _ = entry
                if written != version:
                    state = migrate(written, state)
                state, given = step(function(state, row))
                kept = list(map(keep, given))
            except OperatorError:
                raise
            except MigrationError as failed:
                raise replace(failure(spec, failed.error, row), change=failed.change) from None
            except BaseException as error:  # the user's code may raise anything, even SystemExit
                raise failure(spec, error, Data.of(batch).row(number)) from None
            group.put(key, version, state)
            made.extend(kept)
            parents.extend([number] * len(kept))
        whole = len(made) == len(rows) and not spec.many
        return Output(
            Data.of(from_rows(spec, made)), None if whole else np.array(parents, dtype=np.int64)
        )

    return fold


def _sparing_fold(spec: OperatorSpec) -> Fold:
    """The same, with the rows set apart that fail: the states of their keys stay as they were."""
    keying, function = spec.keying, spec.function
    assert keying is not None
    assert function is not None
    first, keep = len(keying.migrations), keeper(spec)
    step = _row_and_state(spec) if spec.kind is Kind.PROCESS else _only_state
    check = fitting(spec)

    def begun(key: Key, row: object, group: KeyGroup, version: int, migrate: Migrate) -> Any:  # noqa: ANN401
        """The state of a key as its next row needs it; if that fails, no row is to blame."""
        entry = group.get(key)
        try:
            state = copy.deepcopy(keying.initial) if entry is None else entry[1]
            written = first if entry is None else entry[0]
            return state if state is None or written == version else migrate(written, state)
        except OperatorError:
            raise
        except MigrationError as failed:
            raise replace(failure(spec, failed.error, row), change=failed.change) from None
        except BaseException as error:  # as in make_fold
            raise failure(spec, error, row) from None

    def fold(batch: pa.RecordBatch, group: KeyGroup, version: int, migrate: Migrate) -> Output:
        made: list[Any] = []
        parents: list[int] = []
        letters: list[DeadLetter] = []
        keys = keys_of(keying.columns, batch)
        for number, (key, row) in enumerate(zip(keys, batch.to_pylist(), strict=True)):
            before = group.saved(key)
            state = begun(key, row, group, version, migrate)
            try:
                state, given = step(function(state, row))
                kept = [keep(one) for one in given]
                check(kept)
            except BaseException as error:  # the user's code may raise anything, even SystemExit
                as_it_came = batch.slice(number, 1).to_pylist()[0]
                letters.append(letter_of(spec, number, as_it_came, error))
                group.put_back(key, before)
                continue
            group.put(key, version, state)
            made.extend(kept)
            parents.extend([number] * len(kept))
        numbers = np.array(parents, dtype=np.int64)
        return Output(Data.of(from_rows(spec, made)), numbers, letters=tuple(letters))

    return fold


def _row_and_state(spec: OperatorSpec) -> Callable[[Any], tuple[Any, Sequence[Any]]]:
    """Take apart what a ``process`` function returns."""

    def step(returned: Any) -> tuple[Any, Sequence[Any]]:  # noqa: ANN401
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise OperatorError(
                spec.name, f"it must return (state, row), not {shortened(returned)}"
            )
        state, given = returned
        if spec.many:
            return state, list(given)
        return state, () if given is None else (given,)

    return step


def _only_state(returned: Any) -> tuple[Any, Sequence[Any]]:  # noqa: ANN401
    return returned, ()


def results(spec: OperatorSpec, states: Mapping[Key, Any]) -> pa.RecordBatch:
    """What an aggregate gives for its keys: their columns, and what its states make."""
    assert spec.keying is not None
    columns, keep = spec.keying.columns, keeper(spec)
    rows = []
    for key, state in states.items():
        values = (key,) if len(columns) == 1 else key
        try:
            row = state if spec.result is None else keep(spec.result(state))
            if not isinstance(row, dict):
                raise OperatorError(
                    spec.name, f"its result must be a dict of columns, not {shortened(row)}"
                )
            rows.append({**dict(zip(columns, values, strict=True)), **row})
        except OperatorError:
            raise
        except BaseException as error:  # as in make_fold
            raise failure(spec, error, state) from None
    return from_rows(spec, rows)


def join(spec: OperatorSpec, left: Chunk, right: Chunk) -> Chunk:
    """Pair two branches of the same tuples; a half that the other branch dropped is dropped.

    A pair has passed every marker that one of its halves has.
    """
    assert spec.keying is not None
    columns = spec.keying.columns
    ours, theirs = (_unique(spec, keys_of(columns, half.batch)) for half in (left, right))
    both = [key for key in ours if key in theirs]
    at_left = np.array([ours[key] for key in both], dtype=np.int64)
    at_right = np.array([theirs[key] for key in both], dtype=np.int64)
    rows, others = take(left.batch, at_left), take(right.batch, at_right)
    arrays = [
        (rows if name in left.batch.schema.names else others).column(name)
        for name in spec.schema.names
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=spec.schema)
    epochs = left.epochs[at_left] | right.epochs[at_right]
    if left.txns is None or right.txns is None:
        return Chunk(batch, epochs)
    if (left.txns[at_left] != right.txns[at_right]).any():
        raise OperatorError(spec.name, "its key pairs different tuples; join on one that does not")
    return Chunk(batch, epochs, left.txns[at_left])


def _unique(spec: OperatorSpec, keys: list[Key]) -> dict[Key, int]:
    """Where each key is; null joins nothing, and a key that comes twice is no identity."""
    found: dict[Key, int] = {}
    for number, key in enumerate(keys):
        if key in found:
            raise OperatorError(
                spec.name,
                f"two tuples have the key {shortened(key)}; join on one that is unique in a batch",
            )
        if key is not None and not (isinstance(key, tuple) and None in key):
            found[key] = number
    return found


def in_order(operator: OperatorSpec, rows: Chunk, bits: int) -> Chunk:
    """Rows of older epochs first, and then as the operator wants them."""
    assert operator.keying is not None
    ages = np.bitwise_count(rows.epochs & bits).astype(np.int64)
    if not operator.keying.order_by and not ages.any():
        return rows
    columns = [pa.array(ages), *(rows.batch.column(c) for c in operator.keying.order_by)]
    names = [str(number) for number in range(len(columns))]
    table = pa.table(columns, names=names)
    keys: list[tuple[str, Literal["ascending"]]] = [(name, "ascending") for name in names]
    return rows.take(integers(pc.sort_indices(table, sort_keys=keys).cast(pa.int64())))
