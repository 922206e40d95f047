"""Which version of each operator a flow has, as its driver knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from fries.change.model import Change, Phase
from fries.errors import UpdateRefusedError
from fries.labels import code_label
from fries.runtime.spec import Function, OperatorSpec
from fries.updates import Revision

TAKEN_BACK = (Phase.ABORTED, Phase.ROLLED_BACK)
UNDECIDED = (Phase.QUEUED, Phase.PREPARING)
MOST_CHAINED: Final = 16
"""Changes of an operator that can still be taken back one after the other."""
LEAST_CHAINED: Final = 3
"""So many of them whatever their size: the driver keeps their functions, models and all."""
MOST_CHAINED_BYTES: Final = 256 * 1024 * 1024
"""Of all together, as far as those that may be fewer do not need more."""


class Kept(NamedTuple):
    """What the driver keeps of a version: its functions as they were sent."""

    digest: bytes
    """Tells it from another one; empty if it cannot be pickled: it is unlike any other."""
    classes: Mapping[str, bytes]
    """Digests of the user's classes in it."""
    function: Function
    migrate: Function | None
    result: Function | None
    inverse: Function | None

    def spec(self, sent: OperatorSpec) -> OperatorSpec:
        """The operator as it was sent, whatever becomes of its functions in this process."""
        return replace(sent, function=self.function, result=sent.result and self.result)


@dataclass(frozen=True)
class Applied:
    """A change that was requested: what it made of its operators, and how to know it again."""

    change: Change
    specs: Mapping[str, OperatorSpec]
    before: Mapping[str, OperatorSpec]
    """The same operators as they were, as far as was known when it was requested."""
    migrations: Mapping[str, Function | None]
    inverses: Mapping[str, Function | None]
    """What brings a state back, for an undo."""
    kept: Mapping[str, Kept]
    """What it brought, as it was sent."""
    size: int = 0
    """Bytes of its functions, pickled."""

    @property
    def decided(self) -> bool:
        """Whether it can no longer be aborted."""
        return self.change.phase not in UNDECIDED

    def inverted(self) -> dict[str, Revision]:
        """The updates that take it back; refused where a state could not follow."""
        made = {}
        for name in self.specs:
            old = self.before.get(name)
            if old is None:
                raise UpdateRefusedError(
                    name,
                    f"the log no longer has the version from before change {self.change.number}; "
                    "update it to a version that you have",
                )
            migrate, inverse = self.migrations.get(name), self.inverses.get(name)
            if migrate is not None and inverse is None:
                raise UpdateRefusedError(
                    name,
                    f"change {self.change.number} migrated its states and has no way back; give "
                    "Update(..., migrate=..., inverse=...)",
                )
            assert old.function is not None
            new = self.specs[name]
            schema = None if old.schema.equals(new.schema) else old.schema
            result = old.result if new.result is None else old.result or _as_it_is
            label = old.label or f"as built {code_label(old.function, old.result)}"
            made[name] = Revision(old.function, inverse, schema, result, migrate, label)
        return made


class Versions:
    """The newest version of each operator, and the one before it."""

    def __init__(
        self, operators: Iterable[OperatorSpec], kept: Mapping[str, Kept] | None = None
    ) -> None:
        self.built: Mapping[str, OperatorSpec] = {spec.name: spec for spec in operators}
        """The operators as the flow was built."""
        self._specs = dict(self.built)
        """The newest version of each operator whose change is done."""
        self._kept = dict(kept or {})
        """By operator, its newest version whose change is done, as it was sent."""
        self._waiting: list[Applied] = []
        """Changes that may not be done yet, or could still be rolled back, oldest first."""
        self._last: dict[str, Applied] = {}
        """By operator, the change that brought its newest version of those that are done."""
        self._chains: dict[str, tuple[Applied, ...]] = dict.fromkeys(self.built, ())
        """By operator, the last changes that are done and not undone, oldest first."""
        self._unknown: set[str] = set()
        """Operators of whose newest version here the log has forgotten the functions."""

    def add(self, applied: Applied) -> None:
        """A change was requested."""
        self._waiting.append(applied)

    def skip(self, names: Iterable[str]) -> None:
        """A change of some operators is done, but nobody knows its functions any more."""
        self._unknown.update(names)

    def current(
        self,
        finished: float,
        decided_only: bool = False,
        without: frozenset[int] = frozenset(),
    ) -> dict[str, OperatorSpec]:
        """The newest version of each operator, in topological order.

        Changes that took effect in batches up to ``finished`` cannot be taken back any more:
        what they replaced is forgotten. ``without`` leaves some out.
        """
        while self._waiting and _is_settled(self._waiting[0].change, finished):
            self._settle(self._waiting.pop(0))
        specs = dict(self._specs)
        unwanted = (*TAKEN_BACK, *UNDECIDED) if decided_only else TAKEN_BACK
        for applied in self._waiting:
            if applied.change.phase not in unwanted and applied.change.number not in without:
                specs.update(applied.specs)
        if without:
            specs.update(self._uncovered(without))
        return specs

    def _uncovered(self, without: frozenset[int]) -> Iterator[tuple[str, OperatorSpec]]:
        """The versions that are in force again if the newest ones are left out."""
        for name, chain in self._in_force().items():
            gone = list(takewhile(lambda one: one.change.number in without, reversed(chain)))
            before = self._with_before(gone[-1]).before if gone else {}
            if name in before:
                yield name, before[name]

    def after(self, number: int) -> list[Applied]:
        """Changes after one that were requested and not taken back, oldest first."""
        return [
            one
            for one in self._waiting
            if one.change.number > number and one.change.phase not in TAKEN_BACK
        ]

    @property
    def undecided(self) -> bool:
        """Whether some change may still be aborted."""
        return any(applied.change.phase in UNDECIDED for applied in reversed(self._waiting))

    def kept(self, name: str) -> Kept | None:
        """The newest version of an operator, or the one that it is about to get."""
        for applied in reversed(self._waiting):
            if name in applied.specs and applied.change.phase not in TAKEN_BACK:
                return applied.kept.get(name)
        return self._kept.get(name)

    def has(self, name: str, digest: bytes) -> bool:
        """Whether an operator has an update already, or is about to get it."""
        kept = self.kept(name)
        return kept is not None and bool(digest) and kept.digest == digest

    def newest(self, name: str) -> Applied | None:
        """The change that brought the newest version of an operator, if any did."""
        for applied in reversed(self._waiting):
            if name in applied.specs and applied.change.phase not in TAKEN_BACK:
                return applied
        return self._last.get(name)

    def in_force(self) -> list[Applied]:
        """The changes that brought the versions that rows get now, the newest first."""
        tops = {id(chain[-1]): chain[-1] for chain in self._in_force().values() if chain}
        return sorted(tops.values(), key=lambda applied: -applied.change.number)

    def later(self, number: int) -> list[Applied]:
        """Changes after one that happened and are not undone, oldest first."""
        chained = {id(one): one for chain in self._in_force().values() for one in chain}
        found = (one for one in chained.values() if one.change.number > number)
        return [self._with_before(one) for one in sorted(found, key=lambda one: one.change.number)]

    def culprit(self, number: int, operator: str) -> Applied | None:
        """The change that brought the version that has failed, by what the worker knows.

        An undo that nobody asked for brings none: it uncovers an older one.
        """
        applied = self.find(number)
        if applied is None or not applied.change.order.automatic:
            return applied
        newest = self.newest(operator)
        if newest is None or newest.change.number != number:
            return None  # something has taken its place meanwhile
        chain = self._in_force()[operator]
        return self._with_before(chain[-1]) if chain else None

    def is_in_force(self, name: str, number: int) -> bool:
        """Whether rows get what a change brought: those after it, if any, are undone."""
        chain = self._in_force()[name]
        return bool(chain) and chain[-1].change.number == number

    def _in_force(self) -> dict[str, tuple[Applied, ...]]:
        """By operator, the changes that happened and are not undone, oldest first."""
        chains = dict(self._chains)
        for applied in self._waiting:
            if applied.change.phase not in (*TAKEN_BACK, *UNDECIDED):
                chains.update({name: _chained(chains[name], applied) for name in applied.specs})
        return chains

    def find(self, number: int) -> Applied | None:
        """A change by its number, while one of its versions is the newest or in force."""
        chained = (applied for chain in self._chains.values() for applied in chain)
        known = (*self._waiting, *self._last.values(), *chained)
        found = (applied for applied in known if applied.change.number == number)
        applied = next((one for one in found if not one.change.taken_back), None)
        return None if applied is None else self._with_before(applied)

    def _with_before(self, applied: Applied) -> Applied:
        """A change with what was there before it: of those before it some may have been aborted."""
        if applied not in self._waiting:
            return applied
        before = self._known(applied)
        for older in self._waiting[: self._waiting.index(applied)]:
            if older.decided and not older.change.taken_back:
                shared = older.specs.keys() & applied.specs.keys()
                before.update({name: older.specs[name] for name in shared})
        return replace(applied, before=before)

    def _known(self, applied: Applied) -> dict[str, OperatorSpec]:
        return {name: self._specs[name] for name in applied.specs if name not in self._unknown}

    def _settle(self, applied: Applied) -> None:
        if applied.change.phase is Phase.DONE:
            applied = replace(applied, before=self._known(applied))
            self._unknown.difference_update(applied.specs)
            self._specs.update(applied.specs)
            for name in applied.specs:
                self._kept.pop(name, None)
            self._kept.update(applied.kept)
            self._last.update(dict.fromkeys(applied.specs, applied))
            for name in applied.specs:
                self._chains[name] = _bounded(_chained(self._chains[name], applied))


def _chained(chain: tuple[Applied, ...], applied: Applied) -> tuple[Applied, ...]:
    """The changes of an operator that are not undone, after one more."""
    undoes = applied.change.order.undoes
    if undoes and chain and chain[-1].change.number == undoes:
        return chain[:-1]
    return (*chain, applied)


def _bounded(chain: tuple[Applied, ...]) -> tuple[Applied, ...]:
    """The newest changes of an operator, as many as the driver keeps."""
    sizes = accumulate(applied.size for applied in reversed(chain))
    fitting = sum(1 for size in sizes if size <= MOST_CHAINED_BYTES)
    return chain[-min(MOST_CHAINED, max(LEAST_CHAINED, fitting)) :]


def _as_it_is(state: object) -> object:
    """What an aggregate without a result function makes of a state."""
    return state


def _is_settled(change: Change, finished: float) -> bool:
    """Whether nothing more can happen to a change, not even a rollback."""
    if change.phase in TAKEN_BACK:
        return True
    return change.phase is Phase.DONE and change.is_kept(finished)
