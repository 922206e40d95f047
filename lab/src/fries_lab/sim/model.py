"""A small dataflow as a transition system: the paper's engine without time.

Sources emit a few tuples, workers take from their channels in any order, control messages
arrive whenever they like. States are immutable; :mod:`fries_lab.sim.explore` walks them.

Three things are fixed without loss: all changes are requested at the start, and unless they
wait for one before them their commit messages are under way (a late request is a slow commit
message, except to a checkpoint that it cancels: see ``late``); answers reach the controller
at once (a slow answer is a slow message that it causes); and the messages that no tuple can
notice (PREPARE, ABORT, RETIRE) arrive at once. A blocking operator does not wait for all its
input, which only adds interleavings; what leaves it begins a new transaction.

One thing is fixed with a loss: a tagged change is over only while no tuple without its bit is
on a channel from or behind its components, whether it came through them or past them. An
engine may know earlier that no old tuple can meet a target, and let a waiting change begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

from fries.graph import Graph
from fries.mcs import reaching
from fries.plan import CommitPoint, Plan, Propagation
from fries.protocol.messages import Abort, FromWorker, Prepare, Retire, ToWorker
from fries.protocol.worker_events import Drop, Load, Loaded, Received, Say, Switch
from fries_lab.errors import SimulationError
from fries_lab.sim.behaviour import Behaviour, mix
from fries_lab.sim.controller import (
    CheckpointComplete,
    CheckpointDue,
    Controller,
    ControllerEvent,
    Drained,
    Heard,
    Joined,
    Phase,
    Record,
    Send,
)
from fries_lab.sim.routing import DEFAULT, Router
from fries_lab.sim.topology import Instance, Topology
from fries_lab.sim.worker_machine import (
    AligningEvent,
    AligningInstruction,
    AligningWorker,
    BarrierArrived,
    Block,
    MarkerArrived,
    SendMarkers,
    TakeSnapshot,
    Unblock,
)

T = TypeVar("T")


class Item(NamedTuple):
    """A tuple on its way: its transaction, its own identity, its tag (a bit per change)."""

    txn: int
    uid: int
    tag: int = 0


class Marker(NamedTuple):
    """An epoch marker of a change."""

    change: int


class Barrier(NamedTuple):
    """A checkpoint barrier."""

    checkpoint: int


class Operation(NamedTuple):
    """A data operation as it happened: ``version`` counts the operator's updates so far."""

    txn: int
    operator: str
    version: int


class Arrivals(NamedTuple):
    """What a unique operator has received of a transaction so far."""

    worker: int
    txn: int
    seen: int
    tag: int


Message: TypeAlias = Item | Marker | Barrier
Queues: TypeAlias = "tuple[tuple[Message, ...], ...]"


class Action(NamedTuple):
    """One step of an interleaving: emit, take, deliver, drain, request or checkpoint.

    ``where`` is the worker that emits or gets a message, the channel to take from, or the
    change that has drained.
    """

    kind: str
    where: int


@dataclass(frozen=True)
class Scenario:
    """A small dataflow, its tuples and its changes."""

    graph: Graph
    plans: tuple[Plan, ...]
    tuples: int = 2
    """Tuples per source worker."""
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    checkpoints: int = 0
    """Checkpoints that may start at any moment."""
    guard: bool = True
    """The paper's rule for checkpoints during a change."""
    late: bool = False
    """Changes are requested at any moment, not at the start: they may cancel checkpoints."""


class State(NamedTuple):
    """Everything that decides what can happen next, and what happened so far."""

    pending: tuple[tuple[int, ...], ...]
    channels: Queues
    links: tuple[tuple[ToWorker, ...], ...]
    workers: tuple[AligningWorker, ...]
    blocked: tuple[frozenset[int], ...]
    versions: tuple[int, ...]
    """By worker, the changes in its base: all but tagged ones that are not over."""
    tags: tuple[int, ...]
    """By worker, the bits of the tagged changes of its operator that are not over."""
    arrivals: frozenset[Arrivals]
    controller: Controller
    requests: int
    checkpoints: int
    snapshots: frozenset[tuple[int, int, int]]
    completed: frozenset[int]
    history: frozenset[Operation]


class Model:
    """The transition system of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        if any(plan.commit is not CommitPoint.NOW for plan in scenario.plans):
            raise SimulationError("only plans that commit at once have interleavings to explore")
        self.scenario = scenario
        self.graph = scenario.graph
        self.topology = Topology(scenario.graph)
        self._router = Router(self.topology, scenario.behaviours)
        self._numbers = {instance.name: instance.number for instance in self.topology.workers}
        self._sources = [
            instance.number for instance in self.topology.workers if self._is_source(instance)
        ]
        self._tagged = sum(
            1 << number
            for number, plan in enumerate(scenario.plans, 1)
            if plan.propagation is Propagation.TAGS
        )
        self._draining = {
            number: self._from_components(plan)
            for number, plan in enumerate(scenario.plans, 1)
            if plan.propagation is Propagation.TAGS
        }
        """Per tagged change, the channels and workers where its old tuples may be."""

    @cached_property
    def initial(self) -> State:
        """No tuple emitted; unless they are late, all changes are requested."""
        count = len(self.topology.workers)
        per_source = self.scenario.tuples
        pending = [
            () if w not in self._sources else self._txns(w, per_source) for w in range(count)
        ]
        state = State(
            pending=tuple(pending),
            channels=((),) * len(self.topology.channels),
            links=((),) * count,
            workers=tuple(
                AligningWorker.of(instance.name, frozenset(self.topology.inputs[instance.number]))
                for instance in self.topology.workers
            ),
            blocked=(frozenset(),) * count,
            versions=(0,) * count,
            tags=(0,) * count,
            arrivals=frozenset(),
            controller=Controller(guard=self.scenario.guard),
            requests=len(self.scenario.plans),
            checkpoints=self.scenario.checkpoints,
            snapshots=frozenset(),
            completed=frozenset(),
            history=frozenset(),
        )
        for instance in self.topology.workers:
            joined = Joined(instance.name, instance.name, source=self._is_source(instance))
            state = self._control(state, joined)
        while state.requests and not self.scenario.late:
            state = self._request(state)
        return state

    def actions(self, state: State) -> Iterator[Action]:
        """Everything that can happen next."""
        for worker in self._sources:
            if state.pending[worker]:
                yield Action("emit", worker)
        for number, queue in enumerate(state.channels):
            if queue and number not in state.blocked[self.topology.channels[number].target]:
                yield Action("take", number)
        for worker, link in enumerate(state.links):
            if link:
                yield Action("deliver", worker)
        for change in self._drained(state):
            yield Action("drain", change)
        if state.requests:
            yield Action("request", 0)
        if state.checkpoints:
            yield Action("checkpoint", 0)

    def apply(self, state: State, action: Action) -> State:
        """The state after a step."""
        match action:
            case Action("emit", worker):
                txn, *rest = state.pending[worker]
                state = state._replace(pending=_put(state.pending, worker, tuple(rest)))
                return self._process(state, worker, None, Item(txn, mix(txn)))
            case Action("take", number):
                return self._take(state, number)
            case Action("drain", change):
                return self._control(state, Drained(change))
            case Action("deliver", worker):
                message, *left = state.links[worker]
                state = state._replace(links=_put(state.links, worker, tuple(left)))
                return self._tell(state, worker, Received(message))
            case Action("request", _):
                return self._request(state)
            case _:
                state = state._replace(checkpoints=state.checkpoints - 1)
                return self._control(state, CheckpointDue())

    def finished(self, state: State) -> bool:
        """Whether nothing is left over: otherwise a state without actions is a deadlock."""
        queued = any(state.pending) or any(state.channels) or any(state.links)
        under_way = state.requests or state.controller.changes or state.controller.unsaved
        return not queued and not any(state.blocked) and not under_way

    def mixed_checkpoint(self, state: State) -> bool:
        """Whether some complete checkpoint holds old and new configurations of one change."""
        made: Counter[str] = Counter()
        for plan in self.scenario.plans:
            if plan.propagation is Propagation.TAGS:  # both configurations are in a snapshot
                continue
            made.update(plan.targets)
            for checkpoint in state.completed:
                new = {
                    version >= made[operator]
                    for number, worker, version in state.snapshots
                    if number == checkpoint
                    and (operator := self.topology.workers[worker].operator) in plan.targets
                }
                if len(new) > 1:
                    return True
        return False

    def _txns(self, worker: int, count: int) -> tuple[int, ...]:
        first = self._sources.index(worker) * count
        return tuple(range(first, first + count))

    def _is_source(self, instance: Instance) -> bool:
        return self.graph[instance.operator].source

    def _request(self, state: State) -> State:
        plan = self.scenario.plans[-state.requests]
        state = state._replace(requests=state.requests - 1)
        return self._control(state, self.topology.request(plan))

    def _from_components(self, plan: Plan) -> tuple[frozenset[int], frozenset[int]]:
        """Channels out of, and workers of, a plan's members and all that lies behind them.

        What leaves a blocking operator is stamped anew where it enters a component.
        """
        behind = reaching(self.graph.pipelined, plan.members, forward=True)
        workers = [w.number for w in self.topology.workers if w.operator in behind]
        return (
            frozenset(
                number
                for worker in workers
                if not self.graph[self.topology.workers[worker].operator].blocking
                for number in self.topology.outputs[worker]
            ),
            frozenset(workers),
        )

    def _drained(self, state: State) -> Iterator[int]:
        """The tagged changes that are over as soon as the controller hears of it."""
        for change in state.controller.changes:
            switched = change.phase is Phase.COMMITTED and not change.waiting
            if change.tagged and switched and not self._old_left(state, change.number):
                yield change.number

    def _old_left(self, state: State, change: int) -> bool:
        """Whether a tuple without a change's bit may still meet or leave a target of it."""
        channels, workers = self._draining[change]
        for number in channels:
            for message in state.channels[number]:
                if isinstance(message, Item) and not message.tag >> change & 1:
                    return True
        return any(
            entry.worker in workers and not entry.tag >> change & 1 and self._awaited(state, entry)
            for entry in state.arrivals
        )

    def _awaited(self, state: State, entry: Arrivals) -> bool:
        """Whether a unique operator may yet emit: tuples are missing and some are under way."""
        operator = self.topology.workers[entry.worker].operator
        return entry.seen < self._behaviour(operator).joins and any(
            isinstance(message, Item) and message.txn == entry.txn
            for queue in state.channels
            for message in queue
        )

    def _take(self, state: State, number: int) -> State:
        worker = self.topology.channels[number].target
        message, *rest = state.channels[number]
        state = state._replace(channels=_put(state.channels, number, tuple(rest)))
        match message:
            case Marker(change):
                return self._tell(state, worker, MarkerArrived(change, number))
            case Barrier(checkpoint):
                return self._tell(state, worker, BarrierArrived(checkpoint, number))
            case Item():
                return self._process(state, worker, number, message)

    def _process(self, state: State, worker: int, channel: int | None, item: Item) -> State:
        """One data operation: stamp the tuple at an entry, process it, emit."""
        operator = self.topology.workers[worker].operator
        item = item._replace(tag=item.tag | self._stamp(state.workers[worker], channel))
        version = state.versions[worker] + (item.tag & state.tags[worker]).bit_count()
        state = state._replace(history=state.history | {Operation(item.txn, operator, version)})
        if not self.graph[operator].unique:
            return self._emit(state, worker, item)
        state, arrivals = self._arrived(state, worker, item)
        if arrivals.seen != self._behaviour(operator).joins:
            return state
        return self._emit(state, worker, Item(item.txn, mix(~item.txn), arrivals.tag))

    def _stamp(self, machine: AligningWorker, channel: int | None) -> int:
        """The bits of the tagged changes whose component a tuple enters here."""
        bits = 0
        for change, part in machine.parts:
            if change in machine.core.effective and (channel is None or channel in part.entries):
                bits |= 1 << change
        return bits & self._tagged

    def _arrived(self, state: State, worker: int, item: Item) -> tuple[State, Arrivals]:
        """Count an arrival at a unique operator; its tuples of one transaction merge tags."""
        before = next(
            (a for a in state.arrivals if a.worker == worker and a.txn == item.txn),
            Arrivals(worker, item.txn, 0, 0),
        )
        after = before._replace(seen=before.seen + 1, tag=before.tag | item.tag)
        return state._replace(arrivals=(state.arrivals - {before}) | {after}), after

    def _emit(self, state: State, worker: int, item: Item) -> State:
        channels = list(state.channels)
        blocking = self.graph[self.topology.workers[worker].operator].blocking
        for number, uid in self._router.route(worker, item.txn, item.uid):
            txn, tag = (_begin(number, uid), 0) if blocking else (item.txn, item.tag)
            channels[number] = (*channels[number], Item(txn, uid, tag))
        return state._replace(channels=tuple(channels))

    def _behaviour(self, operator: str) -> Behaviour:
        return self.scenario.behaviours.get(operator, DEFAULT)

    def _control(self, state: State, event: ControllerEvent) -> State:
        """Drive the controller's machine and carry out its instructions."""
        controller, instructions = state.controller.handle(event)
        state = state._replace(controller=controller)
        for instruction in instructions:
            match instruction:
                case Send(name, (Prepare() | Retire() | Abort()) as message):
                    if isinstance(message, Retire):
                        state = self._fold(state, self._numbers[name], message.change)
                    state = self._tell(state, self._numbers[name], Received(message))
                case Send(name, message):
                    worker = self._numbers[name]
                    link = (*state.links[worker], message)
                    state = state._replace(links=_put(state.links, worker, link))
                case CheckpointComplete(checkpoint):
                    state = state._replace(completed=state.completed | {checkpoint})
                case Record():
                    pass
        return state

    def _fold(self, state: State, worker: int, change: int) -> State:
        """Make a tagged change that is over part of a target's base; its bit is dropped next."""
        version = state.versions[worker] + (state.tags[worker] >> change & 1)
        return state._replace(versions=_put(state.versions, worker, version))

    def _marked(self, state: State, worker: int) -> int:
        """How often a worker switched by markers: its version without what was folded in."""
        open_changes = {change.number for change in state.controller.changes}
        operator = self.topology.workers[worker].operator
        folded = sum(
            operator in self.scenario.plans[number - 1].targets
            for number in self._draining
            if number <= state.controller.last and number not in open_changes
        )
        return state.versions[worker] - folded

    def _tell(self, state: State, worker: int, event: AligningEvent) -> State:
        """Drive a worker's machine and carry out its instructions."""
        machine, instructions = state.workers[worker].handle(event)
        state = state._replace(workers=_put(state.workers, worker, machine))
        for instruction in instructions:
            state = self._carry_out(state, worker, instruction)
        return state

    def _carry_out(self, state: State, worker: int, instruction: AligningInstruction) -> State:
        match instruction:
            case Say(message):
                assert isinstance(message, FromWorker), "it has no tasks"
                return self._control(state, Heard(self.topology.workers[worker].name, message))
            case Load(change):
                if dict(state.workers[worker].parts)[change].targets:
                    tags = state.tags[worker] | 1 << change & self._tagged
                    state = state._replace(tags=_put(state.tags, worker, tags))
                return self._tell(state, worker, Loaded(change))
            case Switch(change, targets):
                updated = bool(targets) and not self._tagged >> change & 1
                version = state.versions[worker] + updated
                return state._replace(versions=_put(state.versions, worker, version))
            case SendMarkers(change, channels):
                return self._broadcast(state, channels, Marker(change))
            case Block(channel):
                blocked = state.blocked[worker] | {channel}
                return state._replace(blocked=_put(state.blocked, worker, blocked))
            case Unblock(channels):
                blocked = state.blocked[worker] - channels
                return state._replace(blocked=_put(state.blocked, worker, blocked))
            case TakeSnapshot(checkpoint):
                snapshot = (checkpoint, worker, self._marked(state, worker))
                state = state._replace(snapshots=state.snapshots | {snapshot})
                outputs = tuple(self.topology.outputs[worker])
                return self._broadcast(state, outputs, Barrier(checkpoint))
            case Drop(change):
                tags = state.tags[worker] & ~(1 << change)
                return state._replace(tags=_put(state.tags, worker, tags))

    def _broadcast(self, state: State, numbers: tuple[int, ...], message: Message) -> State:
        channels = list(state.channels)
        for number in numbers:
            channels[number] = (*channels[number], message)
        return state._replace(channels=tuple(channels))


def _begin(channel: int, uid: int) -> int:
    """The transaction that a blocking operator's output begins: positive, 63 bits."""
    return mix(uid ^ channel << 40) >> 1


def _put(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    """A copy of a tuple with one item replaced."""
    return (*items[:place], item, *items[place + 1 :])
