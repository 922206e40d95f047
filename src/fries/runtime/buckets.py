"""The stored form of states: every key's state as bytes of its own, tried before it is kept.

A value may pickle and still not unpickle: an exception with a constructor of its own, an object
whose ``__setstate__`` raises, one of a class that other processes cannot import. Stored, it would
make every later batch fail that touches its key. So what calls code when it is read is read once
before it is kept. Values of Python's own types call none: their pickles refer to no class, and
that is one byte to look for.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from fries.failing import shortened

Key: TypeAlias = Any
"""The value of a key column, or a tuple of several."""
Dumps: TypeAlias = "Callable[[object], bytes]"
Stored: TypeAlias = "tuple[int, int, Any]"
"""The state of one key: the key's hash, how many migrations the operator had had when the state was
written, and the state: pickled, or as it is if its type is one of :data:`SCALARS`."""
Bucket: TypeAlias = "dict[Key, Stored]"

SCALARS: Final = frozenset({bool, int, float, str})
"""Types of states that need no bytes of their own: they can always be read."""
FORM: Final = 1
"""First value of a stored bucket. Before there were forms, a bucket was a dict of whole states."""
CLASS: Final = b"\x93"
"""Pickle's instruction to look a class or a function up. Numbers may hold this byte, too."""


def packed(bucket: Bucket) -> bytes:
    """A bucket as it is stored."""
    return pickle.dumps((FORM, bucket), pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes, dumps: Dumps) -> Bucket:
    """A stored bucket; one of the older form is read as a whole, or not at all."""
    found = pickle.loads(data)
    if isinstance(found, dict):
        return {key: (value, v, stored(state, dumps)) for key, (value, v, state) in found.items()}
    bucket: Bucket = found[1]
    return bucket


def stored(state: object, dumps: Dumps) -> Any:  # noqa: ANN401
    """A state as it is kept in a bucket."""
    return state if type(state) in SCALARS else dumps(state)


def state_of(data: Any) -> Any:  # noqa: ANN401
    """A state that was kept in a bucket."""
    return pickle.loads(data) if type(data) is bytes else data


def states(bucket: Bucket) -> Iterator[tuple[Key, int, Any]]:
    """The keys of a bucket with the versions of their states, and the states that can be read."""
    for key, (_, version, data) in bucket.items():
        try:
            state = state_of(data)
        except BaseException:  # it may raise anything; whoever needs this state will say so
            continue
        yield key, version, state


_met: WeakSet[type] = WeakSet()
"""Classes of states that were read as another process would: that takes several times as long."""


def read_back(state: object, data: bytes) -> None:
    """Raise what would be raised if another process read a state from its bytes."""
    kind = type(state)
    found = pickle.loads(data) if kind in _met else _Reader(io.BytesIO(data)).load()
    present(found)
    if kind.__module__ != "builtins":  # a dict may hold anything
        _met.add(kind)


def present(state: Any) -> Any:  # noqa: ANN401
    """A state that was read; raises if it is none: no version would know it for one."""
    if state is None:
        raise ValueError("its bytes are read as None")
    return state


class _Reader(pickle.Unpickler):
    """Reads a state as another process would: with no module that only this one has."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """A class or function of a module."""
        if not _importable(module):
            raise ImportError(f"other processes cannot import the module {module!r} of {name}")
        return _find_class(self, module, name)


_find_class = pickle.Unpickler.find_class


@lru_cache(maxsize=4096)
def _importable(module: str) -> bool:
    """Whether a process that has not imported a module would find it; true if nobody can tell."""
    parent, _, _ = module.rpartition(".")
    path = None
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None:  # made by the module above it, as in extensions
            return _importable(parent)
    try:
        found = (finder.find_spec(module, path) for finder in sys.meta_path)
        return any(spec is not None for spec in found)
    except Exception:
        return True


def keys_shown(keys: Sequence[Key], most: int = 5) -> str:
    """Some keys for a message."""
    shown = [shortened(key) for key in keys[:most]]
    return ", ".join(shown) + (f" and {len(keys) - most} more" if len(keys) > most else "")
