"""A stream of a flow: the rows that leave an operator, and the operators that can follow.

Functions take one row (a dict) each, or with ``batch="arrow"`` or ``batch="pandas"`` a whole
batch. Every operator has a name, by which it can be reconfigured while the flow runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from fries.arguments import NUMBER, check_name, deferred, expect, expect_once, listed
from fries.errors import ArgumentError, FlowError, SchemaError
from fries.failing import described, shortened
from fries.runtime.functions import accepts
from fries.runtime.spec import (
    DeadLetters,
    Function,
    Keying,
    Kind,
    OnUnreadable,
    OperatorSpec,
    Style,
    Unreadable,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fries.flow import Flow

BatchStyle: TypeAlias = Literal["arrow", "pandas"]
Schema: TypeAlias = "str | StructType | pa.Schema"
"""Columns as text (``"user long, amount double"``), or as a schema of Spark or Arrow."""
Columns: TypeAlias = "str | Sequence[str]"
OnError: TypeAlias = "str | DeadLetters"
"""What becomes of rows that an operator cannot process: ``"fail"``, ``"drop"``, or the name of an
output of the flow that they go to."""


@dataclass(frozen=True)
class Stream:
    """The rows that leave an operator, or one branch of a split."""

    flow: Flow
    operator: str
    schema: pa.Schema
    branch: int = 0

    def map(
        self,
        name: str,
        function: Function,
        schema: Schema | None = None,
        batch: BatchStyle | None = None,
        shuffle: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """One row out for each row in. Without a schema: the input's, or what a batch says.

        With ``shuffle``, rows are exchanged by these columns first, as in the other operators
        that have it: a Spark shuffle, behind which a new stage begins.

        ``switch_within`` are the seconds that one chunk of rows may take, and so the longest that
        a change waits for it: a function over batches gets as many rows in a call as fit. By
        default it gets so few that a change waits a few milliseconds, or as many as it takes to
        lose less than a tenth of the throughput. All operators of a stage share their chunks.

        ``on_error`` says what becomes of rows on which the function raises, or for which it returns
        what was not declared: ``"fail"`` (the version has failed), ``"drop"``, or the name of an
        output that they go to, which :meth:`Flow.output` adds; :class:`DeadLetters` has a limit.
        """
        return self._then(
            name,
            Kind.MAP,
            function,
            schema,
            batch,
            shuffle=shuffle,
            switch_within=switch_within,
            on_error=on_error,
        )

    def flat_map(
        self,
        name: str,
        function: Function,
        schema: Schema | None = None,
        batch: BatchStyle | None = None,
        shuffle: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Any number of rows out for each row in (one-to-many)."""
        return self._then(
            name,
            Kind.FLAT_MAP,
            function,
            schema,
            batch,
            shuffle=shuffle,
            switch_within=switch_within,
            on_error=on_error,
        )

    def filter(
        self,
        name: str,
        function: Function,
        batch: BatchStyle | None = None,
        shuffle: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """The rows for which the function is true."""
        return self._then(
            name,
            Kind.FILTER,
            function,
            self.schema,
            batch,
            shuffle=shuffle,
            switch_within=switch_within,
            on_error=on_error,
        )

    def split(
        self,
        name: str,
        function: Function,
        branches: int = 2,
        batch: BatchStyle | None = None,
        shuffle: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> tuple[Stream, ...]:
        """Each row goes to one branch: the function gives its number, from 0."""
        expect(f"split {name!r}", "branches", branches, int, "how many there are, such as 2")
        if branches < 1:
            raise ArgumentError(f"split {name!r}", f"it cannot have {branches} branches")
        stream = self._then(
            name,
            Kind.SPLIT,
            function,
            self.schema,
            batch,
            branches,
            shuffle,
            switch_within,
            on_error,
        )
        return tuple(Stream(self.flow, name, stream.schema, number) for number in range(branches))

    def replicate(self, name: str) -> Stream:
        """The same rows; use the result as often as you like."""
        return self.flow._add(OperatorSpec(name, Kind.PASS, self.schema), (self,))

    def union(self, name: str, *others: Stream) -> Stream:
        """The rows of several streams with the same columns."""
        meant = f"streams one after the other: .union({name!r}, second, third)"
        for other in others:
            expect(f"union {name!r}", "an input", other, Stream, meant)
            if other.schema != self.schema:
                raise SchemaError(
                    f"union {name!r}",
                    f"{self.operator} has the columns {self.schema.names} and {other.operator} "
                    f"has {other.schema.names}; make names, order and types equal",
                )
        return self.flow._add(OperatorSpec(name, Kind.PASS, self.schema), (self, *others))

    def process(
        self,
        name: str,
        function: Function,
        key: Columns,
        schema: Schema | None = None,
        order_by: Columns = (),
        initial: object = None,
        many: bool = False,
        migrations: Sequence[Function | None] = (),
        on_unreadable: Literal["fail", "skip"] | Function = "fail",
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Keyed and stateful: ``function(state, row)`` returns ``(state, row)``.

        Each key has a state, ``initial`` at first (after an update: ``initial``, migrated); a
        state of ``None`` is forgotten. A row of ``None`` drops the tuple; with ``many``, return
        a list of rows instead. In a batch the rows of a key come in the order of ``order_by``.
        ``migrations`` are for a flow that is built again on an old checkpoint: what turned the
        states of each earlier version into those of the next, oldest first (``None`` where
        they stayed as they were). ``on_unreadable`` is for a state in the checkpoint that cannot
        be unpickled: ``"skip"`` forgets it; a function of its key, its bytes and the exception
        returns what it should be, as the version that wrote it had it.
        """
        meant = "a list of functions, oldest first"
        expect(f"operator {name!r}", "migrations", migrations, Sequence, meant)
        keying = Keying(
            self._key(name, key),
            self._order(name, order_by),
            initial,
            tuple(step for step in migrations if step is not None),
            _on_unreadable(name, on_unreadable),
        )
        _check_callables(name, 2, function)
        _check_callables(name, 1, *(step for step in migrations if step is not None))
        gives = as_arrow(schema) or self.schema
        spec = OperatorSpec(
            name,
            Kind.PROCESS,
            gives,
            function,
            takes=self.schema,
            keying=keying,
            many=many,
            switch_within=_seconds(name, switch_within),
            on_error=_on_error(name, on_error),
        )
        return self.flow._add(spec, (self,))

    def aggregate(
        self,
        name: str,
        function: Function,
        schema: Schema,
        key: Columns = (),
        initial: object = None,
        result: Function | None = None,
        order_by: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """One row per key at the end of each micro-batch, or of the batch job (blocking).

        ``function(state, row)`` returns the next state, beginning with ``initial``;
        ``result(state)`` makes the columns beside the key, a dict; without it the state is it.
        """
        keying = Keying(self._key(name, key), self._order(name, order_by), initial)
        _check_callables(name, 2, function)
        _check_callables(name, 1, *(() if result is None else (result,)))
        gives = as_arrow(schema)
        missing = [column for column in keying.columns if column not in gives.names]
        if missing:
            raise SchemaError(f"aggregate {name!r}", f"its schema lacks the key columns {missing}")
        spec = OperatorSpec(
            name,
            Kind.AGGREGATE,
            gives,
            function,
            takes=self.schema,
            keying=keying,
            result=result,
            switch_within=_seconds(name, switch_within),
            on_error=_on_error(name, on_error),
        )
        return self.flow._add(spec, (self,))

    def lookup(
        self,
        name: str,
        table: DataFrame | pd.DataFrame | pa.Table,
        on: Columns,
        to: Columns | None = None,
        how: Literal["inner", "left"] = "inner",
        shuffle: bool = False,
        switch_within: float | None = None,
    ) -> Stream:
        """Join with a static table, which every worker holds.

        One-to-one if no key occurs twice in the table, else one-to-many;
        :meth:`Flow.explain` says which. ``on`` are columns of the stream, ``to`` those of the
        table if they are called differently. With ``shuffle`` rows are exchanged by key first.
        """
        from fries.runtime.lookup import Lookup

        keys = listed(f"lookup {name!r}", "on", on)
        theirs = None if to is None else listed(f"lookup {name!r}", "to", to)
        found = Lookup(as_table(name, table), keys, how, theirs)
        keying = Keying(self._key(name, keys)) if shuffle else None
        gives = found.schema(self.schema)
        spec = OperatorSpec(
            name,
            Kind.LOOKUP,
            gives,
            found,
            takes=self.schema,
            keying=keying,
            many=not found.unique,
            switch_within=_seconds(name, switch_within),
        )
        return self.flow._add(spec, (self,))

    def join(self, name: str, other: Stream, on: Columns) -> Stream:
        """Pair two branches of the same tuples on a key that is unique in a batch.

        The columns of this stream, then those of the other one that this one has not.
        """
        expect(f"join {name!r}", "the other branch", other, Stream, "a stream of this flow")
        self.flow._check_own(name, (other,))
        keys = self._key(name, on)
        ours_from, theirs_from = (self.flow._origins(one.operator) for one in (self, other))
        if ours_from != theirs_from:
            raise FlowError(
                f"join {name!r}",
                f"one branch comes from {sorted(ours_from)} and the other from "
                f"{sorted(theirs_from)}; it pairs branches of the same tuples (for a static table "
                "there is lookup)",
            )
        for key in keys:
            ours, theirs = self.schema.field(key).type, _type_of(name, other, key)
            if ours != theirs:
                raise SchemaError(
                    f"join {name!r}",
                    f"key {key!r} is {ours} in one branch and {theirs} in the other",
                )
        more = [field for field in other.schema if field.name not in self.schema.names]
        gives = pa.schema([*self.schema, *more])
        spec = OperatorSpec(name, Kind.JOIN, gives, keying=Keying(keys))
        return self.flow._add(spec, (self, other))

    def _then(
        self,
        name: str,
        kind: Kind,
        function: Function,
        schema: Schema | None,
        batch: BatchStyle | None,
        branches: int = 1,
        shuffle: Columns = (),
        switch_within: float | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        _check_callables(name, 1, function, may_generate=kind is Kind.FLAT_MAP)
        style = _style(name, batch)
        declared = as_arrow(schema)
        if declared is None and kind is Kind.MAP and style is not Style.ROW:
            declared = _inferred(name, function, style, self.schema)
        gives = declared or self.schema
        keys = self._key(name, shuffle)
        keying = Keying(keys) if keys else None
        spec = OperatorSpec(
            name,
            kind,
            gives,
            function,
            style,
            branches,
            takes=self.schema,
            keying=keying,
            switch_within=_seconds(name, switch_within),
            on_error=_on_error(name, on_error),
        )
        return self.flow._add(spec, (self,))

    def _key(self, name: str, columns: Columns) -> tuple[str, ...]:
        """Key columns, of types that are the same wherever they are hashed and compared."""
        keys = self._known(name, "key", columns)
        for key in keys:
            kind = self.schema.field(key).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                raise SchemaError(
                    f"operator {name!r}",
                    f"its key {key!r} is {kind}; use integers, strings, moments or decimals",
                )
        return keys

    def _order(self, name: str, columns: Columns) -> tuple[str, ...]:
        """Columns to sort by, of types that have an order."""
        known = self._known(name, "order_by", columns)
        for column in known:
            kind = self.schema.field(column).type
            if pa.types.is_nested(kind):
                raise SchemaError(f"operator {name!r}", f"{kind} {column!r} cannot be sorted by")
        return known

    def _known(self, name: str, what: str, columns: Columns) -> tuple[str, ...]:
        names = listed(f"operator {name!r}", f"its {what}", columns)
        missing = [column for column in names if column not in self.schema.names]
        if missing:
            raise SchemaError(
                f"operator {name!r}",
                f"its {what} names {missing}, but it gets the columns {self.schema.names}",
            )
        return names


def as_arrow(schema: Any) -> Any:  # noqa: ANN401
    """A schema of Arrow, however it was given; none stays none."""
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    from fries.spark.schemas import arrow_schema

    return arrow_schema(schema)


def as_table(name: str, table: Any) -> pa.Table:  # noqa: ANN401
    """A static table of Spark, pandas or Arrow in memory, with the types of a stream."""
    where = f"lookup {name!r}"
    if isinstance(table, pa.Table):
        expect_once(where, table.column_names)
        return table
    from fries.spark.given import check_frame
    from fries.spark.schemas import arrow_schema, from_pandas

    if type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "columns"):
        expect_once(where, map(str, table.columns))
        return from_pandas(where, table)
    check_frame(where, table)
    expect_once(where, table.columns)
    if table.isStreaming:
        raise ArgumentError(where, "its table is a stream; a lookup needs a static one")
    found: pa.Table = table.toArrow().cast(arrow_schema(table.schema))
    return found


def _style(name: str, batch: str | None) -> Style:
    try:
        return Style.ROW if batch is None else {"arrow": Style.ARROW, "pandas": Style.PANDAS}[batch]
    except KeyError:
        raise ArgumentError(
            f"operator {name!r}", f"batch={shortened(batch)} means nothing; use 'arrow' or 'pandas'"
        ) from None


def _seconds(name: str, within: float | None) -> float | None:
    """How long a chunk may take, if that was said."""
    if within is None:
        return None
    if isinstance(within, bool) or not isinstance(within, int | float):
        raise ArgumentError(
            f"operator {name!r}", f"switch_within={within!r} is no number of seconds"
        )
    if not 0 < within < math.inf:
        raise ArgumentError(
            f"operator {name!r}", f"switch_within={within} means nothing; give seconds above 0"
        )
    return float(within)


def _check_callables(
    name: str, arguments: int, *functions: object, may_generate: bool = False
) -> None:
    check_name("operator", name)
    for function in functions:
        if not callable(function):
            raise ArgumentError(f"operator {name!r}", f"{shortened(function)} cannot be called")
        if not accepts(function, arguments):
            raise ArgumentError(
                f"operator {name!r}",
                f"{shortened(function)} must take {arguments} argument{'s' * (arguments > 1)}",
            )
        if wrong := deferred(function, may_generate):
            raise ArgumentError(f"operator {name!r}", f"{shortened(function)} is {wrong}")


def _on_error(name: str, given: object) -> DeadLetters | None:
    rule = DeadLetters(given) if isinstance(given, str) else given
    if not isinstance(rule, DeadLetters) or not rule.to:
        raise ArgumentError(
            f"operator {name!r}",
            f"on_error={shortened(given)} means nothing; use 'fail', 'drop', the name of an "
            "output, or DeadLetters(to, limit=)",
        )
    expect(f"operator {name!r}", "the limit of failing rows", rule.limit, NUMBER, "a share of 1")
    if rule.to == "fail" and isinstance(given, DeadLetters):
        raise ArgumentError(
            f"operator {name!r}", "DeadLetters('fail') sets nothing apart; use on_error='fail'"
        )
    if not 0 <= rule.limit <= 1:
        raise ArgumentError(
            f"operator {name!r}", f"the limit of failing rows is a share, not {rule.limit}"
        )
    return None if rule.to == "fail" else rule


def _on_unreadable(name: str, given: object) -> OnUnreadable:
    if callable(given):
        _check_callables(name, 3, given)
        return given
    try:
        return Unreadable(given)
    except ValueError:
        raise ArgumentError(
            f"operator {name!r}",
            f"on_unreadable={shortened(given)} means nothing; use 'fail', 'skip' or a function of "
            "the key, the pickled state and the error",
        ) from None


def _type_of(name: str, stream: Stream, column: str) -> pa.DataType:
    if column not in stream.schema.names:
        raise SchemaError(f"join {name!r}", f"{stream.operator} has no column {column!r}")
    kind: pa.DataType = stream.schema.field(column).type
    return kind


def _inferred(name: str, function: Function, style: Style, schema: pa.Schema) -> pa.Schema:
    """The columns that a function over batches returns, from a dry run on an empty one."""
    from fries.spark.rehearsal import rehearsed

    batch = pa.RecordBatch.from_pylist([], schema=schema)
    empty: Any = batch.to_pandas() if style is Style.PANDAS else batch
    try:
        with rehearsed(function) as copy:
            made = copy(empty)
    except Exception as error:
        raise SchemaError(
            f"operator {name!r}",
            f"its dry run on an empty batch failed ({described(error)}); give a schema",
        ) from error
    if style is Style.PANDAS:
        return _from_frame(name, made, empty.dtypes, schema)
    inferred: pa.Schema = made.schema
    return inferred


def _from_frame(name: str, made: Any, dtypes: Any, schema: pa.Schema) -> pa.Schema:  # noqa: ANN401
    """The columns of an empty frame: one that was not changed keeps its type."""
    guessed = pa.Schema.from_pandas(made, preserve_index=False)
    fields = [
        schema.field(column.name)
        if column.name in dtypes and made.dtypes[column.name] == dtypes[column.name]
        else column
        for column in guessed
    ]
    for column in fields:
        if pa.types.is_null(column.type):
            raise SchemaError(
                f"operator {name!r}",
                f"an empty frame does not tell the type of its column {column.name!r}; "
                "give a schema",
            )
    return pa.schema(fields)
