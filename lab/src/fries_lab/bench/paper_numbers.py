"""The numbers of the paper's section 8, as printed. Measured there on Flink 1.13.

Ten machines with four cores each, 40 workers per operator, delays in milliseconds. Heads
are in square brackets here where the paper prints them in bold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dataset:
    """A row of table "exp-datasets"."""

    number: int
    table: str
    attributes: int
    tuples: str


@dataclass(frozen=True, slots=True)
class DelayNumbers:
    """A row of table "reconf-op-and-mcs" or "one-to-many-exp"."""

    targets: tuple[str, ...]
    components: tuple[str, ...]
    longest_path: int
    fries_ms: int
    epoch_ms: int


@dataclass(frozen=True, slots=True)
class PruningNumbers:
    """A row of table "one-to-many-pruning-exp"."""

    targets: tuple[str, ...]
    with_pruning: str
    without_pruning: str
    pruned_ms: int
    unpruned_ms: int


@dataclass(frozen=True, slots=True)
class ChannelNumbers:
    """A row of table "parallelism-and-mcs-w2": channels when {J1, J4} are reconfigured."""

    workers: int
    total: int
    in_mcs: int


DATASETS: Final = (
    Dataset(1, "Credit card payment", 12, "24M"),
    Dataset(2, "Credit card payment aggregated per user", 2, "20K"),
    Dataset(3, "Catalog sales", 34, "144M"),
    Dataset(3, "Store sales", 23, "288M"),
    Dataset(3, "Web sales", 34, "71M"),
)

READS: Final = {
    "W1": ("Credit card payment",),
    "W2": ("Catalog sales",),
    "W3": ("Web sales", "Catalog sales", "Store sales"),
    "W4": ("Credit card payment aggregated per user",),
    "W5": ("Credit card payment",),
}
"""Which tables a workflow read; for W5 the paper does not say, its tuples are payments."""

W2: Final = (
    DelayNumbers(("J1",), ("{[J1]}",), 0, 46, 11_432),
    DelayNumbers(("J2",), ("{[J2]}",), 0, 44, 11_709),
    DelayNumbers(("J1", "J3"), ("{[J1], J2, J3}",), 2, 1_664, 12_339),
    DelayNumbers(("J1", "J4"), ("{[J1], J2, J3, J4}",), 3, 1_702, 12_361),
    DelayNumbers(("J3", "J4"), ("{[J3], J4}",), 1, 387, 13_767),
)

W3: Final = (
    DelayNumbers(("J5",), ("{[J5]}",), 0, 87, 4_127),
    DelayNumbers(("J5", "J6"), ("{[J5]}", "{[J6]}"), 0, 127, 8_352),
    DelayNumbers(("J5", "J6", "J7", "J8"), ("{[J5], [J6], [J7], U1, J8}",), 3, 447, 19_608),
    DelayNumbers(("J5", "J6", "J7", "J9"), ("{[J5], [J6], [J7], U1, J8, J9}",), 4, 526, 19_717),
    DelayNumbers(("J7", "J8", "J9"), ("{[J7], U1, J8, J9}",), 3, 1_340, 20_532),
)

W4: Final = (
    DelayNumbers(("F1", "U2"), ("{[F1], U2}",), 1, 69, 151),
    DelayNumbers(("FD1",), ("{[U2], FD1}",), 1, 47_892, 131_103),
    DelayNumbers(("F2",), ("{[U2], FD1, FD2, F2}",), 5, 221_353, 236_153),
)

W5: Final = (
    PruningNumbers(("FD4",), "{[FD4]}", "{[RE], F4, FD4}", 158, 450_149),
    PruningNumbers(("F3",), "{[F3]}", "{[RE], FD3, S1, F3}", 94, 383_781),
    PruningNumbers(("F4",), "{[F4]}", "{[RE], F4}", 10, 446),
    PruningNumbers(
        ("FD3", "FD4"), "{[RE], FD3, F4, FD4}", "{[RE], FD3, F4, FD4}", 661_892, 663_460
    ),
    PruningNumbers(("E1",), "{[E1]}", "{[RE], FD3, S1, F3, F4, FD4, SJ, E1}", 85, 1_122_686),
)

CHANNELS: Final = (
    ChannelNumbers(1, 5, 3),
    ChannelNumbers(4, 68, 48),
    ChannelNumbers(12, 588, 432),
    ChannelNumbers(20, 1_620, 1_200),
    ChannelNumbers(40, 6_440, 4_800),
)

SURGE: Final = {
    "none": "rises, settles at about 70 s",
    "epoch": "passes 60 s, then falls",
    "fries": "falls at once",
}
"""What the text says of figure "throughput-compare" (W1)."""

INVALID_TUPLES: Final = {"none": 302_000, "epoch": 176_000, "fries": 67_000}
"""Invalid tuples after 300 s, from the text on figure "wrong-tuples" (W1)."""

RATES: Final = (500, 1_000, 1_500, 2_000, 2_500)
"""Tuples per second of figure "epoch-delay-input-frequency" (W1): the ends are the paper's."""
