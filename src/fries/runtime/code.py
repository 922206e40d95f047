"""What code does, as a digest that is the same in every process that holds the same code.

Functions and classes are compared by their bytecode, their constants and everything of the user's
that they reach: helpers, base classes, values of globals. Line numbers, file names and comments do
not count. What belongs to installed packages counts by its name.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cache, partial
from importlib.util import resolve_name
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias

from fries.origins import users_module

Travels: TypeAlias = "Callable[[str], bool]"
"""Whether the code of a module, known by its name, counts by what it does."""
Load: TypeAlias = "Callable[[str], ModuleType | None]"
"""What gives a module that code imports when it runs."""
MUTABLE: Final = (list, dict, set)
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...))
GLOBALS: Final = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
)
IMPORT: Final = dis.opmap["IMPORT_NAME"]
MISSING: Final = object()
"""Stands for nothing."""
DYNAMIC: Final = frozenset({"import_module", "__import__"})
"""What imports a module by a text."""
NO_VALUE: Final = frozenset({"PUSH_NULL", "PRECALL", "CACHE"})
"""What may stand between a function and its first argument."""
UNTOLD: Final = frozenset(
    {
        "__module__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__slotnames__",
        "_abc_impl",
    }
)
"""Of a class: what does not change what it does, or follows from what does."""


class Kept:
    """What modules held when they were first looked at.

    Workers count, fill caches and load models when they need them: that is no other code.
    """

    def __init__(self) -> None:
        self._containers: dict[int, tuple[object, Any]] = {}
        """By identity, lists, dicts and sets, and copies of what they were."""
        self._spaces: dict[int, tuple[object, dict[str, Any]]] = {}
        """By identity, namespaces of modules and classes, and what their names stood for."""

    def keep(self, module: ModuleType) -> None:
        """Note what a module and its classes hold; what containers held before stays noted."""
        self._note_space(vars(module), vars(module))
        for value in _held_by(list(vars(module).values()), module.__name__, set()):
            if isinstance(value, type):
                self._note_space(value, vars(value))
            else:
                self._containers.setdefault(id(value), (value, copy(value)))

    def containers(self) -> Iterator[tuple[Any, Any]]:
        """Containers, and copies of what they were."""
        yield from self._containers.values()

    def spaces(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Namespaces, and what their names stood for."""
        yield from self._spaces.values()

    def space(self, owner: object, now: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the names of a module or class stood for; if nobody noted it, stand for now."""
        known = self._spaces.get(id(owner))
        return now if known is None else known[1]

    def container(self, now: Any) -> Any:  # noqa: ANN401 - a list, dict or set
        """A container as it was; if nobody noted it, as it is now."""
        known = self._containers.get(id(now))
        return now if known is None else known[1]

    def _note_space(self, owner: object, names: Mapping[str, Any]) -> None:
        self._spaces[id(owner)] = owner, dict(names)


def digest_of(
    value: object,
    travels: Travels,
    kept: Kept | None = None,
    load: Load = users_module,
    loose: bool = False,
) -> bytes:
    """A digest of a function, a class or a value; empty if there is none.

    With ``kept``, names and containers count as what they once held. ``loose``: what connections
    and alike hold does not count, for each process has its own.
    """
    try:
        return _Walk(travels, kept or Kept(), load, (), loose).of(value)
    except Exception:  # code of others: whatever it raises, it cannot be compared
        return b""


def _held_by(values: Iterable[object], module: str, seen: set[int]) -> Iterator[object]:
    """The classes of a module, and the containers that it, they and its functions hold."""
    for value in values:
        if id(value) in seen or type(value) in PLAIN:
            continue
        seen.add(id(value))
        if type(value) in MUTABLE or (isinstance(value, type) and value.__module__ == module):
            yield value
        yield from _held_by(_parts(value, module), module, seen)


def _parts(value: Any, module: str) -> list[object]:  # noqa: ANN401
    """Where else something of a module may hold containers."""
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, FunctionType) and value.__module__ == module:
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells]
    if isinstance(value, type) and value.__module__ == module:
        return list(vars(value).values())
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) in (list, tuple) else []


def names_in(code: CodeType) -> Iterator[str]:
    """Names that code may look up, in globals and of other objects; texts count, for getattr."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str):
            yield constant


@cache
def globals_in(code: CodeType) -> tuple[str, ...]:
    """Names that code looks up in globals."""
    names = {step.argval for step in dis.get_instructions(code) if step.opcode in GLOBALS}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(globals_in(constant))
    return tuple(sorted(names))


def modules_in(function: FunctionType, load: Load) -> list[ModuleType]:
    """The modules that a function imports when it is called, as far as one can see.

    Those that are named by texts only, if they are imported already.
    """
    package = str(function.__globals__.get("__package__") or "")
    loaded = [load(name) for name in imports_in(function.__code__, package)]
    loaded += [sys.modules.get(name) for name in _texts_in(function.__code__)]
    return list(dict.fromkeys(one for one in loaded if one is not None))


@cache
def _texts_in(code: CodeType) -> tuple[str, ...]:
    """Texts that code may import as modules."""
    texts = [one for one in code.co_consts if isinstance(one, str)]
    names = texts if not DYNAMIC.isdisjoint(code.co_names) else []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _texts_in(constant)
    return tuple(names)


@cache
def imports_in(code: CodeType, package: str) -> tuple[str, ...]:
    """Modules that code imports when it runs, by their full names, each behind its packages.

    What is imported of a module may be a module, too.
    """
    names: list[str] = []
    steps = list(dis.get_instructions(code)) if _may_import(code) else []
    for place, step in enumerate(steps):
        if step.opcode == IMPORT:
            level, many = (steps[place - back].argval for back in (2, 1))
            dots = "." * (level if isinstance(level, int) else 0)
            with suppress(ImportError, ValueError):
                full = resolve_name(dots + step.argval, package or None)
                names += [*_with_packages(full), *(f"{full}.{one}" for one in many or ())]
        elif step.argval in DYNAMIC:
            following = next(one for one in steps[place + 1 :] if one.opname not in NO_VALUE)
            if following.opname == "LOAD_CONST" and isinstance(following.argval, str):
                names += _with_packages(following.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += imports_in(constant, package)
    return tuple(dict.fromkeys(names))


def _may_import(code: CodeType) -> bool:
    return IMPORT in code.co_code[::2] or not DYNAMIC.isdisjoint(code.co_names)


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))] if all(parts) else []


def contents(module: ModuleType) -> list[tuple[str, object]]:
    """The functions and classes that a module defines."""
    own = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    }
    return sorted(own.items())


class _Walk:
    """Feeds everything that an object consists of to a hash, each thing once."""

    def __init__(
        self, travels: Travels, kept: Kept, load: Load, inside: tuple[object, ...], loose: bool
    ) -> None:
        self._travels, self._kept, self._load, self._loose = travels, kept, load, loose
        self._inside = inside
        """The sets that this is a part of."""
        self._hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[int, tuple[int, object]] = {}
        """By identity, in which place an object came; it is kept, so that no other one gets it."""

    def of(self, value: object) -> bytes:
        """The digest of one object."""
        self.feed(value)
        return self._hash.digest()

    def feed(self, value: object) -> None:
        """Feed an object and what it consists of."""
        kind = type(value)
        if isinstance(value, bytes) and kind is bytes:  # a model, perhaps
            self._tell("bytes", len(value))
            self._hash.update(value)
            return
        if kind in PLAIN:
            self._tell(kind.__name__, repr(value))
            return
        if id(value) in self._seen:
            self._tell("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, CodeType):
            self._feed_code(value)
        elif isinstance(value, FunctionType):
            self._feed_function(value)
        elif isinstance(value, type):
            self._feed_class(value)
        elif isinstance(value, ModuleType):
            self._tell("module", value.__name__)
        else:
            self._feed_other(value)

    def _tell(self, *words: object) -> None:
        self._hash.update(repr(words).encode(errors="surrogatepass"))

    def _all(self, what: str, values: Iterable[object]) -> None:
        listed = list(values)
        self._tell(what, len(listed))
        for value in listed:
            self.feed(value)

    def _feed_code(self, code: CodeType) -> None:
        numbers = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        self._tell("code", numbers, names, code.co_code, code.co_exceptiontable)
        self._all("constants", code.co_consts)

    def _feed_function(self, function: FunctionType) -> None:
        if not self._travels(function.__module__ or ""):
            self._tell("function", function.__module__, function.__qualname__)
            return
        self._tell("function", function.__qualname__)
        self.feed(function.__code__)
        self.feed(function.__defaults__)
        self.feed(function.__kwdefaults__)
        self._all("closure", function.__closure__ or ())
        self.feed(vars(function))
        names = sorted(set(names_in(function.__code__)))
        self._feed_names(function.__globals__, globals_in(function.__code__), names)
        for module in modules_in(function, self._load):
            if self._travels(module.__name__):
                self._tell("imports", module.__name__)
                own = {one for one, _ in contents(module)}.union(names)
                self._feed_names(vars(module), sorted(own), names, (module,))

    def _feed_names(
        self,
        space: Mapping[str, Any],
        names: Iterable[str],
        inside: Sequence[str],
        under: tuple[ModuleType, ...] = (),
    ) -> None:
        """Feed what names stand for, and what others stand for inside of modules."""
        space = self._kept.space(space, space)
        for name in names:
            value = self._looked_up(space, name)
            if value is MISSING or name.startswith("__"):
                continue
            self._tell("name", name)
            self.feed(value)
            if isinstance(value, ModuleType) and value not in under:
                if not self._travels(value.__name__):
                    continue
                self._feed_names(vars(value), inside, inside, (*under, value))

    def _looked_up(self, space: Mapping[str, Any], name: str) -> object:
        """What a name stands for; a package has a module of its own only if both ends have it."""
        full = f"{space.get('__name__')}.{name}"
        part = sys.modules.get(full)
        if part is not None and space.get(name, part) is part:
            return part if self._travels(full) else MISSING
        return space.get(name, MISSING)

    def _feed_class(self, kind: type) -> None:
        if not self._travels(kind.__module__):
            self._tell("class", kind.__module__, kind.__qualname__)
            return
        self._tell("class", kind.__qualname__)
        self._all("bases", kind.__bases__)
        members = self._kept.space(kind, vars(kind))
        slots = members.get("__slots__", ())
        untold = UNTOLD.union([slots] if isinstance(slots, str) else slots)
        for name, value in sorted(members.items()):
            if name not in untold:
                self._tell("attribute", name)
                self.feed(value)

    def _feed_container(self, value: Any) -> None:  # noqa: ANN401
        """A container, or what it held before; of sets, each element by itself, in any order."""
        then = self._kept.container(value)
        if isinstance(then, list):
            self._all("list", then)
        elif isinstance(then, dict):
            self._all("dict", (one for item in then.items() for one in item))
        elif any(value is one for one in self._inside):
            self._tell("inside")
        else:
            within = (*self._inside, value)
            parts = sorted(
                _Walk(self._travels, self._kept, self._load, within, self._loose).of(one)
                for one in then
            )
            self._tell(type(value).__name__, parts)

    def _feed_other(self, value: Any) -> None:  # noqa: ANN401
        if type(value) in MUTABLE or type(value) is frozenset:
            self._feed_container(value)
        elif type(value) is tuple:
            self._all("tuple", value)
        elif isinstance(value, CellType):
            self._all("cell", [value.cell_contents] if _is_full(value) else [])
        elif isinstance(value, (staticmethod, classmethod)):
            self._all(type(value).__name__, [value.__func__])
        elif isinstance(value, property):
            self._all("property", [value.fget, value.fset, value.fdel])
        elif isinstance(value, MethodType):
            self._all("method", [value.__func__, value.__self__])
        elif isinstance(value, partial):
            self._all("partial", [value.func, value.args, value.keywords])
        elif hasattr(value, "cache_parameters"):  # functools.lru_cache
            self._all("cache", [value.cache_parameters(), value.__wrapped__])
        else:
            self._feed_reduced(value)

    def _feed_reduced(self, value: Any) -> None:  # noqa: ANN401
        """Any other object, as pickle would take it apart; a lock counts by its type."""
        kind = type(value)
        self._tell("object", kind.__module__, kind.__qualname__)
        try:
            made = value.__reduce_ex__(2)
        except Exception:
            return
        if isinstance(made, str):
            self._tell("name", made)
            return
        function, arguments, state, items, pairs = (*made, None, None, None)[:5]
        self.feed(function)
        self.feed(arguments)
        alone = getattr(kind, "__eq__", None) is object.__eq__  # nothing else is equal to it
        if self._loose and alone and not self._travels(kind.__module__):
            return
        self.feed(state)
        self._all("items", items or ())
        self._all("pairs", pairs or ())


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True


def found(module: str, name: str) -> object:
    """What a dotted name stands for in a module that was imported; ``None`` if nothing does."""
    value: object = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
