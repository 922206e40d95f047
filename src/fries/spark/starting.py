"""A flow that goes on where an earlier driver has left off, with the same code or with new one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from fries.change.model import Change, Order, Phase
from fries.control.ledger import Ledger, intent_of
from fries.control.live import LiveChange
from fries.control.server import ControlServer
from fries.errors import LogError, LogMismatchError, UpdateRefusedError
from fries.log.files import COPIES, FOLDER, Files
from fries.log.log import Code, Log
from fries.log.owners import Ownership, take_over
from fries.log.reading import Logged, Reading
from fries.log.records import Committed, Ended, Founded
from fries.log.shape import COUNT, check_fits, shape_of
from fries.plan import Plan
from fries.runtime.spec import OperatorSpec
from fries.spark.checkpoint import files_of, last_commit
from fries.spark.deployment import Program, Verdict, base_of, is_live, prepare, tell, verdicts_of
from fries.spark.migrations import Migrations, migrations_of
from fries.spark.recovery import _applied, _restored
from fries.spark.shipping import packed_operators, pickled_all
from fries.updates import check_columns
from fries.versions import Versions


class Checkpoint(NamedTuple):
    """A query's checkpoint, with the log that is kept in it."""

    session: SparkSession
    folder: str

    def finished(self) -> int:
        """The newest micro-batch that Spark has committed; -1 if none is."""
        return last_commit(self.session, self.folder)

    def recover(
        self, program: Program, server: ControlServer, replace_functions: bool | None
    ) -> Recovered:
        """Read the log, and let controller and driver know what happened."""
        files, copies = (files_of(self.session, f"{self.folder}/{one}") for one in (FOLDER, COPIES))
        found: list[Start] = []

        def check(read: Reading) -> None:
            read.refuse_damage()
            found.append(Start(program, read, self.finished(), replace_functions))

        read, owner = take_over(files, copies, check)
        start = found[-1]
        try:
            log = start.open(files, copies, read, owner)
            deployed = start.deploy(log)
        except Exception:
            owner.leave()
            raise
        start.tell(server.flow, deployed)
        built = tuple(start.versions.built.values())
        definition = b"" if built == program.operators else pickled_all(built)
        ledger = Ledger(log)
        server.restore(ledger, start.changes, log.last, start.finished, definition)
        return Recovered(start.versions, built, deployed, owner)


class Recovered(NamedTuple):
    """What a flow goes on with."""

    versions: Versions
    operators: tuple[OperatorSpec, ...]
    """As the first start had them: what workers begin with."""
    deployed: tuple[Plan, LiveChange] | None
    """The change that this start has made, if the code is new."""
    owner: Ownership


class Start:
    """A start on a log that was read; refused, before anything is written, if it cannot be."""

    def __init__(
        self, program: Program, read: Reading, finished: int, replace_functions: bool | None
    ) -> None:
        self._program, self._read, self.finished = program, read, finished
        self._digests = program.digests()
        self._shape = shape_of(program.operators, program.edges, program.groups)
        logged = [one for one in read.changes if one.intent is not None]
        replaces = 0 if read.founded is None else read.founded.replaces
        for one in logged:
            if one.number <= replaces:
                one.payload = ()
        self._replaces = replaces
        self._anew = False
        """Whether no version from before fits the plan, so that the log begins anew."""
        try:
            self._stand(logged, base_of(program, read, self._digests), replace_functions)
        except _OtherColumnsError as error:
            if not replace_functions:
                raise LogMismatchError(read.place, (error.problem,)) from error
            self._anew = True
            for one in logged:
                one.payload = ()
            self._stand(logged, program.operators, replace_functions)

    def _stand(
        self,
        logged: list[Logged],
        base: tuple[OperatorSpec, ...],
        replace_functions: bool | None,
    ) -> None:
        """See what is in force, and what the code changes of it."""
        program, read = self._program, self._read
        self.versions = Versions(base)
        self.changes = [_restored(one) for one in logged]
        for one, change in zip(logged, self.changes, strict=True):
            if change.phase is not Phase.DONE:
                continue
            if one.payload:
                self._add(one, change, lenient=bool(replace_functions))
            elif not self._anew and one.number > self._replaces:
                self.versions.skip(change.order.targets)
        current = self.versions.current(self.finished)
        moved = Migrations()
        if read.founded is not None:
            moved = migrations_of(program.operators, self.versions.built, logged, read.place)
            self._check_fits(read.founded, current, strict=replace_functions is False)
        lost = {name for name, _ in read.without_functions()} if not self._anew else ()
        recorded = {} if read.founded is None else read.founded.digests
        verdicts = verdicts_of(
            self.versions, current, self._digests, recorded, lost, moved.new, replace_functions
        )
        if self._anew:
            why = "no version before fits the columns that Spark's plan has now"
            live = {
                name
                for change in self.changes
                if not change.taken_back and is_live(change)
                for name in change.order.targets
            }
            verdicts = {name: Verdict(True, why, surprises=name in live) for name in verdicts}
        self._noted = {
            name: recorded.get(name, digest) if verdicts[name].held else digest
            for name, digest in self._digests.items()
        }
        self._counts = Counter(
            name for one in logged if one.happened and one.intent for name in one.intent.targets
        )
        args = (moved, self._counts, read.place)
        self.deployment = prepare(program, self.versions, current, verdicts, *args)
        read.refuse_lost(self.deployment.targets)

    def _add(self, logged: Logged, change: Change, lenient: bool) -> None:
        try:
            applied = _applied(change, self.versions.built, self.versions.current(self.finished))
        except LogError:
            if not lenient:
                raise
            logged.payload = ()  # the code replaces it
            change.shrink()
        else:
            self.versions.add(applied)

    def _check_fits(
        self, founded: Founded, current: Mapping[str, OperatorSpec], strict: bool
    ) -> None:
        for name, traits in self._shape.operators.items():
            if COUNT in traits and name in founded.shape.operators:  # they were looked at already
                traits[COUNT] = founded.shape.operators[name].get(COUNT, traits[COUNT])
        check_fits(founded.shape, self._shape, self._read.place, columns_may_differ=not strict)
        try:
            check_columns(tuple(current.values()), self._program.edges, {}, self._program.crossing)
        except UpdateRefusedError as error:
            raise _OtherColumnsError(
                f"the versions in its log do not fit the columns of the new code: {error.operator} "
                f"{error.problem}; with replace_functions=True there is no way back to them"
            ) from error

    def open(self, files: Files, copies: Files, read: Reading, owner: Ownership) -> Log:
        """Open the log for writing, and note the code."""
        base = tuple(self.versions.built.values())
        code = Code(self._noted, packed_operators(base) if self._anew or not read.base else ())
        return Log(files, self._shape, self._anew, copies, read, owner, code)

    def deploy(self, log: Log) -> tuple[Plan, LiveChange] | None:
        """Have the log note the code of this start, and the change that brings it."""
        made = None
        if self.deployment.plan is not None and self.deployment.order is not None:
            made = self.deployment.plan, self._bring(log, self.deployment.order)
        founded, read = self._read.founded, self._read
        if founded is None or self._anew:
            return made
        lacks_base = not read.base
        if founded.digests != self._noted or founded.shape != self._shape or lacks_base:
            base = tuple(self.versions.built.values())
            payload = packed_operators(base) if lacks_base else ()
            if read.base_number == log.last and not payload:
                payload = read.base
            log.found(Founded(self._shape, time.time(), founded.replaces, self._noted), payload)
        return made

    def _bring(self, log: Log, order: Order) -> LiveChange:
        number = log.last + 1
        intent = intent_of(number, order)
        log.intend(intent, (order.payload, *order.buffers))
        log.commit(number)
        ended = Ended(number, time.time(), "done")
        log.end(ended)
        payload = (memoryview(order.payload), *order.buffers)
        logged = Logged(number, intent, payload, commit=Committed(number, time.time()), end=ended)
        change = _restored(logged)
        self.changes.append(change)
        current = self.versions.current(self.finished)
        self.versions.add(_applied(change, self.versions.built, current))
        return change

    def tell(self, flow: str, deployed: tuple[Plan, LiveChange] | None) -> None:
        """Log which version of each operator is in force, and why."""
        counts = self._counts + Counter(self.deployment.targets)
        number = None if deployed is None else deployed[1].number
        tell(flow, self.deployment.verdicts, self._digests, counts, number)


class _OtherColumnsError(Exception):
    """What the log has gives other columns than Spark's plan."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
