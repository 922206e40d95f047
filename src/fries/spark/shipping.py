"""Functions on their way to workers: pickled, told apart, and tried."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, Final, NamedTuple

from fries.change.model import Order
from fries.control.wire import room
from fries.errors import UpdateRefusedError
from fries.failing import story_of, words_of
from fries.log.pieces import unhurried
from fries.plan import CommitPoint, Plan
from fries.runtime.configuration import Configuration
from fries.runtime.frozen import Frozen
from fries.runtime.lookup import Lookup
from fries.runtime.shipped import Shipped
from fries.runtime.spec import Function, Kind, OperatorSpec
from fries.spark.pickling import dumps, pickled
from fries.updates import Revision
from fries.versions import Kept

PLAIN: Final = (int, float, str, bytes)
"""Types of values whose pickles differ when they are not equal."""


class Package(NamedTuple):
    """What a change ships."""

    payload: bytes
    buffers: tuple[memoryview, ...]
    """Large parts of it, which travel without being copied."""
    residue: bytes
    """What is left when other changes have replaced its functions: migrations, if any, and the
    names of its operators, so that a worker that joins late counts the same versions."""
    migrates: bool


def packed(shipped: Shipped, built: Mapping[str, OperatorSpec]) -> Package:
    """A change as bytes, for workers that know the operators as the flow was built."""
    bare = shipped.bare(built)
    parts: list[pickle.PickleBuffer] = []
    try:
        payload = dumps(bare, parts.append)
    except BaseException:  # the user's code may raise anything, even SystemExit
        for name, spec in shipped.operators.items():
            _refuse_unpicklable(
                name, (spec, shipped.migrations.get(name), shipped.inverses.get(name))
            )
        raise
    buffers = tuple(_frozen(part.raw()) for part in parts)
    names = shipped.operators.keys() | shipped.migrations.keys()
    migrates = any(step is not None for step in shipped.migrations.values())
    steps = {name: shipped.migrations.get(name) for name in names}
    left = Shipped({}, steps, undoes=shipped.undoes)
    bare = left.bare(built)
    residue = dumps(bare) if migrates else pickle.dumps(bare)  # without functions: much faster
    return Package(payload, buffers, residue, migrates)


def order_of(
    plan: Plan,
    package: Package,
    versions: Mapping[str, int],
    *,
    labels: Mapping[str, str],
    requested: float,
    note: str,
    timeout: float,
    automatic: bool,
    undoes: int,
    stages: frozenset[int],
) -> Order:
    """What the controller is asked for."""
    return Order(
        plan.targets,
        package.payload,
        footprint=frozenset(frozenset(part.members) for part in plan.components),
        residue=package.residue,
        buffers=package.buffers,
        at_boundary=plan.commit is not CommitPoint.NOW,
        timeout=timeout,
        requested=requested,
        automatic=automatic,
        undoes=undoes,
        migrates=package.migrates,
        stages=stages,
        scheduler=plan.scheduler,
        components=tuple((part.members, part.heads) for part in plan.components),
        versions=versions,
        labels=labels,
        note=note,
    )


def pickled_all(operators: tuple[OperatorSpec, ...]) -> bytes:
    """All operators; a function that cannot travel is named."""
    try:
        return dumps(operators)
    except BaseException:  # as above
        for spec in operators:
            _refuse_unpicklable(spec.name, spec)
        raise


def packed_operators(operators: tuple[OperatorSpec, ...]) -> tuple[bytes | memoryview, ...]:
    """All operators for the log: large parts of them are not copied."""
    parts: list[pickle.PickleBuffer] = []
    payload = dumps(operators, parts.append)
    return payload, *(part.raw() for part in parts)


def kept_of(updates: Mapping[str, Revision]) -> dict[str, Kept]:
    """By operator, its update as it is now."""
    return {name: _kept(update) for name, update in updates.items()}


def built_of(operators: Iterable[OperatorSpec]) -> tuple[list[OperatorSpec], dict[str, Kept]]:
    """Operators as they are when the flow is built, not hashed: nobody may ever ask."""
    specs, kept = [], {}
    for spec in operators:
        if spec.function is not None and spec.kind is not Kind.LOOKUP:  # that is a table, no code
            kept[spec.name] = one = _kept(Revision(spec.function, result=spec.result), False)
            spec = one.spec(spec)
        specs.append(spec)
    return specs, kept


def check_classes(spec: OperatorSpec, known: Kept | None, update: Revision) -> None:
    """Refuse a class that was edited while states may hold instances of it: they keep old code."""
    if known is None or not known.classes or update.migrate is not None:
        return
    if spec.kind not in (Kind.PROCESS, Kind.AGGREGATE):
        return
    now = pickled((update.function, update.result)).classes
    edited = sorted(
        name for name, digest in known.classes.items() if now.get(name, digest) != digest
    )
    if edited:
        raise UpdateRefusedError(
            spec.name,
            f"the class {edited[0]} was edited, and states that hold one go on with its old code; "
            "give Update(..., migrate=...), a function that makes the new state of an old one "
            "(lambda state: state, if no state holds one)",
        )


def differ_plainly(old: Function | None, new: Function) -> bool:
    """Whether two functions are not the same, as far as one can see without pickling them.

    Most updates bring other code, or other numbers and texts: then nothing must be hashed before
    the workers hear of them.
    """
    old = old.outline if isinstance(old, Frozen) else old
    if not (isinstance(old, FunctionType) and isinstance(new, FunctionType)):
        return False
    if old.__code__ != new.__code__:
        return True
    pairs = zip(_held(old), _held(new), strict=True)
    return any(
        isinstance(one, PLAIN) and isinstance(other, PLAIN) and one != other for one, other in pairs
    )


def _held(function: FunctionType) -> Iterator[object]:
    """What the names stand for that a function uses from around it."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing yet
            yield None


def _outline(function: Function) -> FunctionType | None:
    """The code of a function with the numbers and texts around it, and none of its models."""
    if not isinstance(function, FunctionType):
        return None
    values = (held if isinstance(held, PLAIN) else None for held in _held(function))
    around = tuple(CellType(value) for value in values)
    return FunctionType(function.__code__, {}, closure=around)


def _kept(update: Revision, hashes: bool = True) -> Kept:
    functions = update.function, update.migrate, update.result, update.inverse
    first = update.function
    if isinstance(first, Frozen) and not any((*functions[1:], update.schema)):
        digest = first.digest or _hashed(first.data, first.buffers)
        return Kept(digest, first.classes, *functions)
    try:
        data, buffers, classes, _ = pickled((*functions, update.schema))
    except (Exception, SystemExit):  # whoever packs it will say so
        return Kept(b"", {}, *functions)
    digest = _hashed(data, buffers) if hashes else b""

    def frozen(place: int) -> Any:  # noqa: ANN401 - a function of any kind
        given = functions[place]
        if given is None or isinstance(given, (Frozen, Lookup)):
            return given
        return Frozen(data, buffers, place, digest, classes, _outline(given))

    return Kept(digest, classes, *(frozen(place) for place in range(4)))


def _hashed(data: bytes, buffers: Iterable[pickle.PickleBuffer]) -> bytes:
    hashed = hashlib.sha256(data)
    for piece in unhurried(part.raw() for part in buffers):
        hashed.update(piece)
    return hashed.digest()


def try_to_load(operators: Iterable[OperatorSpec], plan: Plan, package: Package) -> None:
    """Where no worker is there to do it: see that the functions can be loaded at all."""
    try:
        Configuration(operators).load(0, 0, package.payload, package.buffers)
    except BaseException as error:  # as above
        raise UpdateRefusedError(
            ", ".join(plan.targets), f"it cannot be loaded:\n{story_of(error)}"
        ) from error


def _refuse_unpicklable(name: str, value: object) -> None:
    try:
        dumps(value)
    except BaseException as error:  # as above
        raise UpdateRefusedError(
            name,
            f"it cannot be pickled ({words_of(error)}); keep connections, locks and sessions out "
            "of it, and open them inside the function",
        ) from error


def _frozen(part: memoryview) -> memoryview:
    """A large part of a payload as it is now, whatever its owner does with it later."""
    if part.readonly:
        return part
    copy, end = room(part.nbytes), 0
    for piece in unhurried([part]):
        start, end = end, end + len(piece)
        copy[start:end] = piece
    return copy.toreadonly()
