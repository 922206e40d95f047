"""Fries on Spark: change the operators of a running PySpark job, fast and consistently.

The public names, loaded when first used: a Python worker that needs only the runtime must
not pay for the planner's libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from fries.control.tls import Tls
    from fries.errors import (
        AbortedError,
        FriesError,
        GraphError,
        LogError,
        NotRunningError,
        OperatorError,
        PlanError,
        RolledBackError,
        StateError,
        TooFewRowsError,
        UpdateRefusedError,
        UsageError,
    )
    from fries.events import Event
    from fries.flow import Flow
    from fries.graph import Edge, Emits, Graph, Operator, Partitioning
    from fries.history import Entry
    from fries.plan import CommitPoint, Plan, Propagation
    from fries.reconfiguration import Reconfiguration
    from fries.runtime.spec import DeadLetters, Function
    from fries.schedulers import SCHEDULERS
    from fries.serializability import Verdict, check, check_trace
    from fries.spark.policy import Supervision
    from fries.spark.supervisor import SupervisedQuery
    from fries.stream import Stream
    from fries.trace import Trace, TraceBuilder
    from fries.updates import Update

__all__ = [
    "SCHEDULERS",
    "AbortedError",
    "CommitPoint",
    "DeadLetters",
    "Edge",
    "Emits",
    "Entry",
    "Event",
    "Flow",
    "FriesError",
    "Function",
    "Graph",
    "GraphError",
    "LogError",
    "NotRunningError",
    "Operator",
    "OperatorError",
    "Partitioning",
    "Plan",
    "PlanError",
    "Propagation",
    "Reconfiguration",
    "RolledBackError",
    "StateError",
    "Stream",
    "SupervisedQuery",
    "Supervision",
    "Tls",
    "TooFewRowsError",
    "Trace",
    "TraceBuilder",
    "Update",
    "UpdateRefusedError",
    "UsageError",
    "Verdict",
    "check",
    "check_trace",
]

_HOMES = {
    "control.tls": ("Tls",),
    "errors": (
        "AbortedError",
        "FriesError",
        "GraphError",
        "LogError",
        "NotRunningError",
        "OperatorError",
        "PlanError",
        "RolledBackError",
        "StateError",
        "TooFewRowsError",
        "UpdateRefusedError",
        "UsageError",
    ),
    "events": ("Event",),
    "flow": ("Flow",),
    "graph": ("Edge", "Emits", "Graph", "Operator", "Partitioning"),
    "history": ("Entry",),
    "plan": ("CommitPoint", "Plan", "Propagation"),
    "reconfiguration": ("Reconfiguration",),
    "runtime.spec": ("DeadLetters", "Function"),
    "schedulers": ("SCHEDULERS",),
    "serializability": ("Verdict", "check", "check_trace"),
    "spark.policy": ("Supervision",),
    "spark.supervisor": ("SupervisedQuery",),
    "stream": ("Stream",),
    "trace": ("Trace", "TraceBuilder"),
    "updates": ("Update",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Find a public name in its module, once."""
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("fries-spark")
    elif name in _HOME_OF:
        value = _found(name)
    else:
        raise AttributeError(f"module 'fries' has no attribute {name!r}")
    globals()[name] = value
    return value


def _found(name: str) -> object:
    try:
        home = import_module(f"fries.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        from fries.extras import needs_spark

        raise needs_spark(error) from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
