"""The oracle of the crash runs must find what it is there to find."""

from __future__ import annotations

import copy

import pytest
from benchmarks.chaos.oracle import problems
from benchmarks.chaos.workload import Row, advance, migrated, payments

Output = dict[int, list[Row]]


def right(batches: list[list[Row]]) -> Output:
    """What a correct run gives when rows with odd ids of batch 1, and all later ones, are new."""
    states: dict[tuple[str, int], tuple[int, int]] = {}

    def step(operator: str, key: int, amount: int, version: int) -> int:
        number, since = states.get((operator, key), (0, 0))
        number = migrated(number, 1) if since < version else number
        number = advance(number, amount, version)
        states[operator, key] = number, version
        return number

    found: Output = {}
    for batch, rows in enumerate(batches):
        stamped = [(int(batch > 1 or (batch == 1 and row["id"] % 2)), row) for row in rows]
        stamped.sort(key=lambda pair: (pair[0], pair[1]["id"]))
        made = []
        for version, row in stamped:
            profile = step("FC", row["customer"], row["amount"], version)
            made.append({**row, "fc": version, "profile": profile, "fm": version})
        for row in made:
            row["score"] = step("FM", row["merchant"], row["profile"], row["fm"])
        found[batch] = made
    return found


@pytest.fixture
def batches() -> list[list[Row]]:
    return payments(seed=1, batches=3, rows=60)


def test_a_correct_run_has_no_problems(batches: list[list[Row]]) -> None:
    assert problems(batches, right(batches), final_version=1) == []


def test_each_mistake_is_found(batches: list[list[Row]]) -> None:
    correct = right(batches)

    def spoilt(word: str) -> bool:
        return any(word in problem for problem in problems(batches, found, final_version=1))

    found = copy.deepcopy(correct)
    found[2].pop()
    assert spoilt("lost")
    found = copy.deepcopy(correct)
    found[2].append(found[2][0])
    assert spoilt("doubled")
    found = copy.deepcopy(correct)
    found[1][0]["fm"] = 1
    assert spoilt("mixed")
    found = copy.deepcopy(correct)
    found[2][0]["fc"] = found[2][0]["fm"] = 0
    assert spoilt("batch 2 has version 0 after 1")
    found = copy.deepcopy(correct)
    found[1][5]["score"] += 1
    assert spoilt("wrong state")
    assert "is 1, not 2" in problems(batches, correct, final_version=2)[0]
