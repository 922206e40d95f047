"""A flow that goes on where an earlier driver has left off: from its checkpoint's log."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from fries.control.changes import Change, Order
from fries.control.ledger import Ledger
from fries.control.messages import ANY_BATCH, Failed
from fries.control.server import ControlServer
from fries.errors import LogError
from fries.log.log import Log, Logged
from fries.log.records import Shape
from fries.protocol.controller import Phase
from fries.runtime.shipped import Shipped
from fries.runtime.spec import OperatorSpec
from fries.spark.checkpoint import FOLDER, files_of, last_commit
from fries.versions import Applied, Versions


class Checkpoint(NamedTuple):
    """A query's checkpoint, with the log that is kept in it."""

    session: SparkSession
    folder: str

    def finished(self) -> int:
        """The newest micro-batch that Spark has committed; -1 if none is."""
        return last_commit(self.session, self.folder)

    def recover(
        self,
        shape: Shape,
        server: ControlServer,
        versions: Versions,
        replace_functions: bool,
    ) -> None:
        """Read the log, and let controller and driver know what happened."""
        log = Log(files_of(self.session, f"{self.folder}/{FOLDER}"), shape, replace_functions)
        finished = self.finished()
        changes = []
        for logged in log.changes:
            change = _restored(logged)
            changes.append(change)
            if change.phase is Phase.DONE and logged.payload:
                versions.add(_applied(change, versions.built, versions.current(finished)))
        log.forget()
        server.restore(Ledger(log), changes, log.last, finished)


def _restored(logged: Logged) -> Change:
    """A change of an earlier life: it has happened to all batches that will come, or never."""
    intent, commit, end = logged.intent, logged.commit, logged.end
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
        note=intent.note,
    )
    change = Change(logged.number, order)
    if logged.happened and commit is not None:
        change.move(Phase.DONE, "")
        change.since, change.settled = commit.since, None
        if end is not None and end.failed:
            change.failed(Failed(ANY_BATCH, "", change.number, end.reason, "", ""), end.reason)
    else:
        reason = end.reason if end is not None else "the driver ended before it was committed"
        taken_back = end is not None and end.phase == Phase.ROLLED_BACK.value
        change.move(Phase.ROLLED_BACK if taken_back else Phase.ABORTED, reason)
    change.logged_delay = None if end is None else end.delay
    return change


def _applied(
    change: Change, built: Mapping[str, OperatorSpec], current: Mapping[str, OperatorSpec]
) -> Applied:
    try:
        bare = pickle.loads(change.order.payload, buffers=change.order.buffers)
        shipped = Shipped.of(bare, built)
    except Exception as error:
        raise LogError(
            f"the functions of change {change.number} ({_names(change.order.targets)}) cannot be "
            f"loaded from the log: {error!r}; make their modules importable again, or start the "
            "flow with the functions in its code and replace_functions=True"
        ) from error
    before = {name: current[name] for name in shipped.operators}
    return Applied(change, shipped.operators, before, shipped.migrations, shipped.inverses, {})


def _names(targets: Iterable[str]) -> str:
    return ", ".join(targets)
