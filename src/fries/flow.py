"""What users write: a graph of named operators over Spark DataFrames.

::

    flow = Flow("fraud")
    payments = flow.source("payments", payments_df)
    fc = payments.process("FC", customer_score, key="customer", schema=...)
    mc = fc.map("MC", combine, schema=...)
    query = flow.output(mc).writeStream.format("parquet")....start()

    flow.reconfigure({"FC": Update(better_score, migrate=widen), "MC": combine_3}).wait()
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from fries.arguments import NUMBER, check_name, expect
from fries.control.tls import Tls
from fries.errors import (
    ArgumentError,
    DuplicateOperatorError,
    FlowError,
    FlowStateError,
    NotRunningError,
    SchemaError,
    UpdateRefusedError,
)
from fries.extras import require_spark
from fries.failing import words_of
from fries.graph import Graph
from fries.history import Entry, entry_of
from fries.listening import Announcer, Callback, Listening
from fries.plan import Plan
from fries.runtime.dead_letters import COLUMNS
from fries.runtime.layout import OUTPUT_NAME
from fries.runtime.lookup import Lookup
from fries.runtime.spec import ERRORS, EdgeSpec, Function, Kind, OperatorSpec
from fries.schedulers import scheduler as scheduler_of
from fries.sources import TestStream
from fries.stages import PhysicalFlow, explained, physical
from fries.stream import Stream, as_arrow, as_table
from fries.traits import OUTSIDE, graph_of, upstream
from fries.updates import Revision, Update
from fries.waiting import told_if_slow

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from fries.control.messages import Counts
    from fries.reconfiguration import Reconfiguration
    from fries.serializability import Verdict
    from fries.spark.definition import Definition
    from fries.spark.engine import Engine
    from fries.spark.policy import Supervision
    from fries.spark.supervisor import SupervisedQuery

OUTPUT: Final = "output"
"""Name of the operator that stands for what the user does with the result."""
COLLECTS: Final = (
    "reconfigure waits for it, and it counts in the delay of the change; to collect it before, "
    "give frame.toArrow()"
)
LOOK_SECONDS: Final = 0.1
"""Between two looks whether a query that somebody waits for is over."""
GROUPS: Final = 64
"""Key groups of a keyed operator: each costs Spark about a millisecond per micro-batch, and its
rows and states are in memory together."""


class Flow:
    """A dataflow whose operators can be changed while Spark runs it.

    In a ``with`` statement it is stopped at the end.

    With ``audit``, a folder that driver and workers share, every data operation is recorded
    there, and :meth:`audit` checks that no source tuple met half of a change. ``groups`` is the
    number of key groups of every keyed operator; it belongs to the checkpoint of a query. With
    ``tls``, what driver and workers tell each other about changes is encrypted.
    """

    def __init__(
        self,
        name: str,
        audit: str | Path | None = None,
        groups: int = GROUPS,
        tls: Tls | None = None,
    ) -> None:
        require_spark()
        check_name("flow", name)
        expect(f"flow {name!r}", "groups", groups, int, "how many key groups, such as 64")
        if groups < 1:
            raise ArgumentError(f"flow {name!r}", f"it cannot have {groups} key groups")
        if tls is not None:
            expect(f"flow {name!r}", "tls", tls, Tls, "fries.Tls(certificate, key, authority)")
            tls.check()
        self.name = name
        self._audit = None if audit is None else str(Path(audit).absolute())
        self._groups = groups
        self._tls = tls
        self._operators: dict[str, OperatorSpec] = {}
        self._edges: list[EdgeSpec] = []
        self._sources: dict[str, DataFrame] = {}
        self._outputs: tuple[str, ...] = ()
        self._run: SupervisedQuery | None = None
        self._engine: Engine | None = None
        self._graph: Graph | None = None
        self._stopped = False
        self._events = Announcer(name)

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __str__(self) -> str:
        words = [f"{len(self._operators)} operators"]
        if self._engine is not None:
            words += [f"{len(self.workers)} workers", f"{len(self.history())} changes"]
        if self._run is not None:
            words.append("its query runs" if self._run.isActive else "its query is over")
        return f"flow {self.name!r}: {', '.join(words)}"

    __repr__ = __str__

    def source(self, name: str, dataframe: DataFrame | TestStream) -> Stream:
        """The rows of a DataFrame, batch or streaming; in tests, of ``fries.testing.stream``."""
        check_name("source", name)
        schema = _columns_of(name, dataframe)
        for other in self._sources.values():
            if other.isStreaming != dataframe.isStreaming:
                raise FlowError(
                    f"source {name!r}",
                    "a flow has streams or static tables for sources, not both; use lookup",
                )
        stream = self._add(OperatorSpec(name, Kind.PASS, schema), ())
        self._edges.append(EdgeSpec(len(self._edges), OUTSIDE, name))
        self._sources[name] = cast("DataFrame", dataframe)
        return stream

    def output(self, stream: Stream | None = None, **streams: Stream) -> DataFrame:
        """The result as a DataFrame: go on in plain Spark, with any sink and any trigger.

        Several outputs, each with a name, come as one DataFrame, because two queries would run
        the flow twice: take them apart with :meth:`select`, in ``foreachBatch`` for instance.
        """
        from fries.spark.engine import Engine

        definition = self._defined(stream, streams)
        if any(isinstance(one, TestStream) for one in self._sources.values()):
            raise FlowError(
                f"flow {self.name!r}",
                "its sources are streams of fries.testing; give what you would put out to "
                "fries.testing.Trial, or make the sources DataFrames",
            )
        engine = Engine(definition)
        try:
            frame = engine.dataframe()
        except Exception:
            engine.stop()
            raise
        self._engine, self._outputs = engine, definition.outputs
        self._edges = list(definition.edges)
        self._graph = definition.graph(self._operators)  # from now on it stays as it is
        return frame

    def _defined(self, stream: Stream | None, streams: Mapping[str, Stream]) -> Definition:
        """The flow with these outputs, as it is now."""
        from fries.spark.definition import Definition

        self._refuse_if_built()
        if stream is not None and OUTPUT in streams:
            raise FlowError(
                f"output {OUTPUT!r}", "a stream without a name is called so; name that one, too"
            )
        outputs = dict(streams) if stream is None else {OUTPUT: stream, **streams}
        letters = self._dead_letters()
        self._check_outputs(outputs, letters)
        edges = list(self._edges)
        for name, one in outputs.items():
            edges.append(EdgeSpec(len(edges), one.operator, name, one.branch))
        for operator, output in letters.items():
            edges.append(EdgeSpec(len(edges), operator, output, ERRORS))
        names = tuple(dict.fromkeys([*outputs, *letters.values()]))
        graph = graph_of(self._operators, edges, tuple(self._sources), names)
        ordered = tuple(self._operators[name] for name in graph.order if name not in names)
        return Definition(
            self.name,
            ordered,
            tuple(edges),
            self._sources,
            names,
            self._groups,
            self._audit,
            self._tls,
            self._events,
        )

    def select(self, frame: DataFrame, output: str) -> DataFrame:
        """The rows and columns of one of several outputs."""
        from fries.spark.given import check_frame

        check_frame(f"output {output!r}", frame)
        if output not in self._outputs:
            known = ", ".join(self._outputs)
            raise ArgumentError(f"output {output!r}", f"there is no such output; there are {known}")
        if len(self._outputs) == 1:
            return frame
        edge = next(edge for edge in self._edges if edge.target == output)
        errors = edge.branch == ERRORS
        columns = COLUMNS.names if errors else self._operators[edge.source].schema.names
        return frame.where(frame[OUTPUT_NAME] == output).select(*columns)

    def start(
        self,
        writer: DataStreamWriter,
        supervision: Supervision | None = None,
        replace_functions: bool | None = None,
    ) -> SupervisedQuery:
        """Start a query on the output, and keep it running.

        Changes are logged in its checkpoint, and a checkpoint that has some goes on with them.
        An operator whose code is not what it was at the start before gets the new code, by a
        change with a number (:attr:`deployment`); one with the same code keeps its live changes.
        ``replace_functions=True`` deploys the code of all operators, ``False`` of none.
        A query that fails is
        started again as ``supervision`` says, without the change that made it fail; one without
        a checkpoint cannot be started again.
        """
        from fries.spark.given import check_writer
        from fries.spark.narrator import Narrator
        from fries.spark.policy import Supervision
        from fries.spark.supervisor import SupervisedQuery

        where = f"flow {self.name!r}"
        check_writer(where, writer)
        if supervision is not None:
            meant = "fries.Supervision(...)"
            expect(where, "the supervision", supervision, Supervision, meant)
        if replace_functions is not None:
            meant = "True, False or nothing"
            expect(where, "replace_functions", replace_functions, bool, meant)
        self._refuse_if_stopped()
        if self._run is not None and self._run.isActive:
            raise FlowStateError(
                where, "its query is running; stop it first, or build another flow"
            )
        self._running.start(writer, supervision, replace_functions)
        unlogged = Supervision(rollback=False, restarts=0)
        default = Supervision() if self._running.is_logged else unlogged
        narrator = Narrator(self._events, self._running.leave)
        self._run = SupervisedQuery(self._running, supervision or default, narrator)
        return self._run

    @property
    def deployment(self) -> Reconfiguration | None:
        """The change that brought the code of this start, if it was new: it can be undone."""
        return None if self._engine is None else self._engine.deployment

    @property
    def query(self) -> StreamingQuery | None:
        """The query that :meth:`start` has started, or restarted since."""
        return None if self._engine is None else self._engine.query

    def wait_until_running(self, operator: str | None = None, timeout: float | None = None) -> bool:
        """Wait until an operator has taken rows, or any; ``False`` after so many seconds.

        A change needs workers, and a query that was just started has none yet. Raises
        :class:`~fries.errors.NotRunningError` if the query of :meth:`start` is over before that.
        """
        if timeout is not None:
            expect(f"flow {self.name!r}", "the timeout", timeout, NUMBER, "seconds, or nothing")
        server, name = self._running.server, operator and self.graph[operator].name
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not server.has_counted(name):
            self._refuse_if_stopped()
            if self._run is not None and not self._run.isActive:
                raise NotRunningError(self.name)
            if (left := deadline - time.monotonic()) <= 0:
                return False
            with server.counted:
                server.counted.wait(min(LOOK_SECONDS, left))
        return True

    @property
    def graph(self) -> Graph:
        """The dataflow as the schedulers see it."""
        if self._graph is not None:
            return self._graph
        return graph_of(self._operators, self._edges, tuple(self._sources), self._outputs)

    @property
    def workers(self) -> tuple[str, ...]:
        """The Python worker processes that run the flow now."""
        return () if self._engine is None else self._engine.server.workers

    @property
    def counters(self) -> dict[str, Counts]:
        """By operator, the rows it has taken and given and the seconds in its function.

        Running tasks report a few times a second; a task that is executed again counts again.
        """
        return {} if self._engine is None else dict(self._engine.server.counters)

    @property
    def versions(self) -> dict[str, int]:
        """By operator, how many updates were committed."""
        made = {} if self._engine is None else self._engine.server.updates()
        return {name: made.get(name, 0) for name in self._operators}

    @property
    def stages(self) -> dict[str, int]:
        """By operator, which of Spark's stages it runs in, counted from 0."""
        stages = self._physical().stages
        return {spec.name: one.number for one in stages for spec in one.spec.operators}

    def explain(self) -> str:
        """Stages, exchanges, and which operators share a Python process."""
        return explained(self.name, self._physical(), self.graph, self._groups)

    def plan(self, updates: Mapping[str, object], scheduler: str = "fries") -> Plan:
        """What a reconfiguration would do; nothing is changed."""
        _check_updates(updates)
        expect("the scheduler", "its name", scheduler, str, "a text, such as 'fries'")
        return _planned(self.graph, scheduler, tuple(updates))

    def reconfigure(
        self,
        updates: Mapping[str, Function | Update | DataFrame | pd.DataFrame | pa.Table],
        scheduler: str = "fries",
        timeout: float = 60.0,
        note: str = "",
    ) -> Reconfiguration:
        """Change operators of the running flow; no row will ever see half of it.

        An update is a function, an :class:`Update`, or for a lookup a table of Spark, pandas or
        Arrow.
        (The ``naive`` scheduler, which is there for comparison, does mix versions.)
        ``timeout`` is for the workers to load the functions; if one cannot, nothing changes.
        ``note`` is kept in the :meth:`history`.
        """
        requested = time.time()
        _check_updates(updates)
        expect("the reconfiguration", "its timeout", timeout, NUMBER, "seconds, such as 60")
        expect("the reconfiguration", "its note", note, str, "a text for the history")
        engine = self._running
        self._refuse_if_stopped()
        if self._run is not None and not self._run.isActive:
            raise NotRunningError(self.name)
        plan = self.plan(updates, scheduler)
        made = {name: self._revision(name, update) for name, update in updates.items()}
        return engine.reconfigure(plan, made, timeout, requested, note)

    def history(self) -> list[Entry]:
        """All changes that were ever requested, oldest first.

        Of a query that was started with :meth:`start`, those of earlier drivers, too.
        """
        engine = self._engine
        return [] if engine is None else [entry_of(one) for one in engine.server.history()]

    def listen(self, callback: Callback) -> Listening:
        """Call back with every event of the flow from now on; see :mod:`fries.events`.

        The callback runs on a thread of its own, one event after the other: a slow one, or one
        that raises, harms nobody. ``.stop()`` of what is returned ends it, and so does
        :meth:`stop`.
        """
        return self._events.listen(callback)

    def audit(self) -> Verdict:
        """Check what has been recorded: that every change was all or nothing for every tuple."""
        return self._running.audit()

    def stop(self) -> None:
        """Stop the query that :meth:`start` has started, and close the control channel.

        Stop a query that was started otherwise before: a running task goes on with what it has,
        but the next one would find no controller.
        """
        if self._run is not None and (self._run.isActive or self._run.query.isActive):
            self._run.stop()
        if self._engine is not None:
            self._engine.stop()
            self._stopped = True
        self._events.close()

    def _physical(self) -> PhysicalFlow:
        graph = self.graph
        ordered = [self._operators[name] for name in graph.order if name in self._operators]
        return physical(ordered, self._edges)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise NotRunningError(self.name)
        return self._engine

    def _revision(self, name: str, update: Any) -> Revision:  # noqa: ANN401
        """An update, however it was given."""
        given = update if isinstance(update, Update) else Update(update)
        function: Any = given.function
        if name not in self._operators:
            raise UpdateRefusedError(name, "it is an output, and has no function to replace")
        old = self._operators[name].function
        try:
            if isinstance(old, Lookup) and not callable(function):
                with told_if_slow(f"lookup {name!r}: Spark collects its new table", COLLECTS):
                    function = old.with_table(as_table(name, function))
            schema = as_arrow(given.schema)
        except Exception as error:  # of Fries, of Arrow, or of Spark's parser
            problem = f"its table or schema is of no use: {words_of(error)}"
            raise UpdateRefusedError(name, problem) from error
        return Revision(function, given.migrate, schema, given.result, given.inverse, given.label)

    def _add(self, spec: OperatorSpec, inputs: tuple[Stream, ...]) -> Stream:
        self._refuse_if_built()
        check_name("operator", spec.name)
        if spec.name == OUTPUT:
            raise FlowError(
                f"operator {OUTPUT!r}", "the output of a flow is called so; choose another name"
            )
        if spec.name in self._operators:
            raise DuplicateOperatorError(spec.name)
        self._check_own(spec.name, inputs)
        self._check_once(inputs)
        self._operators[spec.name] = spec
        for stream in self._apart(spec.name, inputs):
            edge = EdgeSpec(len(self._edges), stream.operator, spec.name, stream.branch)
            self._edges.append(edge)
        return Stream(self, spec.name, spec.schema)

    def _check_own(self, name: str, inputs: tuple[Stream, ...]) -> None:
        for stream in inputs:
            if stream.flow is not self:
                raise FlowError(
                    f"operator {name!r}",
                    f"its input {stream.operator!r} belongs to flow {stream.flow.name!r}",
                )

    def _check_once(self, inputs: tuple[Stream, ...]) -> None:
        """Rows of an aggregate begin transactions: several readers must get them at one place."""
        for stream in inputs:
            spec = self._operators[stream.operator]
            readers = [edge.target for edge in self._edges if edge.source == spec.name]
            if spec.kind is Kind.AGGREGATE and readers:
                raise FlowError(
                    f"aggregate {spec.name!r}",
                    f"its rows go to {readers[0]!r} already; put .replicate('a name') behind it, "
                    "and use that as often as you like: so a change reaches all copies of a row",
                )

    def _apart(self, name: str, inputs: tuple[Stream, ...]) -> Iterator[Stream]:
        """Inputs of an operator, each from an operator of its own: two edges must not coincide."""
        seen: set[str] = set()
        for number, stream in enumerate(inputs):
            if stream.operator in seen:
                yield self._add(
                    OperatorSpec(f"{name}.{number}", Kind.PASS, stream.schema), (stream,)
                )
            else:
                seen.add(stream.operator)
                yield stream

    def _origins(self, operator: str) -> frozenset[str]:
        """Where the transactions of an operator's rows begin: sources and aggregates."""
        if self._operators[operator].kind is Kind.AGGREGATE:
            return frozenset({operator})
        found = {operator, *upstream(operator, self._operators, self._edges)}
        return frozenset(
            name
            for name in found
            if name in self._sources or self._operators[name].kind is Kind.AGGREGATE
        )

    def _dead_letters(self) -> dict[str, str]:
        """By operator, the output that its failing rows go to, where they go to one."""
        rules = {name: spec.on_error for name, spec in self._operators.items()}
        return {name: rule.output for name, rule in rules.items() if rule and rule.output}

    def _check_outputs(self, outputs: Mapping[str, Stream], letters: Mapping[str, str]) -> None:
        if not outputs:
            raise FlowError(f"flow {self.name!r}", "it has no output; name at least one stream")
        for name, stream in outputs.items():
            meant = "a stream of this flow: what the method for its last operator has returned"
            expect(f"output {name!r}", "it", stream, Stream, meant)
            if stream.flow is not self:
                raise FlowError(f"output {name!r}", "the stream belongs to another flow")
            if name in self._operators:
                raise FlowError(
                    f"output {name!r}",
                    "an operator is called so, and in a plan the two could not be told apart; "
                    f"choose another name, as in flow.output({name}_rows=stream)",
                )
        for operator, output in letters.items():
            if output in outputs or output in self._operators:
                raise FlowError(
                    f"operator {operator!r}",
                    f"its on_error={output!r} is another output or an operator; failing rows need "
                    "an output of their own, which several operators may share",
                )
        if len(outputs) > 1 or letters:
            schemas = [stream.schema for stream in outputs.values()]
            _check_together([*schemas, COLUMNS] if letters else schemas)

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise FlowStateError(
                f"flow {self.name!r}",
                "flow.stop() has ended it; build it again, as a new Flow, and start that: on the "
                "same checkpoint it goes on where this one was (to stop only the query, use "
                "query.stop())",
            )

    def _refuse_if_built(self) -> None:
        if self._engine is not None:
            raise FlowStateError(f"flow {self.name!r}", "its output is built; add operators before")


@lru_cache(maxsize=64)
def _planned(graph: Graph, scheduler: str, targets: tuple[str, ...]) -> Plan:
    """The plan for some targets: the same operators are often changed again and again."""
    return scheduler_of(scheduler)(graph, targets)


def _check_updates(updates: object) -> None:
    """Refuse what is no mapping: the letters of a name would count as operators."""
    if not isinstance(updates, Mapping):
        given = f"{{{updates!r}: function}}" if isinstance(updates, str) else "{name: function}"
        raise ArgumentError("the updates", f"give a mapping of operators to functions: {given}")


def _check_together(schemas: list[pa.Schema]) -> None:
    """Refuse outputs whose columns would be mistaken for each other in one DataFrame."""
    where = "columns of several outputs"
    try:
        names: list[str] = [OUTPUT_NAME, *pa.unify_schemas(schemas).names]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(where, f"one name has two types; rename one ({error})") from error
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaError(where, f"{name!r} is there twice, or a name of Fries; rename it")
        seen.add(name.lower())


def _columns_of(name: str, dataframe: DataFrame | TestStream) -> pa.Schema:
    if isinstance(dataframe, TestStream):
        return dataframe.schema
    from fries.spark.given import check_frame
    from fries.spark.schemas import arrow_schema

    check_frame(f"source {name!r}", dataframe)
    return arrow_schema(dataframe.schema)
