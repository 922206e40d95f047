"""Card payments like the paper's datasets 1 and 2, made up row by row from a seed.

The paper reads 24M payments of 20K users with 12 attributes, which cannot be shipped. These
have the same attributes, skewed users and merchants, and fraud that a model can find in a
user's last payments: a thief pays with one card, in one foreign state, at shops that the user
never sees, first small amounts and then large ones, often without the chip and with errors.

Row n depends on the seed and on n alone, so that any task can make any range of rows. Each
choice is a hash of (seed, what is chosen, row) that picks from a table. What is left per row
is exact arithmetic: no way of cutting the rows into calls changes a bit of them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Columns: TypeAlias = dict[str, NDArray[Any]]

_FIELDS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "id": (pa.int64(), "long"),
    "user": (pa.int64(), "long"),
    "card": (pa.int32(), "int"),
    "time": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "amount": (pa.float64(), "double"),
    "use_chip": (pa.string(), "string"),
    "merchant": (pa.int64(), "long"),
    "city": (pa.string(), "string"),
    "state": (pa.string(), "string"),
    "category": (pa.int32(), "int"),
    "errors": (pa.string(), "string"),
    "is_fraud": (pa.bool_(), "boolean"),
}

SCHEMA: Final = pa.schema([(name, arrow) for name, (arrow, _) in _FIELDS.items()])
"""The 12 attributes of a payment (dataset 1). Only ``errors`` is ever null; in the real file
``state``, too."""
DDL: Final = ", ".join(f"{name} {spark}" for name, (_, spark) in _FIELDS.items())
"""The same as the text of a Spark schema."""
USER_SCHEMA: Final = pa.schema(
    [
        ("user", pa.int64()),
        ("payments", pa.list_(pa.struct([field for field in SCHEMA if field.name != "user"]))),
    ]
)
"""The 2 attributes of dataset 2: a user, and its payments with the other 11 attributes."""

START: Final = 1_262_304_000_000_000
"""The time of row 0: 2010-01-01 in microseconds."""
MAX_CARDS: Final = 5
"""A user has 1 to 5 cards."""
STATES: Final = [
    *["CA"] * 6, *["TX"] * 4, *["FL"] * 3, *["NY"] * 3, *["PA"] * 2, *["IL"] * 2,
    "OH", "GA", "NC", "MI", "NJ", "VA", "WA", "AZ", "TN", "MA", "IN", "MO", "MD", "WI", "CO",
    "MN", "SC", "AL", "LA", "KY", "OR", "OK", "CT", "UT", "IA", "NV", "AR", "KS", "MS", "NM",
    "NE", "ID", "WV", "HI", "NH", "ME", "MT", "RI", "DE", "SD", "ND", "AK", "VT", "WY",
]  # fmt: skip
"""64 regions of about equal population, by state. Merchant m is in region m modulo 64."""
REGIONS: Final = len(STATES)
CITIES: Final = [
    "Arlington", "Ashland", "Auburn", "Bristol", "Burlington", "Clinton", "Dayton", "Dover",
    "Franklin", "Georgetown", "Greenville", "Jackson", "Kingston", "Lexington", "Madison",
    "Manchester", "Milton", "Newport", "Oxford", "Salem", "Springfield", "Winchester",
]  # fmt: skip
"""Names of towns that many states have."""
CATEGORIES: Final = {
    5411: 0.9, 5541: 0.7, 5812: 0.8, 5814: 0.4, 5912: 0.6, 5311: 1.3,
    5300: 1.8, 4829: 1.5, 4121: 0.4, 7832: 0.5, 5732: 2.5, 7011: 2.0,
}  # fmt: skip
"""Merchant category codes (groceries to hotels): amounts, as a multiple of the user's usual."""
CHIP, SWIPE, ONLINE = range(3)
USES: Final = ["Chip Transaction", "Swipe Transaction", "Online Transaction"]
ERRORS: Final = ["Insufficient Balance", "Bad PIN", "Technical Glitch", "Bad CVV", "Bad Expiration"]

AT_HOME: Final = 0.7
"""Share of a user's payments that go to merchants of its home region."""
ON_TRIP: Final = 0.1
"""Share of the others that it makes in person; the rest are online."""
WITH_CHIP: Final = 0.7
"""Share of a user's payments in person that use the chip."""
WITH_ERROR: Final = 0.016
"""Share of a user's payments with an error."""
LONE_FRAUD: Final = 0.1
"""Share of fraud that looks like the user's own payments: noise that no model can learn."""
BURST: Final = 8
"""Payments that a thief makes before the card is blocked, on average."""
THIEF_ONLINE: Final = 0.6
"""Share of a thief's payments that are online; the others are swiped."""
THIEF_ERROR: Final = 0.15
"""Share of a thief's payments with an error."""
TRIAL: Final = 0.25
"""The first part of a burst, in which the thief tries the card with small amounts."""
TRIAL_AMOUNT: Final = 0.1
"""Those amounts, as a multiple of the user's usual one."""
THIEF_AMOUNT: Final = 4.0
"""The amounts after that, likewise."""

_QUANTILES: Final = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])
"""Values of a normal distribution, all equally likely."""
_SPREAD: Final = np.exp(0.6 * _QUANTILES)
"""What a payment's usual amount is multiplied by."""
_LEVELS: Final = 40.0 * np.exp(0.6 * _QUANTILES)
"""Usual amounts of users."""


@dataclass(frozen=True, slots=True)
class Payments:
    """What the payments are like."""

    seed: int = 0
    users: int = 20_000
    """As many as in the paper. User 0 pays most often."""
    merchants: int = 100_000
    """At least one per region. Merchant 0 is the most popular one."""
    fraud_share: float = 0.01
    """Share of payments that are fraud: enough for runs far shorter than the paper's 24M."""
    user_skew: float = 0.73
    """User k pays (k + 1) ** -skew times as often as user 0.

    The most loaded of 40 workers then gets about 1.77 times the mean, as in the paper.
    """
    merchant_skew: float = 1.0
    """Likewise for merchants, of all and of a region."""
    interval: int = 2_000_000
    """Microseconds from one payment to the next, on average: each user pays twice a day."""

    def __post_init__(self) -> None:
        if self.users < 1 or self.merchants < REGIONS or not 0 < self.interval <= 1 << 32:
            raise ValueError(
                f"payments need a user, {REGIONS} merchants and an interval up to 2 ** 32"
            )
        if not 0.0 <= self.fraud_share <= 1.0:
            raise ValueError(f"fraud_share is a share from 0 to 1, not {self.fraud_share}")
        if not (0.0 <= self.user_skew <= 1.0 and 0.0 <= self.merchant_skew <= 1.0):
            raise ValueError("a skew is from 0 (all alike) to 1 (Zipf)")

    @property
    def thief_share(self) -> float:
        """Share of payments that thieves make in bursts."""
        return self.fraud_share * (1.0 - LONE_FRAUD)

    @property
    def burst_rows(self) -> int:
        """Rows from a burst's begin to its end: a mean user makes one payment meanwhile.

        A burst needs its own payments among them, so few users or little fraud make it longer.
        """
        return max(self.users, math.ceil(BURST / max(self.thief_share, 1e-9)))

    @property
    def bursts(self) -> int:
        """Bursts at the same time."""
        return max(1, round(self.burst_rows * self.thief_share / BURST))


DEFAULT: Final = Payments()


def payments(first: int, count: int, config: Payments = DEFAULT) -> pa.RecordBatch:
    """Payments ``first`` to ``first + count - 1`` of an endless list, in order of time."""
    if first < 0 or count < 0:
        raise ValueError(f"no rows {first} to {first + count - 1}: they count from 0")
    ids = np.arange(first, first + count)
    draw = _Draws(config.seed, ids)
    world = _world(config)
    fraud = draw.chance("fraud", config.fraud_share)
    stolen = np.flatnonzero(fraud)
    stolen = stolen[~_Draws(config.seed, ids[stolen]).chance("lone", LONE_FRAUD)]
    columns = _by_owners(draw, world)
    for name, values in _by_thieves(ids[stolen], config, world).items():
        columns[name][stolen] = values
    user, merchant = columns["user"], columns["merchant"]
    usual = world.level[user] * world.price[merchant]
    time = START + ids * config.interval + draw.below("time", config.interval)
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(user),
            pa.array(columns["card"].astype(np.int32)),
            pa.array(time).cast(SCHEMA.field("time").type),
            pa.array(np.maximum(1.0, np.rint(100.0 * usual * columns["factor"])) / 100.0),
            _texts(USES, columns["use"]),
            pa.array(merchant),
            _texts(CITIES, world.city[merchant]),
            _texts(STATES, merchant % REGIONS),
            pa.array(world.category[merchant]),
            _texts(ERRORS, columns["error"]),
            pa.array(fraud),
        ],
        schema=SCHEMA,
    )


def per_user(rows: pa.Table) -> pa.Table:
    """Dataset 2: one row per user, with the list of its payments in order of time."""
    order = pc.sort_indices(
        rows, [("user", "ascending"), ("time", "ascending"), ("id", "ascending")]
    )
    ordered = rows.take(order).combine_chunks()
    users, starts = np.unique(ordered["user"].to_numpy(), return_index=True)
    lists = USER_SCHEMA.field("payments").type
    structs = ordered.drop_columns(["user"]).to_struct_array().combine_chunks()
    offsets = pa.array(np.append(starts, len(ordered)), pa.int32())
    return pa.table(
        [pa.array(users), pa.ListArray.from_arrays(offsets, structs, type=lists)],
        schema=USER_SCHEMA,
    )


class _Draws:
    """Random numbers for rows, users or others: they depend on the seed, purpose and key."""

    def __init__(self, seed: int, keys: Ints) -> None:
        self._seed = seed
        self._keys = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def below(self, purpose: str, limit: int | Ints) -> Ints:
        """For each key a number from 0 to its limit - 1, all (nearly) equally likely."""
        drawn = self._words(purpose) >> np.uint64(32)
        drawn *= np.asarray(limit, np.uint64)
        drawn >>= np.uint64(32)
        return drawn.view(np.int64)

    def chance(self, purpose: str, share: float) -> NDArray[np.bool_]:
        """For each key whether it is one of this share."""
        return self.below(purpose, 1 << 32) < round(share * (1 << 32))

    def pick(self, purpose: str, table: NDArray[Any]) -> NDArray[Any]:
        """For each key an entry of a table, all equally likely."""
        return table[self.below(purpose, len(table))]

    def _words(self, purpose: str) -> Words:
        """Splitmix64 of the keys, from a start that the seed and the purpose give."""
        seed = _mixed(np.array([self._seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64))
        return _mixed(self._keys + _mixed(seed + np.uint64(zlib.crc32(purpose.encode()))))


def _mixed(words: Words) -> Words:
    """The last step of splitmix64: each bit depends on all bits. Works in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@dataclass(frozen=True, slots=True)
class _World:
    """What stays as it is: users and merchants, by number."""

    users: Ints
    """Users, each as often as it pays."""
    merchants: Ints
    """Merchants, each as often as it is paid online or on trips."""
    ranks: Ints
    """Ranks of merchants in their region, each as often as users of that region go there."""
    cards: Ints
    home: Ints
    level: NDArray[np.float64]
    """A user's usual amount."""
    city: Ints
    category: NDArray[np.int32]
    price: NDArray[np.float64]
    """Of a merchant: what its category multiplies amounts by."""


@lru_cache(maxsize=4)
def _world(config: Payments) -> _World:
    """The users and merchants of a configuration; the same ones again for the next call."""
    user = _Draws(config.seed, np.arange(config.users))
    merchant = _Draws(config.seed, np.arange(config.merchants))
    category = merchant.below("category", len(CATEGORIES))
    return _World(
        users=_zipf(config.users, config.user_skew),
        merchants=_zipf(config.merchants, config.merchant_skew),
        ranks=_zipf(config.merchants // REGIONS, config.merchant_skew),
        cards=user.below("cards", MAX_CARDS) + 1,
        home=user.below("home", REGIONS),
        level=user.pick("level", _LEVELS),
        city=merchant.below("city", len(CITIES)),
        category=np.array(list(CATEGORIES), np.int32)[category],
        price=np.array(list(CATEGORIES.values()))[category],
    )


def _zipf(count: int, skew: float) -> Ints:
    """Numbers from 0 to count - 1, number k about (k + 1) ** -skew times as often as 0.

    With 16 entries per number even the rarest has one: a skew of 1 gives it 16 / ln(count).
    """
    weights = np.cumsum(np.arange(1, count + 1) ** -skew)
    ends = np.rint(weights / weights[-1] * (16 * count)).astype(np.int64)
    return np.repeat(np.arange(count), np.diff(ends, prepend=0))


def _by_owners(draw: _Draws, world: _World) -> Columns:
    """Payments by the users themselves: mostly at home, now and then online or on a trip."""
    user = draw.pick("user", world.users)
    at_home = draw.chance("at home", AT_HOME)
    nearby = draw.pick("nearby", world.ranks) * REGIONS + world.home[user]
    in_person = at_home | draw.chance("on trip", ON_TRIP)
    chip = np.where(draw.chance("chip", WITH_CHIP), CHIP, SWIPE)
    return {
        "user": user,
        "card": draw.below("card", world.cards[user]),
        "merchant": np.where(at_home, nearby, draw.pick("anywhere", world.merchants)),
        "factor": draw.pick("amount", _SPREAD),
        "use": np.where(in_person, chip, ONLINE),
        "error": _errors(draw, WITH_ERROR),
    }


def _by_thieves(ids: Ints, config: Payments, world: _World) -> Columns:
    """Payments by thieves. Bursts run side by side, and each payment belongs to one of them.

    Their begins are spread evenly, so that at each row some begin and some end.
    """
    draw = _Draws(config.seed, ids)
    lane = draw.below("burst", config.bursts)
    position = ids + lane * config.burst_rows // config.bursts
    burst = _Draws(config.seed, position // config.burst_rows * config.bursts + lane)
    victim = burst.below("victim", config.users)
    trial = position % config.burst_rows < TRIAL * config.burst_rows
    shop = draw.below("shop", config.merchants // REGIONS)
    return {
        "user": victim,
        "card": burst.below("stolen card", world.cards[victim]),
        "merchant": shop * REGIONS + burst.below("place", REGIONS),
        "factor": draw.pick("amount", _SPREAD) * np.where(trial, TRIAL_AMOUNT, THIEF_AMOUNT),
        "use": np.where(draw.chance("online", THIEF_ONLINE), ONLINE, SWIPE),
        "error": _errors(draw, THIEF_ERROR),
    }


def _errors(draw: _Draws, share: float) -> Ints:
    """Which error a payment has, or -1 for none."""
    return np.where(draw.chance("error", share), draw.below("which error", len(ERRORS)), -1)


def _texts(names: list[str], codes: Ints) -> pa.StringArray:
    """The texts that codes stand for; null for -1."""
    return pa.array(names).take(pa.array(codes, pa.int64(), mask=codes < 0))
