"""What a start with other code does: the code is compared with what the log has, and deployed.

Of each operator three digests say what is to be done: of the code as it is now, of the code at the
start before, and of the version in force. Code that is as it was leaves live changes alone. Code
that is new is deployed by a change like any other: with a number, a line in the history, a
rollback if it fails, and the version before it to go back to.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa

from fries.change.model import Change, Order
from fries.errors import LogMismatchError, UpdateRefusedError
from fries.failing import clipped, described
from fries.graph import Graph
from fries.labels import code_label
from fries.log.reading import Reading
from fries.plan import Plan
from fries.runtime.digests import digest_of_operator, short_form
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Function, OperatorSpec
from fries.schedulers import scheduler as scheduler_of
from fries.spark.migrations import Migrations
from fries.spark.shipping import order_of, packed
from fries.updates import check_columns
from fries.versions import Applied, Versions

DEPLOYED: Final = "deployed by a start: "
"""How the notes of deployments begin."""
STAYS: Final = "does not run the code that it has"
DEPLOYS: Final = "runs the code that it has, and its live change no more"
"""What a start warns of."""
MOST_NOTE: Final = 100
"""Characters of the note of a change that another one replaces."""
_logger = logging.getLogger(__name__)


class Program(NamedTuple):
    """A flow as its code has it now."""

    operators: tuple[OperatorSpec, ...]
    """In topological order."""
    edges: tuple[EdgeSpec, ...]
    groups: int
    crossing: Mapping[int, pa.Schema]
    """Columns of the edges that Spark's plan fixes."""
    graph: Graph

    def digests(self) -> dict[str, str]:
        """By operator with a function, the digest of its code."""
        named = {spec.name: spec for spec in self.operators if spec.function is not None}
        return {name: digest_of_operator(spec) for name, spec in named.items()}


class Verdict(NamedTuple):
    """What a start does with one operator."""

    deploy: bool
    why: str
    held: bool = False
    """Whether new code was kept back: a later start will find it new, and deploy it."""
    surprises: bool = False
    """Whether what runs is not what the code says, or a live change is gone."""


@dataclass(frozen=True)
class Deployment:
    """What is in force after a start."""

    verdicts: Mapping[str, Verdict]
    plan: Plan | None = None
    """Of the change that brings the new code, if there is any."""
    order: Order | None = None
    migrations: Mapping[str, Function | None] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """Operators that get new code."""
        return () if self.plan is None else self.plan.targets


def base_of(
    program: Program, read: Reading, digests: Mapping[str, str]
) -> tuple[OperatorSpec, ...]:
    """The operators that all changes of a log build on: those of its first start.

    Where the code is as it was then, the code itself. If the log has lost them, or they cannot be
    loaded, the code of now takes their place, and there is no way back behind it.
    """
    if not read.base:
        return program.operators
    try:
        first: Sequence[OperatorSpec] = pickle.loads(read.base[0], buffers=read.base[1:])
    except BaseException as error:  # the user's code may raise anything, even SystemExit
        told = described(error)
        _logger.warning("the code of the first start cannot be loaded (%s): no way back", told)
        return program.operators
    known = {spec.name: spec for spec in first}
    return tuple(_base(spec, known.get(spec.name), digests) for spec in program.operators)


def _base(
    code: OperatorSpec, first: OperatorSpec | None, digests: Mapping[str, str]
) -> OperatorSpec:
    if first is None:  # it is another flow, which is refused
        return code
    if first.function is None or digest_of_operator(first) == digests.get(code.name):
        return replace(code, keying=first.keying)
    return replace(
        code,
        function=first.function,
        result=first.result,
        style=first.style,
        schema=first.schema,
        takes=first.takes,
        keying=first.keying,
    )


def verdicts_of(
    versions: Versions,
    current: Mapping[str, OperatorSpec],
    digests: Mapping[str, str],
    recorded: Mapping[str, str],
    lost: Collection[str],
    migrated: Collection[str],
    replace_functions: bool | None,
) -> dict[str, Verdict]:
    """For each operator with a function, whether its code is deployed, and why.

    ``migrated`` have new migrations: those are part of the code.
    """
    found = {}
    for name, code in digests.items():
        newest, before = versions.newest(name), recorded.get(name)
        changed = (before is not None and before != code) or name in migrated
        if name in lost:
            why = "its live functions are lost"
            found[name] = Verdict(bool(replace_functions) or changed, why, surprises=True)
        elif digest_of_operator(current[name]) == code and name not in migrated:
            found[name] = _as_in_force(newest, changed)
        else:
            why = "its code has new migrations" if name in migrated else "its code has changed"
            found[name] = _other(newest, before, why if changed else "", replace_functions)
    return found


def _as_in_force(newest: Applied | None, changed: bool) -> Verdict:
    if newest is not None:
        return Verdict(False, f"the code has what change {newest.change.number} brought")
    if changed:
        return Verdict(True, "its code has changed, and what it was before is lost")
    return Verdict(False, "the code is as it was")


def _other(
    newest: Applied | None, before: str | None, changed: str, replace_functions: bool | None
) -> Verdict:
    """The code is not what is in force; ``changed`` says what is new of it, if something is."""
    live = "" if newest is None else _told(newest)
    if replace_functions or (changed and replace_functions is None):
        why = changed or "replace_functions=True asks for the code"
        replaces = f"; it replaces {live}" if live else ""
        lost = newest is not None and is_live(newest.change)
        return Verdict(True, why + replaces, surprises=lost)
    if replace_functions is False:
        why = "replace_functions=False keeps what is logged"
    elif before is None:
        why = "an older Fries did not note which code it replaced"
    elif newest is None:
        why = "the code was deployed before and taken back"
    else:
        why = "the code is the one that it replaced"
    stays = f"{live or 'the version before'} stays: {why}"
    return Verdict(False, stays, bool(changed), surprises=True)


def is_live(change: Change) -> bool:
    """Whether somebody has asked for a change while the query ran."""
    return not change.order.automatic and not change.order.note.startswith(DEPLOYED)


def _told(newest: Applied) -> str:
    """A change with its note; what a deployment says of those before it is not said again."""
    note = newest.change.order.note
    if note.startswith(DEPLOYED):
        note = "a deployment"
    told = f" ({clipped(note, MOST_NOTE)})" if note else ""
    return f"change {newest.change.number}{told}"


def prepare(
    program: Program,
    versions: Versions,
    current: Mapping[str, OperatorSpec],
    verdicts: Mapping[str, Verdict],
    migrations: Migrations,
    counts: Mapping[str, int],
    place: str,
) -> Deployment:
    """The change that brings the code of some operators; refused if it does not fit the rest."""
    wanted = {name for name, verdict in verdicts.items() if verdict.deploy}
    if not wanted:
        return Deployment(verdicts)
    base = versions.built
    code = {
        spec.name: replace(
            spec, keying=base[spec.name].keying, label=code_label(spec.function, spec.result)
        )
        for spec in program.operators
        if spec.name in wanted
    }
    try:
        ready = check_columns(tuple(current.values()), program.edges, code, program.crossing)
    except UpdateRefusedError as error:
        raise LogMismatchError(
            place,
            (
                f"the new code of {', '.join(sorted(wanted))} does not fit what is in force of "
                f"the other operators ({error}); with replace_functions=True all code is deployed",
            ),
        ) from error
    plan = scheduler_of("fries")(program.graph, tuple(code))
    steps = {name: migrations.new.get(name) for name in code}
    package = packed(Shipped(ready, steps), base)
    numbers = {name: counts.get(name, 0) + 1 for name in code}
    order = order_of(
        plan,
        package,
        numbers,
        labels={name: spec.label for name, spec in ready.items()},
        requested=time.time(),
        note=_note(code, verdicts),
        timeout=0.0,
        automatic=False,
        undoes=0,
        stages=frozenset(),
    )
    return Deployment(verdicts, plan, order, steps)


def _note(targets: Iterable[str], verdicts: Mapping[str, Verdict]) -> str:
    return DEPLOYED + ", ".join(f"{name} ({verdicts[name].why})" for name in targets)


def tell(
    flow: str,
    verdicts: Mapping[str, Verdict],
    digests: Mapping[str, str],
    versions: Mapping[str, int],
    number: int | None,
) -> None:
    """Log a line for each operator, and a warning if that is not what one would think."""
    surprises = [
        f"{name} {DEPLOYS if one.deploy else STAYS} ({one.why})"
        for name, one in verdicts.items()
        if one.surprises
    ]
    if surprises:
        _logger.warning("flow %s: %s", flow, "; ".join(surprises))
    for name, verdict in verdicts.items():
        how = f"deployed as change {number}: " if verdict.deploy else ""
        _logger.info(
            "flow %s, operator %s: version %d, code %s, %s%s",
            flow,
            name,
            versions.get(name, 0),
            short_form(digests[name]),
            how,
            verdict.why,
        )
