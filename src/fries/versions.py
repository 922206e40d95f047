"""Which version of each operator a flow has, as its driver knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fries.control.changes import Change
from fries.errors import UpdateRefusedError
from fries.protocol.controller import Phase
from fries.runtime.spec import Function, OperatorSpec
from fries.updates import Revision

TAKEN_BACK = (Phase.ABORTED, Phase.ROLLED_BACK)
UNDECIDED = (Phase.QUEUED, Phase.PREPARING)


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
    digests: Mapping[str, bytes]

    @property
    def decided(self) -> bool:
        """Whether it can no longer be aborted."""
        return self.change.phase not in UNDECIDED

    def inverted(self) -> dict[str, Revision]:
        """The updates that take it back; refused where a state could not follow."""
        made = {}
        for name, old in self.before.items():
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
            made[name] = Revision(old.function, inverse, schema, result, migrate)
        return made


class Versions:
    """The newest version of each operator, and the one before it."""

    def __init__(self, operators: Iterable[OperatorSpec]) -> None:
        self.built: Mapping[str, OperatorSpec] = {spec.name: spec for spec in operators}
        """The operators as the flow was built."""
        self._specs = dict(self.built)
        """The newest version of each operator whose change is done."""
        self._digests: dict[str, bytes] = {}
        self._waiting: list[Applied] = []
        """Changes that may not be done yet, or could still be rolled back, oldest first."""
        self._last: dict[str, Applied] = {}
        """By operator, the change that brought its newest version of those that are done."""

    def add(self, applied: Applied) -> None:
        """A change was requested."""
        self._waiting.append(applied)

    def current(self, finished: float, decided_only: bool = False) -> dict[str, OperatorSpec]:
        """The newest version of each operator, in topological order.

        Changes that took effect in batches up to ``finished`` cannot be taken back any more:
        what they replaced is forgotten.
        """
        while self._waiting and _is_settled(self._waiting[0].change, finished):
            self._settle(self._waiting.pop(0))
        specs = dict(self._specs)
        unwanted = (*TAKEN_BACK, *UNDECIDED) if decided_only else TAKEN_BACK
        for applied in self._waiting:
            if applied.change.phase not in unwanted:
                specs.update(applied.specs)
        return specs

    @property
    def undecided(self) -> bool:
        """Whether some change may still be aborted."""
        return any(applied.change.phase in UNDECIDED for applied in reversed(self._waiting))

    def has(self, name: str, digest: bytes) -> bool:
        """Whether an operator has an update already, or is about to get it."""
        for applied in reversed(self._waiting):
            if name in applied.digests and applied.change.phase not in TAKEN_BACK:
                return applied.digests[name] == digest
        return self._digests.get(name) == digest

    def newest(self, name: str) -> Applied | None:
        """The change that brought the newest version of an operator, if any did."""
        for applied in reversed(self._waiting):
            if name in applied.specs and applied.change.phase not in TAKEN_BACK:
                return applied
        return self._last.get(name)

    def find(self, number: int) -> Applied | None:
        """A change by its number, while one of its versions is the newest."""
        known = (*self._waiting, *self._last.values())
        found = (applied for applied in known if applied.change.number == number)
        applied = next((one for one in found if not one.change.taken_back), None)
        return self._with_before(applied) if applied in self._waiting else applied

    def _with_before(self, applied: Applied) -> Applied:
        """A change with what was there before it: of those before it some may have been aborted."""
        before = {name: self._specs[name] for name in applied.specs}
        for older in self._waiting[: self._waiting.index(applied)]:
            if older.decided and not older.change.taken_back:
                before.update({name: spec for name, spec in older.specs.items() if name in before})
        return replace(applied, before=before)

    def _settle(self, applied: Applied) -> None:
        if applied.change.phase is Phase.DONE:
            applied = replace(applied, before={name: self._specs[name] for name in applied.specs})
            self._specs.update(applied.specs)
            self._digests.update(applied.digests)
            self._last.update(dict.fromkeys(applied.specs, applied))


def _as_it_is(state: object) -> object:
    """What an aggregate without a result function makes of a state."""
    return state


def _is_settled(change: Change, finished: float) -> bool:
    """Whether nothing more can happen to a change, not even a rollback."""
    if change.phase in TAKEN_BACK:
        return True
    return change.phase is Phase.DONE and change.since <= finished
