"""Random valid dataflows and reconfigurations of them.

Everything shrinks towards less: fewer operators and edges, one worker, forward edges,
one-to-one operators without further traits, listed in topological order. Operators are
named ``A``, ``B``, ... along a topological order.
"""

from __future__ import annotations

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
    links = [(names[i], names[j]) for j in range(size) for i in range(j) if draw(st.booleans())]
    workers = {name: draw(st.integers(1, 3)) if parallel else 1 for name in names}
    fed = {target for _, target in links}
    operators = []
    for name in names:
        emits = draw(st.sampled_from(Emits)) if one_to_many else Emits.ONE
        outputs = sum(source == name for source, _ in links)
        may_be_unique = emits is Emits.ONE or (emits is Emits.ONE_PER_EDGE and outputs <= 1)
        operators.append(
            Operator(
                name,
                emits=emits,
                unique=unique and may_be_unique and draw(st.booleans()),
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
    """Operators to update: any of the graph's, at least one."""
    return st.frozensets(st.sampled_from(graph.order), min_size=1)


@st.composite
def cases(
    draw: st.DrawFn, dataflows: st.SearchStrategy[Graph] | None = None
) -> tuple[Graph, frozenset[str]]:
    """A graph and the operators to update in it, e.g. ``cases(graphs(parallel=False))``."""
    graph = draw(graphs() if dataflows is None else dataflows)
    return graph, draw(target_sets(graph))


def _rarely() -> st.SearchStrategy[bool]:
    """True one time in eight: graphs with many blocking operators fall apart."""
    return st.integers(0, 7).map(lambda roll: roll == 7)
