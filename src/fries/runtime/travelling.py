"""The receiving end of code that travels by value: classes, modules, names that are checked.

A class that came before, with the same code, is taken: it is that of states and functions that are
in use. Next comes the one that the process has itself: then states that were pickled by its name
are instances of it. Otherwise the class that came is made. What could only travel by name is
compared with what its sender held.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from fries.errors import StaleCodeError
from fries.runtime.code import Kept, Travels, contents, digest_of, found

_noted: dict[str, object] = {}
"""The modules that were looked at, and their specifications: reloading makes others."""
ALL: Final = "*"
"""Stands for the functions and classes of a module."""
KEPT: Final = Kept()
"""What those held then."""

_came: WeakValueDictionary[tuple[str, str, bytes], Any] = WeakValueDictionary()
"""Classes that came by value, by name and digest: the same code is one class, however often its
module was reloaded where it came from."""
_helds: WeakKeyDictionary[type, Held] = WeakKeyDictionary()
"""What those came as: they travel on as the same, whatever their methods have counted since."""
_came_lock = threading.Lock()
"""States are read while another thread loads functions: both must get the same class."""
_filled: WeakSet[type] = WeakSet()
"""Those of them that are complete."""


class Held(NamedTuple):
    """A function or a class as its sender held it."""

    module: str
    name: str
    """Dotted, from its module."""
    digest: bytes
    deep: tuple[str, ...]
    """The modules whose code was compared, and not only named."""
    loose: bool = False
    """Whether connections and alike may hold other things in each process."""

    @classmethod
    def of(
        cls,
        module: str,
        name: str,
        value: object,
        travels: Travels,
        kept: Kept,
        loose: bool = False,
    ) -> Held:
        """What this process holds under a name, or held there: see ``kept``."""
        deep: dict[str, bool] = {}

        def asked(one: str) -> bool:
            if one not in deep:
                deep[one] = travels(one)
                if deep[one] and kept is KEPT:
                    _look(one)
            return deep[one]

        digest = digest_of(value, asked, kept, loose=loose)
        return cls(module, name, digest, tuple(one for one, goes in deep.items() if goes), loose)

    @classmethod
    def of_class(cls, kind: type, travels: Travels, kept: Kept) -> Held:
        """A class of this process; one that came is what it came as."""
        known = _helds.get(kind)
        return known or cls.of(kind.__module__, kind.__qualname__, kind, travels, kept)

    def is_same(self, value: object) -> bool:
        """Whether something is the same code, whatever its caches hold by now."""
        travels = frozenset(self.deep).__contains__
        for name in self.deep:
            with suppress(Exception, SystemExit):  # then it is another one
                import_module(name)
        for name in self.deep:
            _look(name)
        found_here = digest_of(value, travels, KEPT, sys.modules.get, self.loose)
        return bool(self.digest) and found_here == self.digest

    def here(self) -> object:
        """What this process has under that name, if it is the same code; else ``None``."""
        try:
            import_module(self.module)
        except (Exception, SystemExit):  # the user's module may raise anything
            return None
        value = found(self.module, self.name)
        return value if self.is_same(value) else None


def _look(name: str) -> None:
    """Note what a module holds, once; and again when it was reloaded."""
    module = sys.modules.get(name)
    if module is not None and _noted.get(name) is not module.__spec__:
        _noted[name] = module.__spec__
        with suppress(Exception):  # code of others
            KEPT.keep(module)


def by_name(held: Held) -> object:
    """What could not travel by value; refused if this process has other code."""
    import_module(held.module)
    value = held.here()
    if value is None:
        raise StaleCodeError(held.module, held.name)
    return value


def checked(helds: tuple[Held, ...], make: Callable[..., Any], *arguments: object) -> object:
    """A function that imports modules when it is called: they must be what its sender had."""
    for held in helds:
        module = import_module(held.module)
        _look(held.module)
        space = KEPT.space(vars(module), vars(module))
        value = contents(module) if held.name == ALL else space.get(held.name, ALL)
        if not held.is_same(value):
            raise StaleCodeError(held.module, held.name)
    return make(*arguments)


def imported(
    module: ModuleType, names: frozenset[str], travels: Travels, kept: Kept
) -> Iterator[Held]:
    """What code may use of a module that it imports when it runs.

    Its functions and classes, and the values of names that are used: not the others, which may
    be another thing in each process, as a moment or a folder.
    """
    waiting, seen = [module], {module.__name__}
    while waiting:
        one = waiting.pop()
        own = contents(one)
        space = kept.space(vars(one), vars(one))
        for name in sorted(names & vars(one).keys() - {name for name, _ in own}):
            value = space.get(name, vars(one)[name])
            home = value.__name__ if isinstance(value, ModuleType) else ""
            if home and travels(home) and home not in seen:
                waiting.append(value)
                seen.add(home)
            if home != f"{one.__name__}.{name}" and not name.startswith("__"):
                yield Held.of(one.__name__, name, value, travels, kept, loose=True)
        yield Held.of(one.__name__, ALL, own, travels, kept, loose=True)


def own_or_new(held: Held, make: Callable[..., Any], *arguments: object) -> object:
    """The class that came before if its code is the same, or that of this process; else a new one.

    In this order: a module that can be imported only later must not bring a second class beside
    that of the states in memory.
    """
    came = held.module, held.name, held.digest
    known = _came.get(came)
    if known is None:
        known = held.here()
    if known is None:
        known = make(*arguments)
        if held.digest:
            with _came_lock:
                known = _came.setdefault(came, known)
                _helds[known] = held
    return known


def fill(kind: type, state: tuple[Callable[..., Any], object]) -> None:
    """Give a class that came what it consists of; others have it."""
    if kind not in _filled and found(kind.__module__, kind.__qualname__) is not kind:
        fill_new, parts = state
        fill_new(kind, parts)
        _filled.add(kind)


def new_module(name: str) -> ModuleType:
    """A module that came with a function, apart from the one that this process may import."""
    module = ModuleType(name)
    vars(module)["__getattr__"] = functools.partial(_untravelled, name)
    return module


def fill_module(module: ModuleType, values: dict[str, object]) -> None:
    """Give a module what functions use of it."""
    vars(module).update(values)


def cached(wrapped: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    """A function with a cache of its own, empty."""
    return functools.lru_cache(maxsize, typed)(wrapped)


def _untravelled(module: str, name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"{module}.{name} did not come with the function: only what its code names travels; write "
        f"{module}.{name} in it, or import the name at the top of its module"
    )
