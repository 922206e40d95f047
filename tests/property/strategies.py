"""Random valid dataflows and reconfigurations of them.

Everything shrinks towards less: fewer operators and edges, one worker, forward edges,
one-to-one operators without further traits, listed in topological order. Operators are
named ``A``, ``B``, ... along a topological order.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from fries.graph import Edge, Emits, Graph, Operator, Partitioning

_NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEYS: Final = (("user",), ("merchant",), ("transaction_id",), ("order_number", "item_sk"))


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    min_operators: int = 1,
    max_operators: int = 8,
    parallel: bool = True,
    one_to_many: bool = True,
    unique: bool = True,
    blocking: bool = True,
    broadcast: bool = True,
) -> Graph:
    """A valid graph; each switch set to false leaves out one kind of trait.

    Without ``parallel`` every operator has one worker, else 1 to 3. Without
    ``broadcast`` no edge broadcasts; a broadcast to one worker copies nothing.
    """
    size = draw(st.integers(min_operators, max_operators))
    names = _NAMES[:size]
    links = draw(draw(st.sampled_from([_staged, _sparse, _dense]))(names))
    workers = {name: draw(st.integers(1, 3)) if parallel else 1 for name in names}
    fed = {target for _, target in links}
    operators = []
    for name in names:
        emits = draw(st.sampled_from(Emits)) if one_to_many else Emits.ONE
        outputs = sum(source == name for source, _ in links)
        operators.append(
            Operator(
                name,
                emits=emits,
                unique=unique and _may_be_unique(emits, outputs) and draw(st.booleans()),
                blocking=blocking and draw(_rarely()),
                source=name not in fed,
                workers=workers[name],
            )
        )
    edges = []
    for source, target in links:
        ways = [Partitioning.HASH, Partitioning.RANGE]
        if workers[source] == workers[target]:
            ways.insert(0, Partitioning.FORWARD)
        if broadcast:
            ways.append(Partitioning.BROADCAST)
        way = draw(st.sampled_from(ways))
        shuffled = way in (Partitioning.HASH, Partitioning.RANGE)
        edges.append(Edge(source, target, way, draw(st.sampled_from(_KEYS)) if shuffled else ()))
    return Graph(draw(st.permutations(operators)), draw(st.permutations(edges)))


def target_sets(graph: Graph) -> st.SearchStrategy[frozenset[str]]:
    """Operators to update: any of the graph's, at least one; shrinks towards the last one.

    One number stands for the whole set: Hypothesis draws zeros too often at the end of an
    example, and a set drawn name by name would have a single name most of the time.
    """
    names = sorted(graph.order, reverse=True)
    return st.integers(1, (1 << len(names)) - 1).map(
        lambda chosen: frozenset(n for i, n in enumerate(names) if chosen >> i & 1)
    )


@st.composite
def cases(
    draw: st.DrawFn, dataflows: st.SearchStrategy[Graph] | None = None
) -> tuple[Graph, frozenset[str]]:
    """A graph and the operators to update in it, e.g. ``cases(graphs(parallel=False))``."""
    graph = draw(graphs() if dataflows is None else dataflows)
    return graph, draw(target_sets(graph))


@st.composite
def funnel_cases(
    draw: st.DrawFn, dataflows: st.SearchStrategy[Graph] | None = None
) -> tuple[Graph, frozenset[str]]:
    """Cases rich in work for uniqueness pruning, which is rare in those of :func:`cases`.

    Every operator that can be unique is, and the targets are the last one or two.
    """
    graph = draw(graphs(min_operators=4) if dataflows is None else dataflows)
    operators = [
        replace(op, unique=_may_be_unique(op.emits, len(graph.outputs(op.name)))) for op in graph
    ]
    last = draw(st.sampled_from([1, 2]))
    return Graph(operators, graph.edges), frozenset(graph.order[-last:])


def _may_be_unique(emits: Emits, outputs: int) -> bool:
    return emits is Emits.ONE or (emits is Emits.ONE_PER_EDGE and outputs <= 1)


_Links = list[tuple[str, str]]


@st.composite
def _staged(draw: st.DrawFn, names: str) -> _Links:
    """Stages of one or more operators, each fed by the whole stage before: W3, W5."""
    stages = [[names[0]]]
    for name in names[1:]:
        if draw(st.booleans()):
            stages[-1].append(name)
        else:
            stages.append([name])
    return [
        (source, target)
        for before, after in itertools.pairwise(stages)
        for target in after
        for source in before
    ]


@st.composite
def _sparse(draw: st.DrawFn, names: str) -> _Links:
    """At most two inputs for each operator, from anywhere ahead."""
    return [
        (source, target)
        for place, target in enumerate(names[1:], 1)
        for source in draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True))
    ]


@st.composite
def _dense(draw: st.DrawFn, names: str) -> _Links:
    """Each edge of a full DAG with even odds."""
    return [pair for pair in itertools.combinations(names, 2) if draw(st.booleans())]


def _rarely() -> st.SearchStrategy[bool]:
    """True one time in eight: graphs with many blocking operators fall apart."""
    return st.integers(0, 7).map(lambda roll: roll == 7)
