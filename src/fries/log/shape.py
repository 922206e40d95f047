"""Whether a flow fits the checkpoint that it is started on, and if not, what is different."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fries.errors import LogMismatchError
from fries.log.records import Shape
from fries.runtime.spec import EdgeSpec, OperatorSpec

COUNT: Final = "number of migrations"
"""A trait of keyed operators."""


def shape_of(operators: Iterable[OperatorSpec], edges: Iterable[EdgeSpec], groups: int) -> Shape:
    """What of a flow must stay the same as long as its checkpoint lives."""
    return Shape(
        groups,
        {spec.name: _traits(spec) for spec in operators},
        tuple((edge.source, edge.target, edge.branch) for edge in edges),
    )


def _traits(spec: OperatorSpec) -> dict[str, str]:
    traits = {
        "kind": spec.kind.value,
        "columns": ", ".join(f"{field.name} {field.type}" for field in spec.schema),
        "branches": str(spec.branches),
        "many": str(spec.many),
    }
    if spec.keying is not None:
        traits["key"] = ", ".join(spec.keying.columns)
        traits["order_by"] = ", ".join(spec.keying.order_by)
        traits[COUNT] = str(len(spec.keying.migrations))
    return traits


def check_fits(logged: Shape, now: Shape, place: str, columns_may_differ: bool = False) -> None:
    """Refuse a flow that is not the one whose changes a log holds.

    Changes inside a stage may have brought other columns, which the code then has.
    """
    if columns_may_differ:
        logged, now = _without_columns(logged), _without_columns(now)
    found = tuple(_differences(logged, now))
    if found:
        raise LogMismatchError(place, found)


def _without_columns(shape: Shape) -> Shape:
    operators = {
        name: {trait: value for trait, value in traits.items() if trait != "columns"}
        for name, traits in shape.operators.items()
    }
    return Shape(shape.groups, operators, shape.edges)


def _differences(logged: Shape, now: Shape) -> Iterator[str]:
    if logged.groups != now.groups:
        yield f"it had {logged.groups} key groups, now {now.groups}"
    for name in sorted(logged.operators.keys() - now.operators.keys()):
        yield f"operator {name!r} is missing"
    for name in sorted(now.operators.keys() - logged.operators.keys()):
        yield f"operator {name!r} is new"
    for name in sorted(logged.operators.keys() & now.operators.keys()):
        old, new = logged.operators[name], now.operators[name]
        for trait in sorted(old.keys() | new.keys()):
            if old.get(trait) != new.get(trait):
                was, now_is = old.get(trait, "none"), new.get(trait, "none")
                yield f"operator {name!r}: {trait} was {was!r}, now {now_is!r}"
    yield from _edge_differences(logged, now)


def _edge_differences(logged: Shape, now: Shape) -> Iterator[str]:
    old, new = set(logged.edges), set(now.edges)
    for source, target, branch in sorted(old - new):
        yield f"the edge {source or 'outside'} -> {target} (branch {branch}) is missing"
    for source, target, branch in sorted(new - old):
        yield f"the edge {source or 'outside'} -> {target} (branch {branch}) is new"
    if old == new and logged.edges != now.edges:
        yield "the operators were added in another order"
