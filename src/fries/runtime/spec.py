"""A flow as its workers know it: operators, edges, stages. Plain values, pickled once."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

Function: TypeAlias = "Callable[..., Any]"
"""A user's function. What it takes and gives depends on the kind and style of its operator."""


class Kind(enum.Enum):
    """What an operator does with its function."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    SPLIT = "split"
    """The function gives the number of the output branch."""
    PASS = "pass"
    """No function: a union, or a replicate if it has several output edges."""
    LOOKUP = "lookup"
    """The function is a :class:`~fries.runtime.lookup.Lookup` in a static table."""
    PROCESS = "process"
    """Keyed and stateful: the function takes a state and a row."""
    AGGREGATE = "aggregate"
    """Keyed and blocking: folds the rows of a batch, and gives one row per key at its end."""
    JOIN = "join"
    """Keyed, no function: pairs two branches of the same tuples."""


GROUPED = frozenset({Kind.PROCESS, Kind.AGGREGATE, Kind.JOIN})
"""Kinds that need all rows of a key at one place."""


ARGUMENTS = {Kind.PROCESS: 2, Kind.AGGREGATE: 2}
"""How many arguments functions take; one where nothing is said."""


class Style(enum.Enum):
    """What a function takes: one row (a dict), or a whole batch."""

    ROW = "row"
    ARROW = "arrow"
    PANDAS = "pandas"


class Unreadable(enum.Enum):
    """What to do with a key whose state cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    """Forget the state: the key begins anew."""


OnUnreadable: TypeAlias = "Unreadable | Callable[[Any, bytes, BaseException], Any]"
"""Or a function that repairs it: of the key, the pickled state, and why it cannot be read."""


@dataclass(frozen=True)
class Keying:
    """How the rows of a keyed operator are brought together, and what its state begins with."""

    columns: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    """Rows of a key group are sorted by these."""
    initial: object = None
    """State of a key that is seen for the first time, as the flow's first version has it: a
    newer one gets it migrated. ``None`` is no state, and is not migrated."""
    migrations: tuple[Function, ...] = ()
    """How states of versions before this flow's first one are brought up, oldest first."""
    on_unreadable: OnUnreadable = Unreadable.FAIL


@dataclass(frozen=True)
class DeadLetters:
    """What becomes of rows that an operator cannot process.

    ``to`` is the name of an output of the flow, or ``"drop"``. If more than a share ``limit`` of
    the latest thousand or so rows fail in a worker, the version fails after all, and is rolled
    back if it is new; up to ten of them never count as too many.
    """

    to: str
    limit: float = 0.1

    @property
    def output(self) -> str | None:
        """The output that they go to; ``None`` if nobody wants them."""
        return None if self.to == DROP else self.to


DROP: Final = "drop"
ERRORS: Final = -1
"""Branch by which rows leave an operator that could not process them."""


@dataclass(frozen=True)
class OperatorSpec:
    """One version of an operator. All versions share its name, kind, style and key."""

    name: str
    kind: Kind
    schema: pa.Schema
    """Columns that it gives."""
    function: Function | None = None
    style: Style = Style.ROW
    branches: int = 1
    """Of a split: how many."""
    takes: pa.Schema | None = None
    """Columns that it gets, where a dry run must know them."""
    keying: Keying | None = None
    many: bool = False
    """Of a process: whether its function gives a list of rows."""
    result: Function | None = None
    """Of an aggregate: makes the columns of a result from a state."""
    switch_within: float | None = None
    """Seconds that one chunk of its stage may take; ``None``: as short as throughput allows."""
    on_error: DeadLetters | None = None
    """What becomes of rows that fail; ``None``: the version has failed."""
    label: str = field(default="", compare=False)
    """What people call this version: for the driver, workers get none."""


@dataclass(frozen=True)
class EdgeSpec:
    """An edge, known between stages by its number."""

    number: int
    source: str
    target: str
    branch: int = 0
    """Of a split: which branch the edge is. Of rows that fail: :data:`ERRORS`."""


@dataclass(frozen=True)
class StageSpec:
    """The operators between two exchanges: one Python process, one chunk of rows at a time."""

    number: int
    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    """Every edge that begins, ends or passes here."""

    @property
    def inner(self) -> frozenset[int]:
        """The edges that lead to one of its operators."""
        here = {operator.name for operator in self.operators}
        return frozenset(edge.number for edge in self.edges if edge.target in here)

    @property
    def forks(self) -> bool:
        """Whether an operator has several edges, in or out."""
        inner = [edge for edge in self.edges if edge.number in self.inner]
        sources = [edge.source for edge in self.edges if edge.source]
        targets = [edge.target for edge in inner]
        return len(set(sources)) < len(sources) or len(set(targets)) < len(targets)

    def way_in(self, edge: EdgeSpec) -> tuple[EdgeSpec, ...]:
        """An edge, and those after it while there are only operators that pass rows on."""
        plain = {spec.name for spec in self.operators if spec.kind is Kind.PASS}
        way = [edge]
        while way[-1].target in plain:
            outputs = [one for one in self.edges if one.source == way[-1].target]
            if len(outputs) != 1 or outputs[0].number not in self.inner:
                break
            way += outputs
        return tuple(way)
