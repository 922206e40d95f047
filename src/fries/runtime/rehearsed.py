"""What the user's modules held before functions were rehearsed in this process.

Functions over batches are called on an empty one in the driver before they are sent. What such a
call counts, or opens to use it again, is no other code than that of a worker that has not called
them yet. What the user changes there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from types import ModuleType
from typing import Any, Final

from fries.runtime.code import MISSING, Kept


class Rehearsed(Kept):
    """By identity, what containers and namespaces were before calls, and what calls made of them.

    They count as they were as long as they are what the last call has left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[int, Any] = {}
        """Copies of containers."""
        self._bound: dict[int, dict[str, object]] = {}
        """By namespace, what names stood for that a call has bound."""

    @contextmanager
    def during(self, modules: Iterable[ModuleType]) -> Iterator[None]:
        """What changes in modules meanwhile counts as it was."""
        then = Kept()
        for module in modules:
            then.keep(module)
        try:
            yield
        finally:
            for owner, before in then.containers():
                self._note_container(owner, before)
            for owner, names in then.spaces():
                self._note_names(owner, names)

    def space(self, owner: object, now: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the names of a module or class stand for, as if no function had been called."""
        bound = self._bound.get(id(owner))
        if bound is None:
            return now
        _, before = self._spaces[id(owner)]
        ours = {name for name, value in bound.items() if now.get(name, MISSING) is value}
        names = {**now, **{name: before[name] for name in ours}}
        return {name: value for name, value in names.items() if value is not MISSING}

    def container(self, now: Any) -> Any:  # noqa: ANN401 - a list, dict or set
        """A container as if no function had been called."""
        left = self._left.get(id(now), MISSING)
        return super().container(now) if left is not MISSING and _same(now, left) else now

    def _note_container(self, owner: Any, before: Any) -> None:  # noqa: ANN401
        if _same(owner, before):
            return
        known = self._left.get(id(owner), MISSING)
        if known is MISSING or not _same(before, known):
            self._containers[id(owner)] = owner, before
        self._left[id(owner)] = owner.copy()

    def _note_names(self, owner: Any, before: Mapping[str, Any]) -> None:  # noqa: ANN401
        now, bound = vars(owner) if isinstance(owner, type) else owner, {}
        for name in before.keys() | now.keys():
            value = now.get(name, MISSING)
            if value is not before.get(name, MISSING):
                bound[name] = value
        if not bound:
            return
        known = self._bound.setdefault(id(owner), {})
        _, first = self._spaces.setdefault(id(owner), (owner, {}))
        for name, value in bound.items():
            then = before.get(name, MISSING)
            if name not in known or known[name] is not then:
                first[name] = then
            known[name] = value


REHEARSED: Final = Rehearsed()
"""Of all that this process has called to try it."""


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Whether two containers hold the same objects; nobody's ``__eq__`` is called."""
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return set(map(id, one)) == set(map(id, other))
    values = isinstance(one, dict) and not all(map(is_, one.values(), other.values()))
    return not values and all(map(is_, one, other))
