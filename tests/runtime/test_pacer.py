"""How many rows chunks have, with simulated costs and no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest

from fries.runtime.pacer import GROWTH, LOSS, TARGET_SECONDS, Costs, Pacer, Seen, fitted

BATCH = 10_000
"""Rows that Spark hands over at once."""
FIXED = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.05)
ROW = (0.0, 1e-6, 1e-4)
NOISE = 0.1
SPIKE, SPIKE_SECONDS = 0.01, 0.01
"""How often a chunk is held up by something else, and for how long."""


@dataclass
class Simulation:
    """Batches that a pacer cuts into chunks, which cost what they would cost."""

    fixed: float
    row: float
    noise: float = NOISE
    spike: float = SPIKE
    pacer: Pacer = field(default_factory=Pacer)
    random: random.Random = field(default_factory=lambda: random.Random(7))
    seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def batch(self, rows: int = BATCH, hurried: bool = False) -> None:
        """Cut up a batch."""
        while rows:
            size = self.pacer.next(rows, hurried)
            assert 1 <= size <= rows
            took = self.cost(size)
            held = self.random.random() < self.spike
            disturbed = took * self.random.lognormvariate(0.0, self.noise)
            self.pacer.measured(size, disturbed + SPIKE_SECONDS * held)
            self.seconds += took
            self.sizes.append(size)
            rows -= size

    def batches(self, count: int, rows: int = BATCH, hurried: bool = False) -> list[int]:
        """Cut up some batches; the sizes of their chunks."""
        before = len(self.sizes)
        for _ in range(count):
            self.batch(rows, hurried)
        return self.sizes[before:]

    def cost(self, size: int) -> float:
        """Of a chunk."""
        return self.fixed + self.row * size

    def ratio(self, count: int) -> float:
        """Of plain Spark's seconds for some more batches, which are calls of whole batches."""
        before = self.seconds
        self.batches(count)
        return count * self.cost(BATCH) / (self.seconds - before)


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("row", ROW)
def test_less_than_a_tenth_of_the_throughput_is_lost(fixed: float, row: float) -> None:
    if not fixed and not row:
        return
    simulation = Simulation(fixed, row)
    simulation.batches(5)
    assert simulation.ratio(60) > 0.9


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("row", ROW)
def test_chunks_are_no_longer_than_the_loss_requires(fixed: float, row: float) -> None:
    """A few milliseconds, or what makes the fixed part a small one."""
    simulation = Simulation(fixed, row, noise=0.02, spike=0.0)
    simulation.batches(5)
    longest = max(map(simulation.cost, simulation.batches(20)))
    calls = 2.0 * simulation.fixed / LOSS
    assert longest <= max(1.3 * TARGET_SECONDS, min(calls, 1.01 * simulation.cost(BATCH)))


def test_a_worker_learns_costs_once_and_not_in_every_task() -> None:
    known: dict[Hashable, Costs] = {}
    Simulation(0.05, 0.0, pacer=Pacer(known, "v1")).batches(3)
    later = Simulation(0.05, 0.0, spike=0.0, pacer=Pacer(known, "v1"))
    assert later.batches(1) == [BATCH]
    assert Simulation(0.05, 0.0, pacer=Pacer(known, "v2")).batches(1)[0] == 1


def test_costs_of_versions_long_gone_are_forgotten() -> None:
    known: dict[Hashable, Costs] = {}
    pacer = Pacer(known, 0)
    for version in range(1000):
        pacer.use(version)
    assert len(known) <= 100
    assert 999 in known


def test_it_begins_with_one_row_and_grows_step_by_step() -> None:
    simulation = Simulation(0.0, 1e-9, noise=0.0, spike=0.0)
    assert simulation.batches(1) == [1, 8, 64, 512, 4096, 5319]


def test_rows_that_are_slow_are_asked_for_one_by_one() -> None:
    simulation = Simulation(0.0002, 0.025)
    simulation.batches(1, 20)
    sizes = simulation.batches(1, 1000)
    assert sizes.count(1) > 0.9 * len(sizes)
    assert max(sizes) <= 4


def test_after_a_first_call_of_a_second_it_recovers_at_once() -> None:
    """The first call loads a model, say."""
    simulation = Simulation(0.0, 1e-6, noise=0.0, spike=0.0)
    simulation.pacer.next(BATCH, hurried=False)
    simulation.pacer.measured(1, 1.0)
    sizes = simulation.batches(1)
    assert len(sizes) < 10
    assert max(sizes) > 2000


@pytest.mark.parametrize("cold", [1.2, 1.4, 1.6, 2.0, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("fixed", [0.0005, 0.001, 0.003, 0.0055, 0.01, 0.05])
@pytest.mark.parametrize("row", [0.0, 1e-7, 1e-6])
@pytest.mark.parametrize("rows", [100, BATCH])
def test_a_first_call_that_takes_longer_holds_nobody_up(
    fixed: float, row: float, cold: float, rows: int
) -> None:
    """However long: every size must be left again if there is one that does more."""
    simulation = Simulation(fixed, row, noise=0.0, spike=0.0)
    size = simulation.pacer.next(BATCH, hurried=False)
    simulation.pacer.measured(size, cold * simulation.cost(size))
    assert len(simulation.batches(1)) <= 40
    few = len(simulation.batches(10, rows))
    assert few <= 10 * max(3, round(2 * LOSS * rows * row / fixed))


@pytest.mark.parametrize("fixed", FIXED)
def test_a_version_that_becomes_slow_gets_one_long_chunk_and_then_short_ones(fixed: float) -> None:
    simulation = Simulation(fixed, 1e-6, spike=0.0)
    simulation.batches(20)
    simulation.row = 1e-3
    first, *others = simulation.batches(2)
    assert all(size <= first / GROWTH for size in others[:2])
    times = list(map(simulation.cost, others[12:]))
    assert max(times) <= max(2 * TARGET_SECONDS, 3.0 * fixed / LOSS)


@pytest.mark.parametrize("fixed", FIXED)
def test_a_version_that_becomes_fast_is_soon_given_enough_rows(fixed: float) -> None:
    simulation = Simulation(fixed, 1e-3)
    simulation.batches(3)
    simulation.row = 1e-6
    simulation.batches(5)
    assert simulation.ratio(50) > 0.9


def test_calls_that_become_expensive_are_soon_given_more_rows() -> None:
    simulation = Simulation(0.0002, 1e-5)
    simulation.batches(20)
    simulation.fixed = 0.02
    simulation.batches(5)
    assert simulation.ratio(50) > 0.9


@pytest.mark.parametrize("within", [0.001, 0.01, 0.1])
@pytest.mark.parametrize(("row", "later"), [(1e-6, 1e-3), (1e-3, 1e-6), (1e-5, 1e-4)])
def test_nobody_waits_much_longer_than_switch_within_once_costs_are_known(
    within: float, row: float, later: float
) -> None:
    for fixed in FIXED:
        pacer = Pacer(within=within)
        simulation = Simulation(fixed, row, 0.02, 0.0, pacer)
        for _ in range(2):
            simulation.batches(3, 1000)
            promised = max(within, simulation.cost(1))
            times = list(map(simulation.cost, simulation.batches(2, 1000)))
            assert max(times) <= 2.0 * promised + simulation.row
            simulation.row = later


def test_whoever_can_wait_gets_longer_chunks() -> None:
    short, long = (Simulation(0.001, 1e-5, pacer=Pacer(within=one)) for one in (0.002, 0.05))
    for simulation in (short, long):
        simulation.batches(10)
    assert max(short.batches(5)) <= 150
    assert max(long.batches(5)) >= 4000


@pytest.mark.parametrize(
    ("fixed", "row", "most"),
    [(0.0, 1e-6, 700), (0.0001, 1e-6, 700), (0.05, 1e-4, 700), (0.001, 1e-4, 20)],
)
def test_chunks_are_short_while_a_change_is_about_to_come(
    fixed: float, row: float, most: int
) -> None:
    """Not so short that a call costs more than twice what its rows do."""
    simulation = Simulation(fixed, row, noise=0.02, spike=0.0)
    simulation.batches(10)
    hurried = simulation.batches(1, hurried=True)
    assert max(hurried) <= most
    assert sum(map(simulation.cost, hurried)) <= 2.3 * simulation.cost(BATCH) or fixed <= 0.0001


def test_shorter_chunks_would_not_help_where_rows_cost_nothing() -> None:
    simulation = Simulation(0.05, 0.0, noise=0.0, spike=0.0)
    simulation.batches(10)
    assert len(simulation.batches(1, hurried=True)) == 1


def test_an_accident_costs_a_short_chunk_and_no_more() -> None:
    simulation = Simulation(0.001, 1e-6, noise=0.0, spike=0.0)
    simulation.batches(10)
    usual = simulation.pacer.next(BATCH, hurried=False)
    simulation.pacer.measured(usual, 0.2)
    probe = simulation.pacer.next(BATCH, hurried=False)
    assert probe <= usual / GROWTH
    simulation.pacer.measured(probe, simulation.cost(probe))
    assert simulation.pacer.next(BATCH, hurried=False) == usual


def cost(fixed: float, row: float) -> Callable[[int], Seen]:
    return lambda rows: Seen(rows, fixed + row * rows)


@pytest.mark.parametrize(("fixed", "row"), [(0.001, 1e-6), (0.0, 1e-4), (0.05, 0.0)])
def test_both_parts_are_found_from_chunks_of_different_sizes(fixed: float, row: float) -> None:
    found = fitted(list(map(cost(fixed, row), (1, 100, 10_000))))
    assert found.fixed == pytest.approx(fixed, abs=1e-9)
    assert found.row == pytest.approx(row, abs=1e-9)


def test_no_part_is_below_zero() -> None:
    assert fitted([Seen(10, 0.002), Seen(100, 0.001)]).row == 0.0
    assert fitted([Seen(10, 0.001), Seen(100, 0.02)]).fixed == 0.0
