"""Which changes can be taken back, and which go with one that is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from fries.change.model import Phase
from fries.errors import UpdateRefusedError
from fries.runtime.spec import EdgeSpec
from fries.versions import Applied, Versions

Fits: TypeAlias = "Callable[[Applied, frozenset[int]], bool]"
"""Whether the columns of a change fit without some others."""


def built_on(applied: Applied, candidates: Iterable[Applied], fits: Fits) -> dict[int, str]:
    """Of some later changes, those that cannot stand without one that is taken back, and why."""
    reasons: dict[int, str] = {}
    gone = [applied]
    for later in candidates:
        shared = {name: one for one in gone for name in one.specs if name in later.specs}
        without = frozenset(one.change.number for one in gone)
        if shared:
            name, one = next(iter(shared.items()))
            reason = f"it was made for operator {name!r} as of change {one.change.number}"
        elif not fits(later, without):
            reason = f"its columns do not fit without change {applied.change.number}"
        else:
            continue
        gone.append(later)
        taken_back = f"change {applied.change.number} was taken back"
        reasons[later.change.number] = f"{reason}, and {taken_back}"
    return reasons


def feeding(names: Iterable[str], edges: Iterable[EdgeSpec]) -> set[str]:
    """The operators whose rows some others get, directly or through others."""
    sources: dict[str, list[str]] = {}
    for edge in edges:
        sources.setdefault(edge.target, []).append(edge.source)
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        new = set(sources.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def undoable(versions: Versions, targets: Collection[str], number: int) -> Applied:
    """A change that may be undone: it happened, and nothing was built on it."""
    for name in targets:
        newest = versions.newest(name)
        if newest is None or newest.change.number <= number or versions.is_in_force(name, number):
            continue
        later = newest.change.number
        problem = (
            f"change {number} was rolled back by change {later}"
            if newest.change.order.automatic
            else f"change {later} came after change {number}; undo that first"
        )
        raise UpdateRefusedError(name, problem)
    applied = versions.find(number)
    if applied is None or not applied.decided or applied.change.phase is Phase.ROLLED_BACK:
        raise UpdateRefusedError(", ".join(targets), f"change {number} is not in place")
    return applied
