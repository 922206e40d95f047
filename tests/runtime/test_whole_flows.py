"""Whole flows in one process: every stage, every exchange, changes that arrive at any moment.

Plays Spark: rows are exchanged by key, key groups are sorted, and each partition of each stage
is a task of one of two workers. What the audit records must be all old or all new for every
source tuple, and no row may be lost.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fries.control.messages import Ended, Go
from fries.errors import OperatorError
from fries.graph import Emits, Graph
from fries.plan import Plan
from fries.runtime.audit import Audit, read
from fries.runtime.configuration import Configuration
from fries.runtime.layout import GROUP, HASH, OPERATOR, Layout, Result
from fries.runtime.pacer import Pacer
from fries.runtime.shipped import Shipped
from fries.runtime.spec import ERRORS, DeadLetters, EdgeSpec, Keying, Kind, OperatorSpec
from fries.runtime.task import Execution, Task, groups
from fries.schedulers import scheduler
from fries.serializability import Verdict, check_trace
from fries.stages import Exchange, PhysicalStage, physical
from fries.trace import updates_of
from fries.traits import OUTSIDE, graph_of
from fries_lab.workloads.graphs import running_example, w4, w5
from tests.property.strategies import graphs
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import pickled
from tests.runtime.test_state import MemoryStore, spread

Row = dict[str, Any]
ROWS: Final = schema(id=pa.int64(), user=pa.int64(), n=pa.int64())
WORKERS: Final = 2
GROUPS: Final = 3
STATEFUL: Final = (Kind.PROCESS, Kind.AGGREGATE)


# Functions that do the same in every version, and see that states are of their own version


def same(version: int, row: Row) -> Row:
    assert version >= 0
    return row


def twice(version: int, row: Row) -> list[Row]:
    return [same(version, {**row, "n": row["n"] * 2 + copy}) for copy in (0, 1)]


def keep(version: int, row: Row) -> bool:
    return bool(same(version, row)["n"] % 7 != 3)


def remember(version: int, state: tuple[int, int] | None, row: Row) -> tuple[tuple[int, int], Row]:
    wrote, count = state or (version, 0)
    assert wrote == version, "a state of another version"
    return (version, count + 1), row


def add(version: int, state: tuple[int, int] | None, row: Row) -> tuple[int, int]:
    wrote, total = state or (version, 0)
    assert wrote == version, "a state of another version"
    return version, total + row["n"]


def result(state: tuple[int, int]) -> Row:
    return {"id": state[1] % 1000, "n": state[1]}


def migrate(version: int, state: tuple[int, int]) -> tuple[int, int]:
    assert state[0] == version - 1, "a migration has been left out, or done twice"
    return version, state[1]


def flaky(inner: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """The same function, which fails on some rows when it has done its work."""
    done = inner(*arguments)
    if arguments[-1]["n"] % 5 == 2:
        raise ArithmeticError(arguments[-1]["n"])
    return done


FUNCTIONS: Final[Mapping[Kind, Any]] = {
    Kind.MAP: same,
    Kind.FILTER: keep,
    Kind.FLAT_MAP: twice,
    Kind.PROCESS: remember,
    Kind.AGGREGATE: add,
}


def operator(name: str, kind: Kind, key: tuple[str, ...] = ()) -> OperatorSpec:
    keying = Keying(key) if key else None
    made = OperatorSpec(name, kind, ROWS, None, takes=ROWS, keying=keying)
    if kind is Kind.AGGREGATE:
        made = replace(made, result=result)
    return at_version(made, 0)


def at_version(spec: OperatorSpec, version: int) -> OperatorSpec:
    function = FUNCTIONS.get(spec.kind)
    if function is None:
        return spec
    made = partial(function, version)
    return replace(spec, function=made if spec.on_error is None else partial(flaky, made))


@dataclass(frozen=True)
class Flow:
    """Operators in topological order, and the edges between them."""

    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeSpec, ...]

    @classmethod
    def of(cls, graph: Graph, kinds: Mapping[str, Kind], keys: Mapping[str, str]) -> Flow:
        """A graph whose sinks become outputs."""
        names = [name for name in graph.order if graph.outputs(name) or graph[name].source]
        specs = tuple(
            operator(name, kinds[name], (keys[name],) if name in keys else ()) for name in names
        )
        pairs = [(OUTSIDE, name) for name in names if graph[name].source]
        pairs += [(edge.source, edge.target) for edge in graph.edges]
        pairs += [(name, f"{name} out") for name in names if not graph.outputs(name)]
        return cls(specs, tuple(EdgeSpec(n, *pair) for n, pair in enumerate(pairs)))

    @property
    def graph(self) -> Graph:
        """The dataflow as the schedulers see it."""
        by_name = {spec.name: spec for spec in self.operators}
        outputs = tuple(dict.fromkeys(e.target for e in self.edges if e.target not in by_name))
        return graph_of(by_name, list(self.edges), self.sources, outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        """Operators that rows come into from outside."""
        return tuple(edge.target for edge in self.edges if edge.source == OUTSIDE)

    def entries(self, plan: Plan) -> frozenset[int]:
        """As the engine finds them."""
        entered = {(e.source, e.target) for part in plan.components for e in part.entries}
        entered |= {(OUTSIDE, head) for head in plan.heads if head in self.sources}
        return frozenset(e.number for e in self.edges if (e.source, e.target) in entered)


@dataclass
class Clock:
    """Sends commits at chosen looks of any worker at its channel."""

    moments: dict[int, int] = field(default_factory=dict)
    """By change, after how many looks it is committed."""
    sent: list[int] = field(default_factory=list)
    """The changes that were committed."""
    looks: int = 0

    def tick(self) -> None:
        """One look at a channel."""
        self.looks += 1
        for change, moment in sorted(self.moments.items()):
            if moment <= self.looks and change not in self.sent:
                self.sent.append(change)


@dataclass
class Worker:
    """A worker and its control channel: commits reach it some looks after they were sent."""

    configuration: Configuration
    clock: Clock
    base: tuple[int, ...] = ()
    late: int = 0
    """Looks at the channel until a commit is seen."""
    waited: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    asked: int = 0
    """How often it was asked whether a change waits."""

    @property
    def pressed(self) -> bool:
        """Every third time, so that chunks end early at many places."""
        self.asked += 1
        return self.asked % 3 == 0

    @property
    def hurried(self) -> bool:
        """Whether a commit is about to come."""
        return len(self.clock.sent) < len(self.clock.moments)

    def poll(self) -> None:
        """See what was committed a while ago."""
        self.clock.tick()
        for change in self.clock.sent:
            self.waited[change] += 1
            if self.waited[change] > self.late:
                self.configuration.switch(change)

    def count(self, operator: str, taken: int, given: int, seconds: float, failed: int = 0) -> None:
        """Nobody asks."""

    def took(self, operator: str, change: int, rows: int, older: Iterable[int]) -> None:
        """Nobody asks."""

    def calling(self, operator: str, change: int) -> None:
        """Nobody asks."""

    def returned(self) -> None:
        """Nobody asks."""

    def failed(self, change: int, error: OperatorError) -> None:
        """Nobody asks."""

    def hold(self, operator: str, change: int, stage: int) -> bool:  # noqa: ARG002
        """Nobody takes it back."""
        return False

    def begin(self, batch: int, stage: int, partition: int, execution: int) -> Go:  # noqa: ARG002
        """A task knows every commit that was sent before it began."""
        for change in self.clock.sent:
            self.configuration.switch(change)
        return Go(self.base, tuple(self.clock.sent))

    def ended(self, report: Ended) -> None:
        """Nobody asks."""


class Run:
    """A flow at work, one batch after the other."""

    def __init__(self, flow: Flow, folder: str) -> None:
        self.flow, self.folder = flow, folder
        self.physical = physical(flow.operators, flow.edges)
        self.names = tuple(spec.name for spec in flow.operators)
        self.stores: dict[tuple[str, int], MemoryStore] = defaultdict(MemoryStore)
        self.clock = Clock()
        self.workers = [Worker(Configuration(flow.operators), self.clock) for _ in range(WORKERS)]
        self.targets: list[tuple[str, ...]] = []

    def prepare(self, plan: Plan, moment: int, late: Sequence[int]) -> None:
        """Ship a change, which is committed at some moment of the next batch."""
        number, targets = len(self.targets) + 1, plan.targets
        self.targets.append(targets)
        specs = {spec.name: spec for spec in self.flow.operators if spec.name in targets}
        version = {name: sum(name in one for one in self.targets) for name in targets}
        shipped = Shipped(
            {name: at_version(spec, version[name]) for name, spec in specs.items()},
            {n: partial(migrate, version[n]) for n, s in specs.items() if s.kind in STATEFUL},
            self.flow.entries(plan),
        )
        for worker, delay in zip(self.workers, late, strict=True):
            worker.configuration.load(number, number, pickled(shipped))
            worker.late = delay
        self.clock.moments[number] = moment

    def batch(self, number: int, sources: Mapping[str, pa.RecordBatch]) -> list[Row]:
        """One micro-batch; afterwards its changes are in the base."""
        self.clock.looks = 0
        frames: list[pa.RecordBatch] = []
        takes: Layout | None = None
        for stage in self.physical.stages:
            gives = self._layout(stage)
            made: list[pa.RecordBatch] = []
            for partition in range(WORKERS):
                task = self._task(stage, gives, number, partition)
                if takes is None:
                    made += self._read(task, sources, partition)
                else:
                    made += self._keyed(task, stage, takes, frames, partition)
                task.keep_audit(self.folder)
            frames, takes = made, gives
        assert takes is not None
        schemas = self.physical.schemas
        output = Result({e.number: (e.target, schemas[e.number]) for e in self.physical.outputs})
        rows = [
            row
            for frame in frames
            for edge, chunk, _ in takes.decode(frame)
            for row in output.encode(edge, chunk).to_pylist()
        ]
        self.clock.sent[:] = sorted(self.clock.moments)  # what was not committed in time is now
        for worker in self.workers:
            worker.base = tuple(self.clock.sent)
        return rows

    def verdict(self) -> Verdict:
        """What the audit says."""
        updates = updates_of(self.targets)
        return check_trace(read(self.folder, self.names, updates))

    def _layout(self, stage: PhysicalStage) -> Layout:
        return Layout({e.number: self.physical.schemas[e.number] for e in stage.leaving}, True)

    def _task(self, stage: PhysicalStage, gives: Layout, batch: int, partition: int) -> Task:
        worker = self.workers[partition]
        where = Execution(batch, partition)
        return Task(stage, gives, where, worker.configuration, worker, Audit(self.names))

    def _read(
        self, task: Task, sources: Mapping[str, pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        for edge in self.flow.edges:
            if edge.source == OUTSIDE:
                rows = sources[edge.target]
                mine = rows.slice(partition * (rows.num_rows // 2))
                if not partition:
                    mine = rows.slice(0, rows.num_rows // 2)
                yield from task.rows([(edge.number, task.fresh(mine))])

    def _keyed(
        self,
        task: Task,
        stage: PhysicalStage,
        takes: Layout,
        frames: Sequence[pa.RecordBatch],
        partition: int,
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the exchange brings to a partition, one key group after the other."""
        assert stage.exchange is Exchange.GROUPED
        placed = [self._placed(stage, takes, frame) for frame in frames]
        if not placed:
            return
        mine = pa.Table.from_batches(placed)
        numbers: list[Any] = mine[GROUP].to_pylist()
        mine = mine.filter(pa.array([number % WORKERS == partition for number in numbers]))
        ordered = mine.sort_by([(OPERATOR, "ascending"), (GROUP, "ascending")])
        for name, rows in groups(ordered.to_batches(max_chunksize=7), OPERATOR, GROUP):
            store = self.stores[name, rows.column(GROUP)[0].as_py()]
            yield from task.group(name, rows, takes, store)

    def _placed(self, stage: PhysicalStage, takes: Layout, frame: pa.RecordBatch) -> pa.RecordBatch:
        """Say where each row must go, as Spark does."""
        keyed = {edge.number: stage.keyed(edge) for edge in stage.incoming}
        names, values = [], []
        for row in frame.to_pylist():
            spec = keyed[row["_edge"]]
            names.append("" if spec is None else spec.name)
            key = () if spec is None or spec.keying is None else spec.keying.columns
            values.append(spread(sum(row[takes.physical(row["_edge"], one)] for one in key)))
        arrays = [
            *frame.columns,
            pa.array(values, pa.int64()),
            pa.array(names, pa.string()),
            pa.array([value % GROUPS for value in values], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(
            arrays, names=[*frame.schema.names, HASH, OPERATOR, GROUP]
        )


def numbers(count: int, first: int = 0) -> pa.RecordBatch:
    rows = [{"id": n, "user": n % 5, "n": n} for n in range(first, first + count)]
    return pa.RecordBatch.from_pylist(rows, schema=ROWS)


def ordered(rows: list[Row]) -> list[Row]:
    """Rows that can be compared; the versions on which some have failed cannot."""
    return sorted(
        ({name: value for name, value in row.items() if name != "error_change"} for row in rows),
        key=repr,
    )


@dataclass(frozen=True)
class Change:
    """Targets, the batch and moment of the commit, and how late each worker sees it."""

    targets: tuple[str, ...]
    batch: int
    moment: int
    late: tuple[int, int] = (0, 0)
    undo: int = 0
    """If not 0: so many looks later another change takes this one back."""


def played(
    flow: Flow, change: Change, counts: Sequence[int], schedule: str = "fries"
) -> tuple[Verdict, bool]:
    """Run a flow with and without a change; also tell whether it came in the middle of a batch."""
    with tempfile.TemporaryDirectory() as folder:
        run, plain = (Run(flow, str(Path(folder, name))) for name in ("changed", "plain"))
        for batch, count in enumerate(counts):
            if change.batch == batch:
                plan = scheduler(schedule)(flow.graph, dict.fromkeys(change.targets))
                run.prepare(plan, change.moment, change.late)
                if change.undo:
                    run.prepare(plan, change.moment + change.undo, change.late)
            sources = {name: numbers(count, batch * 100) for name in flow.sources}
            assert ordered(run.batch(batch, sources)) == ordered(plain.batch(batch, sources))
        verdict = run.verdict()
        return verdict, any(tally.old and tally.new for tally in verdict.tallies)


@st.composite
def random_flows(draw: st.DrawFn) -> Flow:
    """Flows of all kinds of operators but the join, whose branches must be of the same tuples."""
    graph = draw(
        graphs(min_operators=2, max_operators=6, parallel=False, broadcast=False, unique=False)
    )
    kinds: dict[str, Kind] = {}
    keys: dict[str, str] = {}
    for name in graph.order:
        before = graph.inputs(name)
        kinds[name] = Kind.MAP if len(before) == 1 else Kind.PASS
        if kinds[name] is Kind.PASS:
            continue
        blocking = graph[name].blocking and len(graph.outputs(name)) < 2  # flows refuse others
        if graph[name].blocking or before[0].key:
            kinds[name] = Kind.AGGREGATE if blocking else Kind.PROCESS
            keys[name] = "user" if blocking else draw(st.sampled_from(["id", "user"]))
        elif graph[name].emits is Emits.MANY:
            kinds[name] = Kind.FLAT_MAP
        elif graph[name].emits is Emits.ONE_PER_EDGE:
            kinds[name] = Kind.FILTER
    flow = Flow.of(graph, kinds, keys)
    assume(any(spec.function is not None for spec in flow.operators))
    return flow


def with_dead_letters(flow: Flow, names: Collection[str]) -> Flow:
    """The same flow, with an output for rows on which some operators fail."""
    first = len(flow.edges)
    edges = (EdgeSpec(n, name, "rejected", ERRORS) for n, name in enumerate(names, first))
    rule = DeadLetters("rejected", limit=1.0)
    specs = (
        at_version(replace(spec, on_error=rule), 0) if spec.name in names else spec
        for spec in flow.operators
    )
    return Flow(tuple(specs), (*flow.edges, *edges))


def changes_of(flow: Flow) -> st.SearchStrategy[Change]:
    names = [spec.name for spec in flow.operators if spec.function is not None]
    return st.builds(
        Change,
        st.sets(st.sampled_from(names), min_size=1).map(lambda chosen: tuple(sorted(chosen))),
        batch=st.integers(0, 1),
        moment=st.integers(0, 40),
        late=st.tuples(st.integers(0, 6), st.integers(0, 6)),
        undo=st.integers(0, 9),
    )


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_every_source_tuple_meets_all_of_a_change_or_nothing(data: st.DataObject) -> None:
    flow = data.draw(random_flows())
    change = data.draw(changes_of(flow))
    verdict, _ = played(flow, change, [data.draw(st.integers(0, 25)), 10])
    assert verdict.atomic, str(verdict)
    assert verdict.serializable, str(verdict)


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_rows_that_fail_on_their_way_change_nothing_for_the_others(data: st.DataObject) -> None:
    flow = data.draw(random_flows())
    names = [spec.name for spec in flow.operators if spec.function is not None]
    flow = with_dead_letters(flow, data.draw(st.sets(st.sampled_from(names), min_size=1)))
    verdict, _ = played(flow, data.draw(changes_of(flow)), [data.draw(st.integers(0, 25)), 10])
    assert verdict.atomic, str(verdict)
    assert verdict.serializable, str(verdict)


W5_KINDS = {
    "source": Kind.PASS,
    "RE": Kind.PASS,
    "FD3": Kind.PROCESS,
    "S1": Kind.PROCESS,
    "F3": Kind.FILTER,
    "F4": Kind.FILTER,
    "FD4": Kind.PROCESS,
    "SJ": Kind.JOIN,
    "E1": Kind.MAP,
}
W5 = Flow.of(w5(), W5_KINDS, {"FD3": "user", "S1": "id", "FD4": "user", "SJ": "id"})
W4 = Flow.of(
    w4(),
    {
        "source": Kind.PASS,
        "F1": Kind.FILTER,
        "U2": Kind.FLAT_MAP,
        "FD1": Kind.PROCESS,
        "LP": Kind.MAP,
        "FD2": Kind.PROCESS,
        "MC": Kind.MAP,
        "F2": Kind.FILTER,
    },
    {"FD1": "user", "FD2": "id"},
)
FRAUD = Flow.of(
    running_example(),
    {"source": Kind.PASS, "FC": Kind.PROCESS, "FM": Kind.PROCESS, "MC": Kind.MAP},
    {"FC": "user", "FM": "id"},
)


def test_a_row_that_fails_leaves_its_flow_once_and_nothing_of_it_goes_on() -> None:
    flow = with_dead_letters(FRAUD, ["FC", "MC"])
    with tempfile.TemporaryDirectory() as folder:
        made = Run(flow, folder).batch(0, {"source": numbers(50)})
    letters = [row for row in made if row["error_operator"]]
    assert [row["error_operator"] for row in letters] == ["FC"] * 10, "nobody else has met them"
    assert {json.loads(row["error_row"])["n"] for row in letters} == set(range(2, 50, 5))
    whole = [row["n"] for row in made if not row["error_operator"]]
    assert sorted(whole) == [n for n in range(50) if n % 5 != 2]


@pytest.mark.parametrize(
    ("flow", "targets"),
    [
        (FRAUD, "FC FM MC"),
        (FRAUD, "FM MC"),
        (FRAUD, "FC MC"),
        (W4, "F1 U2"),
        (W4, "FD1"),
        (W4, "F2"),
        (W5, "FD4"),
        (W5, "F3"),
        (W5, "FD3 FD4"),
        (W5, "E1"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value.operators)} operators",
)
@given(st.integers(0, 50), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 9))
@settings(deadline=None, max_examples=8)
def test_a_change_of_the_papers_flows_is_all_or_nothing(
    flow: Flow, targets: str, moment: int, late: tuple[int, int], undo: int
) -> None:
    change = Change(tuple(targets.split()), 0, moment, late, undo)
    verdict, _ = played(flow, change, [30, 10])
    assert verdict.atomic, str(verdict)
    assert verdict.serializable, str(verdict)


MOMENTS = range(0, 90, 6)
"""Some are in the middle of every stage."""


@pytest.fixture
def chunks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is."""
    monkeypatch.setattr(Pacer, "next", lambda _, left, __: min(left, 4))


@pytest.mark.usefixtures("chunks_of_four")
def test_changes_do_come_in_the_middle_of_a_batch() -> None:
    """Else the properties above would say nothing."""
    runs = [played(FRAUD, Change(("FC", "FM", "MC"), 0, moment), [40]) for moment in MOMENTS]
    assert all(verdict.atomic for verdict, _ in runs)
    assert any(cut for _, cut in runs)


@pytest.mark.usefixtures("chunks_of_four")
def test_a_scheduler_that_mixes_versions_is_found_out() -> None:
    changes = [Change(("FC", "MC"), 0, moment) for moment in MOMENTS]
    verdicts = [played(FRAUD, change, [40], "naive")[0] for change in changes]
    assert not all(verdict.atomic for verdict in verdicts)


def test_a_join_behind_a_flat_map_gives_several_rows_of_a_tuple() -> None:
    """All of them must meet the same version of what follows."""
    kinds = {
        "S": Kind.PASS,
        "U": Kind.FLAT_MAP,
        "RE": Kind.PASS,
        "C": Kind.MAP,
        "D": Kind.MAP,
        "SJ": Kind.JOIN,
        "E": Kind.MAP,
    }
    specs = [operator(n, kind, ("n",) if kind is Kind.JOIN else ()) for n, kind in kinds.items()]
    pairs = [(OUTSIDE, "S"), ("S", "U"), ("U", "RE"), ("RE", "C"), ("RE", "D"), ("C", "SJ")]
    pairs += [("D", "SJ"), ("SJ", "E"), ("E", "output")]
    flow = Flow(tuple(specs), tuple(EdgeSpec(n, *pair) for n, pair in enumerate(pairs)))
    runs = [played(flow, Change(("E",), 0, moment), [40]) for moment in MOMENTS]
    assert all(verdict.atomic for verdict, _ in runs)
    assert any(cut for _, cut in runs)


def test_copies_of_an_aggregates_rows_meet_all_of_a_change_or_nothing() -> None:
    """One copy goes on in the same stage, the other one through an exchange."""
    kinds = {
        "A": Kind.PASS,
        "B": Kind.AGGREGATE,
        "RE": Kind.PASS,
        "C": Kind.MAP,
        "D": Kind.AGGREGATE,
    }
    specs = [operator(n, k, ("user",) if k is Kind.AGGREGATE else ()) for n, k in kinds.items()]
    pairs = [(OUTSIDE, "A"), ("A", "B"), ("B", "RE"), ("RE", "C"), ("RE", "D"), ("C", "E")]
    flow = Flow(tuple(specs), tuple(EdgeSpec(n, *p) for n, p in enumerate([*pairs, ("D", "E")])))
    for targets in (("B", "C", "D"), ("C", "D")):
        changes = [Change(targets, 0, n, undo=undo) for n in range(30) for undo in (0, 5)]
        verdicts = [played(flow, change, [5, 5])[0] for change in changes]
        assert all(verdict.atomic for verdict in verdicts)
        assert any(tally.old and tally.new for verdict in verdicts for tally in verdict.tallies)


def doubled(copy: int, row: Row) -> Row:
    return {**row, "n": row["n"] * 2 + copy}


def test_a_join_behind_a_union_of_copies_is_not_unique() -> None:
    """S -> X and Y -> U: two rows of a tuple at the join, though nothing is one-to-many."""
    kinds = {"S": Kind.PASS, "X": Kind.MAP, "Y": Kind.MAP, "U": Kind.PASS, "C": Kind.MAP}
    kinds |= {"D": Kind.MAP, "SJ": Kind.JOIN, "E": Kind.MAP}
    specs = {name: operator(name, k, ("n",) if name == "SJ" else ()) for name, k in kinds.items()}
    for copy, name in enumerate(("X", "Y")):
        specs[name] = replace(specs[name], function=partial(doubled, copy))
    pairs = [("", "S"), ("S", "X"), ("S", "Y"), ("X", "U"), ("Y", "U"), ("U", "C"), ("U", "D")]
    pairs += [("C", "SJ"), ("D", "SJ"), ("SJ", "E"), ("E", "output")]
    edges = tuple(EdgeSpec(number, *pair) for number, pair in enumerate(pairs))
    flow = Flow(tuple(specs.values()), edges)
    assert not flow.graph["SJ"].unique
    for moment in range(0, 90, 5):
        assert played(flow, Change(("E",), 0, moment), [40])[0].atomic
