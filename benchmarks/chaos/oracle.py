"""Judges the output of a crash run, in plain Python.

It takes the version of each row from the output, sees that these versions are possible (one for
all operators of a row, never falling from batch to batch), and then computes every state and
every result again from the input, in the one order that is right for these versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.chaos.workload import Row, advance, migrated

SHOWN = 3
"""Examples of each kind of problem."""


def problems(
    batches: Sequence[Sequence[Row]], found: Mapping[int, Sequence[Row]], final_version: int
) -> list[str]:
    """What is wrong with the output of some input; nothing if all is well."""
    return [
        *_lost(batches, found),
        *_mixed(row for rows in found.values() for row in rows),
        *_order_of_versions(found, final_version),
        *_wrong_results(found),
    ]


def _lost(batches: Sequence[Sequence[Row]], found: Mapping[int, Sequence[Row]]) -> list[str]:
    """Every row must be there once, in its batch, with what it came with."""
    expected = Counter(
        (number, tuple(row.items())) for number, rows in enumerate(batches) for row in rows
    )
    given = ("id", "customer", "merchant", "amount")
    actual = Counter(
        (number, tuple((name, row[name]) for name in given))
        for number, rows in found.items()
        for row in rows
    )
    return [
        *_told("lost", (expected - actual).elements()),
        *_told("doubled or invented", (actual - expected).elements()),
    ]


def _mixed(rows: Iterable[Row]) -> list[str]:
    return list(_told("mixed", (row for row in rows if row["fc"] != row["fm"])))


def _order_of_versions(found: Mapping[int, Sequence[Row]], final_version: int) -> list[str]:
    """After the batch of a change everything is new."""
    wrong = []
    newest = 0
    for number in sorted(found):
        versions = {row[column] for row in found[number] for column in ("fc", "fm")}
        if versions and min(versions) < newest:
            wrong.append(f"batch {number} has version {min(versions)} after {newest}")
        newest = max(newest, *versions) if versions else newest
    if newest != final_version:
        wrong.append(f"the last version in the output is {newest}, not {final_version}")
    return wrong


def _wrong_results(found: Mapping[int, Sequence[Row]]) -> list[str]:
    """Compute everything again: by batch, old rows before new ones, then in the order of ids."""
    profiles, scores = _States(), _States()
    wrong = []
    for number in sorted(found):
        first = sorted(found[number], key=lambda row: (row["fc"], row["id"]))
        profile = {
            row["id"]: profiles.advance(row["customer"], row["amount"], row["fc"]) for row in first
        }
        second = sorted(found[number], key=lambda row: (row["fm"], row["id"]))
        for row in second:
            score = scores.advance(row["merchant"], profile[row["id"]], row["fm"])
            if (row["profile"], row["score"]) != (profile[row["id"]], score):
                wrong.append((row, profile[row["id"]], score))
    return list(_told("wrong state", wrong))


class _States:
    """The states of an operator, by key."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, int]] = {}
        """Number and version of each key's state."""

    def advance(self, key: int, amount: int, version: int) -> int:
        number, since = self._kept.get(key, (0, 0))
        for step in range(since + 1, version + 1):
            number = migrated(number, step)
        number = advance(number, amount, version)
        self._kept[key] = number, max(version, since)
        return number


def _told(what: str, cases: Iterable[object]) -> Iterable[str]:
    """Some of the cases, and how many there are."""
    every = list(cases)
    if every:
        yield f"{len(every)} {what}, such as {', '.join(map(str, every[:SHOWN]))}"
