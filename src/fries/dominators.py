"""What lies on every path from an operator to some others: post-dominators of a dataflow.

A dataflow has no cycles, so one pass from its end to its beginning finds them: what is on all paths
from an operator is on all paths from each of its receivers, and the first such is the place where
their ways meet in the tree that has been built so far. Jump pointers find it in logarithmic time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fries.graph import Graph

END: Final = ""
"""Stands behind all ends; no operator has the empty name."""


def post_dominators(graph: Graph, ends: Collection[str]) -> dict[str, str]:
    """By operator that leads to an end, the next one on all its paths to ends; or :data:`END`."""
    goal, tree = frozenset(ends), _Tree()
    for name in reversed(graph.order):
        ways = [edge.target for edge in graph.outputs(name) if edge.target in tree.above]
        if name in goal:
            tree.add(name, END)
        elif ways:
            meet = ways[0]
            for way in ways[1:]:
                meet = tree.meet(meet, way)
            tree.add(name, meet)
    return {name: above for name, above in tree.above.items() if name != END}


class _Tree:
    """A tree that grows at its leaves, and tells where the ways of two nodes to the root meet."""

    def __init__(self) -> None:
        self.above = {END: END}
        self._depth = {END: 0}
        self._jump = {END: END}
        """By node, one above it: as far away as the last jump of the one above it reached, if that
        has jumped twice as far in two steps; so each way up has few jumps."""

    def add(self, name: str, above: str) -> None:
        """Add a leaf."""
        depth, jump = self._depth, self._jump
        once, twice = jump[above], jump[jump[above]]
        even = depth[above] - depth[once] == depth[once] - depth[twice]
        self.above[name], depth[name] = above, depth[above] + 1
        jump[name] = twice if even else above

    def meet(self, one: str, other: str) -> str:
        """The lowest node that is above both, or one of them."""
        if self._depth[one] < self._depth[other]:
            one, other = other, one
        one = self._lifted(one, self._depth[other])
        while one != other:
            far = self._jump[one] != self._jump[other]
            step = self._jump if far else self.above
            one, other = step[one], step[other]
        return one

    def _lifted(self, name: str, depth: int) -> str:
        while self._depth[name] > depth:
            jump = self._jump[name]
            name = jump if self._depth[jump] >= depth else self.above[name]
        return name
