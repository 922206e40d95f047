"""The production machines in Spark's life: explored whole where that is possible, else at random.

``make explore`` does more of the same, for hours.
"""

from __future__ import annotations

import pytest

from fries_lab.world.__main__ import caught
from fries_lab.world.cases import LARGE, WHOLE
from fries_lab.world.explore import explore, walk
from fries_lab.world.mutants import MUTANTS, Mutant
from fries_lab.world.scenario import Fault, Scenario, naive

WALKS = 60
"""Of each large scenario; each has some 250 steps."""
LONG = frozenset(
    name for name in WHOLE if name in set(map(str, Fault)) or name == "a change and two workers"
)
"""Those that take seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.complete] if n in LONG else []) for n in WHOLE]
)
def test_nothing_goes_wrong_in_any_interleaving(name: str) -> None:
    found = explore(WHOLE[name])
    assert found.violation is None, str(found.violation)
    assert found.ends, "it has come to an end"


@pytest.mark.parametrize("name", LARGE)
def test_nothing_goes_wrong_in_random_interleavings(name: str) -> None:
    for seed in range(WALKS):
        violation = walk(LARGE[name], seed)
        assert violation is None, f"seed {seed}: {violation}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_machine_is_noticed(mutant: Mutant) -> None:
    assert caught(mutant) is not None


def test_a_mutant_is_gone_afterwards() -> None:
    assert walk(LARGE["many changes, one after the other"], 0) is None


def test_operators_that_switch_on_their_own_mix_transactions() -> None:
    found = explore(Scenario((naive("A", "B"),), batches=1, workers=1, partitions=1))
    assert found.violation is not None
    assert "has met half of change 1" in found.violation.problem
    assert found.violation.actions[-1] == ("commit",), "the story ends where it is noticed"
