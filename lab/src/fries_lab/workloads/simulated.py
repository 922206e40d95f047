"""W1 to W5 as simulations: what the paper says of their costs, rates, skew and buffers.

Where the paper gives a number it is used. Where it gives none (rates of the TPC-DS flows,
buffer sizes, shares of single workers) the choice is a constant here, with its reason.

A worker whose output finds one full channel waits, whatever room the others have. A source
thus runs at the pace of its most loaded receiver, and skew costs throughput.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from fries.graph import Edge, Graph, Partitioning
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.setup import Cost, Rate, Setup, Spread
from fries_lab.workloads import graphs

PAPER_WORKERS: Final = 40
"""Workers per operator in the paper: one for each core of its ten machines."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a simulation."""

    workers: int = PAPER_WORKERS
    """Workers per operator."""
    time: float = 1.0
    """What the paper's times (warm-up, intervals, length) are multiplied by."""
    requests: int = 5
    """Reconfigurations per run, for a mean."""


FULL: Final = Scale()
QUICK: Final = Scale(workers=5, time=0.2, requests=2)

INFERENCE: Final = 0.025
"""Seconds of the LSTM auto-encoder per tuple (paper): 40 workers manage 1,600 tuples/s."""
SMALL_LSTM: Final = 0.016
"""Seconds of the smaller LSTM: 2,174 tuples/s with W1's skew, enough for the first surge."""
DECISION_TREE: Final = 0.001
"""Seconds of the decision tree: enough for 9,000 tuples/s."""
SURGE_RATES: Final = ((0, 1_000), (100, 2_000), (200, 9_000))
"""From which second on the source of W1 reads how many tuples per second (paper)."""
SURGE_REQUESTS: Final = (120, 220)
"""Seconds at which W1 gets the smaller LSTM and the decision tree (paper)."""
SURGE_END: Final = 300
"""Seconds that the surge lasts (paper)."""
HOT_SHARE: Final = 0.8
"""Skew of W1: this share of the FD workers gets more than the mean."""
HOT: Final = 1.15
"""Skew of W1: how many times the mean they get; the others get what is left.

The paper's slowest worker got 1.77 times the mean. Here that would hold the source to
1,600 / 1.77 = 904 tuples/s, below the 1,000 that the paper sustains; and one or two hot
workers would let all others run empty, where the paper's latency settles at 70 s.
"""
SURGE_BUFFER: Final = 3_300
"""Tuples per channel into FD: without reconfiguration W1's latency settles near 70 s."""
INVALID_BUFFER: Final = 1_350
"""Tuples per channel into FD where invalid tuples are counted: a queue of about 30 s.

The paper's 302K and 67K invalid tuples imply one: the operator's version follows the
source's after 20 s, but only about 10 s of each period are invalid with Fries.
"""
INVALID_RATE: Final = 4_000
"""Tuples per second where invalid tuples are counted: back-pressure holds the source."""

BUFFER_WORK: Final = 0.020
"""Mean seconds of work on one network buffer of rows, the tuple of W2 and W3."""
SCAN_RATE: Final = 100.0
"""Buffers per second that a source worker of W2 and W3 could read: twice what a join takes."""
W2_SELECTIVITY: Final = {"J1": 0.9, "J2": 0.7, "J3": 0.5, "J4": 0.5}
"""Each join filters, so that the first ones are the choke points (paper)."""
W2_BUFFERS: Final = 20
"""Buffers per channel: at 40 workers about 12 s of work before J1, as in the paper."""
W3_SELECTIVITY: Final = {"J5": 0.27, "J6": 0.27, "J7": 0.27, "J8": 0.5, "J9": 0.3}
"""The joins with the date filter; together they then fill four fifths of J8."""
W3_BUFFERS: Final = {"J5": 7, "J6": 14, "J7": 32}
"""Buffers per channel, like the sizes of the tables (71M, 144M, 288M rows)."""

LARGE: Final = 1_000_000
"""Tuples per channel where queues grow for as long as the simulation runs."""
PAYMENTS: Final = 5
"""Payments of one record of W4; the paper's users have about 1,200, read in one go."""
UNNEST_LEAD: Final = 1.5
"""U2 emits this many times what FD1 can take: FD1's queue grows, as the paper's delays show."""
USER_SKEW: Final = 0.2
"""Loads of FD1's workers lie evenly between 0.8 and 1.2 times the mean."""
MERCHANT_SKEW: Final = 0.5
"""Loads of FD2's workers likewise, farther apart: a few merchants get most payments."""

STRAGGLER: Final = 2.0
"""One worker of FD3 is this many times slower (the paper's W5 has one, without a number)."""
W5_RATE: Final = 80.0
"""Payments per second and source worker: twice what the models can take."""
W5_BUFFERS: Final = {"RE": 2, "F4": 2, "FD3": LARGE, "FD4": 30}
"""Tuples per channel: FD4 holds back RE, and FD3's straggler falls behind."""


def w1_surge(scale: Scale, seed: int = 0, batch_interval: float | None = None) -> Setup:
    """W1 under a rate that rises twice, with a cheaper model for each reconfiguration."""
    share = scale.workers / PAPER_WORKERS
    rates = tuple(Rate(rate * share, start * scale.time) for start, rate in SURGE_RATES)
    setup = _w1(scale, seed, rates, (INFERENCE, SMALL_LSTM, DECISION_TREE), SURGE_BUFFER)
    return replace(setup, batch_interval=batch_interval)


def w1_invalid(scale: Scale, seed: int = 0) -> Setup:
    """W1 with a full queue in front of FD, to count tuples of the wrong version."""
    share = scale.workers / PAPER_WORKERS
    return _w1(scale, seed, (Rate(INVALID_RATE * share),), (INFERENCE,), INVALID_BUFFER)


def w1_steady(scale: Scale, seed: int = 0, *, rate: float, cost: float = INFERENCE) -> Setup:
    """W1 at one ingestion rate (of the paper's 40 workers) and one cost of FD."""
    share = scale.workers / PAPER_WORKERS
    return _w1(scale, seed, (Rate(rate * share),), (cost,), SURGE_BUFFER)


def w2(workers: int, seed: int = 0) -> Setup:
    """W2: four joins that filter, fed as fast as the first one takes it."""
    graph = graphs.w2(workers)
    return _joins(graph, W2_SELECTIVITY, dict.fromkeys(W2_SELECTIVITY, W2_BUFFERS), seed)


def w3(workers: int, seed: int = 0) -> Setup:
    """W3: three tables, joined with the date, united, and joined twice more."""
    return _joins(graphs.w3(workers), W3_SELECTIVITY, W3_BUFFERS, seed)


def w4(workers: int, seed: int = 0) -> Setup:
    """W4: records unnested faster than the first model can follow, so that queues grow."""
    per_record = PAYMENTS * INFERENCE / UNNEST_LEAD
    rng = random.Random(seed)
    return Setup(
        graphs.w4(workers),
        rates={"source": (Rate(2.0 / per_record),)},
        costs={"U2": (Cost(per_record),), "FD1": (Cost(INFERENCE),), "FD2": (Cost(INFERENCE),)},
        behaviours={"U2": Behaviour(fanout=PAYMENTS)},
        weights={
            "FD1": _even_skew(workers, USER_SKEW, rng),
            "FD2": _even_skew(workers, MERCHANT_SKEW, rng),
        },
        capacity=1,  # Flink chains source, F1 and U2: they hold no queue
        capacities=dict.fromkeys(("FD1", "LP", "FD2", "MC", "F2", "sink"), LARGE),
        seed=seed,
    )


def w5(workers: int, seed: int = 0) -> Setup:
    """W5: both models overloaded, and one worker of FD3 a straggler."""
    return Setup(
        graphs.w5(workers),
        rates={"source": (Rate(W5_RATE),)},
        costs={"FD3": (Cost(INFERENCE),), "FD4": (Cost(INFERENCE),)},
        behaviours={"SJ": Behaviour(joins=2)},
        slowdown={("FD3", random.Random(seed).randrange(workers)): STRAGGLER},
        capacity=LARGE,
        capacities=W5_BUFFERS,
        seed=seed,
    )


def _w1(
    scale: Scale, seed: int, rates: tuple[Rate, ...], costs: Iterable[float], buffer: int
) -> Setup:
    """W1 with one source and one sink worker, as in the paper."""
    whole = graphs.w1(scale.workers)
    operators = [op if op.name == "FD" else replace(op, workers=1) for op in whole]
    edges = [whole.edge("source", "FD"), Edge("FD", "sink", Partitioning.HASH, ("user",))]
    return Setup(
        Graph(operators, edges),
        rates={"source": rates},
        costs={"FD": tuple(Cost(cost) for cost in costs)},
        weights={"FD": _hot_and_cold(scale.workers, random.Random(seed))},
        capacity=round(buffer * scale.time),
        seed=seed,
    )


def _joins(
    graph: Graph, selectivity: dict[str, float], buffers: dict[str, int], seed: int
) -> Setup:
    """A flow of joins under back-pressure: each buffer takes its (exponential) time."""
    return Setup(
        graph,
        rates={source: (Rate(SCAN_RATE),) for source in graph.sources},
        costs={join: (Cost(BUFFER_WORK, Spread.EXPONENTIAL),) for join in selectivity},
        behaviours={join: Behaviour(selectivity=share) for join, share in selectivity.items()},
        capacity=W2_BUFFERS,
        capacities=buffers,
        seed=seed,
    )


def _hot_and_cold(workers: int, rng: random.Random) -> list[float]:
    """Loads of W1's workers: most of them a little hot, the rest what is left."""
    hot = round(workers * HOT_SHARE)
    cold = (workers - hot * HOT) / (workers - hot)
    weights = [HOT] * hot + [cold] * (workers - hot)
    rng.shuffle(weights)
    return weights


def _even_skew(workers: int, skew: float, rng: random.Random) -> list[float]:
    """Loads that lie evenly between 1 - skew and 1 + skew."""
    weights = [1.0 + skew * (2.0 * i / max(1, workers - 1) - 1.0) for i in range(workers)]
    rng.shuffle(weights)
    return weights
