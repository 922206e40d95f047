"""What is explored: a small flow, what users ask for, and what may go wrong.

The flow has two operators in two stages. ``A`` makes several rows of each, one for each partition
of the keyed operator ``B``: the rows of a transaction meet again in different tasks, as on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fries.change.model import Order

ENTRIES: Final = {"A": 0, "B": 1}
"""By operator, the edge over which its rows come; and the stage that it is in."""
STAGES: Final = (("A", 0), ("B", 1))


class Fault(StrEnum):
    """What can go wrong, each so many times."""

    WORKER_DIES = "a worker dies"
    CONNECTION_BREAKS = "a connection breaks"
    TASK_FAILS = "a task fails"
    OUTPUT_LOST = "the output of a task is lost"
    DRIVER_DIES = "the driver dies"
    LOG_FAILS = "the log fails"
    LOG_AMBIGUOUS = "the log fails after it has written"
    LOAD_FAILS = "a worker cannot load a change"
    TIME_IS_OVER = "the time to prepare a change is over"


@dataclass(frozen=True)
class Ask:
    """What a user asks for."""

    targets: tuple[str, ...]
    components: tuple[frozenset[str], ...]
    entries: frozenset[int]
    migrates: bool = False
    at_boundary: bool = False
    bad_from: int | None = None
    """From this batch on its version of ``B`` raises on every row."""
    undoes: int = 0

    def order(self) -> Order:
        """As the controller gets it."""
        return Order(
            self.targets,
            b"",
            frozenset(self.components),
            residue=b"",
            at_boundary=self.at_boundary,
            migrates=self.migrates,
            stages=self.entries,  # each edge leads into the stage of its number
            undoes=self.undoes,
            automatic=bool(self.undoes),
        )


def fries(*targets: str, migrates: bool = False, bad_from: int | None = None) -> Ask:
    """What the Fries scheduler makes of targets: one component, entered at its head.

    ``B`` gets several rows of a transaction, so a component of it begins where they were one.
    """
    members = frozenset(targets) if targets == ("A",) else frozenset(ENTRIES)
    return Ask(targets, (members,), frozenset({0}), migrates, bad_from=bad_from)


def alone(migrates: bool = False, bad_from: int | None = None) -> Ask:
    """``B`` in a flow in which ``A`` makes one row of each: a component that is entered there."""
    return Ask(("B",), (frozenset({"B"}),), frozenset({1}), migrates, bad_from=bad_from)


def epoch(*targets: str, migrates: bool = False) -> Ask:
    """What the epoch scheduler makes of them: all operators, entered at the source."""
    return Ask(targets, (frozenset(ENTRIES),), frozenset({0}), migrates)


def naive(*targets: str) -> Ask:
    """Every target a component of its own: inconsistent."""
    parts = tuple(frozenset({name}) for name in targets)
    return Ask(targets, parts, frozenset(ENTRIES[name] for name in targets))


def mini_batch(*targets: str, migrates: bool = False) -> Ask:
    """All targets, between two batches."""
    return Ask(targets, (frozenset(targets),), frozenset({0}), migrates, at_boundary=True)


@dataclass(frozen=True)
class Scenario:
    """A case to be explored."""

    asks: tuple[Ask, ...]
    faults: tuple[tuple[Fault, int], ...] = ()
    batches: int = 2
    rows: int = 1
    """Of each task of the first stage."""
    tasks: int = 1
    """Of the first stage."""
    partitions: int = 2
    """Tasks of the second stage."""
    copies: bool = True
    """Whether ``A`` makes a row for each of these, or one row only."""
    workers: int = 2
    durable: bool = True
    supervised: bool = False
    """Whether versions that fail are taken back."""
    asks_at_once: bool = False
    """Whether users ask before the first task begins: fewer interleavings."""
    joins_at_once: bool = True
    """Whether the first workers have joined before anything else happens."""
    loads_at_once: bool = False
    """Whether workers need no time to load a change: fewer interleavings."""
    fault_rate: float = 0.05
    """Of random steps, the share that goes wrong while something can."""
    slow_log: bool = False
    """Whether random steps go on for a while before the log writes something."""
    attempts: int = 2
    """Of a task, before its batch fails."""
