"""Tells two worlds apart: by what decides their future, and not by how they came to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from fries.change.model import Change, Order
from fries_lab.world.scenario import Ask, Scenario

PLAIN = (int, str, float, bool, type(None), bytes, Enum)


def key_of(world: object) -> int:
    """Equal for worlds that have the same future."""
    return hash(_plain(vars(world)))


def _plain(value: Any) -> Hashable:  # noqa: ANN401 - whatever a world is made of
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (tuple, list, deque)):
        return tuple(map(_plain, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, dict):
        return frozenset((key, _plain(one)) for key, one in value.items())
    if isinstance(value, (Scenario, Ask, Order)):
        return None  # the same in all worlds, by the number of the change
    if isinstance(value, Change):
        return _change(value)
    if isinstance(value, msgspec.Struct):
        return type(value), *(_plain(getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return type(value), *(_plain(getattr(value, one.name)) for one in fields(value))
    return type(value), *(_plain(one) for _, one in sorted(vars(value).items()))


def _change(change: Change) -> Hashable:
    """A change without what is only told of it."""
    waiting, late = frozenset(change.waiting), frozenset(change.late)
    what = change.number, change.phase, change.decision, change.held, change.bit, change.since
    return *what, waiting, late, frozenset(change.switched), change.failure is None
