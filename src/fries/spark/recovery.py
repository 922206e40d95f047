"""Changes of an earlier driver, as its log tells them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fries.change.model import Change, Order, Phase
from fries.control.live import LiveChange
from fries.control.messages import ANY_BATCH, Failed
from fries.errors import LogError
from fries.failing import described
from fries.log.reading import Logged
from fries.runtime.shipped import Shipped
from fries.runtime.spec import OperatorSpec
from fries.versions import Applied


def _restored(logged: Logged) -> LiveChange:
    """A change of an earlier life: it has happened to all batches that will come, or never."""
    intent, end = logged.intent, logged.end
    assert intent is not None
    payload = bytes(logged.payload[0]) if logged.payload else intent.residue
    order = Order(
        intent.targets,
        payload,
        footprint=frozenset(frozenset(members) for members, _ in intent.components),
        residue=intent.residue,
        buffers=logged.payload[1:],
        requested=intent.time,
        migrates=intent.migrates,
        scheduler=intent.scheduler,
        components=intent.components,
        versions=intent.versions,
        labels=intent.labels,
        note=intent.note,
        undoes=intent.undoes,
        automatic=intent.automatic,
    )
    change = LiveChange(logged.number, order)
    if logged.happened:
        change.move(Phase.DONE, "")
        change.since, change.settled = logged.since, None
        if end is not None and end.failed:
            change.failed(Failed(ANY_BATCH, "", change.number, end.reason, "", ""), end.reason)
    else:
        reason = end.reason if end is not None else "the driver ended before it was committed"
        taken_back = end is not None and end.phase == Phase.ROLLED_BACK.value
        change.move(Phase.ROLLED_BACK if taken_back else Phase.ABORTED, reason)
    change.restored = True
    change.small_in_log = not logged.payload
    change.told = change.state
    change.logged_delay = None if end is None else end.delay
    return change


def _applied(
    change: Change, built: Mapping[str, OperatorSpec], current: Mapping[str, OperatorSpec]
) -> Applied:
    try:
        bare = pickle.loads(change.order.payload, buffers=change.order.buffers)
        shipped = Shipped.of(bare, built)
    except BaseException as error:  # the user's code may raise anything, even SystemExit
        raise LogError(
            f"the functions of change {change.number} ({_names(change.order.targets)}) cannot be "
            f"loaded from the log: {described(error)}; make their modules importable again, or "
            "start the flow with the functions in its code and replace_functions=True"
        ) from error
    labels = change.order.labels
    specs = {
        name: replace(spec, label=labels.get(name, "")) for name, spec in shipped.operators.items()
    }
    before = {name: current[name] for name in specs}
    size = sum(part.nbytes for part in change.order.buffers) + len(change.order.payload)
    return Applied(change, specs, before, shipped.migrations, shipped.inverses, {}, size)


def _names(targets: Iterable[str]) -> str:
    return ", ".join(targets)
