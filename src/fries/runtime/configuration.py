"""All versions of all operators that a worker may need; :mod:`fries.change.epochs` says which."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fries.change.epochs import Epochs, InTransition
from fries.errors import OperatorError
from fries.failing import described, shortened
from fries.runtime.buckets import states, unpacked
from fries.runtime.dead_letters import FailingShare
from fries.runtime.functions import Call, make_call
from fries.runtime.keyed import Fold, MigrationError, make_fold
from fries.runtime.pacer import Costs
from fries.runtime.shipped import Shipped
from fries.runtime.sparing import sparing
from fries.runtime.spec import Function, Kind, OperatorSpec
from fries.runtime.steps import Step, through

Buffer: TypeAlias = "bytes | memoryview"
SAMPLES: Final = 8
"""Buckets of live states that a worker keeps of each operator, to try migrations on."""


@dataclass(frozen=True)
class Body:
    """One version of an operator, ready to run."""

    spec: OperatorSpec
    call: Call
    fold: Fold | None = None
    """Of a keyed operator, instead of the call."""

    @classmethod
    def of(cls, spec: OperatorSpec) -> Body:
        """Wrap the functions of an operator."""
        folds = spec.kind in (Kind.PROCESS, Kind.AGGREGATE)
        call = make_call(spec)
        if spec.on_error is not None and not folds:
            call = sparing(spec, call)
        return cls(spec, call, make_fold(spec) if folds else None)


@dataclass(frozen=True)
class _Loaded:
    """What a change brings."""

    bodies: Mapping[str, Body]
    migrations: Mapping[str, Function | None]
    undoes: int
    """The change that it takes back; 0: none."""


class Configuration:
    """All versions of all operators that a worker may need, and which rows get which.

    Implements :class:`fries.control.client.Engine`.
    """

    def __init__(self, operators: Iterable[OperatorSpec] = ()) -> None:
        self._epochs = Epochs()
        self._loaded: dict[int, _Loaded] = {}
        """Changes that are not in the base. Replaced, never changed: rows go on meanwhile."""
        self._replacing = threading.Lock()
        self.failing = FailingShare()
        """How many rows have failed of late where they may."""
        self.age = 0
        """How often the base has become another one."""
        self._start(operators)

    def define(self, definition: bytes, skipped: Mapping[str, int]) -> None:
        """Begin with the operators of a pickled definition.

        ``skipped`` says how many updates of each operator have left no trace since.
        """
        self._start(pickle.loads(definition))
        for name, count in skipped.items():
            self._updates[name] += count

    def _start(self, operators: Iterable[OperatorSpec]) -> None:
        self._built = {spec.name: spec for spec in operators}
        """The operators as the flow was built: what comes is told as what differs from them."""
        self._base = {name: Body.of(spec) for name, spec in self._built.items()}
        """By operator, the version of rows that have no change in transition."""
        self._migrations = {
            name: [Step(0, one) for one in body.spec.keying.migrations] if body.spec.keying else []
            for name, body in self._base.items()
        }
        """By operator, what brings a state from each of its versions to the next."""
        self._updates = dict.fromkeys(self._base, 0)
        """By operator, how many updates the base has."""
        self._origins = dict.fromkeys(self._base, 0)
        """By operator, the change that brought the base's version; 0: the flow was built so."""
        self.age += 1
        self.costs: dict[Hashable, Costs] = {}
        """What chunks have cost in the tasks of this worker: the next one begins with it."""
        self._samples: dict[str, deque[bytes]] = {
            name: deque(maxlen=SAMPLES) for name in self._base
        }

    def load(self, change: int, bit: int, payload: Buffer, parts: Sequence[Buffer] = ()) -> None:
        """Unpickle and wrap the functions of a change, and try its migrations on live states.

        Raises if that is impossible.
        """
        shipped = Shipped.of(pickle.loads(payload, buffers=parts), self._built)
        bodies = {name: Body.of(spec) for name, spec in shipped.operators.items()}
        loaded = _Loaded(bodies, shipped.migrations, shipped.undoes)
        for name in bodies:
            self._try_migration(name, change, loaded)
        with self._replacing:
            self._loaded = {**self._loaded, change: loaded}
            self._epochs.load(change, InTransition(1 << bit, frozenset(bodies), shipped.entries))

    def sampled(self, operator: str, bucket: bytes) -> None:
        """Keep a few live states, for the next migration to be tried on."""
        if bucket:
            self._samples[operator].append(bucket)

    def switch(self, change: int) -> None:
        """Stamp rows that enter the change's components from now on."""
        self._epochs.switch(change)

    def drop(self, change: int) -> None:
        """Forget a change: it was aborted, or is part of the base."""
        with self._replacing:
            self._epochs.drop(change)
            self._loaded = {number: one for number, one in self._loaded.items() if number != change}

    def begin(self, base: Iterable[int], pinned: Iterable[int] | None = None) -> None:
        """A task begins: from now on the changes in the base of its batch are for all rows.

        ``pinned`` are the changes that it must begin with, if it is a repetition.
        """
        for change in self._epochs.begin(base, pinned):
            self.adopt(change)

    def adopt(self, change: int) -> None:
        """Make a change that was loaded part of the base."""
        with self._replacing:
            self._fold(change, self._loaded[change])
            self._epochs.adopt(change)
            self._loaded = {n: one for n, one in self._loaded.items() if n != change}

    def _fold(self, change: int, loaded: _Loaded) -> None:
        """Make a change part of the base."""
        self._base.update(loaded.bodies)
        self._origins.update(dict.fromkeys(loaded.bodies, change))
        self.age += 1  # now, for rows go on meanwhile
        for name in loaded.bodies.keys() | loaded.migrations.keys():
            self._migrations[name] = [
                *self._migrations[name],
                *self._steps(name, [(change, loaded)]),
            ]
            self._updates[name] += 1

    def built(self, operator: str) -> OperatorSpec:
        """An operator as the flow was built."""
        return self._built[operator]

    @property
    def in_transition(self) -> bool:
        """Whether there are changes that are not in the base."""
        return bool(self._epochs.loaded)

    @property
    def repeats(self) -> bool:
        """Whether the task at hand must go as it went before."""
        return self._epochs.repeats

    def bits_of(self, operator: str) -> int:
        """The bits that decide which version of an operator a row gets; 0: all rows get one."""
        return self._epochs.bits_of(operator)

    def changes(self, bits: int) -> list[int]:
        """The changes in transition that some bits stand for."""
        return self._epochs.changes(bits)

    def stamp_on(self, edge: int) -> int:
        """The bits to set on rows that come in over an edge."""
        return self._epochs.stamp_on(edge)

    def stamping(self, edges: Iterable[int]) -> frozenset[int]:
        """The changes whose bits are set on rows that come in over some edges."""
        return self._epochs.stamping(edges)

    def pin(self, change: int) -> None:
        """In a repetition: here the task had switched to a change."""
        self._epochs.pin(change)

    def origin(self, operator: str, mask: int) -> int:
        """The change that brought the version that a row with some mask gets; 0: none did."""
        applied = self._epochs.applied(operator, mask)
        return applied[-1] if applied else self._origins[operator]

    def in_force(self, operators: Iterable[str], changes: Iterable[int]) -> tuple[int, ...]:
        """The changes that brought the versions of rows that have some changes in transition."""
        bits = self._epochs.bits(changes)
        return tuple(self.origin(name, bits) for name in operators)

    def version(self, operator: str, mask: int) -> int:
        """How many updates of an operator a row with some mask has."""
        return self._updates[operator] + len(self._applied(operator, mask))

    def body(self, operator: str, mask: int) -> Body:
        """The version that a row with some mask gets."""
        applied = self._applied(operator, mask)
        return applied[-1][1].bodies[operator] if applied else self._base[operator]

    def state_version(self, operator: str, mask: int) -> int:
        """How many versions of its state come before the one that a row with some mask needs."""
        return len(self._migrations[operator]) + len(
            self._steps(operator, self._applied(operator, mask))
        )

    def migrated(self, operator: str, mask: int, version: int, state: Any) -> Any:  # noqa: ANN401
        """A state of some version, brought up to the version of rows with some mask."""
        applied = self._applied(operator, mask)
        steps = [*self._migrations[operator], *self._steps(operator, applied)]
        if version > len(steps):
            raise OperatorError(
                operator,
                f"a state was written by its version {version}, but rows of version {len(steps)} "
                "need it; build the flow with all migrations=(...) that its state has seen",
            )
        return through(steps[version:], state)

    def _try_migration(self, name: str, change: int, loaded: _Loaded) -> None:
        """See that every sampled state of an operator survives a change's migration."""
        last = loaded.migrations.get(name)
        if last is None:
            return
        with self._replacing:
            applied = self._applied(name, ~0)
            newest = Step(change, last, loaded.undoes)
            steps = [*self._migrations[name], *self._steps(name, applied), newest]
        for bucket in tuple(self._samples[name]):
            for key, version, state in states(unpacked(bucket, pickle.dumps)):
                try:
                    through(steps[version:], state)
                except MigrationError as failed:
                    whose = "its" if failed.change == change else f"change {failed.change}'s"
                    problem = f"{whose} migration fails on the live state of key {shortened(key)}"
                    raise OperatorError(name, f"{problem}: {described(failed.error)}") from failed

    def _steps(self, operator: str, updates: Iterable[tuple[int, _Loaded]]) -> list[Step]:
        """What some updates do to the state of an operator: each step makes a new version of it.

        States that are kept have a new version only where there is a migration. Those of an
        aggregate live for one batch, and remember the version of the function as well.
        """
        steps = [
            Step(change, update.migrations.get(operator), update.undoes)
            for change, update in updates
        ]
        if self._base[operator].spec.kind is Kind.AGGREGATE:
            return steps
        return [step for step in steps if step.migrate is not None]

    def _applied(self, operator: str, mask: int) -> list[tuple[int, _Loaded]]:
        """The updates of an operator in transition that a row has, oldest first."""
        changes = self._epochs.applied(operator, mask)  # first: a change is loaded before it counts
        return [(change, self._loaded[change]) for change in changes]
