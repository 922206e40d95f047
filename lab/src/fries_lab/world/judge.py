"""What must hold, whatever happens; told by what users and Spark can see, not by the machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from fries.change.model import HAPPENED, TAKEN_BACK, Phase
from fries_lab.world.process import BrokenError, Row, State
from fries_lab.world.scenario import Ask


class Judge:
    """Remembers what was promised, and looks at each batch that Spark commits."""

    def __init__(self, asks: Mapping[int, Ask]) -> None:
        self._asks = asks
        self.promised: set[int] = set()
        """Changes that users were told are committed."""
        self.done_from: dict[int, int] = {}
        """By change that users were told is done, the first batch that may have none of the old."""
        self.met: dict[int, int] = {}
        """By change that rows of committed batches have met, the newest of these."""

        self.buried: set[int] = set()
        """Changes that users were told never happened."""

    def withdraw(self, number: int) -> None:
        """A change was taken back."""
        self.promised.discard(number)
        self.done_from.pop(number, None)

    def bury(self, number: int) -> None:
        """A change never happened."""
        self.withdraw(number)
        self.buried.add(number)

    def committed(
        self,
        batch: int,
        rows: Sequence[Row],
        states: Sequence[State],
        phases: Mapping[int, Phase],
        kept: Collection[int],
    ) -> None:
        """Spark has committed a batch. Of changes that are not ``kept`` workers know the number."""
        self._see_whole(rows, kept)
        for number in {one for row in rows for _, met in row.met for one in met}:
            self.met[number] = batch
            if phases.get(number) not in HAPPENED or number in self.buried:
                raise BrokenError(f"batch {batch} has rows of change {number}: it never happened")
        for number, first in self.done_from.items():
            if batch >= first and number in kept:
                self._see_new(number, rows)
        self._see_states(states, phases)

    def _see_whole(self, rows: Iterable[Row], kept: Collection[int]) -> None:
        """No transaction has met half of a change."""
        seen: dict[tuple[tuple[int, int, int], int], set[bool]] = defaultdict(set)
        for row in rows:
            for operator, met in row.met:
                for number in kept:
                    if operator in self._asks[number].targets:
                        seen[row.txn, number].add(number in met)
        for (txn, number), halves in seen.items():
            if len(halves) > 1:
                raise BrokenError(f"transaction {txn} has met half of change {number}")

    def _see_new(self, number: int, rows: Iterable[Row]) -> None:
        """What is done is drained: no later row gets the old version."""
        targets = self._asks[number].targets
        for row in rows:
            for operator, met in row.met:
                if operator in targets and number not in met:
                    raise BrokenError(
                        f"{operator} used what change {number} had replaced, and was done"
                    )

    def _see_states(self, states: Iterable[State], phases: Mapping[int, Phase]) -> None:
        """States have seen the migrations of changes that happened, once and in order."""
        steps = tuple(
            number
            for number, ask in sorted(self._asks.items())
            if ask.migrates and "B" in ask.targets and phases.get(number) in HAPPENED
        )
        for state in states:
            if state.trail != steps[: len(state.trail)]:
                raise BrokenError(f"a state has seen the migrations {state.trail} of {steps}")

    def end(
        self,
        over: bool,
        phases: Mapping[int, Phase],
        states: Iterable[State],
        logged: set[int] | None,
        held: Collection[int],
    ) -> None:
        """Nothing more can happen. What is ``held`` waits for a batch that will not come."""
        if not over:
            raise BrokenError("there is work left, and nothing can happen")
        ended = (Phase.DONE, *TAKEN_BACK)
        if waiting := {n for n, phase in phases.items() if phase not in ended} - set(held):
            raise BrokenError(f"changes {waiting} never end")
        happened = {number for number, phase in phases.items() if phase in HAPPENED}
        if risen := self.buried & happened:
            raise BrokenError(f"changes {risen} were taken back, and are there again")
        if lost := self.promised - happened:
            raise BrokenError(f"changes {lost} were committed, and are gone")
        if ghosts := self.met.keys() - happened:
            raise BrokenError(f"rows have met changes {ghosts}, which never happened")
        if logged is not None and logged - set(held) != happened:
            raise BrokenError(f"the log has changes {logged}, and the driver {happened}")
        self._see_states(states, phases)
