"""Functions as bytes that hold the code of whoever sends them.

PySpark's cloudpickle sends what is in an importable module by name: a worker that has imported the
module before it was edited would go on with the old code, and nobody would notice. This pickler
sends code of modules that are not installed (:mod:`fries.origins`) by value, and what cannot
travel so by name with a digest, which is compared where it arrives.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import (
    _decompose_typevar,
    _dynamic_class_reduce,
    _make_typevar,
)

from fries.origins import ORIGINS, OURS, users_module
from fries.runtime.code import Kept, Travels, found, modules_in, names_in
from fries.runtime.rehearsed import REHEARSED
from fries.runtime.travelling import (
    KEPT,
    Held,
    by_name,
    cached,
    checked,
    fill,
    fill_module,
    imported,
    new_module,
    own_or_new,
)

Reduced: TypeAlias = "tuple[Any, ...]"
Buffers: TypeAlias = "Callable[[pickle.PickleBuffer], object] | None"
MOST_PASSES: Final = 20
"""Until the names are known that travelling modules must bring; each pass adds some."""
MAIN: Final = frozenset({"__main__", "__mp_main__"})
"""Where scripts and notebooks define their classes."""
CACHE: Final = type(cache(lambda: None))
"""What ``functools.lru_cache`` makes: pickle knows it by its name only."""
_HEAP: Final = 1 << 9
"""Flag of classes that were made by Python code, or could have been."""


class Pickled(NamedTuple):
    """Something with the code that it holds, as bytes."""

    data: bytes
    buffers: tuple[pickle.PickleBuffer, ...]
    """Large parts of it, which were not copied."""
    classes: Mapping[str, bytes]
    """Digests of the classes that it brings, by their full names."""
    compared: frozenset[str]
    """Modules of which the receiver has its own, and which must be what they are here."""


def dumps(value: object, buffer_callback: Buffers = None, travels: Travels | None = None) -> bytes:
    """Pickle something with the code that it holds."""
    return _pickled(value, buffer_callback, travels).data


def dumps_state(value: object) -> bytes:
    """Pickle a state in a worker, where classes may have come of modules that are not there.

    Modules count as they were loaded: what they have counted since is not the state's.
    """
    travels = ORIGINS.asking()

    def came(module: str) -> bool:
        known = not module or module in sys.modules or module in OURS
        return travels(module) if known else True

    return _pickled(value, None, came, KEPT).data


def pickled(value: object) -> Pickled:
    """The same, large parts apart, and with what is known of the classes in it."""
    parts: list[pickle.PickleBuffer] = []
    made = _pickled(value, parts.append, None)
    return made._replace(buffers=tuple(parts))


def _pickled(
    value: object, buffer_callback: Buffers, travels: Travels | None, kept: Kept = REHEARSED
) -> Pickled:
    goes = travels or ORIGINS.asking()
    parts: list[pickle.PickleBuffer] | None = None if buffer_callback is None else []
    try:
        made = _passes(value, goes, parts, careful=False, kept=kept)
    except Exception:  # a global that does not pickle, for instance: see what can go by name
        made = _passes(value, goes, parts, careful=True, kept=kept)
    if buffer_callback is not None:
        for part in parts or ():
            buffer_callback(part)
    return made


def _passes(
    value: object,
    travels: Travels,
    parts: list[pickle.PickleBuffer] | None,
    careful: bool,
    kept: Kept,
) -> Pickled:
    """Pickle until every module that travels brings all that code names."""
    wanted: frozenset[str] = frozenset()
    for _ in range(MOST_PASSES):
        if parts is not None:
            parts.clear()
        file = io.BytesIO()
        keep = None if parts is None else parts.append
        pickler = CodePickler(file, travels, wanted, careful, keep, kept)
        pickler.dump(value)  # type: ignore[no-untyped-call]
        if not pickler.lacks:
            return Pickled(file.getvalue(), (), pickler.classes, frozenset(pickler.compared))
        wanted |= pickler.names
    raise pickle.PicklingError("the modules of its functions name ever more of each other")


class CodePickler(cloudpickle.CloudPickler):
    """Pickles by value what would be another thing, or nothing, where it arrives."""

    def __init__(
        self,
        file: io.BytesIO,
        travels: Travels,
        wanted: frozenset[str],
        careful: bool,
        buffer_callback: Buffers,
        kept: Kept,
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback)  # type: ignore[no-untyped-call]
        self._travels, self._wanted, self._careful, self._kept = travels, wanted, careful, kept
        self._modules: list[ModuleType] = []
        """Modules that travel by value."""
        self._late: dict[str, tuple[Held, ...]] = {}
        """By name, modules that functions import when they are called, and what is compared."""
        self.names: set[str] = set()
        """What code has named."""
        self.classes: dict[str, bytes] = {}
        """Digests of the user's classes, by their full names."""
        self.compared: set[str] = set()
        """Modules that must be here and there the same."""

    @property
    def lacks(self) -> bool:
        """Whether code may name something of a module that has not come, or was not compared."""
        new = self.names - self._wanted
        if self._late and new:
            return True
        return any(not new.isdisjoint(vars(module)) for module in self._modules)

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as pickle wants it
        """How to pickle an object, before anybody else is asked."""
        kind = type(obj)
        if kind is FunctionType:
            if self._travels(obj.__module__ or ""):
                return self._by_value(obj, self._dynamic_function_reduce)
        elif issubclass(kind, type):
            if obj.__flags__ & _HEAP and self._travels(obj.__module__ or ""):
                return self._by_value(obj, self._class)
            if obj.__module__ in MAIN:
                self._note_main(obj)
        elif kind is ModuleType:
            if self._travels(obj.__name__):
                return self._module(obj)
        elif kind is TypeVar:
            if self._travels(obj.__module__ or ""):
                return _make_typevar, _decompose_typevar(obj)  # type: ignore[no-untyped-call]
        elif kind not in self.dispatch_table:
            return self._other(obj)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]

    def _dynamic_function_reduce(self, func: FunctionType) -> Reduced:
        self.names.update(names_in(func.__code__))
        made: Reduced = super()._dynamic_function_reduce(func)  # type: ignore[no-untyped-call]
        inside = tuple(self._imported(func))
        return (checked, (inside, made[0], *made[1]), *made[2:]) if inside else made

    def _imported(self, func: FunctionType) -> Iterator[Held]:
        """The modules that a function imports when it is called, and must find as they are here."""
        for module in modules_in(func, users_module):
            if self._travels(module.__name__):
                known = self._late.get(module.__name__)
                if known is None:
                    known = tuple(imported(module, self._wanted, self._travels, self._kept))
                    self._late[module.__name__] = known
                    self.compared.update(one for held in known for one in (held.module, *held.deep))
                yield from known

    def _class(self, kind: type) -> Reduced:
        make, arguments, state, *others, setter = _dynamic_class_reduce(kind)  # type: ignore[no-untyped-call]
        held = Held.of_class(kind, self._travels, self._kept)
        self.compared.update(held.deep)
        self.classes[f"{held.module}.{held.name}"] = held.digest
        if held.digest:  # that tells it from others, not cloudpickle's name for the object
            *shape, _, extra = arguments
            arguments = *shape, None, extra
        return (own_or_new, (held, make, *arguments), (setter, state), *others, fill)

    def _note_main(self, kind: type) -> None:
        """A class of a script or notebook, which cloudpickle sends by value itself."""
        held = Held.of(kind.__module__, kind.__qualname__, kind, self._is_users, self._kept)
        self.classes[f"{held.module}.{held.name}"] = held.digest

    def _is_users(self, module: str) -> bool:
        return module in MAIN or self._travels(module)

    def _module(self, module: ModuleType) -> Reduced:
        self._modules.append(module)
        space = vars(module)
        values = {name: space[name] for name in sorted(self._wanted & space.keys())}
        for name in ("__name__", "__package__", "__file__", "__getattr__"):
            if name in space:
                values[name] = space[name]
        return new_module, (module.__name__,), values, None, None, fill_module

    def _other(self, obj: Any) -> Any:  # noqa: ANN401
        """Any other object: where it is a name, that must mean the same where it arrives."""
        if type(obj) is CACHE and self._travels(obj.__module__ or ""):
            most = obj.cache_parameters()
            return cached, (obj.__wrapped__, most["maxsize"], most["typed"])
        made = obj.__reduce_ex__(self.proto)
        module = getattr(obj, "__module__", None)
        if isinstance(made, str) and self._travels(module or ""):
            return self._by_name(str(module), made, obj)
        return made

    def _by_value(self, obj: Any, reduce: Callable[[Any], Reduced]) -> Reduced:  # noqa: ANN401
        """Code by value; by name, and checked, if something in it does not pickle."""
        module, name = obj.__module__, obj.__qualname__
        if self._careful and found(module, name) is obj and not self._pickles(obj):
            return self._by_name(module, name, obj)
        return reduce(obj)

    def _by_name(self, module: str, name: str, obj: object) -> Reduced:
        held = Held.of(module, name, obj, self._travels, self._kept)
        self.compared.update((module, *held.deep))
        return by_name, (held,)

    def _pickles(self, obj: object) -> bool:
        """Whether something can travel by value, with all that it reaches."""
        with suppress(Exception):
            _passes(obj, self._travels, [], careful=False, kept=self._kept)
            return True
        return False
