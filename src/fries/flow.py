"""What users write: a graph of named operators over Spark DataFrames.

::

    flow = Flow("fraud")
    payments = flow.source("payments", payments_df)
    scored = payments.map("FD", score, schema="user long, amount double, p double")
    alarms = scored.filter("F", lambda row: row["p"] > 0.9)
    query = flow.output(alarms).writeStream.format("parquet")....start()

    flow.reconfigure({"FD": better_score}).wait()

Functions take one row (a dict) each, or with ``batch="arrow"`` or ``batch="pandas"`` a whole
batch. Every operator has a name, by which it can be reconfigured while the flow runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from fries.errors import DuplicateOperatorError, NotRunningError, TraitError
from fries.graph import Edge, Emits, Graph, Operator
from fries.plan import Plan
from fries.runtime.spec import EdgeSpec, Function, Kind, OperatorSpec, StageSpec, Style
from fries.schedulers import scheduler as scheduler_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fries.reconfiguration import Reconfiguration
    from fries.serializability import Verdict
    from fries.spark.engine import Engine

BatchStyle = Literal["arrow", "pandas"]
OUTPUT = "output"
"""Name of the operator that stands for what the user does with the result."""
OUTSIDE = ""
"""Where the rows of a source come from."""


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
        schema: str | StructType | pa.Schema | None = None,
        batch: BatchStyle | None = None,
    ) -> Stream:
        """One row out for each row in. Without a schema: the input's, or what a batch says."""
        return self._then(name, Kind.MAP, function, schema, batch)

    def flat_map(
        self,
        name: str,
        function: Function,
        schema: str | StructType | pa.Schema | None = None,
        batch: BatchStyle | None = None,
    ) -> Stream:
        """Any number of rows out for each row in (one-to-many)."""
        return self._then(name, Kind.FLAT_MAP, function, schema, batch)

    def filter(self, name: str, function: Function, batch: BatchStyle | None = None) -> Stream:
        """The rows for which the function is true."""
        return self._then(name, Kind.FILTER, function, self.schema, batch)

    def split(
        self, name: str, function: Function, branches: int = 2, batch: BatchStyle | None = None
    ) -> tuple[Stream, ...]:
        """Each row goes to one branch: the function gives its number, from 0."""
        stream = self._then(name, Kind.SPLIT, function, self.schema, batch, branches)
        return tuple(Stream(self.flow, name, stream.schema, number) for number in range(branches))

    def replicate(self, name: str) -> Stream:
        """The same rows; use the result as often as you like."""
        return self._then(name, Kind.PASS, None, self.schema, None)

    def union(self, name: str, *others: Stream) -> Stream:
        """The rows of several streams with the same columns."""
        for other in others:
            if other.schema != self.schema:
                raise TraitError(
                    f"union {name!r}",
                    f"{self.operator} has the columns {self.schema.names} and {other.operator} "
                    f"has {other.schema.names}; make names, order and types equal",
                )
        return self.flow._add(OperatorSpec(name, Kind.PASS, self.schema), (self, *others))

    def _then(
        self,
        name: str,
        kind: Kind,
        function: Function | None,
        schema: str | StructType | pa.Schema | None,
        batch: BatchStyle | None,
        branches: int = 1,
    ) -> Stream:
        style = Style.ROW if batch is None else Style(batch)
        declared = _as_arrow(schema)
        if declared is None and kind is Kind.MAP and style is not Style.ROW and function:
            declared = _inferred(name, function, style, self.schema)
        gives = declared or self.schema
        spec = OperatorSpec(name, kind, gives, function, style, branches, takes=self.schema)
        return self.flow._add(spec, (self,))


class Flow:
    """A dataflow whose operators can be changed while Spark runs it.

    With ``audit``, a folder that driver and workers share, every data operation is recorded
    there, and :meth:`audit` checks that no source tuple met half of a change.
    """

    def __init__(self, name: str, audit: str | Path | None = None) -> None:
        self.name = name
        self._audit = None if audit is None else str(Path(audit).absolute())
        self._operators: dict[str, OperatorSpec] = {}
        self._edges: list[EdgeSpec] = []
        self._sources: dict[str, DataFrame] = {}
        self._engine: Engine | None = None

    def source(self, name: str, dataframe: DataFrame) -> Stream:
        """The rows of a DataFrame, batch or streaming."""
        from fries.spark.schemas import arrow_schema

        stream = self._add(OperatorSpec(name, Kind.PASS, arrow_schema(dataframe.schema)), ())
        self._edges.append(EdgeSpec(len(self._edges), OUTSIDE, name))
        self._sources[name] = dataframe
        return stream

    def output(self, stream: Stream) -> DataFrame:
        """The result as a DataFrame: go on in plain Spark, with any sink and any trigger."""
        from fries.spark.engine import Engine

        self._refuse_if_built()
        self._edges.append(EdgeSpec(len(self._edges), stream.operator, OUTPUT, stream.branch))
        graph = self.graph
        specs = tuple(self._operators[name] for name in graph.order if name != OUTPUT)
        stage = StageSpec(0, specs, tuple(self._edges))
        self._engine = Engine(self.name, stage, self._sources, stream.schema, self._audit)
        return self._engine.dataframe()

    @property
    def graph(self) -> Graph:
        """The dataflow as the schedulers see it."""
        operators = [self._operator(spec) for spec in self._operators.values()]
        edges = [Edge(edge.source, edge.target) for edge in self._edges if edge.source != OUTSIDE]
        return Graph([*operators, Operator(OUTPUT)], edges)

    @property
    def workers(self) -> tuple[str, ...]:
        """The Python worker processes that run the flow now."""
        return () if self._engine is None else self._engine.workers

    def plan(self, updates: Mapping[str, Function], scheduler: str = "fries") -> Plan:
        """What a reconfiguration would do; nothing is changed."""
        return scheduler_of(scheduler)(self.graph, updates)

    def reconfigure(
        self, updates: Mapping[str, Function], scheduler: str = "fries", timeout: float = 60.0
    ) -> Reconfiguration:
        """Change operators of the running flow; no row will ever see half of it.

        (Unless you ask for the ``naive`` scheduler, which is there for comparison.)
        ``timeout`` is for the workers to load the functions; if one cannot, nothing changes.
        """
        if self._engine is None:
            raise NotRunningError(self.name)
        return self._engine.reconfigure(self.plan(updates, scheduler), updates, timeout)

    def audit(self) -> Verdict:
        """Check what has been recorded: that every change was all or nothing for every tuple."""
        if self._engine is None:
            raise NotRunningError(self.name)
        return self._engine.audit()

    def stop(self) -> None:
        """Close the control channel, after the query was stopped.

        A running task goes on with what it has, but the next one would find no controller.
        """
        if self._engine is not None:
            self._engine.stop()

    def _add(self, spec: OperatorSpec, inputs: tuple[Stream, ...]) -> Stream:
        self._refuse_if_built()
        if spec.name in self._operators or spec.name == OUTPUT:
            raise DuplicateOperatorError(spec.name)
        self._operators[spec.name] = spec
        for stream in inputs:
            edge = EdgeSpec(len(self._edges), stream.operator, spec.name, stream.branch)
            self._edges.append(edge)
        return Stream(self, spec.name, spec.schema)

    def _refuse_if_built(self) -> None:
        if self._engine is not None:
            raise TraitError(f"flow {self.name!r}", "its output is built; add operators before")

    def _operator(self, spec: OperatorSpec) -> Operator:
        """An operator with its traits; used more than once, it replicates its rows."""
        branches = [edge.branch for edge in self._edges if edge.source == spec.name]
        replicates = len(set(branches)) < len(branches)
        emits = Emits.ONE_PER_EDGE if replicates else Emits.ONE
        if spec.kind is Kind.FLAT_MAP:
            emits = Emits.MANY
        return Operator(spec.name, emits, source=spec.name in self._sources)


def _as_arrow(schema: str | StructType | pa.Schema | None) -> pa.Schema | None:
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    from fries.spark.schemas import arrow_schema

    return arrow_schema(schema)


def _inferred(name: str, function: Function, style: Style, schema: pa.Schema) -> pa.Schema:
    """The columns that a function over batches returns, from a dry run on an empty one."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    try:
        made = function(empty.to_pandas() if style is Style.PANDAS else empty)
    except Exception as error:
        raise TraitError(
            f"operator {name!r}", f"its dry run on an empty batch failed ({error!r}); give a schema"
        ) from error
    if style is Style.PANDAS:
        return pa.Schema.from_pandas(made, preserve_index=False)
    inferred: pa.Schema = made.schema
    return inferred
