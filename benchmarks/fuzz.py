"""Feeds broken input to everything that reads bytes of others. ``make fuzz`` runs it.

A target is a named function from bytes to an outcome. It says how it took them ("refused", for
instance), and fails by raising: whatever escapes from it is a bug. So is an input that takes
forever, and one that gets anything unpickled. Inputs are valid ones, broken in several ways; the
same seed gives the same inputs.
"""

from __future__ import annotations

import faulthandler
import math
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

HANG_SECONDS: Final = 60.0
"""An input that takes longer hangs: the stacks of all threads are shown, and the process ends."""
MOST_FAILURES: Final = 10
"""Enough to look into."""
INTERESTING: Final[tuple[Any, ...]] = (
    0, 1, -1, 62, 63, 64, 127, 128, 255, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1,
    0.0, -0.0, 1e308, float("inf"), float("nan"), None, True, False,
    "", "type", "FM", "x" * 300, b"", b"\x80\x05.", [], {}, [[]], {"": {}}, {1: 2},
)  # fmt: skip
"""Values at the edges of their types, and of types that do not belong."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of others."""

    name: str
    run: Callable[[bytes], str]
    """Takes an input and says how; raises if it should not have taken it so."""
    seeds: tuple[bytes, ...]
    """Valid inputs, to be broken."""
    share: float = 1.0
    """Of all inputs, compared with other targets: sockets are slow."""
    messages: bool = False
    """Whether inputs are msgpack values, which can also be broken from within."""


@dataclass
class Report:
    """What has come of it."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By target and outcome, how many inputs."""
    failures: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """All inputs so far."""
        return sum(self.outcomes.values())


def fuzz(targets: Sequence[Target], inputs: int, seed: int, watched: bool = False) -> Report:
    """Feed at least so many inputs, or stop early if much fails; ``watched`` ends a hang."""
    report = Report()
    shares = sum(target.share for target in targets)
    for target in targets:
        choose = random.Random(f"{seed} {target.name}")
        for _ in range(math.ceil(inputs * target.share / shares)):
            data = broken(target, choose)
            if watched:
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                outcome = target.run(data)
            except Exception:
                outcome = "FAILED"
                report.failures.append(f"{target.name} on {data!r}:\n{traceback.format_exc()}")
            report.outcomes[target.name, outcome] += 1
            if len(report.failures) >= MOST_FAILURES:
                break
    faulthandler.cancel_dump_traceback_later()
    return report


def broken(target: Target, choose: random.Random) -> bytes:
    """A seed of a target after some accidents; now and then none, or bytes from nowhere."""
    dice = choose.random()
    if dice < 0.02:
        return choose.randbytes(choose.randrange(200))
    data = choose.choice(target.seeds)
    if dice < 0.05:
        return data
    if target.messages and dice < 0.5:
        return msgspec.msgpack.encode(_reshaped(msgspec.msgpack.decode(data), choose))
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        data = choose.choice(ACCIDENTS)(data, choose, target.seeds)
    return data


def _flip(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    if not data:
        return data
    at = choose.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]


def _overwrite(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    at = choose.randrange(len(data) + 1)
    new = choose.choice((b"\0", b"\xff", b"\x7f", b"\xff\xff\xff\xff", choose.randbytes(4)))
    return data[:at] + new + data[at + len(new) :]


def _truncate(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    return data[: choose.randrange(len(data) + 1)]


def _cut_out(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    first, second = sorted(choose.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[second:]


def _repeat(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    first, second = sorted(choose.randrange(len(data) + 1) for _ in range(2))
    return data[:second] + data[first:]


def _insert(data: bytes, choose: random.Random, _seeds: tuple[bytes, ...]) -> bytes:
    at = choose.randrange(len(data) + 1)
    return data[:at] + choose.randbytes(choose.randrange(1, 20)) + data[at:]


def _splice(data: bytes, choose: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    other = choose.choice(seeds)
    return data[: choose.randrange(len(data) + 1)] + other[choose.randrange(len(other) + 1) :]


def _join(data: bytes, choose: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    return data + choose.choice(seeds)


ACCIDENTS: Final = (_flip, _overwrite, _truncate, _cut_out, _repeat, _insert, _splice, _join)


def _reshaped(value: Any, choose: random.Random) -> Any:  # noqa: ANN401
    """A value with one thing somewhere in it replaced, left out or added."""
    if isinstance(value, dict) and value and choose.random() < 0.8:
        key = choose.choice(list(value))
        if choose.random() < 0.1:
            return {name: kept for name, kept in value.items() if name != key}
        return {**value, key: _reshaped(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.7:
        at = choose.randrange(len(value))
        return [*value[:at], _reshaped(value[at], choose), *value[at + choose.randrange(2) :]]
    alike = [one for one in INTERESTING if type(one) is type(value)]
    return choose.choice(alike if alike and choose.random() < 0.8 else INTERESTING)


def main(
    inputs: Annotated[int, typer.Option(help="How many, over all targets.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same inputs.")] = 0,
) -> None:
    """Feed broken input to everything that reads bytes of others."""
    from benchmarks.fuzz_targets import targets

    began = time.monotonic()
    with ExitStack() as stack:
        report = fuzz(targets(stack), inputs, seed, watched=True)
    console = Console()
    table = Table("target", "outcome", "inputs", title=f"{report.inputs:,} inputs, seed {seed}")
    table.columns[2].justify = "right"
    for (target, outcome), count in sorted(report.outcomes.items()):
        table.add_row(target, outcome, f"{count:,}")
    console.print(table)
    console.print(f"{time.monotonic() - began:.0f} s; {len(report.failures)} failures")
    for failure in report.failures:
        console.print(failure, markup=False)
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    typer.run(main)
