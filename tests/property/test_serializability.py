"""The checker against brute force: all serial orders, all circles, all projections."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.serializability import Contradiction, Vertex, check, check_trace
from fries.trace import Trace, TraceBuilder
from fries.transactions import (
    DataOperation,
    DataTransaction,
    Operation,
    Schedule,
    Scope,
    StreamTuple,
    Transaction,
    UpdateOperation,
    UpdateTransaction,
    conflict_equivalent,
    conflicting,
)

OPERATORS = "ABC"

unhurried = settings(deadline=None)  # a busy machine is no failure


@st.composite
def data_transactions(draw: st.DrawFn, name: str) -> DataTransaction:
    """A tree of up to four tuples on any operators."""
    receivers = draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=4))
    tuples = [StreamTuple(f"{name}.{n}", receiver) for n, receiver in enumerate(receivers)]
    producers = [draw(st.integers(0, n - 1)) for n in range(1, len(tuples))]
    derived = tuple((tuples[p], tuples[n]) for n, p in enumerate(producers, 1))
    return DataTransaction(name, Scope(tuples[0], derived))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Up to five transactions, up to three of them updates, in any allowed total order."""
    updates = draw(st.integers(0, 3))
    data = draw(st.integers(0 if updates else 1, 5 - updates))
    transactions: list[Transaction] = [draw(data_transactions(f"T{n}")) for n in range(data)]
    for number in range(updates):
        operators = draw(st.frozensets(st.sampled_from(OPERATORS), min_size=1))
        transactions.append(UpdateTransaction(f"U{number}", operators))
    digraph: nx.DiGraph[Operation] = nx.DiGraph()
    for transaction in transactions:
        digraph.add_nodes_from(transaction.operations)
        if isinstance(transaction, DataTransaction):
            digraph.add_edges_from(transaction.order)
    shuffled = draw(st.permutations(range(len(digraph))))
    priority = dict(zip(digraph, shuffled, strict=True))
    order = nx.lexicographical_topological_sort(digraph, key=priority.__getitem__)
    return Schedule(tuple(draw(st.permutations(transactions))), tuple(order))


@st.composite
def partial_schedules(draw: st.DrawFn) -> tuple[Schedule, Schedule]:
    """A total order, and the same with only its conflicts and some other pairs decided."""
    total = draw(schedules())
    pairs = list(itertools.combinations(total.operations, 2))
    extra = draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    decided = [pair for pair in pairs if conflicting(*pair)]
    operations = tuple(draw(st.permutations(total.operations)))
    return total, Schedule(total.transactions, operations, (*extra, *decided))


def conflicts(schedule: Schedule) -> list[tuple[Operation, Operation]]:
    """The conflicting pairs of a total order, by the definition."""
    return [
        (a, b)
        for a, b in itertools.combinations(schedule.operations, 2)
        if a.operator == b.operator and UpdateOperation in (type(a), type(b))
    ]


def keeps(serial: tuple[Transaction, ...], pairs: list[tuple[Operation, Operation]]) -> bool:
    """Whether running transactions one after another keeps the order of some pairs."""
    operations = [op for transaction in serial for op in transaction.operations]
    place = {operation: number for number, operation in enumerate(operations)}
    return all(place[a] < place[b] for a, b in pairs)


def is_atomic(schedule: Schedule) -> bool:
    """Whether no data transaction is before and after the same update."""
    owner = owners(schedule)
    edges = {(owner[a].name, owner[b].name) for a, b in conflicts(schedule)}
    kinds = {t.name: isinstance(t, DataTransaction) for t in schedule.transactions}
    return not any(kinds[a] and (b, a) in edges for a, b in edges)


def owners(schedule: Schedule) -> dict[Operation, Transaction]:
    return {op: t for t in schedule.transactions for op in t.operations}


def precedence(schedule: Schedule) -> nx.DiGraph[str]:
    """The textbook's precedence graph, over the names of transactions."""
    owner = owners(schedule)
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(t.name for t in schedule.transactions)
    digraph.add_edges_from((owner[a].name, owner[b].name) for a, b in conflicts(schedule))
    return digraph


def recorded(schedule: Schedule) -> Trace:
    """A trace as a worker would record it, with each update at its own pace."""
    data = [t for t in schedule.transactions if isinstance(t, DataTransaction)]
    updates = [t for t in schedule.transactions if isinstance(t, UpdateTransaction)]
    owner = {op: number for number, t in enumerate(data) for op in t.operations}
    builder = TraceBuilder(OPERATORS)
    made: dict[str, dict[str, int]] = {update.name: {} for update in updates}
    for place, op in enumerate(schedule.operations):
        so_far = schedule.operations[:place]
        version = sum(isinstance(o, UpdateOperation) and o.operator == op.operator for o in so_far)
        if isinstance(op, DataOperation):
            builder.record(owner[op], OPERATORS.index(op.operator), version)
        else:
            made[op.update][op.operator] = version + 1
    return builder.build(made.values())


@unhurried
@given(schedules())
def test_serializable_if_and_only_if_some_serial_order_keeps_all_conflicts(s: Schedule) -> None:
    pairs = conflicts(s)
    possible = any(keeps(serial, pairs) for serial in itertools.permutations(s.transactions))
    assert check(s).serializable == possible


@unhurried
@given(schedules())
def test_the_serial_order_is_a_conflict_equivalent_serial_schedule(s: Schedule) -> None:
    order = check(s).serial
    if order is not None:
        serial = Schedule.serial(order)
        assert serial.is_serial
        assert keeps(order, conflicts(s))
        assert conflict_equivalent(s, serial)
        assert conflict_equivalent(serial, s)


@unhurried
@given(schedules())
def test_the_contradiction_is_a_shortest_circle(s: Schedule) -> None:
    verdict = check(s)
    digraph = precedence(s)
    circles = [len(circle) for circle in nx.simple_cycles(digraph)]
    assert verdict.serializable == (not circles)
    if circles:
        names = [transaction.name for transaction in verdict.cycle]
        assert len(set(names)) == len(names) == min(circles)
        assert all(digraph.has_edge(*edge) for edge in itertools.pairwise([*names, names[0]]))


@unhurried
@given(schedules())
def test_atomic_if_and_only_if_each_update_alone_is_serializable(s: Schedule) -> None:
    data = tuple(t for t in s.transactions if isinstance(t, DataTransaction))
    alone = []
    for update in s.transactions:
        if isinstance(update, UpdateTransaction):
            chosen: tuple[Transaction, ...] = (*data, update)
            kept = {op for t in chosen for op in t.operations}
            operations = tuple(op for op in s.operations if op in kept)
            alone.append(check(Schedule(chosen, operations)).serializable)
    verdict = check(s)
    assert verdict.atomic == all(alone) == is_atomic(s)
    assert verdict.atomic or not verdict.serializable


@unhurried
@given(schedules())
def test_a_trace_gets_the_verdict_of_its_schedule(s: Schedule) -> None:
    formal, traced = check(s), check_trace(recorded(s))
    assert (formal.serializable, formal.atomic) == (traced.serializable, traced.atomic)
    assert formal.mixed == traced.mixed
    counts = [(t.old, t.new, t.mixed, t.untouched) for t in formal.tallies]
    assert counts == [(t.old, t.new, t.mixed, t.untouched) for t in traced.tallies]


@unhurried
@given(partial_schedules())
def test_undecided_pairs_change_nothing(both: tuple[Schedule, Schedule]) -> None:
    total, partial = both
    assert conflict_equivalent(total, partial)
    assert conflict_equivalent(partial, total)
    assert check(partial).serializable == check(total).serializable
    place = {operation: number for number, operation in enumerate(partial.linear)}
    assert all(
        place[a] < place[b]
        for a, b in itertools.permutations(partial.operations, 2)
        if partial.before(a, b)
    )


@unhurried
@given(schedules())
def test_is_serial_by_its_definition(s: Schedule) -> None:
    owner = owners(s)
    runs = [name for name, _ in itertools.groupby(owner[op].name for op in s.operations)]
    assert s.is_serial == (len(runs) == len(s.transactions))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Many small updates, and transactions that mostly, or not at all, follow one order."""
    operators = tuple("ABCDEF")
    count = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    versions = np.zeros((count + 1, len(operators)), dtype=np.int64)
    updates = []
    for number in range(count):
        chosen = rng.choice(len(operators), size=rng.integers(1, 3), replace=False)
        versions[number + 1] = versions[number]
        versions[number + 1, chosen] += 1
        updates.append({operators[o]: int(versions[number + 1, o]) for o in chosen})
    rows = draw(st.integers(0, 60))
    transaction = rng.integers(0, max(rows // 3, 1), size=rows)
    operator = rng.integers(0, len(operators), size=rows)
    noise = rng.integers(0, 2, size=rows) * (rng.random(rows) < draw(st.sampled_from([0, 0.03, 1])))
    epochs = np.clip(transaction * (count + 1) // max(rows // 3, 1) + noise, 0, count)
    shown = tuple(updates[number] for number in rng.permutation(count))
    return Trace(transaction - 7, operator, versions[epochs, operator], operators, shown)


@st.composite
def rings(draw: st.DrawFn) -> Trace:
    """Updates in a ring that may be open, and some chords: long circles of every kind.

    Each update has an operator of its own. An arc is a transaction that used the first
    one's new and the second one's old version, or else an operator that both updated.
    """
    count = draw(st.integers(2, 8))
    ends = st.integers(0, count - 1)
    chords = st.lists(st.tuples(ends, ends).filter(lambda arc: arc[0] != arc[1]), max_size=2)
    ring = [(number, (number + 1) % count) for number in range(draw(st.integers(1, count)))]
    updates = [{f"O{number}": 1} for number in range(count)]
    rows: list[tuple[int, int, int]] = []
    for number, (first, second) in enumerate([*ring, *draw(chords)]):
        if draw(st.booleans()):
            rows += [(number, first, 1), (number, second, 0)]
        else:
            updates[first][f"S{number}"], updates[second][f"S{number}"] = 1, 2
    shared = sorted({name for update in updates for name in update if name.startswith("S")})
    builder = TraceBuilder([*(f"O{number}" for number in range(count)), *shared])
    for row in draw(st.permutations(rows)):
        builder.record(*row)
    return builder.build(updates)


def edges_of(trace: Trace) -> set[tuple[Vertex, Vertex]]:
    """The precedence graph of a trace, row by row and update by update."""
    edges = set()
    columns = (trace.transaction.tolist(), trace.operator.tolist(), trace.version.tolist())
    for number, update in enumerate(trace.updates):
        vertex = Vertex("update", number)
        for transaction, operator, version in zip(*columns, strict=True):
            data = Vertex("data", transaction)
            made = update.get(trace.operators[operator])
            if made is not None:
                edges.add((vertex, data) if version >= made else (data, vertex))
        for later, other in enumerate(trace.updates):
            if any(name in other and made < other[name] for name, made in update.items()):
                edges.add((vertex, Vertex("update", later)))
    return edges


def assert_shortest(contradiction: Contradiction, digraph: nx.DiGraph[Vertex]) -> None:
    steps = contradiction.steps
    assert all(digraph.has_edge(step.before, step.after) for step in steps)
    assert all(a.after == b.before for a, b in itertools.pairwise([*steps, steps[0]]))
    assert next(nx.simple_cycles(digraph, length_bound=len(steps) - 1), None) is None


@unhurried
@given(traces() | rings())
def test_traces_with_many_updates_against_the_whole_precedence_graph(trace: Trace) -> None:
    verdict = check_trace(trace)
    edges = edges_of(trace)
    digraph: nx.DiGraph[Vertex] = nx.DiGraph(list(edges))
    assert verdict.serializable == nx.is_directed_acyclic_graph(digraph)
    mixed = {a for a, b in edges if a.kind == "data" and (b, a) in edges}
    assert verdict.mixed == len(mixed)
    if verdict.contradiction is not None:
        assert_shortest(verdict.contradiction, digraph)
        return
    order = verdict.serial_order()
    assert order is not None
    kinds = np.where(order.is_update, "update", "data").tolist()
    pairs = zip(kinds, order.ids.tolist(), strict=True)
    place = {Vertex(kind, number): n for n, (kind, number) in enumerate(pairs)}
    assert len(place) == verdict.transactions + len(trace.updates)
    assert all(place[a] < place[b] for a, b in edges)
