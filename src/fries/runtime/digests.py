"""Digests that tell whether two operators have the same code, in whatever process they were made.

A pickle cannot tell: it names files and line numbers, and depends on the hash seed and on which
equal texts are one object. So a digest is made of what a value does: bytecode, constants,
defaults, closures and the globals that are used, module by module, as far as the code is the
user's own. Libraries that are installed count by name, data by content, sets and dicts without
their order. Comments, line numbers, names of files and of functions do not count.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    ModuleType,
)
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from fries.origins import OURS
from fries.origins import _is_installed as is_installed
from fries.runtime.frozen import Frozen
from fries.runtime.spec import OperatorSpec

SIZE: Final = 16
"""Bytes of a digest: nobody forges them, and a million versions never collide."""
LABEL: Final = 8
"""Hex digits that people are shown."""
PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})
"""Types of values that are told by their text."""
CACHED: Final = type(lru_cache(lambda: None))
"""What ``functools.lru_cache`` makes; pickle knows no more than its name."""
_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_NOT_CODE: Final = frozenset(
    {
        "__abstractmethods__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__qualname__",
        "__slotnames__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
"""Attributes of a class that say where it stands, or that Python adds by itself."""


def digest_of(value: object) -> str:
    """What tells a value from others that do something else, as hex digits."""
    return _Digester().digest(value).hex()


def digest_of_operator(spec: OperatorSpec) -> str:
    """What tells one version of an operator from another: functions, style and columns.

    Not how states begin and are migrated: that belongs to the flow, not to a version.
    """
    takes = None if spec.takes is None else _columns(spec.takes)
    return digest_of((spec.function, spec.result, spec.style.value, _columns(spec.schema), takes))


def short_form(digest: str) -> str:
    """The short form of a digest, for people."""
    return digest[:LABEL]


class _Digester:
    """Goes through a value; equal parts are looked at once, circles end where they began."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, object]] = {}
        """By identity, digests, and the objects, so that no identity is used again."""
        self._under_way: dict[int, int] = {}

    def digest(self, value: object) -> bytes:
        """The digest of a value; of what cannot be looked into, that of its type."""
        if type(value) in PLAIN:
            return _hashed(type(value).__name__, [repr(value).encode()])
        if isinstance(value, Frozen):
            value = value.function
        identity = id(value)
        if identity in self._known:
            return self._known[identity][0]
        if identity in self._under_way:
            return _hashed("circle", [b"%d" % (len(self._under_way) - self._under_way[identity])])
        self._under_way[identity] = len(self._under_way)
        try:
            made = _hashed(type(value).__name__, self._parts(value))
        except RecursionError:
            made = _hashed("too deep", [type(value).__qualname__.encode()])
        finally:
            del self._under_way[identity]
        self._known[identity] = made, value
        return made

    def _parts(self, value: Any) -> Iterable[bytes | memoryview]:  # noqa: ANN401
        match value:
            case list() | tuple() if type(value) in (list, tuple):
                if PLAIN.issuperset(map(type, value)):  # many times faster
                    return [repr(value).encode()]
                return [self.digest(one) for one in value]
            case dict() | MappingProxyType() if type(value) in (dict, MappingProxyType):
                return self._pairs(value)
            case set() | frozenset():
                return sorted(self.digest(one) for one in value)
            case bytearray() | memoryview():
                return [memoryview(value).cast("B")]
            case FunctionType():
                return self._function(value)
            case CodeType():
                return self._code(value)
            case ModuleType():
                return [value.__name__.encode()]
            case BuiltinFunctionType() if isinstance(value.__self__, ModuleType | None):
                return _reference(value)
            case enum.Enum():
                return [self.digest(type(value)), value.name.encode()]
            case type():
                return self._class(value)
            case _ if isinstance(value, CACHED):
                return [self.digest(value.__wrapped__), self.digest(value.cache_parameters())]
            case staticmethod() | classmethod():
                return [self.digest(value.__func__)]
            case property():
                return [self.digest(one) for one in (value.fget, value.fset, value.fdel)]
            case np.ndarray():
                return self._array(value)
            case pa.Table() | pa.RecordBatch():
                return [_columns(value.schema).encode(), *_rows(value)]
            case _:
                return self._object(value)

    def _pairs(self, value: Mapping[Any, Any]) -> list[bytes]:
        if PLAIN.issuperset(map(type, value)) and PLAIN.issuperset(map(type, value.values())):
            return sorted(repr(pair).encode() for pair in value.items())
        return sorted(self.digest(key) + self.digest(one) for key, one in value.items())

    def _function(self, value: FunctionType) -> Iterable[bytes]:
        if _is_installed(value.__module__) and "<locals>" not in value.__qualname__:
            return _reference(value)
        held = [self._cell(cell) for cell in value.__closure__ or ()]
        used = [self.digest(one) for one in _globals_of(value)]
        shaped = (value.__defaults__, value.__kwdefaults__, vars(value))
        return [self.digest(value.__code__), self.digest(shaped), b"held", *held, b"used", *used]

    def _cell(self, cell: Any) -> bytes:  # noqa: ANN401
        try:
            return self.digest(cell.cell_contents)
        except ValueError:  # nothing yet
            return b"empty"

    def _code(self, code: CodeType) -> Iterable[bytes]:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        yield code.co_code
        yield getattr(code, "co_exceptiontable", b"")
        yield from (self.digest(part) for part in (counts, names, code.co_consts))

    def _class(self, value: type) -> Iterable[bytes]:
        if _is_installed(value.__module__) and "<locals>" not in value.__qualname__:
            return _reference(value)
        members = {
            name: member
            for name, member in vars(value).items()
            if name not in _NOT_CODE and not name.startswith(("__dataclass_", "_member_"))
        }
        if issubclass(value, enum.Enum):
            members = {name: one.value for name, one in value.__members__.items()} | {
                name: one for name, one in members.items() if isinstance(one, FunctionType)
            }
        return [value.__name__.encode(), *map(self.digest, value.__bases__), *self._pairs(members)]

    def _array(self, value: np.ndarray[Any, Any]) -> Iterable[bytes | memoryview]:
        if value.dtype.hasobject:
            return [self.digest(value.tolist())]
        shape = f"{value.dtype.str} {value.shape}".encode()
        return [shape, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data]

    def _object(self, value: Any) -> Iterable[bytes]:  # noqa: ANN401
        """Any other object, taken apart as for a copy; of one that cannot be, type and fields."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # a lock, a connection, or code of the user's own that fails
            return [*_reference(type(value)), self.digest(getattr(value, "__dict__", None))]
        if isinstance(reduced, str):
            return [reduced.encode()]
        made, arguments, state, items, pairs = (*reduced[:5], None, None, None)[:5]
        listed = None if items is None else list(items)
        mapped = None if pairs is None else dict(pairs)
        return [self.digest(one) for one in (made, arguments, state, listed, mapped)]


def _hashed(kind: str, parts: Iterable[bytes | memoryview]) -> bytes:
    made = hashlib.blake2b(kind.encode(), digest_size=SIZE)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


def _reference(value: Any) -> list[bytes]:  # noqa: ANN401
    return [f"{value.__module__}.{value.__qualname__}".encode()]


def _globals_of(function: FunctionType) -> Iterator[object]:
    """What a function uses from its module, and from the user's own modules beyond."""
    names, attributes = set[str](), set[str]()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        attributes.update(code.co_names)
        names.update(one.argval for one in dis.get_instructions(code) if one.opname in _GLOBALS)
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    for name in sorted(names):
        value = function.__globals__.get(name, name)
        yield value
        if isinstance(value, ModuleType):
            yield from _used_of(value, attributes, set())


def _used_of(module: ModuleType, attributes: set[str], seen: set[str]) -> Iterator[object]:
    if _is_installed(module.__name__) or module.__name__ in seen:
        return
    seen.add(module.__name__)
    for name in sorted(attributes & vars(module).keys()):
        value = vars(module)[name]
        if isinstance(value, ModuleType):
            yield from _used_of(value, attributes, seen)
        else:
            yield value


def _is_installed(module: str | None) -> bool:
    """Whether a module is Python's or a library's, not the user's own."""
    name = module or "__main__"
    package = name.partition(".")[0]
    if package in OURS:
        return not package.endswith("main__")
    return name in sys.modules and is_installed(name)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _rows(table: pa.Table | pa.RecordBatch) -> Iterator[bytes]:
    """The rows of a table, in an order of their own: Spark gives them in any."""
    frame = table.to_pandas()
    try:
        hashes = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    except TypeError:  # lists and structs have no hash
        yield from sorted(_hashed("row", [repr(row).encode()]) for row in table.to_pylist())
    else:
        yield np.sort(hashes).tobytes()
