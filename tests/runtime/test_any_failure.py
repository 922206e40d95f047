"""Whatever a function raises is caught, blamed on its version, and told in a few characters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from fries.control.messages import ENCODER, Failed
from fries.control.wire import MAX_UP
from fries.errors import OperatorError
from fries.failing import MOST_PROBLEM, MOST_STORY, described, shortened, story_of, told
from fries.runtime.configuration import Configuration
from fries.runtime.spec import Style
from fries.runtime.stage import Stage
from tests.runtime.test_keyed_stage import Bench, process
from tests.runtime.test_keyed_stage import rows as keyed_rows
from tests.runtime.test_stage import SOURCE, Script, chain, operator, rows


class ShyError(Exception):
    """Nobody can show it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise SystemExit("no str")


class UnpicklableError(Exception):
    """It takes two arguments and keeps one."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)
        self.hook = lambda: two


def _raise(error: BaseException) -> NoReturn:
    raise error


FAILURES: dict[str, Callable[[], object]] = {
    "an exception": lambda: _raise(ValueError("no")),
    "sys.exit": lambda: sys.exit(3),
    "a cancelled coroutine": lambda: _raise(asyncio.CancelledError()),
    "a keyboard interrupt": lambda: _raise(KeyboardInterrupt()),
    "a generator's end": lambda: _raise(GeneratorExit()),
    "one whose repr raises": lambda: _raise(ShyError()),
    "one that cannot be pickled": lambda: _raise(UnpicklableError(1, 2)),
    "a message of 10 MB": lambda: _raise(ValueError("x" * 10_000_000)),
    "half a character": lambda: _raise(ValueError("\ud800")),
    "too deep": lambda: _deep(0),
    "a group": lambda: _raise(BaseExceptionGroup("two", [SystemExit(1), ShyError()])),
}


def _deep(level: int) -> int:
    return _deep(level + 1) + 1


def failing(name: str) -> OperatorError:
    """What a row function that fails so raises in a task."""
    _, spec = chain()
    bad = replace(operator("B"), function=lambda row: (FAILURES[name](), row))
    stage = Stage(spec, Configuration([operator("A"), bad]), Script())
    with pytest.raises(OperatorError) as caught:
        list(stage.run(SOURCE, rows(1, [0])))
    return caught.value


@pytest.mark.parametrize("name", FAILURES)
def test_a_row_function_may_fail_in_any_way(name: str) -> None:
    error = failing(name)
    assert error.operator == "B"
    assert "'n': 0" in error.row
    message = Failed(0, error.operator, 1, error.problem, error.row, error.story)
    assert len(ENCODER.encode(message)) < MAX_UP
    assert len(str(error).encode()) < MAX_UP, "Spark prints it, and nothing behind it"
    assert error.__suppress_context__


@pytest.mark.parametrize("name", FAILURES)
def test_a_batch_function_may_fail_in_any_way(name: str) -> None:
    _, spec = chain()
    bad = replace(operator("B"), style=Style.ARROW, function=lambda _: FAILURES[name]())
    stage = Stage(spec, Configuration([operator("A"), bad]), Script())
    with pytest.raises(OperatorError, match="operator 'B' failed"):
        list(stage.run(SOURCE, rows(2, [0, 0])))


@pytest.mark.parametrize("name", FAILURES)
def test_a_keyed_function_may_fail_in_any_way(name: str) -> None:
    bench = Bench(replace(process(), function=lambda _, row: (FAILURES[name](), row)))
    with pytest.raises(OperatorError, match="operator 'F' failed"):
        bench.run(keyed_rows([(1, 1)]))


@pytest.mark.parametrize("name", FAILURES)
def test_telling_of_an_exception_never_fails_and_is_short(name: str) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        FAILURES[name]()
    error = caught.value
    assert len(described(error)) < MOST_PROBLEM + 100
    assert len(story_of(error)) < MOST_STORY + 100
    assert len(told(error)) < MOST_PROBLEM + MOST_STORY + 200
    (described(error) + story_of(error) + told(error) + shortened(error)).encode()


def test_an_exception_without_a_repr_is_told_by_its_class() -> None:
    assert described(ShyError()) == "<ShyError, whose repr raises RuntimeError>"


def test_a_traceback_begins_in_the_users_function() -> None:
    story = failing("an exception").story
    assert "functions.py" not in story
    frames = [line for line in story.splitlines() if line.startswith("  File")]
    assert all(__file__ in frame for frame in frames)
    assert story.endswith("ValueError: no\n")
