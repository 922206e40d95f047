"""Every error that Fries raises, as one small tree.

::

    FriesError
     +-- GraphError               the dataflow graph is not one Fries can plan on
     |    +-- CycleError
     |    +-- UnknownOperatorError
     |    +-- DuplicateOperatorError
     |    +-- DuplicateEdgeError
     |    +-- UnreachableOperatorError
     |    +-- TraitError
     +-- UsageError               what is asked for cannot be built or done; nothing was changed
     |    +-- ArgumentError       an argument of a wrong type or value
     |    +-- SchemaError         columns or types that do not fit
     |    +-- FlowError           operators, streams and outputs that do not fit together
     |    +-- FlowStateError      a flow that is not in a state for it: built, running, stopped
     +-- PlanError                a reconfiguration that was refused before anything changed
     |    +-- EmptyUpdateError
     |    +-- UnknownSchedulerError
     |    +-- UpdateRefusedError
     |    +-- NotRunningError
     |    +-- AlreadyAppliedError
     +-- AbortedError             a reconfiguration that a worker could not prepare
     +-- RolledBackError          one that failed on live rows and was taken back
     +-- TooFewRowsError          one that has not met as many rows as somebody waits for
     +-- ScheduleError            operations that do not form a schedule
     +-- ProtocolError            a message that the protocol does not allow now
     +-- WireError                a control connection that broke, or broke the rules
     |    +-- AuthenticationError
     |    +-- TlsError
     +-- OperatorError            a user's function failed on live rows
     |    +-- StateError          ... or made a state that cannot be kept, or cannot read one
     +-- StaleCodeError           a worker has other code than the caller, and could not be sent it
     +-- ReplayError              a task that cannot be repeated as it was
     +-- LogError                 the durable log cannot be read or written
     |    +-- LogMismatchError    ... or belongs to another flow
     |    +-- LogDamagedError     ... or something that happened is missing in it
     |    +-- LogTakenError       ... or belongs to another driver by now
     +-- SparkVersionError        PySpark is missing, or not one that is supported

Each error has typed fields, builds its own message, and survives pickling,
because errors cross process boundaries between workers and the driver.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

MOST_NAMES: Final = 12
"""Of a long list, what a message shows."""


@dataclass(eq=False)
class FriesError(Exception):
    """Base class of all errors raised by Fries."""

    def __str__(self) -> str:
        """Build the message from the fields."""
        return type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields: ``Exception`` would only keep positional arguments."""
        return type(self), tuple(getattr(self, f.name) for f in dataclasses.fields(self))


class GraphError(FriesError):
    """The dataflow graph is malformed; nothing was built."""


@dataclass(eq=False)
class CycleError(GraphError):
    """Operators feed each other in a circle."""

    cycle: tuple[str, ...]

    def __str__(self) -> str:
        shown = self.cycle
        if len(shown) > MOST_NAMES:
            half = MOST_NAMES // 2
            shown = (*shown[:half], f"({len(shown) - 2 * half} more)", *shown[-half:])
        path = " -> ".join((*shown, self.cycle[0]))
        return f"the dataflow has a cycle: {path}; remove one of these edges"


@dataclass(eq=False)
class UnknownOperatorError(GraphError):
    """A name that no operator has."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"there is no operator named {self.name!r}; the operators are {_listed(self.known)}"


@dataclass(eq=False)
class DuplicateOperatorError(GraphError):
    """Two operators with one name."""

    name: str

    def __str__(self) -> str:
        return f"two operators are named {self.name!r}; give each operator its own name"


@dataclass(eq=False)
class DuplicateEdgeError(GraphError):
    """Two edges between the same pair of operators."""

    source: str
    target: str

    def __str__(self) -> str:
        return (
            f"there are two edges {self.source} -> {self.target}; keep one, or put an operator "
            "of its own on one of them"
        )


@dataclass(eq=False)
class UnreachableOperatorError(GraphError):
    """Operators that can never receive a tuple."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"no source reaches {_listed(self.names)}; connect them to a source, or declare "
            "those that read data themselves with source=True"
        )


@dataclass(eq=False)
class TraitError(GraphError):
    """Traits of one operator or edge that contradict each other."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(eq=False)
class UsageError(FriesError):
    """Something that cannot be built or done as it was asked for; nothing was changed."""

    where: str
    """What it is about, such as ``operator 'FC'``."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class ArgumentError(UsageError):
    """An argument of a wrong type or value."""


class SchemaError(UsageError):
    """Columns or types that do not fit."""


class FlowError(UsageError):
    """Operators, streams and outputs that do not fit together."""


class FlowStateError(UsageError):
    """A flow that is not in a state for it: it is built, it runs, or it was stopped."""


class PlanError(FriesError):
    """The reconfiguration was refused; nothing was changed."""


@dataclass(eq=False)
class EmptyUpdateError(PlanError):
    """A reconfiguration of no operator."""

    def __str__(self) -> str:
        return "the reconfiguration names no operator; name at least one operator to update"


@dataclass(eq=False)
class UnknownSchedulerError(PlanError):
    """A scheduler name that does not exist."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"there is no scheduler {self.name!r}; choose one of {_listed(self.known)}"


@dataclass(eq=False)
class UpdateRefusedError(PlanError):
    """A new function that its operator cannot take."""

    operator: str
    problem: str

    def __str__(self) -> str:
        return f"the update of operator {self.operator!r} is refused: {self.problem}"


@dataclass(eq=False)
class NotRunningError(PlanError):
    """A reconfiguration of a flow that no worker runs."""

    flow: str

    def __str__(self) -> str:
        return (
            f"no worker runs flow {self.flow!r} now; start its query first (with flow.start, or "
            "wait until flow.workers is not empty)"
        )


@dataclass(eq=False)
class AlreadyAppliedError(PlanError):
    """The same reconfiguration a second time."""

    targets: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{_listed(self.targets)}: these functions are in place, or about to be; nothing is to "
            "be done"
        )


@dataclass(eq=False)
class AbortedError(FriesError):
    """A worker could not prepare the reconfiguration, so it was aborted everywhere."""

    reason: str

    def __str__(self) -> str:
        return f"the reconfiguration was aborted and nothing was changed: {self.reason}"


@dataclass(eq=False)
class RolledBackError(FriesError):
    """The reconfiguration failed on live rows, so it was taken back with its batch."""

    targets: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"the reconfiguration of {_listed(self.targets)} was rolled back: {self.reason}"


@dataclass(eq=False)
class TooFewRowsError(FriesError):
    """A change is in force, but not as many rows as somebody waits for will go through it."""

    number: int
    wanted: int
    taken: dict[str, int]
    """By target, the rows that its new version has taken."""
    reason: str

    def __str__(self) -> str:
        taken = ", ".join(f"{name} has taken {rows:,}" for name, rows in self.taken.items())
        return (
            f"change {self.number} waits for {self.wanted:,} rows of each target ({taken}), and no "
            f"more will come: {self.reason}"
        )


@dataclass(eq=False)
class ScheduleError(FriesError):
    """Operations that do not form a schedule."""

    problem: str

    def __str__(self) -> str:
        return f"not a schedule: {self.problem}"


@dataclass(eq=False)
class ProtocolError(FriesError):
    """A message or event that the protocol does not allow in this state."""

    who: str
    problem: str

    def __str__(self) -> str:
        return f"{self.who}: {self.problem}"


@dataclass(eq=False)
class WireError(FriesError):
    """A control connection broke, or its peer broke the rules."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class AuthenticationError(WireError):
    """The peer has not proved that it belongs to this job."""


class TlsError(WireError):
    """Certificates or keys that no connection can be made with."""


@dataclass(eq=False)
class OperatorError(FriesError):
    """A user's function failed, or returned what its operator did not declare."""

    operator: str
    problem: str
    row: str = ""
    """The row it failed on, shortened, if there was just one."""
    story: str = ""
    """The traceback."""
    change: int | None = None
    """The change whose migration failed; ``None`` if it was no migration."""

    def __str__(self) -> str:
        row = f" on {self.row}" if self.row else ""
        whose = "" if self.change is None else f" in the migration of change {self.change}"
        story = f"\n{self.story}" if self.story else ""
        return f"operator {self.operator!r} failed{row}{whose}: {self.problem}{story}"


@dataclass(eq=False)
class StateError(OperatorError):
    """A state that cannot be kept, or one that was kept and cannot be read."""

    keys: tuple[object, ...] = ()
    """Whose state it is. :attr:`change` is the one that wrote it; 0: an earlier batch did, or the
    flow as it was built."""

    def __str__(self) -> str:
        story = f"\n{self.story}" if self.story else ""
        whose = f", which change {self.change} wrote" if self.change else ""
        return f"operator {self.operator!r} failed on {self.row}{whose}: {self.problem}{story}"


@dataclass(eq=False)
class StaleCodeError(FriesError):
    """A process has other code than whoever sent it a function, and by value it cannot travel."""

    module: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.module}.{self.name} is other code here than the caller holds (its module was "
            "edited after this process had imported it, or is another version), and it cannot "
            "travel by value: move what does not pickle (locks, clients, sessions) and imports "
            "inside functions out of its way, or restart the Spark application"
        )


@dataclass(eq=False)
class ReplayError(FriesError):
    """A task is executed again and cannot repeat the switch that others have seen the rows of."""

    stage: int
    partition: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of stage {self.stage} has switched in the middle of rows "
            "that have no fixed order, so it cannot be repeated alone: the batch must be replayed "
            "as a whole, which a query that was started with flow.start does by itself"
        )


@dataclass(eq=False)
class LogError(FriesError):
    """The durable log of changes cannot be read or written."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class LogMismatchError(LogError):
    """The flow is not the one whose changes the log holds."""

    problem: str
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the log of changes in {self.problem} belongs to another flow: "
            f"{'; '.join(self.differences)}. Build the flow as it was, or use a new checkpoint"
        )


@dataclass(eq=False)
class LogDamagedError(LogError):
    """Records of what happened are damaged or missing; nothing was started."""

    problem: str
    damage: tuple[str, ...]

    def __str__(self) -> str:
        checkpoint = self.problem.removesuffix("/fries")
        return (
            f"the log in {self.problem} is damaged ({'; '.join(self.damage)}), and nothing was "
            f"started; `fries log check {checkpoint}` shows what is left of it and the ways out"
        )


@dataclass(eq=False)
class LogTakenError(LogError):
    """Another driver was started on the checkpoint: it goes on, and this one has to stop."""

    problem: str
    owner: str

    def __str__(self) -> str:
        return (
            f"another driver ({self.owner}) was started on {self.problem} and has taken it over; "
            "this one changes nothing there any more. Run one driver on a checkpoint"
        )


@dataclass(eq=False)
class SparkVersionError(FriesError):
    """PySpark is missing, or a version that Fries was not tested with."""

    supported: tuple[str, ...]
    problem: str

    def __str__(self) -> str:
        return (
            f"this needs PySpark {' or '.join(self.supported)}, and {self.problem}; install it "
            "with: pip install 'fries-spark[spark]'"
        )


def _listed(names: tuple[str, ...]) -> str:
    """Join names for a message, shortening a long list."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"
