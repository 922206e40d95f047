"""The worker's machine of the simulated engine: the library's, and what only a pipeline needs.

A head switches on the commit message itself; any other member switches when the epoch marker of
the change has arrived on all its input channels inside the component. Channels whose marker (or
checkpoint barrier) has arrived stay blocked until the others have theirs: epoch alignment. On
Spark rows carry their epoch with them, and checkpoints are Spark's own, so the library has
neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from fries.errors import ProtocolError
from fries.protocol.messages import (
    CancelCheckpoint,
    Commit,
    Part,
    Snapshotted,
    StartCheckpoint,
)
from fries.protocol.worker import Worker
from fries.protocol.worker_events import (
    Drop,
    Load,
    Received,
    Say,
    Switch,
    WorkerEvent,
    WorkerInstruction,
)


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


AligningEvent: TypeAlias = WorkerEvent | MarkerArrived | BarrierArrived
AligningInstruction: TypeAlias = (
    Load | Switch | SendMarkers | Block | Unblock | TakeSnapshot | Drop | Say
)
Step: TypeAlias = "tuple[AligningWorker, tuple[AligningInstruction, ...]]"


@dataclass(frozen=True, slots=True)
class AligningWorker:
    """State of one worker of a pipeline. ``inputs`` are its data channels, all of them."""

    core: Worker
    """What it shares with the workers of the library."""
    inputs: frozenset[int] = frozenset()
    markers: tuple[tuple[int, frozenset[int]], ...] = ()
    """Per change that is being aligned: the channels whose marker has arrived."""
    checkpoint: int = 0
    """The newest checkpoint it has seen, by a barrier or by a message."""
    barriers: frozenset[int] = frozenset()
    """Channels whose barrier of that checkpoint has arrived, while others are missing."""
    cancelled: int = 0
    """Barriers of checkpoints up to this one mean nothing."""

    @property
    def parts(self) -> tuple[tuple[int, Part], ...]:
        """What it does in the changes that it knows and that are not retired."""
        return self.core.parts

    @classmethod
    def of(cls, name: str, inputs: frozenset[int] = frozenset()) -> AligningWorker:
        """A worker that has heard of no change."""
        return cls(Worker(name), inputs)

    def handle(self, event: AligningEvent) -> Step:
        """Change state by one event: the only door."""
        match event:
            case MarkerArrived(change, channel):
                return self._marker(change, channel)
            case BarrierArrived(checkpoint, channel):
                return self._barrier(checkpoint, channel)
            case Received(StartCheckpoint(checkpoint)):
                return self._snapshot(checkpoint)
            case Received(CancelCheckpoint(checkpoint)):
                return self._cancel(checkpoint)
            case Received(Commit(change)) if self._awaits_markers(change):
                return self, ()
            case _:
                return self._hand_on(event)

    def _hand_on(self, event: WorkerEvent) -> Step:
        """Let the library's machine decide; whoever switches passes its markers on."""
        core, instructions = self.core.handle(event)
        switched = {one.change for one in instructions if isinstance(one, Switch)}
        markers = tuple((change, seen) for change, seen in self.markers if change not in switched)
        state = replace(self, core=core, markers=markers)
        return state, tuple(more for one in instructions for more in self._with_markers(one))

    def _with_markers(self, instruction: WorkerInstruction) -> tuple[AligningInstruction, ...]:
        """In simulated time nobody stands back, and no worker has tasks or loses its connection."""
        match instruction:
            case Switch(change):
                part = self._part(change)
                sent = (SendMarkers(change, part.forwards),) if part.forwards else ()
                freed = (Unblock(part.awaits),) if part.awaits else ()
                return (instruction, *sent, *freed)
            case Load() | Drop() | Say():
                return (instruction,)
            case _:
                return ()

    def _awaits_markers(self, change: int) -> bool:
        part = self.core.part(change)
        return part is not None and not part.head

    def _part(self, change: int) -> Part:
        part = self.core.part(change)
        if part is None:
            raise ProtocolError(self.core.name, f"change {change} was never prepared here")
        return part

    def _marker(self, change: int, channel: int) -> Step:
        """Align: the last marker that was missing is as good as the commit message."""
        part = self._part(change)
        seen = dict(self.markers).get(change, frozenset()) | {channel}
        if channel not in part.awaits:
            problem = f"no marker of change {change} belongs on {channel}"
            raise ProtocolError(self.core.name, problem)
        others = tuple((number, channels) for number, channels in self.markers if number != change)
        state = replace(self, markers=(*others, (change, seen)))
        if seen != part.awaits:
            return state, (Block(channel),)
        state, instructions = state._hand_on(Received(Commit(change)))
        return state, instructions or (Block(channel),)

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
        return state, (TakeSnapshot(checkpoint), Say(Snapshotted(checkpoint)))

    def _cancel(self, checkpoint: int) -> Step:
        if checkpoint < self.checkpoint:  # a newer barrier overtook this message
            return replace(self, cancelled=max(self.cancelled, checkpoint)), ()
        state = replace(self, cancelled=checkpoint, barriers=frozenset())
        return state, (Unblock(self.barriers),) if self.barriers else ()
