"""A simulated worker: one instance of an operator, with its queues and its machine."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TypeAlias

from fries.protocol.messages import ToWorker
from fries_lab.sim.model import Barrier, Marker
from fries_lab.sim.routing import DEFAULT
from fries_lab.sim.setup import Cost, Setup
from fries_lab.sim.topology import Instance
from fries_lab.sim.worker_machine import AligningWorker

Item: TypeAlias = "tuple[int, int, float, int]"
"""A tuple on its way: transaction, identity, time of birth, tag (a bit per change)."""
Message: TypeAlias = "Item | Marker | Barrier"
Determinant: TypeAlias = "int | ToWorker"
"""What a worker did next and could not have known: the channel it took from, or a message."""


class SimWorker:
    """State of one worker. Slots, because there are thousands and they are used all the time."""

    __slots__ = (
        "allowance",
        "arrivals",
        "awake",
        "backlog",
        "blocked",
        "busy",
        "control",
        "costs",
        "current",
        "emitted",
        "held",
        "inbox",
        "inputs",
        "is_sink",
        "joins",
        "log",
        "machine",
        "name",
        "number",
        "operator",
        "paused",
        "pending",
        "replay",
        "slowdown",
        "source",
        "stamps",
        "tag_bits",
        "txns",
        "unique",
        "version",
        "versions",
    )

    def __init__(self, instance: Instance, setup: Setup, inputs: list[int]) -> None:
        operator = setup.graph[instance.operator]
        self.number = instance.number
        self.name = instance.name
        self.operator = instance.operator
        self.inputs = frozenset(inputs)
        self.source: int | None = None
        """Its number among the source workers, if it is one."""
        self.is_sink = not setup.graph.outputs(instance.operator)
        self.unique = operator.unique
        self.joins = setup.behaviours.get(instance.operator, DEFAULT).joins
        self.costs = setup.costs.get(instance.operator, (Cost(),))
        self.slowdown = setup.slowdown.get((instance.operator, instance.index), 1.0)
        self.txns = array("q")
        """The transactions that it worked for, and in ``versions`` the version each time."""
        self.versions = array("i")
        self.log: list[Determinant] = []
        self.reset()

    def reset(self) -> None:
        """Empty queues and the configuration of the beginning; the trace and the log stay."""
        self.machine = AligningWorker.of(self.name, self.inputs)
        self.inbox: deque[tuple[int, Message]] = deque()
        self.blocked: set[int] = set()
        self.held: dict[int, list[Message]] = {}
        """What arrived on blocked channels."""
        self.pending: deque[tuple[int, Message]] = deque()
        """Output that waits for room in a channel; nothing else is done meanwhile."""
        self.control: deque[ToWorker] = deque()
        self.replay: deque[Determinant] = deque()
        self.busy = False
        self.awake = False
        self.current: Item | None = None
        self.version = 0
        self.stamps: list[tuple[int, frozenset[int]]] = []
        """Tagged changes that it has switched to: bit, and channels over which tuples enter."""
        self.tag_bits = 0
        """Tagged changes that update this operator."""
        self.arrivals: dict[int, tuple[int, int]] = {}
        """For a unique operator, by transaction: tuples so far, and their tags."""
        self.backlog: deque[float] = deque()
        self.emitted = 0
        self.allowance = 0
        self.paused = False

    def items(self) -> list[Item]:
        """The tuples that are with this worker or on their way to it."""
        messages = [message for _, message in self.inbox]
        messages.extend(message for held in self.held.values() for message in held)
        messages.extend(message for _, message in self.pending)
        found = [m for m in messages if not isinstance(m, Marker | Barrier)]
        return found if self.current is None else [*found, self.current]
