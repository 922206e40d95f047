"""A flow as its workers know it: operators, edges, stages. Plain values, pickled once."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

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


class Style(enum.Enum):
    """What a function takes: one row (a dict), or a whole batch."""

    ROW = "row"
    ARROW = "arrow"
    PANDAS = "pandas"


@dataclass(frozen=True)
class OperatorSpec:
    """One operator, and what every version of it must keep: kind, style, output columns."""

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


@dataclass(frozen=True)
class EdgeSpec:
    """An edge, known between stages by its number."""

    number: int
    source: str
    target: str
    branch: int = 0
    """Of a split: which branch the edge is."""


@dataclass(frozen=True)
class StageSpec:
    """The operators between two exchanges: one Python process, one chunk of rows at a time."""

    number: int
    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    """Every edge that begins, ends or passes here."""
