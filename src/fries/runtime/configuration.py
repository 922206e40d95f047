"""Which version of which operator a row gets: the epoch arithmetic of a worker.

Every row carries a 64-bit mask. A change in transition has a bit of it: set means that the row
entered the change's component after the switch, and every member obeys. Changes in the base of a
batch apply to all its rows and need no bit.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fries.runtime.functions import Call, make_call
from fries.runtime.spec import Function, OperatorSpec


@dataclass(frozen=True)
class Shipped:
    """What a change ships to workers: new functions, and where rows enter its components."""

    functions: Mapping[str, Function]
    entries: frozenset[int] = frozenset()
    """Numbers of the edges over which rows enter a component; there they are stamped."""


@dataclass(frozen=True)
class _Loaded:
    """A change that this worker can use."""

    bit: int
    """Its bit of the mask, as a number with just that bit set."""
    calls: Mapping[str, Call]
    entries: frozenset[int]


class Configuration:
    """All versions of all operators that a worker may need, and which rows get which.

    Implements :class:`fries.control.client.Engine`.
    """

    def __init__(self, operators: Iterable[OperatorSpec]) -> None:
        self._specs = {spec.name: spec for spec in operators}
        self._base = {name: make_call(spec, spec.function) for name, spec in self._specs.items()}
        """By operator, the function of rows that have no change in transition."""
        self._updates = dict.fromkeys(self._specs, 0)
        """By operator, how many updates the base has."""
        self._loaded: dict[int, _Loaded] = {}
        """Changes that are not in the base. Replaced, never changed: rows go on meanwhile."""
        self._replacing = threading.Lock()
        self._switched: set[int] = set()

    def load(self, change: int, bit: int, payload: bytes) -> None:
        """Unpickle and wrap the functions of a change; raises if that is impossible."""
        shipped: Shipped = pickle.loads(payload)
        calls = {
            name: make_call(self._specs[name], function)
            for name, function in shipped.functions.items()
        }
        with self._replacing:
            self._loaded = {**self._loaded, change: _Loaded(1 << bit, calls, shipped.entries)}

    def switch(self, change: int) -> None:
        """Stamp rows that enter the change's components from now on."""
        self._switched.add(change)

    def drop(self, change: int) -> None:
        """Forget a change: it was aborted, or is part of the base."""
        with self._replacing:
            self._loaded = {number: one for number, one in self._loaded.items() if number != change}

    def begin(self, base: Iterable[int]) -> None:
        """A task begins: from now on the changes in the base of its batch are for all rows."""
        for change in sorted(set(base) & self._loaded.keys()):
            for name, call in self._loaded[change].calls.items():
                self._base[name] = call
                self._updates[name] += 1
            self.drop(change)
            self._switched.discard(change)

    def bits_of(self, operator: str) -> int:
        """The bits that decide which version of an operator a row gets; 0: all rows get one."""
        bits = 0
        for loaded in self._loaded.values():
            if operator in loaded.calls:
                bits |= loaded.bit
        return bits

    def changes(self, bits: int) -> list[int]:
        """The changes in transition that some bits stand for."""
        return [change for change, loaded in self._loaded.items() if loaded.bit & bits]

    def stamp_on(self, edge: int) -> int:
        """The bits to set on rows that come in over an edge."""
        bits = 0
        for change, loaded in self._loaded.items():
            if change in self._switched and edge in loaded.entries:
                bits |= loaded.bit
        return bits

    def version(self, operator: str, mask: int) -> int:
        """How many updates of an operator a row with some mask has."""
        return self._updates[operator] + len(self._applied(operator, mask))

    def call(self, operator: str, mask: int) -> Call:
        """The function that a row with some mask gets."""
        applied = self._applied(operator, mask)
        return applied[-1].calls[operator] if applied else self._base[operator]

    def _applied(self, operator: str, mask: int) -> list[_Loaded]:
        """The updates of an operator in transition that a row has, oldest first."""
        return [
            loaded
            for _, loaded in sorted(self._loaded.items())
            if operator in loaded.calls and mask & loaded.bit
        ]
