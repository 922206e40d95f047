"""The worker's side of the protocol, without I/O.

A worker loads a change when told to prepare, and switches when told to commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from fries.errors import ProtocolError
from fries.protocol.messages import (
    Abort,
    CancelCheckpoint,
    Commit,
    FromWorker,
    Part,
    Prepare,
    Prepared,
    Refused,
    Retire,
    StartCheckpoint,
    Switched,
    ToWorker,
)


@dataclass(frozen=True, slots=True)
class Received:
    """A message from the controller."""

    message: ToWorker


@dataclass(frozen=True, slots=True)
class Loaded:
    """The background load of a change ended, well or with a reason why not."""

    change: int
    error: str | None = None


WorkerEvent: TypeAlias = Received | Loaded


@dataclass(frozen=True, slots=True)
class Load:
    """Load a change in the background, then report :class:`Loaded`."""

    change: int
    part: Part


@dataclass(frozen=True, slots=True)
class Switch:
    """Use the new configuration of these operators from the next tuple on."""

    change: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what was loaded for a change that was aborted, or what a retired one replaced."""

    change: int
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the controller."""

    message: FromWorker


WorkerInstruction: TypeAlias = Load | Switch | Drop | Say
Step: TypeAlias = "tuple[Worker, tuple[WorkerInstruction, ...]]"


@dataclass(frozen=True, slots=True)
class Worker:
    """State of one worker."""

    name: str
    parts: tuple[tuple[int, Part], ...] = ()
    """Changes that this worker knows and that are not retired."""
    loading: frozenset[int] = frozenset()
    """Those of ``parts`` that are still being loaded."""
    early: frozenset[int] = frozenset()
    """Those of ``parts`` to switch to as soon as they and those before them are loaded."""
    switched: frozenset[int] = frozenset()
    """Those of ``parts`` that it has switched to."""
    retired: frozenset[int] = frozenset()
    """Those of ``loading`` whose transition is over: to adopt and forget once loaded."""

    def handle(self, event: WorkerEvent) -> Step:
        """Change state by one event: the only door."""
        match event:
            case Received(message):
                return self._receive(message)
            case Loaded(change, error):
                return self._loaded(change, error)

    def _receive(self, message: ToWorker) -> Step:
        match message:
            case Prepare(change, part):
                return self._prepare(change, part)
            case Commit(change):
                return self._commit(change)
            case Abort(change):
                return self._forget(change), (Drop(change, aborted=True),)
            case Retire(change):
                return self._retire(change)
            case StartCheckpoint() | CancelCheckpoint():
                raise ProtocolError(self.name, "checkpoints are not taken here")

    def _prepare(self, change: int, part: Part) -> Step:
        if change in dict(self.parts):
            raise ProtocolError(self.name, f"change {change} was prepared twice")
        parts = (*self.parts, (change, part))
        return replace(self, parts=parts, loading=self.loading | {change}), (Load(change, part),)

    def _loaded(self, change: int, error: str | None) -> Step:
        if change not in self.loading:  # aborted meanwhile: forget what was loaded too late
            return self, (Drop(change, aborted=True),)
        if error is not None:
            return self._forget(change), (Say(Refused(change, error)),)
        state, instructions = replace(self, loading=self.loading - {change})._catch_up()
        return state, (Say(Prepared(change)), *instructions)

    def _commit(self, change: int) -> Step:
        self._part(change)
        if change in self.early:
            raise ProtocolError(self.name, f"change {change} was committed twice")
        return replace(self, early=self.early | {change})._catch_up()

    def _retire(self, change: int) -> Step:
        """A change that is still being loaded has become the base: adopt it once it is there."""
        if change not in self.loading:
            return self._forget(change), (Drop(change),)
        early = self.early | {change}
        return replace(self, early=early, retired=self.retired | {change}), ()

    def _part(self, change: int) -> Part:
        for number, part in self.parts:
            if number == change:
                return part
        raise ProtocolError(self.name, f"change {change} was never prepared here")

    def _catch_up(self) -> Step:
        """Switch to all that is due and loaded, in the order of numbers."""
        state = self
        instructions: list[WorkerInstruction] = []
        for change in sorted(self.early):
            if change in self.loading:
                break
            state, more = state._switch(change)
            instructions.extend(more)
            if change in self.retired:
                state = state._forget(change)
                instructions.append(Drop(change))
        return state, tuple(instructions)

    def _switch(self, change: int) -> Step:
        if change in self.switched:
            raise ProtocolError(self.name, f"change {change} was committed twice")
        part = self._part(change)
        state = replace(
            self,
            switched=self.switched | {change},
            early=self.early - {change},
        )
        return state, (Switch(change, part.targets), Say(Switched(change)))

    def _forget(self, change: int) -> Worker:
        return replace(
            self,
            parts=tuple((number, part) for number, part in self.parts if number != change),
            loading=self.loading - {change},
            early=self.early - {change},
            retired=self.retired - {change},
            switched=self.switched - {change},
        )
