"""The worker's side of the protocol, without I/O.

A worker loads a change when told to prepare. A head switches on the commit message
itself; any other member switches when the epoch marker of the change has arrived on
all its input channels inside the component. Channels whose marker (or checkpoint
barrier) has arrived stay blocked until the others have theirs: epoch alignment.
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
    Snapshotted,
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


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """The epoch marker of a change came in on a data channel."""

    change: int
    channel: int


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """A checkpoint barrier came in on a data channel."""

    checkpoint: int
    channel: int


WorkerEvent: TypeAlias = Received | Loaded | MarkerArrived | BarrierArrived


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
class SendMarkers:
    """Put the epoch marker of a change on these output channels, behind all data."""

    change: int
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Take nothing more from a channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    """Take from these channels again."""

    channels: frozenset[int]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Save state and configuration for a checkpoint, then send its barrier downstream."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what was loaded for a change that was aborted, or what a retired one replaced."""

    change: int
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Send a message to the controller."""

    message: FromWorker


WorkerInstruction: TypeAlias = (
    Load | Switch | SendMarkers | Block | Unblock | TakeSnapshot | Drop | Reply
)
Step: TypeAlias = "tuple[Worker, tuple[WorkerInstruction, ...]]"


@dataclass(frozen=True, slots=True)
class Worker:
    """State of one worker. ``inputs`` are its data channels, all of them."""

    name: str
    inputs: frozenset[int] = frozenset()
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
    markers: tuple[tuple[int, frozenset[int]], ...] = ()
    """Per change that is being aligned: the channels whose marker has arrived."""
    checkpoint: int = 0
    """The newest checkpoint it has seen, by a barrier or by a message."""
    barriers: frozenset[int] = frozenset()
    """Channels whose barrier of that checkpoint has arrived, while others are missing."""
    cancelled: int = 0
    """Barriers of checkpoints up to this one mean nothing."""

    def handle(self, event: WorkerEvent) -> Step:
        """Change state by one event: the only door."""
        match event:
            case Received(message):
                return self._receive(message)
            case Loaded(change, error):
                return self._loaded(change, error)
            case MarkerArrived(change, channel):
                return self._marker(change, channel)
            case BarrierArrived(checkpoint, channel):
                return self._barrier(checkpoint, channel)

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
            case StartCheckpoint(checkpoint):
                return self._snapshot(checkpoint)
            case CancelCheckpoint(checkpoint):
                return self._cancel(checkpoint)

    def _prepare(self, change: int, part: Part) -> Step:
        if change in dict(self.parts):
            raise ProtocolError(self.name, f"change {change} was prepared twice")
        parts = (*self.parts, (change, part))
        return replace(self, parts=parts, loading=self.loading | {change}), (Load(change, part),)

    def _loaded(self, change: int, error: str | None) -> Step:
        if change not in self.loading:  # aborted meanwhile: forget what was loaded too late
            return self, (Drop(change, aborted=True),)
        if error is not None:
            return self._forget(change), (Reply(Refused(change, error)),)
        state, instructions = replace(self, loading=self.loading - {change})._catch_up()
        return state, (Reply(Prepared(change)), *instructions)

    def _commit(self, change: int) -> Step:
        if not self._part(change).head:
            return self, ()
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
            markers=tuple((number, seen) for number, seen in self.markers if number != change),
        )
        instructions: list[WorkerInstruction] = [Switch(change, part.targets)]
        if part.forwards:
            instructions.append(SendMarkers(change, part.forwards))
        if part.awaits:
            instructions.append(Unblock(part.awaits))
        instructions.append(Reply(Switched(change)))
        return state, tuple(instructions)

    def _marker(self, change: int, channel: int) -> Step:
        part = self._part(change)
        seen = dict(self.markers).get(change, frozenset()) | {channel}
        if channel not in part.awaits:
            raise ProtocolError(self.name, f"no marker of change {change} belongs on {channel}")
        others = tuple((number, channels) for number, channels in self.markers if number != change)
        state = replace(self, markers=(*others, (change, seen)))
        if seen != part.awaits:
            return state, (Block(channel),)
        state, instructions = replace(state, early=state.early | {change})._catch_up()
        return state, instructions or (Block(channel),)

    def _forget(self, change: int) -> Worker:
        return replace(
            self,
            parts=tuple((number, part) for number, part in self.parts if number != change),
            loading=self.loading - {change},
            early=self.early - {change},
            retired=self.retired - {change},
            switched=self.switched - {change},
        )

    def _barrier(self, checkpoint: int, channel: int) -> Step:
        if checkpoint <= self.cancelled or checkpoint < self.checkpoint:
            return self, ()  # cancelled: a newer one starts only then, even if it is faster here
        stale = self.barriers if checkpoint > self.checkpoint else frozenset[int]()
        seen = (self.barriers - stale) | {channel}
        released = (Unblock(stale),) if stale else ()
        if seen == self.inputs:
            state, instructions = self._snapshot(checkpoint)
            return state, (*released, *instructions, Unblock(self.inputs))
        return replace(self, checkpoint=checkpoint, barriers=seen), (*released, Block(channel))

    def _snapshot(self, checkpoint: int) -> Step:
        state = replace(self, checkpoint=checkpoint, barriers=frozenset())
        return state, (TakeSnapshot(checkpoint), Reply(Snapshotted(checkpoint)))

    def _cancel(self, checkpoint: int) -> Step:
        if checkpoint < self.checkpoint:  # a newer barrier overtook this message
            return replace(self, cancelled=max(self.cancelled, checkpoint)), ()
        state = replace(self, cancelled=checkpoint, barriers=frozenset())
        return state, (Unblock(self.barriers),) if self.barriers else ()
