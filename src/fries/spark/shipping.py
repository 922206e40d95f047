"""Functions on their way to workers: pickled, told apart, and tried."""

from __future__ import annotations

import hashlib
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Final, NamedTuple

from pyspark import cloudpickle

from fries.control.changes import Order
from fries.control.wire import room
from fries.errors import UpdateRefusedError
from fries.log.pieces import unhurried
from fries.plan import CommitPoint, Plan
from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import Function, OperatorSpec
from fries.updates import Revision

_dumps: Callable[..., bytes] = cloudpickle.dumps
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
        payload = _dumps(bare, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=parts.append)
    except Exception:
        for name, spec in shipped.operators.items():
            _refuse_unpicklable(
                name, (spec, shipped.migrations.get(name), shipped.inverses.get(name))
            )
        raise
    buffers = tuple(_frozen(part.raw()) for part in parts)
    names = shipped.operators.keys() | shipped.migrations.keys()
    migrates = any(step is not None for step in shipped.migrations.values())
    left = Shipped({}, {name: shipped.migrations.get(name) for name in names})
    dumps = _dumps if migrates else pickle.dumps  # without functions: much faster
    residue = dumps(left.bare(built))
    return Package(payload, buffers, residue, migrates)


def order_of(
    plan: Plan,
    package: Package,
    versions: Mapping[str, int],
    requested: float,
    note: str,
    timeout: float,
    automatic: bool,
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
        migrates=package.migrates,
        scheduler=plan.scheduler,
        components=tuple((part.members, part.heads) for part in plan.components),
        versions=versions,
        note=note,
    )


def pickled_all(operators: tuple[OperatorSpec, ...]) -> bytes:
    """All operators; a function that cannot travel is named."""
    try:
        return _dumps(operators)
    except Exception:
        for spec in operators:
            _refuse_unpicklable(spec.name, spec)
        raise


def digests_of(updates: Mapping[str, Revision]) -> dict[str, bytes]:
    """By operator, what tells its update from another one, without keeping its models.

    Of one that cannot be pickled, nothing: it is unlike any other.
    """
    return {name: _digest_of(update) for name, update in updates.items()}


def differ_plainly(old: Function | None, new: Function) -> bool:
    """Whether two functions are not the same, as far as one can see without pickling them.

    Most updates bring other code, or other numbers and texts: then nothing must be hashed before
    the workers hear of them.
    """
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


def _digest_of(update: Revision) -> bytes:
    parts: list[pickle.PickleBuffer] = []
    try:
        pickled = _dumps(update, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=parts.append)
    except Exception:
        return b""
    hashed = hashlib.sha256(pickled)
    for piece in unhurried(part.raw() for part in parts):
        hashed.update(piece)
    return hashed.digest()


def try_to_load(operators: Iterable[OperatorSpec], plan: Plan, package: Package) -> None:
    """Where no worker is there to do it: see that the functions can be loaded at all."""
    try:
        Configuration(operators).load(0, 0, package.payload, package.buffers)
    except Exception as error:
        raise UpdateRefusedError(
            ", ".join(plan.targets), f"it cannot be loaded:\n{traceback.format_exc()}"
        ) from error


def _refuse_unpicklable(name: str, value: object) -> None:
    try:
        _dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UpdateRefusedError(
            name,
            f"it cannot be pickled ({error}); keep connections, locks and sessions out of it, and "
            "open them inside the function",
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
