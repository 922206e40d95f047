"""Migrations of states, tried on samples."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from fries.errors import StateError, UpdateRefusedError
from fries.failing import described, shortened, story_of
from fries.updates import Update

Key = TypeVar("Key", bound=Hashable)


def migrated(update: Update, states: Mapping[Key, Any]) -> dict[Key, Any]:
    """By key, what the migration of an update makes of some states.

    Each state is a copy, as the state store would give it, and what comes of it must be one that
    the store can keep. An ``inverse`` must take it back. Raises :class:`~fries.errors.StateError`
    that names the key.
    """
    if update.migrate is None:
        raise UpdateRefusedError("the update", "it has no migrate=")
    found = {}
    for key, state in states.items():
        found[key] = _kept(key, "migrate", update.migrate, state)
        if update.inverse is not None:
            _kept(key, "inverse", update.inverse, found[key])
    return found


def _kept(key: object, what: str, function: Any, state: object) -> Any:  # noqa: ANN401
    try:
        return pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(state)))))
    except Exception as error:  # the user's function may raise anything
        problem = f"{what}= fails, or its state cannot be kept: {described(error)}"
        where = f"the state of key {shortened(key)}"
        raise StateError("the update", problem, where, story_of(error), keys=(key,)) from error
