"""A short hash of a version's code: what names it where its author has given no label.

It covers code, not data: functions with what they call in their own module, defaults, and plain
values that they hold. Of a model or a table it covers the type and the size, because hashing
hundreds of megabytes would delay the change. It is the same in every process of one Python version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from fries.runtime.frozen import Frozen

BYTES: Final = 4
"""Of the hash: short enough to read out, long enough to tell the versions of one operator apart."""
MOST_ITEMS: Final = 256
"""Of a container that are looked at."""
MOST_PARTS: Final = 2_000
"""Looked at in all: a graph of objects without end costs a millisecond, not the change."""
MOST_LENGTH: Final = 4_096
"""Characters of a text, and bytes of a number, that are looked at."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def code_label(*functions: object) -> str:
    """A short hash of the code of some functions, like ``#1f0c93ab``."""
    reader = _Reader()
    for function in functions:
        reader.read(function)
    return f"#{reader.hashed.hexdigest()}"


class _Reader:
    """Walks over what a function is made of; each object once."""

    def __init__(self) -> None:
        self.hashed = hashlib.blake2b(digest_size=BYTES)
        self._seen: set[int] = set()
        self._kept: list[object] = []
        """What was seen, so that no other object gets its address meanwhile."""

    def read(self, value: object) -> None:
        """Add something to the hash."""
        if isinstance(value, Frozen):
            value = value.function
        if isinstance(value, PLAIN):
            self._add(type(value).__name__, *_told(value))
            return
        if id(value) in self._seen or len(self._seen) > MOST_PARTS:
            self._add("seen", type(value).__name__)
            return
        self._seen.add(id(value))
        self._kept.append(value)
        match value:
            case FunctionType():
                self._function(value)
            case CodeType():
                self._code(value)
            case MethodType():
                self._all((value.__func__, value.__self__))
            case partial():
                self._all((value.func, value.args, value.keywords))
            case set() | frozenset():
                self._all(sorted(map(repr, islice(value, MOST_ITEMS))), len(value))
            case list() | tuple():
                self._all(islice(value, MOST_ITEMS), len(value))
            case dict():
                self._all(part for pair in islice(value.items(), MOST_ITEMS) for part in pair)
            case type() | ModuleType():
                self._add("name", getattr(value, "__qualname__", value.__name__))
            case _:
                self._object(value)

    def _add(self, *texts: str) -> None:
        for text in texts:
            self.hashed.update(text.encode(errors="backslashreplace") + b"\0")

    def _all(self, values: Iterable[object], *sizes: int) -> None:
        self._add("all", *map(str, sizes))
        for value in values:
            self.read(value)

    def _function(self, function: FunctionType) -> None:
        self._code(function.__code__)
        self._all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.read(cell.cell_contents)
            except ValueError:  # nothing yet
                self._add("empty")
        for name in _names(function.__code__):
            self._global(function, name)

    def _global(self, function: FunctionType, name: str) -> None:
        """What a function uses of its module; other modules go by the name."""
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__module__ != function.__module__:
            self._add(value.__module__, value.__qualname__)
        elif value is not None:
            self.read(value)

    def _code(self, code: CodeType) -> None:
        self.hashed.update(code.co_code)
        self._add(*code.co_names, *code.co_varnames)
        self._all(code.co_consts)

    def _object(self, value: object) -> None:
        """Some other object: its type, what calling it runs, and the plain values in it."""
        kind = type(value)
        self._add(kind.__module__, kind.__qualname__)
        for size in ("shape", "num_rows", "nbytes"):
            with suppress(Exception):  # a property may raise anything
                self._add(size, repr(getattr(value, size)))
        call = vars(kind).get("__call__")
        if isinstance(call, FunctionType):
            self.read(call)
        held: dict[str, object] = getattr(value, "__dict__", {})
        for name, one in islice(held.items(), MOST_ITEMS):
            if isinstance(one, (*PLAIN, FunctionType, tuple)):
                self._add(name)
                self.read(one)


def _told(value: object) -> tuple[str, ...]:
    """A plain value; of a long one its beginning and its length."""
    if isinstance(value, (str, bytes)):
        return repr(value[:MOST_LENGTH]), str(len(value))
    if isinstance(value, int):
        return hex(value & ((1 << 8 * MOST_LENGTH) - 1)), str(value.bit_length())
    return (repr(value),)


def _names(code: CodeType) -> Iterable[str]:
    """The names that some code, and the functions defined in it, may look up in their module."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
