"""What a reconfiguration brings: new versions of operators, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from fries.errors import FriesError, OperatorError, TraitError, UpdateRefusedError
from fries.runtime.functions import accepts, make_call, never
from fries.runtime.lookup import Lookup
from fries.runtime.spec import ARGUMENTS, EdgeSpec, Function, Kind, OperatorSpec, Style

if TYPE_CHECKING:
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
    a table.
    """

    function: Function | DataFrame | pa.Table
    migrate: Function | None = None
    schema: str | StructType | pa.Schema | None = None
    result: Function | None = None
    inverse: Function | None = None


@dataclass(frozen=True)
class Revision:
    """An update in the terms of the runtime."""

    function: Function
    migrate: Function | None = None
    schema: pa.Schema | None = None
    result: Function | None = None
    inverse: Function | None = None


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
    return replace(spec, function=update.function, schema=schema, result=result)


def _check_callables(spec: OperatorSpec, update: Revision) -> None:
    """Refuse functions that cannot be called as they will be."""
    functions = [("function", update.function, ARGUMENTS.get(spec.kind, 1))]
    functions += [("migrate", update.migrate, 1)] if update.migrate is not None else []
    functions += [("result", update.result, 1)] if update.result is not None else []
    functions += [("inverse", update.inverse, 1)] if update.inverse is not None else []
    for what, function, _ in functions:
        if not callable(function):
            raise UpdateRefusedError(spec.name, f"its {what}, {function!r}, cannot be called")
    for what, function, count in functions:
        if not accepts(function, count):
            raise UpdateRefusedError(
                spec.name, f"its {what} must take {count} argument{'s' * (count > 1)}"
            )


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
    except TraitError as error:
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
    for spec in operators:
        arriving = [
            gives[edge.source]
            for edge in edges
            if edge.target == spec.name and edge.source in gives
        ]
        takes = arriving[0] if arriving else spec.schema
        if any(not other.equals(takes) for other in arriving) and spec.kind is Kind.PASS:
            raise UpdateRefusedError(spec.name, "its inputs would have different columns")
        if spec.name in updated:
            ready[spec.name] = _ready(updated[spec.name], takes)
        gives[spec.name] = _given(ready.get(spec.name, spec), takes, spec.name in updated)
    for edge in edges:
        planned = crossing.get(edge.number)
        if planned is not None and edge.source in gives and not gives[edge.source].equals(planned):
            raise UpdateRefusedError(
                edge.source,
                f"it would give {_columns(gives[edge.source])} to {edge.target}, where the plan is "
                f"fixed on {_columns(planned)}; declare all columns when the flow is built",
            )
    return ready


def _ready(spec: OperatorSpec, takes: pa.Schema) -> OperatorSpec:
    """A new version with the columns that it will get."""
    if isinstance(spec.function, Lookup):
        try:
            return replace(spec, takes=takes, schema=spec.function.schema(takes))
        except TraitError as error:
            raise UpdateRefusedError(spec.name, error.problem) from error
    made = replace(spec, takes=takes)
    _dry_run(made)
    return made


def _given(spec: OperatorSpec, takes: pa.Schema, is_new: bool) -> pa.Schema:
    """The columns that an operator gives for the columns that it will get."""
    if spec.kind in (Kind.PASS, Kind.FILTER, Kind.SPLIT):
        if spec.kind is not Kind.PASS and not is_new and spec.style is not Style.ROW:
            _dry_run(replace(spec, takes=takes))
        return takes
    if is_new or spec.takes is None or takes.equals(spec.takes):
        return spec.schema
    if spec.style is Style.ROW or spec.kind is Kind.LOOKUP:
        raise UpdateRefusedError(
            spec.name,
            f"it would get {_columns(takes)} instead of {_columns(spec.takes)}; update it in the "
            "same reconfiguration",
        )
    _dry_run(replace(spec, takes=takes))
    return spec.schema


def _dry_run(spec: OperatorSpec) -> None:
    """Call a function over batches on an empty one, which must give the right columns."""
    if spec.style is Style.ROW or spec.takes is None:
        return
    empty = pa.RecordBatch.from_pylist([], schema=spec.takes)
    try:
        make_call(spec)(empty, never)
    except FriesError as error:
        story = f"\n{error.story}" if isinstance(error, OperatorError) and error.story else ""
        problem = error.problem if isinstance(error, OperatorError) else str(error)
        raise UpdateRefusedError(
            spec.name, f"its dry run on an empty batch failed: {problem}{story}"
        ) from error


def _columns(schema: pa.Schema | None) -> str:
    return "nothing" if schema is None else ", ".join(f"{f.name} {f.type}" for f in schema)
