"""User functions, whatever their kind and style, as functions from Arrow batch to output.

What comes out also says which input row each output row comes from, because children
inherit the epoch and the transaction of their parent. A function of a row can be interrupted
between two rows: then what comes out is made of the first rows only, and says of how many.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, compress, islice, repeat
from types import FunctionType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from fries.errors import OperatorError
from fries.failing import shortened
from fries.runtime.arrow import Booleans, Integers, batch_of
from fries.runtime.data import Data
from fries.runtime.dead_letters import DeadLetter
from fries.runtime.keeping import keeper
from fries.runtime.misfits import EarlierError
from fries.runtime.returned import blamed, converted, failure, strictly
from fries.runtime.settle import AgainError, Settler
from fries.runtime.spec import Function, Kind, OperatorSpec, Style

PARENT: Final = "_row"
"""Column in which a flat_map over batches says from which input row an output row comes."""
LOOKS: Final = 32
"""How often a function of a row may be interrupted in a batch."""
_ANY_NUMBER: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Output(NamedTuple):
    """What an operator makes of a batch."""

    data: Data
    parents: Integers | None = None
    """For each output row the number of its input row; ``None``: one for one, in order."""
    branches: Integers | None = None
    """Of a split: for each output row its branch."""
    taken: int | None = None
    """How many input rows it is made of, the first ones; ``None``: all."""
    letters: tuple[DeadLetter, ...] = ()
    """Input rows that failed, where they may."""

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as an Arrow batch."""
        return self.data.batch


Interrupted: TypeAlias = "Callable[[], bool]"
"""Whether to stop after the row at hand."""
Read: TypeAlias = "Callable[[Any, int], Integers | None]"
"""From which of so many rows those of a batch or frame come; ``None``: one for one."""
Batched: TypeAlias = "Callable[[Data, bool], tuple[Data, Integers | None]]"
"""The second: whether to convert every frame to Arrow."""
Calls: TypeAlias = "Callable[[Data, Interrupted, bool, bool], Output]"
"""The third: whether to convert every row to Arrow, instead of what needs it; then whether to hand
rows on as they are."""


def never() -> bool:
    """Of a batch that must be processed as a whole."""
    return False


class Call(Protocol):
    """A user's function as the stage calls it."""

    def __call__(
        self,
        rows: pa.RecordBatch | Data,
        interrupted: Interrupted,
        strict: bool = True,
        raw: bool = False,
    ) -> Output:
        """Make an output of some rows; raw if they go to the next function of a run.

        Unless it is strict, rows stay as their functions have returned them where a conversion to
        Arrow and back would change nothing; what goes wrong then may be blamed on another
        operator, or be no more than an ``AgainError``. So it must be repeated, and be strict.
        """


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
        return _unchanged
    calls = make(spec, spec.function)

    def guarded(
        rows: pa.RecordBatch | Data,
        interrupted: Interrupted,
        strict: bool = True,
        raw: bool = False,
    ) -> Output:
        try:
            return calls(Data.of(rows), interrupted, strict, raw)
        except (OperatorError, AgainError, EarlierError):
            raise
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            raise failure(spec, error) from None

    return guarded


def _unchanged(
    rows: pa.RecordBatch | Data,
    interrupted: Interrupted,  # noqa: ARG001
    strict: bool = True,  # noqa: ARG001
    raw: bool = False,  # noqa: ARG001
) -> Output:
    return Output(Data.of(rows))


def taken_from(results: Iterator[Any], count: int, interrupted: Interrupted) -> list[Any]:
    """What a function returns for one row after the other; a failure names no row."""
    made: list[Any] = []
    some = count if interrupted is never else 1 + count // LOOKS
    while len(made) < count:
        expected = min(len(made) + some, count)
        made.extend(islice(results, some))
        if len(made) < expected:  # a StopIteration in the function looks like the end of the rows
            raise AgainError
        if interrupted():
            break
    return made


def _each(
    spec: OperatorSpec, function: Function, data: Data, interrupted: Interrupted
) -> list[Any]:
    """Call a function on one row after the other; a failure names the row."""
    made: list[Any] = []
    rows, keep = data.copied(), keeper(spec)
    some = 1 + len(rows) // LOOKS
    try:
        while len(made) < len(rows):
            for row in rows[len(made) : len(made) + some]:
                made.append(keep(function(row)))  # noqa: PERF401 - its length says which failed
            if interrupted():
                break
    except BaseException as error:  # the user's code may raise anything, even SystemExit
        own = failure(spec, error, data.row(len(made)))
        raise blamed(own, data, len(made)) from None
    return made


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


def _map(spec: OperatorSpec, function: Function) -> Calls:
    settler, convert = Settler(spec), partial(converted, spec)
    called = _over_batches(spec, function, lambda _, __: None)

    def by_row(data: Data, interrupted: Interrupted, strict: bool, raw: bool) -> Output:
        raw = raw and not settler.strict
        if strict or settler.strict:
            listed = _each(spec, function, data, interrupted)
            taken = len(listed)
            return Output(strictly(spec, listed, range(taken), data, raw), taken=taken)
        rows = data.given()
        before = {} if raw or data.raw else settler.before(data.schema, rows)
        results = map(function, rows)
        if settler.keep is not None:
            results = map(settler.keep, results)
        made = taken_from(results, len(rows), interrupted)
        del rows, results  # so that it can be told who else has what was returned
        settled = settler.handed_on(made) if raw else settler.settled(made, before, convert)
        return Output(settled, taken=len(made))

    def by_batch(data: Data, __: Interrupted, strict: bool, ___: bool) -> Output:
        made, _ = called(data, strict)
        if len(made) != len(data):
            raise OperatorError(
                spec.name,
                f"a map returned {len(made)} rows for {len(data)}; use flat_map or filter",
            )
        return Output(made)

    return by_row if spec.style is Style.ROW else by_batch


def _over_batches(spec: OperatorSpec, function: Function, read: Read) -> Batched:
    """A function over batches or frames, as one that gives rows, and what is read from them."""
    if spec.style is Style.PANDAS:
        return _by_frame(spec, function, read)

    def called(data: Data, _: bool) -> tuple[Data, Integers | None]:
        made = function(data.batch)
        parents = read(made, len(data))
        return _borrowed(spec, made), parents

    return called


def _borrowed(spec: OperatorSpec, made: Any) -> Data:  # noqa: ANN401
    """A returned batch or frame whose memory the function may have kept."""
    data = Data.of(_to_arrow(spec, made))
    data.borrowed = True
    return data


def _by_frame(spec: OperatorSpec, function: Function, read: Read) -> Batched:
    from fries.runtime.frames import Framer  # pandas takes a while to load

    framer = Framer(spec)

    def called(data: Data, strict: bool) -> tuple[Data, Integers | None]:
        frames = [data.batch.to_pandas() if strict else data.given_frame()]
        before = {} if strict else framer.before(data, frames[0])
        made = [function(frames.pop())]  # so that it can be told who else has it
        parents = read(made[0], len(data))
        settled = None if strict else framer.settled(made, before, parents)
        return _borrowed(spec, made[0]) if settled is None else settled, parents

    return called


def _filter(spec: OperatorSpec, function: Function) -> Calls:
    passer = _Passer(spec)

    def call(data: Data, interrupted: Interrupted, strict: bool, raw: bool) -> Output:
        found = _column(spec, function, data, interrupted, strict)
        if spec.style is Style.ROW:  # as Python sees it: a list of values would make a matrix
            found = _read(spec, found, data, lambda values: list(map(bool, values)))
        kept = np.asarray(found, dtype=bool)
        parents = None if len(kept) == len(data) and kept.all() else np.flatnonzero(kept)
        return Output(passer.passed(data, kept, strict, raw), parents, taken=len(kept))

    return call


def _split(spec: OperatorSpec, function: Function) -> Calls:
    passer = _Passer(spec)

    def call(data: Data, interrupted: Interrupted, strict: bool, raw: bool) -> Output:
        found = _column(spec, function, data, interrupted, strict)
        read = partial(numbers, spec, "branch", end=spec.branches)
        branches = _read(spec, found, data, read)
        all_of_them = np.ones(len(branches), dtype=bool)
        passed = passer.passed(data, all_of_them, strict, raw)
        return Output(passed, None, branches, len(branches))

    return call


class _Passer:
    """What goes on of the rows that a filter or a split got."""

    def __init__(self, spec: OperatorSpec) -> None:
        self._spec, self._settler = spec, Settler(spec)

    def passed(self, data: Data, kept: Booleans, strict: bool, raw: bool) -> Data:
        """The first rows, where they are kept, as they came; settled if they leave a run here."""
        if not data.raw:
            part = data.slice(0, len(kept))
            return part if kept.all() else part.where(kept)
        self._follow(data.schema)
        if strict:
            rows, places = data.copied(), np.flatnonzero(kept).tolist()
            return strictly(self._spec, [rows[place] for place in places], places, data, raw)
        rows = list(compress(data.given(), kept.tolist()))
        if raw:
            return self._settler.handed_on(rows)
        return self._settler.settled(rows, {}, partial(converted, self._spec))

    def _follow(self, schema: pa.Schema) -> None:
        """Its columns are those that come, which a change may have made others."""
        if self._spec.schema != schema:
            self._spec = replace(self._spec, schema=schema)
            self._settler = Settler(self._spec)


def _flat_map(spec: OperatorSpec, function: Function) -> Calls:
    settler, convert = Settler(spec), partial(converted, spec)

    def by_row(data: Data, interrupted: Interrupted, strict: bool, raw: bool) -> Output:
        raw = raw and not settler.strict
        if strict or settler.strict:
            keep = keeper(spec)
            listed = _each(
                spec, lambda row: [keep(made) for made in function(row)], data, interrupted
            )
            parents, rows = _parents(list(map(len, listed))), list(chain.from_iterable(listed))
            whole = strictly(spec, rows, parents.tolist(), data, raw)
            return Output(whole, parents, taken=len(listed))
        rows = data.given()
        results: Iterator[Any] = map(function, rows)
        if settler.keep is not None:
            results = map(map, repeat(settler.keep), results)
        listed = taken_from(map(tuple, results), len(rows), interrupted)  # each at once
        del rows, results
        made, counts = list(chain.from_iterable(listed)), list(map(len, listed))
        del listed  # so that it can be told who else has the rows
        settled = settler.handed_on(made) if raw else settler.settled(made, {}, convert)
        return Output(settled, _parents(counts), taken=len(counts))

    called = _over_batches(spec, function, partial(_numbered, spec))

    def by_batch(data: Data, _: Interrupted, strict: bool, __: bool) -> Output:
        return Output(*called(data, strict))

    return by_row if spec.style is Style.ROW else by_batch


def _numbered(spec: OperatorSpec, made: Any, count: int) -> Integers:  # noqa: ANN401
    """The column of a batch or frame that says from which of so many rows each of its rows is."""
    if PARENT not in (made.columns if spec.style is Style.PANDAS else made.schema.names):
        raise OperatorError(
            spec.name,
            f"a flat_map over batches must return a column {PARENT!r}: for each output row "
            "the number of the input row that it comes from",
        )
    return numbers(spec, f"number in {PARENT!r}", made[PARENT], count)


def _parents(counts: list[int]) -> Integers:
    """For each output row its input row, if that has so many."""
    return np.repeat(np.arange(len(counts)), counts)


def _lookup(spec: OperatorSpec, function: Function) -> Calls:  # noqa: ARG001
    def call(data: Data, _: Interrupted, __: bool, ___: bool) -> Output:
        found, parents = function(data.batch)
        made = Data.of(found)
        made.borrowed = data.borrowed  # columns that it leaves as they are
        return Output(made, parents)

    return call


def _column(
    spec: OperatorSpec, function: Function, data: Data, interrupted: Interrupted, strict: bool
) -> Any:  # noqa: ANN401
    """One value for each row, from a function of a row or of a batch."""
    if spec.style is Style.ROW:
        if strict:
            return _each(spec, function, data, interrupted)
        return taken_from(map(function, data.lent()), len(data), interrupted)
    values = np.asarray(function(_to_style(spec, data)))
    if values.shape != (len(data),):
        raise OperatorError(
            spec.name,
            f"the function returned values of shape {values.shape} for {len(data)} rows; "
            "give one for each row",
        )
    return values


def _read(
    spec: OperatorSpec, found: Sequence[Any], data: Data, read: Callable[[Sequence[Any]], Any]
) -> Any:  # noqa: ANN401
    """What values mean; if one of them means nothing, its row is named."""
    with suppress(BaseException):  # an object's methods may raise anything, even SystemExit
        return read(found)
    for number, value in enumerate(found):
        try:
            read([value])
        except OperatorError as error:
            came = shortened(data.row(number))
            raise blamed(OperatorError(spec.name, error.problem, came), data, number) from None
        except BaseException as error:  # as above
            own = failure(spec, error, data.row(number))
            raise blamed(own, data, number) from None
    return read(found)


def numbers(spec: OperatorSpec, what: str, given: Any, end: int) -> Integers:  # noqa: ANN401
    """Numbers that point somewhere; others are refused, instead of losing rows."""
    values = np.asarray(given)
    with np.errstate(invalid="ignore"):  # what is no number differs from what it is cast to
        numbers = values.astype(np.int64)
    wrong = values[(numbers < 0) | (numbers >= end) | (numbers != values)]
    if len(wrong):
        raise OperatorError(
            spec.name,
            f"it returned the {what} {shortened(wrong.tolist()[0])}; there are 0 to {end - 1}",
        )
    return numbers


def _to_style(spec: OperatorSpec, data: Data) -> Any:  # noqa: ANN401
    return data.frame if spec.style is Style.PANDAS else data.batch


def _to_arrow(spec: OperatorSpec, made: Any) -> pa.RecordBatch:  # noqa: ANN401
    """A returned batch with exactly the declared columns and types."""
    if spec.style is Style.PANDAS:
        return batch_of(made, spec.schema)
    batch: pa.RecordBatch = made
    if batch.schema.equals(spec.schema):
        return batch
    missing = [name for name in spec.schema.names if name not in batch.schema.names]
    if missing:
        raise OperatorError(spec.name, f"the returned batch lacks the columns {missing}")
    return batch.select(spec.schema.names).cast(spec.schema)
