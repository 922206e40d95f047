"""The schedulers: pure functions from a graph and the operators to update to a plan.

====================  =======================================================
``fries``             components of the pruned covering sub-DAG (Algorithm 4)
``fries_unpruned``    the same without pruning (Algorithm 3)
``epoch``             one epoch marker through every region with a target (Chi)
``multi_version``     tuples tagged at the sources, both versions resident
``naive``             every target by itself: fast, and inconsistent
``mini_batch``        between two mini-batches
``restart``           stop, change, start again
====================  =======================================================

They differ in the components of the plan, in the commit point and in how members
learn of the change; the runtime that carries plans out is one and the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from fries.broadcasts import replicated
from fries.errors import ArgumentError, EmptyUpdateError, UnknownSchedulerError
from fries.graph import Graph
from fries.mcs import (
    Component,
    SubDag,
    compute_earliest_ancestors,
    find_components,
    find_mcs,
    make_component,
    one_to_many_ancestors,
    prune_edge_wise,
    prune_unique,
    reaching,
)
from fries.plan import CommitPoint, Plan, Propagation

Scheduler = Callable[[Graph, Collection[str]], Plan]


def fries(
    graph: Graph,
    updates: Collection[str],
    *,
    edge_wise_pruning: bool = True,
    uniqueness_pruning: bool = True,
) -> Plan:
    """Algorithms 2 to 4: the paper's scheduler, each pruning rule separately switchable."""
    targets = _checked(graph, updates)
    copied = replicated(graph.pipelined)
    cut = copied.graph
    ancestors = one_to_many_ancestors(cut, targets)
    pruned: frozenset[str] = frozenset()
    if edge_wise_pruning:
        pruned |= prune_edge_wise(cut, targets, ancestors)
    if uniqueness_pruning:
        pruned |= prune_unique(cut, targets, ancestors)
    covered = {*targets, *compute_earliest_ancestors(cut, ancestors - pruned)}
    components = find_components(graph, copied.contracted(find_mcs(cut, covered)), targets)
    name = "fries" if edge_wise_pruning or uniqueness_pruning else "fries_unpruned"
    return Plan(name, graph, targets, components)


def fries_unpruned(graph: Graph, updates: Collection[str]) -> Plan:
    """Algorithm 3: Fries without pruning."""
    return fries(graph, updates, edge_wise_pruning=False, uniqueness_pruning=False)


def epoch(graph: Graph, updates: Collection[str]) -> Plan:
    """Epoch barrier reconfiguration (section 3.1): markers through whole regions."""
    targets = _checked(graph, updates)
    return Plan("epoch", graph, targets, _whole_regions(graph, targets))


def multi_version(graph: Graph, updates: Collection[str]) -> Plan:
    """FCM multi-version (section 4.1): sources tag tuples, targets keep both versions."""
    targets = _checked(graph, updates)
    cut = graph.pipelined
    ahead = reaching(cut, targets, forward=False)
    roots = [name for name in ahead if not cut.inputs(name)]
    components = find_components(graph, find_mcs(cut, {*targets, *roots}), targets)
    return Plan("multi_version", graph, targets, components, propagation=Propagation.TAGS)


def naive(graph: Graph, updates: Collection[str]) -> Plan:
    """Naive FCM (section 4.1): each target switches on its own. Not consistent."""
    targets = _checked(graph, updates)
    components = tuple(make_component(graph, (name,), (), targets) for name in targets)
    return Plan("naive", graph, targets, components)


def mini_batch(graph: Graph, updates: Collection[str]) -> Plan:
    """Change between two mini-batches, as Spark Streaming does (section 3.1)."""
    targets = _checked(graph, updates)
    components = _whole_regions(graph, targets)
    return Plan("mini_batch", graph, targets, components, CommitPoint.NEXT_BATCH)


def restart(graph: Graph, updates: Collection[str]) -> Plan:
    """Drain, stop, change and start again, as Flink does with a savepoint (section 3.1)."""
    targets = _checked(graph, updates)
    components = _whole_regions(graph, targets)
    return Plan("restart", graph, targets, components, CommitPoint.RESTART)


SCHEDULERS: Final[dict[str, Scheduler]] = {
    "fries": fries,
    "fries_unpruned": fries_unpruned,
    "epoch": epoch,
    "multi_version": multi_version,
    "naive": naive,
    "mini_batch": mini_batch,
    "restart": restart,
}


def scheduler(name: str) -> Scheduler:
    """Find a scheduler by its name."""
    try:
        return SCHEDULERS[name]
    except KeyError:
        raise UnknownSchedulerError(name, tuple(SCHEDULERS)) from None


def cover(
    graph: Graph, covered: Collection[str], targets: Collection[str]
) -> tuple[Component, ...]:
    """The components of the covering sub-DAG of some operators (Algorithm 2)."""
    return find_components(graph, find_mcs(graph.pipelined, covered), targets)


def _checked(graph: Graph, updates: Collection[str]) -> tuple[str, ...]:
    """The operators to update, known and in topological order.

    A bare text is refused: it would be taken as its letters, and those can be names.
    """
    if isinstance(updates, str):
        raise ArgumentError(
            "the operators to update",
            f"give a list or a mapping of names, not one text: [{updates!r}]",
        )
    if not isinstance(updates, Iterable):
        raise ArgumentError(
            "the operators to update", f"they are {updates!r}; give a list or a mapping of names"
        )
    names = {graph[name].name for name in updates}
    if not names:
        raise EmptyUpdateError
    return tuple(sorted(names, key=graph.position.__getitem__))


def _whole_regions(graph: Graph, targets: Collection[str]) -> tuple[Component, ...]:
    """Every region with a target, whole: what a marker from the sources runs through."""
    cut = graph.pipelined
    wanted = [region for region in graph.regions if not region.isdisjoint(targets)]
    inside = frozenset().union(*wanted)
    vertices = tuple(name for name in cut.order if name in inside)
    edges = tuple(edge for name in vertices for edge in cut.outputs(name))
    return find_components(graph, SubDag(vertices, edges), targets)
