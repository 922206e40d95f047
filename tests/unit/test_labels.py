"""Labels: the same for the same code, others for other code, and never in the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from fries.labels import code_label

FACTOR = 2


def times(factor: int) -> Callable[[int], int]:
    return lambda value: value * factor


def helped(value: int) -> int:
    return helper(value)


def helper(value: int) -> int:
    return value + FACTOR


class Model:
    """A callable with weights."""

    def __init__(self, bias: float, weights: Any = None) -> None:  # noqa: ANN401
        self.bias, self.weights = bias, weights

    def __call__(self, value: float) -> float:
        """Score."""
        return value + self.bias


class Odd:
    """Raises whatever it is asked."""

    @property
    def shape(self) -> NoReturn:
        """Never."""
        raise OSError("gone")

    def __call__(self, row: object) -> object:
        """As it is."""
        return row


def test_a_label_is_short_and_the_same_each_time() -> None:
    label = code_label(times(2))
    assert label == code_label(times(2))
    assert label.startswith("#")
    assert len(label) == 9


def test_other_code_and_other_values_have_other_labels() -> None:
    functions: list[object] = [
        times(2),
        times(3),
        lambda value: value * 2,
        lambda value: value * 3,
        lambda value, more=1: value * 3 + more,
        lambda value, more=2: value * 3 + more,
        helper,
        helped,
        partial(pow, 2),
        partial(pow, 3),
        Model(1.0),
        Model(2.0),
        Model(2.0, np.zeros(3)),
        Model(2.0).__call__,
        len,
        int,
    ]
    labels = [code_label(function) for function in functions]
    assert len(set(labels)) == len(functions)
    assert code_label(times(2), times(3)) not in labels


def test_a_helper_of_the_same_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_label(helped)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert code_label(helped) != before


def test_large_strange_and_endless_things_cost_little() -> None:
    endless: list[Any] = []
    endless.append(endless)
    large = ["x" * 50_000_000, 1 << 50_000_000, list(range(1_000_000)), np.zeros(10_000_000)]
    for held in (endless, *large, {1, "a", None}, {"k": [1]}, Odd()):
        assert code_label(lambda row, held=held: (row, held))
    assert code_label(Odd())


def test_a_label_is_the_same_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from fries.labels import code_label\n"
        "NAMES = {'a', 'b', 'c', 'd', 'e'}\n"
        "def known(row):\n"
        "    return row in NAMES or row in {'x', 'y', 'z', 'w'}\n"
        "print(code_label(known))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, str(script)],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(told) == 1
