"""Random valid dataflows and reconfigurations of them.

Everything shrinks towards less: fewer operators and edges, one worker, forward edges,
one-to-one operators without further traits, listed in topological order. Operators are
named ``A``, ``B``, ... along a topological order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from hypothesis import strategies as st

from fries.graph import Edge, Emits, Graph, Operator, Partitioning

T = TypeVar("T")

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
    ways = [way for way in Partitioning if broadcast or way is not Partitioning.BROADCAST]
    traits = [
        (emits, only)
        for emits in (Emits if one_to_many else [Emits.ONE])
        for only in ([False, True] if unique else [False])
    ]
    pipelined = [(emits, only, False) for emits, only in traits]
    blocked = [(emits, False, True) for emits in (traits[0][0], traits[-1][0])]
    wishes = draw(
        st.lists(
            st.builds(
                _Wish,
                traits=st.sampled_from(pipelined * 2 + blocked if blocking else pipelined),
                workers=st.integers(1, 3 if parallel else 1),
                ways=st.sampled_from([*itertools.product(ways, ways)]),
                feeds=st.integers(0, (1 << (max_operators - 1)) - 1),
            ),
            min_size=min_operators,
            max_size=max_operators,
        )
    )
    links = draw(st.sampled_from([_staged, _sparse, _dense]))(wishes)
    outputs = [sum(source == place for source, _ in links) for place in range(len(wishes))]
    operators = [
        Operator(
            name,
            emits=wish.traits[0],
            unique=wish.traits[1]
            and _may_be_unique(wish.traits[0], count)
            and (wish.workers == 1 or Partitioning.BROADCAST not in wish.ways),
            blocking=wish.traits[2],
            source=all(target != place for _, target in links),
            workers=wish.workers,
        )
        for place, (name, wish, count) in enumerate(zip(_NAMES, wishes, outputs, strict=False))
    ]
    edges = [
        _edge(source, target, number, wishes)
        for target in range(len(wishes))
        for number, source in enumerate(s for s, t in links if t == target)
    ]
    turn, backwards = draw(st.integers(0, 7)), draw(st.booleans())
    return Graph(_listed(operators, turn, backwards), _listed(edges, turn, backwards))


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
        replace(
            op,
            unique=_may_be_unique(op.emits, len(graph.outputs(op.name)))
            and not any(map(graph.fans_out, graph.inputs(op.name))),
        )
        for op in graph
    ]
    last = draw(st.sampled_from([1, 2]))
    return Graph(operators, graph.edges), frozenset(graph.order[-last:])


def _may_be_unique(emits: Emits, outputs: int) -> bool:
    return emits is Emits.ONE or (emits is Emits.ONE_PER_EDGE and outputs <= 1)


@dataclass(frozen=True)
class _Wish:
    """All that is drawn for one operator, so that dropping it leaves the others alone.

    It takes four choices, and a fifth makes it an element of a list: Hypothesis deletes
    runs of at most five.
    """

    traits: tuple[Emits, bool, bool]  # emits, unique, blocking
    workers: int
    ways: tuple[Partitioning, Partitioning]  # of its input edges, in turns
    feeds: int  # bit i: it is fed by the operator i + 1 places before it

    @property
    def beside(self) -> bool:
        """Whether it is in the stage of the operator before it, or in the next one."""
        return bool(self.feeds & 1)


_Links = list[tuple[int, int]]


def _staged(wishes: list[_Wish]) -> _Links:
    """Stages of one or more operators, each fed by the whole stage before, as in W3 and W5."""
    stages: list[list[int]] = []
    for place, wish in enumerate(wishes):
        if wish.beside and stages:
            stages[-1].append(place)
        else:
            stages.append([place])
    return [
        (source, target)
        for before, after in itertools.pairwise(stages)
        for target in after
        for source in before
    ]


def _dense(wishes: list[_Wish]) -> _Links:
    """Each edge of a full DAG with even odds."""
    return [
        (source, target)
        for target, wish in enumerate(wishes)
        for source in range(target)
        if wish.feeds >> (target - source - 1) & 1
    ]


def _sparse(wishes: list[_Wish]) -> _Links:
    """The same with at most two inputs for each operator."""
    found: dict[int, _Links] = {}
    for source, target in _dense(wishes):
        found.setdefault(target, []).append((source, target))
    return [link for links in found.values() for link in links[:2]]


def _edge(source: int, target: int, number: int, wishes: list[_Wish]) -> Edge:
    wish = wishes[target]
    way = wish.ways[number % 2]
    if way is Partitioning.FORWARD and wishes[source].workers != wish.workers:
        way = Partitioning.HASH
    shuffled = way in (Partitioning.HASH, Partitioning.RANGE)
    return Edge(_NAMES[source], _NAMES[target], way, _KEYS[target % len(_KEYS)] if shuffled else ())


def _listed(items: list[T], turn: int, backwards: bool) -> list[T]:
    """Another listing order; a permutation would draw more for more items, and shrink badly."""
    cut = turn % (len(items) or 1)
    turned = items[cut:] + items[:cut]
    return turned[::-1] if backwards else turned
