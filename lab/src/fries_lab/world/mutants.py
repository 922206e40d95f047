"""The machines, broken on purpose: each of these must be noticed, or nothing was proved.

A mutant is a line of the production code that is replaced by another one. The function that has it
runs the other code for a while; everything else stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Final

from fries.change import controller, epochs, store, tasks
from fries.protocol import worker


@dataclass(frozen=True)
class Mutant:
    """A line that is replaced."""

    name: str
    module: ModuleType
    old: str
    new: str

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The other code runs."""
        source = inspect.getsource(self.module)
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: its line is there {source.count(self.old)} times")
        codes = dict(_codes(compile(source.replace(self.old, self.new), "a mutant", "exec")))
        before = {function: function.__code__ for function in _functions(self.module)}
        try:
            for function in before:
                function.__code__ = codes[function.__qualname__]
            yield
        finally:
            for function, code in before.items():
                function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """The functions of a module, and of its classes, by their names."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for member in vars(value).values():
                found = member.fget if isinstance(member, property) else member
                if (
                    isinstance(found, FunctionType)
                    and found.__code__.co_filename == module.__file__
                ):
                    yield found
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield value


MUTANTS: Final = (
    Mutant(
        "a commit is logged before all workers have loaded the change",
        controller,
        "if change.decision is not Decision.OPEN or not change.waiting <= change.late:",
        "if change.decision is not Decision.OPEN:",
    ),
    Mutant(
        "workers are told to commit before the log is",
        controller,
        "if change.held or not (loaded or change.decision is Decision.MADE):",
        "if change.held or change.waiting:",
    ),
    Mutant(
        "a worker that comes late is not told to commit",
        controller,
        "            if change.phase is Phase.COMMITTED:\n                self._send((worker,)",
        "            if False:\n                self._send((worker,)",
    ),
    Mutant(
        "every task ends what is in transition",
        controller,
        "        if self.batches.begin(worker, task.batch):",
        "        if self.batches.begin(worker, task.batch) or True:",
    ),
    Mutant(
        "a task does not wait until the log knows its batch",
        controller,
        "        if first and self.durable:",
        "        if False:",
    ),
    Mutant(
        "what is in a committed batch can be erased",
        controller,
        "return bool(happened) and not any(change.is_kept(self.finished) for change in happened)",
        "return bool(happened)",
    ),
    Mutant(
        "users hear of an abort while the log may have the commit",
        controller,
        "self._out.append(LogAbort(number, change.doubt, again=False))",
        "self._abort(change, change.doubt)",
    ),
    Mutant(
        "time may be over after the commit was asked for",
        controller,
        "change.phase is Phase.COMMITTED or change.decided:",
        "change.phase is Phase.COMMITTED:",
    ),
    Mutant(
        "two changes in transition have the same bit",
        controller,
        "bit = next((bit for bit in BITS if bit not in used), None)",
        "bit = next((bit for bit in BITS if used or bit not in used), None)",
    ),
    Mutant(
        "a change may overlap with one in transition",
        controller,
        "if bit is None or not all(first.order.compatible(other.order) for other in others):",
        "if bit is None:",
    ),
    Mutant(
        "a task is not told what is done",
        controller,
        "news = self.changes.news(worker)",
        "news = ()",
    ),
    Mutant(
        "a task is not told what is committed",
        controller,
        "        committed = tuple(c.number for c in self.active.values() "
        "if c.phase is Phase.COMMITTED)",
        "        committed = ()",
    ),
    Mutant(
        "workers keep what was erased",
        controller,
        "                self._end(change, Phase.ROLLED_BACK, reason)\n"
        "        self._disconnect(tuple(self.workers))",
        "                self._end(change, Phase.ROLLED_BACK, reason)",
    ),
    Mutant(
        "new workers get what was erased",
        controller,
        "                self.changes.remove_from_base(change)\n",
        "",
    ),
    Mutant(
        "a worker that leaves is waited for",
        controller,
        "            self._answered(change, worker, self._now)\n\n    def _hear",
        "            pass\n\n    def _hear",
    ),
    Mutant(
        "new workers begin with nothing",
        store,
        "        return tuple(sorted(numbers)), dict(self._skipped)",
        "        return (), dict(self._skipped)",
    ),
    Mutant(
        "migrations of what was replaced are forgotten",
        store,
        "            if change.order.migrates:",
        "            if False:",
    ),
    Mutant(
        "a task whose output was lost begins anew",
        tasks,
        "if before is None or before.outcome is Outcome.FAILED:",
        "if True:",
    ),
    Mutant(
        "Spark's progress ends what is in transition",
        tasks,
        "        return self._current is None or self._current <= finished",
        "        return True",
    ),
    Mutant(
        "each task begins a batch",
        tasks,
        "return self._current is None or batch > self._current",
        "return self._current is None or batch >= self._current",
    ),
    Mutant(
        "a task starts before its changes have taken effect",
        worker,
        "        if self.state.effective.issuperset(wanted):",
        "        if True:",
    ),
    Mutant(
        "a change that cannot be loaded is said to be",
        worker,
        "            self._say(Refused(change, error))",
        "            self._say(Prepared(change))",
    ),
    Mutant(
        "rows are stamped on every edge",
        epochs,
        "            if change in switched and edge in one.entries:",
        "            if change in switched:",
    ),
    Mutant(
        "a version is used without a stamp",
        epochs,
        "            if operator in one.targets and mask & one.bit\n",
        "            if operator in one.targets\n",
    ),
    Mutant(
        "a repetition goes as rows go now",
        epochs,
        "        self._pinned = None if pinned is None else set(pinned)",
        "        self._pinned = None",
    ),
    Mutant(
        "what is done does not become part of the base",
        epochs,
        "        return sorted(set(base) & self.loaded.keys())",
        "        return []",
    ),
)
