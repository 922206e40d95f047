"""A short run of the fuzzer; ``make fuzz`` makes a long one."""

from __future__ import annotations

import pickle
import random
from contextlib import ExitStack

import msgspec
import pytest
from benchmarks.fuzz import Target, broken, fuzz
from benchmarks.fuzz_targets import nothing_unpickled, targets


def test_broken_inputs_are_refused_and_nothing_else_happens() -> None:
    with ExitStack() as stack:
        all_targets = targets(stack)
        report = fuzz(all_targets, inputs=10_000, seed=7)
    assert report.failures == []
    assert {name for name, _ in report.outcomes} == {target.name for target in all_targets}
    assert report.inputs >= 10_000


def test_the_same_seed_gives_the_same_inputs() -> None:
    seen: list[list[bytes]] = [[], []]
    for run in seen:

        def note(data: bytes, run: list[bytes] = run) -> str:
            run.append(data)
            return "noted"

        fuzz([Target("notes", note, (b"abc", b"defgh"))], inputs=200, seed=3)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100


def test_what_escapes_from_a_target_is_a_failure() -> None:
    def fragile(data: bytes) -> str:
        return str(1 // len(data))

    report = fuzz([Target("fragile", fragile, (b"a",))], inputs=1_000, seed=1)
    assert len(report.failures) == 10, "and enough is enough"
    assert "fragile on b''" in report.failures[0]
    assert "ZeroDivisionError" in report.failures[0]


def test_unpickling_is_a_failure() -> None:
    with nothing_unpickled(), pytest.raises(AssertionError, match="unpickled"):
        pickle.loads(b"")


def test_messages_are_broken_from_within_too() -> None:

    target = Target("one", str, (msgspec.msgpack.encode({"type": "Begin", "batch": [1]}),), 1, True)
    choose = random.Random(1)
    whole = 0
    for _ in range(500):
        try:
            msgspec.msgpack.decode(broken(target, choose))
            whole += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    assert whole > 200
