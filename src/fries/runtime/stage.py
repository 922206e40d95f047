"""A stage at work: chunks go through its operators, in topological order, in one process.

``control.poll`` between two chunks is the only place where the configuration may change, so
a chunk goes through all operators of the stage under one configuration. If a change waits for that,
the operator by which a chunk comes in ends it a few rows later, and the other rows are the next
chunk. In a keyed stage one key group comes after the other, and in a group the rows of older
epochs come first.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from fries.control.messages import Cut
from fries.errors import OperatorError
from fries.runtime.arrow import Integers
from fries.runtime.chunks import Chunk, by_mask, gathered
from fries.runtime.configuration import Configuration
from fries.runtime.data import Data
from fries.runtime.dead_letters import batch_of_letters, parents_of
from fries.runtime.functions import Output, never
from fries.runtime.keyed import in_order, join, keys_of, results
from fries.runtime.misfits import EarlierError
from fries.runtime.pacer import Pacer
from fries.runtime.ports import Control, Note, Recorder
from fries.runtime.runs import Fused, Run, runs_of
from fries.runtime.spec import ERRORS, EdgeSpec, Kind, OperatorSpec, StageSpec
from fries.runtime.state import KeyGroup

Branches: TypeAlias = "Integers | None"
Leaving: TypeAlias = "tuple[EdgeSpec, Chunk]"
Push: TypeAlias = "Callable[[Chunk], list[Leaving]]"
Inbox: TypeAlias = "dict[str, list[Chunk]]"
"""By operator, the rows that it has not processed yet."""
FOLDS: Final = (Kind.PROCESS, Kind.AGGREGATE)
Fresh: TypeAlias = "Callable[[pa.RecordBatch], Chunk]"
"""Makes rows that begin transactions of their own."""


class Stage:
    """One stage of a flow in one task."""

    def __init__(
        self,
        spec: StageSpec,
        configuration: Configuration,
        control: Control,
        recorder: Recorder | None = None,
        fresh: Fresh = Chunk.fresh,
    ) -> None:
        self._configuration = configuration
        self._control = control
        self._recorder = recorder
        self._fresh = fresh
        self._operators = spec.operators
        self._group: KeyGroup | None = None
        self._versions: dict[int, tuple[OperatorSpec, int]] = {}
        """By version of the states in the group, the operator that wrote them, and its change."""
        self._inner = spec.inner
        self._outputs: dict[str, list[EdgeSpec]] = defaultdict(list)
        for edge in spec.edges:
            self._outputs[edge.source].append(edge)
        self._replicated = {
            name for name, edges in self._outputs.items() if _any_twice(e.branch for e in edges)
        }
        """The operators that give the same rows to several others."""
        self._forks = spec.forks
        """Whether rows may wait for an operator while functions of others are called."""
        runs = [Run(names) for names in runs_of(spec.operators, self._outputs)]
        self._runs = {name: run for run in runs for name in run.names}
        """By operator, the maps of rows that follow each other, if it is one of them."""
        self._ways = {edge.number: spec.way_in(edge) for edge in spec.edges}
        """By edge, what rows that come over it pass until an operator does something with them."""
        self.last_old: dict[int, float] = {}
        """By change, when one of its targets last used the version from before it."""
        self._rules = {one.name: one.on_error for one in spec.operators}
        self._strict = True
        """Whether what every operator gives is converted to Arrow at once."""
        self._notes: list[Note] = []
        """What the operators have done with the chunk at hand."""
        self._entry = ""
        """The operator by which the chunk at hand comes in, if it may end early there."""
        self._taken = 0
        """Rows of the chunk at hand that it has taken."""
        self._rows = 0
        """Rows that have been pushed through; of a join, its halves and its pairs."""
        self._stamping = configuration.stamping(self._inner)
        within = [one.switch_within for one in spec.operators if one.switch_within is not None]
        self._number = spec.number
        self._pacer = Pacer(configuration.costs, self._versions_in_force, min(within, default=None))
        self.cuts: list[Cut] = []
        """Where rows began to be stamped for a change."""
        self._ahead: list[Cut] = []
        """In a repetition: where that must happen again."""
        self._failure: tuple[str, int] | None = None
        """The operator that failed, and the change that brought its version, if it is to blame."""
        self.on_probation = False
        """Whether some version is new, so that one that fails may be taken back."""

    def begin_with(self, committed: Iterable[int]) -> None:
        """What the controller thinks that the first row gets; anything more must be noted."""
        self._stamping = self._stamping.intersection(committed)

    def repeat(self, cuts: Sequence[Cut]) -> None:
        """Switch where this task had switched before, and nowhere else."""
        self._ahead = list(cuts)

    def run(self, edge: EdgeSpec, rows: Chunk) -> Iterator[Leaving]:
        """Push rows that came over an edge through the stage; what leaves it comes out."""
        yield from self._paced(rows, partial(self._push, edge), self._group is None)

    def run_group(
        self, operator: OperatorSpec, edge: EdgeSpec, rows: Chunk, group: KeyGroup, hashes: Integers
    ) -> Iterator[Leaving]:
        """Push all rows of a key group through a keyed operator and what follows it.

        Rows of older epochs go first: a state is migrated when the first row of a newer one
        touches it, and no older row may come after that.
        """
        assert operator.keying is not None
        self._control.poll()
        self._group, self._versions = group, {}
        with self._blaming(0):
            group.load(keys_of(operator.keying.columns, rows.batch), hashes)
        yield from self.run(
            edge, in_order(operator, rows, self._configuration.bits_of(operator.name))
        )
        if operator.kind is Kind.AGGREGATE:
            yield from self._results(operator, group)
        self._control.calling(operator.name, group.writer)  # it pickles and unpickles their objects
        with self._blaming(group.writer):
            self._configuration.sampled(operator.name, group.save())
        self._control.returned()
        self._group = None

    def run_join(self, operator: OperatorSpec, left: Leaving, right: Leaving) -> Iterator[Leaving]:
        """Pair the rows of a key group that came over two edges, and push the pairs on."""
        self._control.poll()
        self._note_cut()
        halves = [rows.stamped(self._configuration.stamp_on(e.number)) for e, rows in (left, right)]
        began, moment = time.perf_counter(), time.time()
        if self._recorder is not None:
            for half in halves:
                self._recorder.record(operator.name, 0, half.txns, moment)
        with self._blaming(0):
            pairs = join(operator, *halves)
        taken = sum(map(len, halves))
        self._rows += taken  # so that a cut between halves and pairs is like no other
        self._control.count(operator.name, taken, len(pairs), time.perf_counter() - began)
        yield from self._paced(pairs, partial(self._onward, operator), True)

    def _paced(self, rows: Chunk, push: Push, pure: bool) -> Iterator[Leaving]:
        """Rows in chunks that take a few milliseconds each, with a poll before each.

        Pure: no states are changed, so a chunk can be pushed a second time.
        Nothing of a chunk leaves, and nothing of it is noted, before it was pushed through whole.
        """
        start = 0
        while start < len(rows):
            self._control.poll()
            self._note_cut()
            chunk = rows.slice(start, self._size(len(rows) - start))
            began = time.perf_counter()
            leaving = self._pushed(chunk, push, pure)
            self._strict = True
            self._account()
            self._pacer.measured(self._taken, time.perf_counter() - began)
            start += self._taken
            self._rows += self._taken
            yield from leaving

    def _pushed(self, chunk: Chunk, push: Push, pure: bool) -> list[Leaving]:
        """What leaves of a chunk. If a version fails that can be taken back, it is processed again.

        Nothing of the chunk has left the stage: so the versions before may have it, all of it.
        """
        while True:
            may_go_again = self.on_probation or self._configuration.in_transition
            if may_go_again and self._group is not None:
                self._group.begin()
            self._failure = None
            try:
                if pure and (quick := self._quickly(chunk, push)) is not None:
                    return quick
                return self._strictly(chunk, push)
            except OperatorError:
                if not (may_go_again and self._goes_again()):
                    raise
            self._note_cut()

    def _quickly(self, chunk: Chunk, push: Push) -> list[Leaving] | None:
        """A chunk through the stage, with as few conversions as its rows need.

        ``None``: something is wrong, and has to be told in the strict way.
        """
        self._begin(chunk, strict=False)
        try:
            return _as_arrow(push(chunk.anew()))
        except Exception:  # whatever it is, and whoever is to blame: that is found out then
            self._control.returned()
            return None

    def _strictly(self, chunk: Chunk, push: Push) -> list[Leaving]:
        """A chunk through the stage: what every operator gives is converted to Arrow at once."""
        self._begin(chunk, strict=True)
        return push(chunk.anew())

    def _begin(self, chunk: Chunk, strict: bool) -> None:
        """Nothing has been done with a chunk."""
        self._strict = strict
        self._entry, self._taken, self._notes = "", len(chunk), []

    def _goes_again(self) -> bool:
        """Whether a version that has failed was taken back while its chunk was held.

        A repetition must go as before.
        """
        if self._failure is None or self._configuration.repeats:
            return False
        operator, change = self._failure
        if self._group is not None and not self._group.rewind():
            return False
        return self._control.hold(operator, change, self._number)

    def _note_cut(self) -> None:
        """Switch where a repetition must, and note where rows begin to be stamped."""
        while self._ahead and self._ahead[0].rows == self._rows:
            self._configuration.pin(self._ahead.pop(0).change)
        stamping = self._configuration.stamping(self._inner)
        if stamping != self._stamping:
            self.cuts += [Cut(self._rows, change) for change in sorted(stamping - self._stamping)]
            self._stamping = stamping
            self._pacer.use(self._versions_in_force)

    @property
    def _versions_in_force(self) -> Hashable:
        """What the costs of a chunk depend on."""
        names = [operator.name for operator in self._operators]
        return self._number, self._configuration.in_force(names, self._stamping)

    def _size(self, left: int) -> int:
        """Rows of the next chunk: it may not reach over the next cut of a repetition."""
        size = self._pacer.next(left, self._control.hurried)
        return min(size, self._ahead[0].rows - self._rows) if self._ahead else size

    def _push(self, edge: EdgeSpec, chunk: Chunk) -> list[Leaving]:
        """One chunk over an edge and through all operators, under one configuration."""
        moment, rows = time.time(), chunk
        *passed, last = self._ways[edge.number]
        for one in passed:
            rows = rows.stamped(self._configuration.stamp_on(one.number))
        self._entry = last.target
        inbox: Inbox = defaultdict(list)
        leaving: list[Leaving] = []
        self._send(last, rows, inbox, leaving)
        self._through(inbox, leaving)
        for one in passed:
            txns = None if chunk.txns is None else chunk.txns[: self._taken]
            self._notes.append(Note(one.target, 0, self._taken, txns, self._taken, moment, 0.0))
        return leaving

    def _onward(self, operator: OperatorSpec, made: Chunk) -> list[Leaving]:
        """One chunk from the output of an operator on."""
        inbox: Inbox = defaultdict(list)
        leaving: list[Leaving] = []
        ways = [out for out in self._outputs[operator.name] if out.branch != ERRORS]
        made.data.shared = len(ways) > 1
        for out in ways:
            self._send(out, made, inbox, leaving)
        return self._through(inbox, leaving)

    def _through(self, inbox: Inbox, leaving: list[Leaving]) -> list[Leaving]:
        for place, operator in enumerate(self._operators, 1):
            if operator.kind in FOLDS and operator.name in inbox:
                self._process(operator, inbox, leaving)
                return self._behind(self._operators[place:], inbox, leaving)
            self._process(operator, inbox, leaving)
        return leaving

    def _behind(
        self, operators: Sequence[OperatorSpec], inbox: Inbox, leaving: list[Leaving]
    ) -> list[Leaving]:
        """What follows a keyed operator changes no states: quickly, and strictly if that fails."""
        notes, left = list(self._notes), len(leaving)
        waiting = {name: [one.anew() for one in chunks] for name, chunks in inbox.items()}
        self._strict = False
        try:
            for operator in operators:
                self._process(operator, inbox, leaving)
            return _as_arrow(leaving)
        except Exception:  # as above
            self._control.returned()
        del leaving[left:]
        self._strict, self._notes = True, notes
        inbox = defaultdict(list, waiting)
        for operator in operators:
            self._process(operator, inbox, leaving)
        return leaving

    def _process(self, operator: OperatorSpec, inbox: Inbox, leaving: list[Leaving]) -> None:
        """Let an operator process all that it has got, or the run that it begins.

        What came over several edges is processed together, so that chunks do not become shorter
        with each split: unless they are only passed on, or must be converted anyway.
        """
        arrivals = inbox.pop(operator.name, [])
        if operator.kind is not Kind.PASS and not self._strict:
            arrivals = gathered(arrivals)
        for arrived in arrivals:
            last, results = self._results_of(operator, arrived)
            outputs = self._outputs[last]
            for given, branches in results:
                made = given.owned() if self._forks or len(arrivals) > 1 else given
                made.data.shared = made.data.shared or last in self._replicated
                for out in outputs:
                    if branches is not None:
                        self._send(out, made.where(branches == out.branch), inbox, leaving)
                    elif out.branch != ERRORS:
                        self._send(out, made, inbox, leaving)

    def _send(
        self,
        edge: EdgeSpec,
        chunk: Chunk,
        inbox: Inbox,
        leaving: list[Leaving],
    ) -> None:
        """Hand rows over an edge: stamp them where it enters a component of a change."""
        if not len(chunk):
            return
        if edge.number in self._inner:
            stamp = self._configuration.stamp_on(edge.number)
            inbox[edge.target].append(chunk.stamped(stamp))
        else:
            leaving.append((edge, chunk))

    def _results_of(
        self, operator: OperatorSpec, chunk: Chunk
    ) -> tuple[str, Iterator[tuple[Chunk, Branches]]]:
        """What an operator makes of rows, or the whole run that begins with it; and who was last.

        What may be taken back, or is in transition, is called by itself: so it is known what is at
        work if it never returns.
        """
        if operator.kind is Kind.PASS and not self._configuration.in_transition:
            return operator.name, self._pass_on(operator, chunk)
        run = self._runs.get(operator.name)
        if run is not None and run.names[0] == operator.name and self._may_run:
            fused = run.fused(self._configuration, chunk.data.schema)
            if fused is not None:
                return run.names[-1], self._apply_run(run, fused, chunk)
        return operator.name, self._apply(operator, chunk)

    @property
    def _may_run(self) -> bool:
        """Whether operators may be called as one: an audit asks which rows each has had."""
        alone = self._strict or self.on_probation or self._configuration.in_transition
        return not alone and self._recorder is None

    def _pass_on(self, operator: OperatorSpec, chunk: Chunk) -> Iterator[tuple[Chunk, Branches]]:
        """Note that rows were here: an operator without a function leaves them as they are."""
        size, change = len(chunk), self._configuration.origin(operator.name, 0)
        what = operator.name, 0, size, chunk.txns, size, time.time(), 0.0, change
        self._notes.append(Note(*what))
        yield chunk, None

    def _apply_run(self, run: Run, fused: Fused, chunk: Chunk) -> Iterator[tuple[Chunk, Branches]]:
        """Let the operators of a run process rows, one row after the other."""
        began, moment = time.perf_counter(), time.time()
        self._control.calling(run.title, max(run.origins))
        entering = run.names[0] == self._entry
        stop = self._interrupted if entering else never
        output, gives = fused(chunk.data, stop, not chunk.alike)
        self._control.returned()
        part, took = self._used(chunk, output), run.shared(time.perf_counter() - began)
        taken = len(part)
        for (name, seconds), change, given in zip(took, run.origins, gives, strict=True):
            if taken:
                self._notes.append(Note(name, 0, taken, None, given, moment, seconds, change))
            taken = given
        yield part.children(output), output.branches

    def _apply(self, operator: OperatorSpec, chunk: Chunk) -> Iterator[tuple[Chunk, Branches]]:
        """Let an operator process rows, each by the version that its epoch asks for."""
        bits = self._configuration.bits_of(operator.name)
        parts = list(by_mask(chunk, bits))
        entering = operator.name == self._entry and len(parts) == 1
        for mask, offered in parts:
            began, moment = time.perf_counter(), time.time()
            change = self._configuration.origin(operator.name, mask)
            self._control.calling(operator.name, change)
            with self._blaming(change):
                output = self._call(operator, mask, offered, change, entering)
            self._control.returned()
            took = time.perf_counter() - began
            if (run := self._runs.get(operator.name)) is not None:
                run.timed(operator.name, len(offered), took)
                if output.data.misfits is not None:
                    output.data.misfits.change = change
            part = self._used(offered, output)
            older = self._configuration.changes(bits & ~mask) if mask != bits else []
            given = len(output.data)
            what = operator.name, mask, len(part), part.txns, given, moment, took, change, older
            self._notes.append(Note(*what, output.letters))
            if output.letters:
                batch = batch_of_letters(operator.name, change, output.letters)
                failed = part.children(Output(Data.of(batch), parents_of(output.letters)))
                yield failed, np.full(len(failed), ERRORS)
            made = part.children(output)
            yield made.owned() if len(parts) > 1 else made, output.branches

    def _judge(self, note: Note) -> None:
        """Let a version fail of which too many rows have failed.

        Some of them have left in chunks before: so it cannot be taken back in place, for the batch
        must go again as a whole.
        """
        rule = self._rules.get(note.operator)
        if rule is not None:
            with self._blaming(note.change):
                self._configuration.failing.note(
                    note.operator, note.change, rule, note.taken, note.letters
                )

    def _account(self) -> None:
        """Tell what the operators have done with a chunk."""
        for note in self._notes:
            self._judge(note)
        for name, mask, taken, txns, given, moment, took, change, older, letters in self._notes:
            if change or older:
                self._control.took(name, change, taken, older)
            if self._recorder is not None:
                version = self._configuration.version(name, mask)
                self._recorder.record(name, version, txns, moment)
            self._control.count(name, taken, given, took, len(letters))
            self.last_old.update(dict.fromkeys(older, moment + took))
        self._notes = []

    def _used(self, offered: Chunk, output: Output) -> Chunk:
        """The rows that an output is made of; the others will be offered again."""
        if output.taken is None or output.taken == len(offered):
            return offered
        self._taken = output.taken
        return offered.slice(0, output.taken)

    @contextmanager
    def _blaming(self, change: int) -> Iterator[None]:
        """Tell of a version or a migration that fails which change it came with.

        If it failed on a row that was not as declared, whoever has made it so may be to blame.
        """
        try:
            yield
        except (OperatorError, EarlierError) as failed:
            if not self._strict:
                raise  # another version may have caused it
            error: OperatorError
            if isinstance(failed, EarlierError):
                failed.misfit.change = change
                blamed = failed.misfit.to_blame()
                error, change = blamed.error, blamed.change
            else:
                error = failed
            culprit = change if error.change is None else error.change
            self._control.failed(culprit, error)
            if culprit:
                self._failure = error.operator, culprit
            raise error from error.__cause__

    def _call(
        self, operator: OperatorSpec, mask: int, rows: Chunk, change: int, entering: bool
    ) -> Output:
        name, configuration = operator.name, self._configuration
        body = configuration.body(name, mask)
        if body.fold is None:
            run = self._runs.get(name)
            hands_on = run is not None and name != run.names[-1]
            stop = self._interrupted if entering else never
            return body.call(rows.data, stop, self._strict, hands_on)
        assert self._group is not None, "a keyed operator gets whole key groups"
        version = configuration.state_version(name, mask)
        self._versions[version] = body.spec, change
        self._group.writer = change
        return body.fold(
            rows.batch, self._group, version, partial(configuration.migrated, name, mask)
        )

    def _interrupted(self) -> bool:
        return self._control.pressed

    def _results(self, operator: OperatorSpec, group: KeyGroup) -> Iterator[Leaving]:
        """What an aggregate gives at the end: each key by the version that it came to."""
        by_version: dict[int, dict[object, object]] = defaultdict(dict)
        for key, (version, state, _) in group.entries():
            by_version[version][key] = state
        for version, states in by_version.items():
            spec, change = self._versions[version]
            self._control.calling(operator.name, change)
            with self._blaming(change):
                made = self._fresh(results(spec, states))
            self._control.returned()
            self._control.count(operator.name, 0, len(made), 0.0)
            yield from self._paced(made, partial(self._onward, operator), True)


def _any_twice(values: Iterable[int]) -> bool:
    return any(count > 1 for count in Counter(values).values())


def _as_arrow(leaving: list[Leaving]) -> list[Leaving]:
    """Rows that leave are converted while what does not fit can be told."""
    for _, made in leaving:
        made.batch  # noqa: B018
    return leaving
