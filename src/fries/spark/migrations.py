"""Migrations in the code and in the log: each state sees each of them once.

States count the migrations that they have seen. Those that the code declares and those of logged
changes are one list. When the code declares more than at the first start, they are the logged ones
that have moved into the code, and perhaps new ones behind them, which a deployment brings.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fries.errors import LogError, LogMismatchError
from fries.failing import described
from fries.log.reading import Logged
from fries.runtime.digests import digest_of
from fries.runtime.spec import Function, OperatorSpec


@dataclass(frozen=True)
class Migrations:
    """What the code declares beyond the log."""

    new: Mapping[str, Function] = field(default_factory=dict)
    """By operator, the migrations that no state has seen, as one."""


def migrations_of(
    operators: Iterable[OperatorSpec],
    base: Mapping[str, OperatorSpec],
    logged: Sequence[Logged],
    place: str,
) -> Migrations:
    """Find new migrations; refused if it cannot be told which of them states have seen."""
    new: dict[str, Function] = {}
    for spec in operators:
        first = base[spec.name].keying
        if spec.keying is None or first is None:
            continue
        declared, count = spec.keying.migrations, len(first.migrations)
        if len(declared) == count:
            continue
        seen = [*first.migrations, *_logged_steps(spec.name, logged)]
        if not _agree(declared, seen, count):
            raise LogMismatchError(
                place,
                (
                    f"operator {spec.name!r}: its states have seen {len(seen)} migrations ({count} "
                    f"of the first code, the others by changes), and the code declares "
                    f"{len(declared)} that are not these and new ones behind them; declare those "
                    "of the changes in their order, unchanged",
                ),
            )
        if extra := tuple(declared[len(seen) :]):
            new[spec.name] = partial(through, extra)
    return Migrations(new)


def through(steps: Sequence[Function], state: Any) -> Any:  # noqa: ANN401
    """A state after some migrations."""
    for step in steps:
        state = step(state)
    return state


def _agree(declared: Sequence[Function], seen: Sequence[Function], count: int) -> bool:
    """Whether what the code declares begins with what was seen, or is the beginning of it.

    Those of the first code may have been edited, as ever; they are many or none.
    """
    if len(declared) < count:
        return False
    pairs = zip(declared[count:], seen[count:], strict=False)
    return all(digest_of(one) == digest_of(other) for one, other in pairs)


def _logged_steps(name: str, logged: Iterable[Logged]) -> list[Function]:
    """The migrations of an operator by changes that happened, oldest first."""
    steps: list[Function] = []
    for one in logged:
        if not one.happened or one.intent is None or not one.intent.migrates:
            continue
        if name not in one.intent.targets:
            continue
        try:
            _, migrations, *_ = pickle.loads(one.intent.residue)
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            raise LogError(
                f"the migrations of change {one.number} cannot be loaded from the log: "
                f"{described(error)}"
            ) from error
        step = migrations.get(name)
        if isinstance(step, partial) and step.func is through:
            steps += step.args[0]
        elif step is not None:
            steps.append(step)
    return steps
