"""What a reconfiguration brings: new versions of operators, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from fries.arguments import deferred
from fries.errors import FriesError, OperatorError, UpdateRefusedError, UsageError
from fries.failing import shortened
from fries.labels import code_label
from fries.runtime.functions import accepts, make_call, never
from fries.runtime.lookup import Lookup
from fries.runtime.spec import ARGUMENTS, EdgeSpec, Function, Kind, OperatorSpec, Style

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Update:
    """A new version of an operator.

    ``migrate`` turns a state of the version before into one of this version, key by key, when
    a row of the new version first touches it; ``inverse`` turns it back, for an undo. ``schema``
    names the columns that the new
    version gives, if they change: what follows in the same stage must take them, so update it
    in the same reconfiguration. ``result`` is for an aggregate. Of a lookup, the function is
    a table. ``label`` names the version in the history; without, a short hash of its code does.
    """

    function: Function | DataFrame | pd.DataFrame | pa.Table
    migrate: Function | None = None
    schema: str | StructType | pa.Schema | None = None
    result: Function | None = None
    inverse: Function | None = None
    label: str = ""


@dataclass(frozen=True)
class Revision:
    """An update in the terms of the runtime."""

    function: Function
    migrate: Function | None = None
    schema: pa.Schema | None = None
    result: Function | None = None
    inverse: Function | None = None
    label: str = field(default="", compare=False)


def revised(spec: OperatorSpec, update: Revision) -> OperatorSpec:
    """The operator as an update wants it; refused if it cannot be."""
    if spec.function is None:
        raise UpdateRefusedError(spec.name, "it has no function to replace")
    _check_callables(spec, update)
    if update.migrate is not None and spec.kind not in (Kind.PROCESS, Kind.AGGREGATE):
        raise UpdateRefusedError(spec.name, f"a {spec.kind.value} has no state to migrate")
    if update.inverse is not None and update.migrate is None:
        raise UpdateRefusedError(spec.name, "inverse= takes back what migrate= does; give both")
    if update.result is not None and spec.kind is not Kind.AGGREGATE:
        raise UpdateRefusedError(spec.name, f"a {spec.kind.value} has no result function")
    if update.schema is not None:
        _check_schema(spec, update.schema)
    if spec.kind is Kind.LOOKUP:
        _check_lookup(spec, update.function)
    schema = spec.schema if update.schema is None else update.schema
    result = update.result or spec.result
    label = update.label or code_label(update.function, result)
    return replace(spec, function=update.function, schema=schema, result=result, label=label)


def _check_callables(spec: OperatorSpec, update: Revision) -> None:
    """Refuse functions that cannot be called as they will be."""
    functions = [("function", update.function, ARGUMENTS.get(spec.kind, 1))]
    functions += [("migrate", update.migrate, 1)] if update.migrate is not None else []
    functions += [("result", update.result, 1)] if update.result is not None else []
    functions += [("inverse", update.inverse, 1)] if update.inverse is not None else []
    for what, function, _ in functions:
        if not callable(function):
            raise UpdateRefusedError(
                spec.name, f"its {what}, {shortened(function)}, cannot be called"
            )
    for what, function, count in functions:
        if not accepts(function, count):
            raise UpdateRefusedError(
                spec.name, f"its {what} must take {count} argument{'s' * (count > 1)}"
            )
        may_generate = spec.kind is Kind.FLAT_MAP and what == "function"
        if wrong := deferred(function, may_generate):
            raise UpdateRefusedError(spec.name, f"its {what} is {wrong}")


def _check_schema(spec: OperatorSpec, schema: pa.Schema) -> None:
    if spec.kind in (Kind.FILTER, Kind.SPLIT, Kind.LOOKUP):
        raise UpdateRefusedError(
            spec.name, f"the columns of a {spec.kind.value} follow from its input; drop schema="
        )
    keys = spec.keying.columns if spec.kind is Kind.AGGREGATE and spec.keying else ()
    missing = [key for key in keys if key not in schema.names]
    if missing:
        raise UpdateRefusedError(spec.name, f"its schema lacks the key columns {missing}")


def _check_lookup(spec: OperatorSpec, function: Function) -> None:
    old, takes = spec.function, spec.takes
    if not isinstance(function, Lookup) or not isinstance(old, Lookup) or takes is None:
        raise UpdateRefusedError(spec.name, "a lookup is updated with a table")
    if not spec.many and not function.unique:
        raise UpdateRefusedError(
            spec.name,
            "a key occurs twice in the new table, but the lookup was planned as one-to-one; "
            "remove the duplicates",
        )
    try:
        schema = function.schema(takes)
    except UsageError as error:
        raise UpdateRefusedError(spec.name, error.problem) from error
    if not schema.equals(spec.schema):
        raise UpdateRefusedError(
            spec.name, f"the table gives {_columns(schema)}, planned are {_columns(spec.schema)}"
        )


def check_columns(
    operators: Sequence[OperatorSpec],
    edges: Iterable[EdgeSpec],
    updated: Mapping[str, OperatorSpec],
    crossing: Mapping[int, pa.Schema],
) -> dict[str, OperatorSpec]:
    """See that the new versions and all that follows them fit together.

    ``operators`` are the current versions in topological order, ``crossing`` the edges
    between stages and to the output, whose columns are part of Spark's plan. Returns the
    updated operators with the columns that they will get.
    """
    edges = tuple(edges)
    gives: dict[str, pa.Schema] = {}
    ready: dict[str, OperatorSpec] = {}
    causes: dict[str, str] = {}
    """By operator that would get or give other columns, the updated one that they come from."""
    for spec in operators:
        before = [e.source for e in edges if e.target == spec.name and e.source in gives]
        arriving = [gives[source] for source in before]
        takes = arriving[0] if arriving else spec.schema
        cause = next((causes[source] for source in before if source in causes), spec.name)
        if any(not other.equals(takes) for other in arriving) and spec.kind is Kind.PASS:
            raise UpdateRefusedError(
                cause, f"the inputs of {spec.name!r} would have different columns"
            )
        if spec.name in updated:
            ready[spec.name] = _ready(updated[spec.name], takes)
        gives[spec.name] = _given(ready.get(spec.name, spec), takes, spec.name in updated, cause)
        if not gives[spec.name].equals(spec.schema):
            causes[spec.name] = spec.name if spec.name in updated else cause
        _check_crossing(spec, gives[spec.name], edges, crossing, causes.get(spec.name, spec.name))
    return ready


def _check_crossing(
    spec: OperatorSpec,
    gives: pa.Schema,
    edges: Iterable[EdgeSpec],
    crossing: Mapping[int, pa.Schema],
    cause: str,
) -> None:
    """Refuse other columns over an edge whose columns are part of Spark's plan."""
    for edge in edges:
        planned = crossing.get(edge.number)
        if edge.source == spec.name and planned is not None and not gives.equals(planned):
            giver = "it" if cause == spec.name else f"behind it {spec.name!r}"
            raise UpdateRefusedError(
                cause,
                f"{giver} would give {_columns(gives)} to {edge.target!r}, where the plan is fixed "
                f"on {_columns(planned)} (an exchange or the output, which Spark has planned); "
                "keep those columns, or declare all of them when the flow is built",
            )


def _ready(spec: OperatorSpec, takes: pa.Schema) -> OperatorSpec:
    """A new version with the columns that it will get."""
    if isinstance(spec.function, Lookup):
        try:
            return replace(spec, takes=takes, schema=spec.function.schema(takes))
        except UsageError as error:
            raise UpdateRefusedError(spec.name, error.problem) from error
    made = replace(spec, takes=takes)
    _dry_run(made, spec.name)
    return made


def _given(spec: OperatorSpec, takes: pa.Schema, is_new: bool, cause: str) -> pa.Schema:
    """The columns that an operator gives for the columns that it will get."""
    if spec.kind in (Kind.PASS, Kind.FILTER, Kind.SPLIT):
        if spec.kind is not Kind.PASS and not is_new and spec.style is not Style.ROW:
            _dry_run(replace(spec, takes=takes), cause)
        return takes
    if is_new or spec.takes is None or takes.equals(spec.takes):
        return spec.schema
    if spec.style is Style.ROW or spec.kind is Kind.LOOKUP:
        raise UpdateRefusedError(
            cause,
            f"behind it {spec.name!r} would get {_columns(takes)} instead of "
            f"{_columns(spec.takes)}; update {spec.name!r} in the same reconfiguration, too",
        )
    _dry_run(replace(spec, takes=takes), cause)
    return spec.schema


def _dry_run(spec: OperatorSpec, cause: str) -> None:
    """Call a function over batches on an empty one, which must give the right columns."""
    if spec.style is Style.ROW or spec.takes is None or spec.function is None:
        return
    empty = pa.RecordBatch.from_pylist([], schema=spec.takes)
    from fries.spark.rehearsal import rehearsed

    with rehearsed(spec.function) as function:
        _called(replace(spec, function=function), empty, cause)


def _called(spec: OperatorSpec, empty: pa.RecordBatch, cause: str) -> None:
    try:
        make_call(spec)(empty, never)
    except FriesError as error:
        story = f"\n{error.story}" if isinstance(error, OperatorError) and error.story else ""
        problem = error.problem if isinstance(error, OperatorError) else str(error)
        whose = "its dry run" if cause == spec.name else f"behind it the dry run of {spec.name!r}"
        raise UpdateRefusedError(
            cause, f"{whose} on an empty batch failed: {problem}{story}"
        ) from error


def _columns(schema: pa.Schema | None) -> str:
    return "nothing" if schema is None else ", ".join(f"{f.name} {f.type}" for f in schema)
