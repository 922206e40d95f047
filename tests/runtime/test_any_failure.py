"""Whatever a function raises is caught, blamed on its version, and told in a few characters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest

from fries.control.messages import ENCODER, Failed
from fries.control.wire import MAX_UP
from fries.errors import OperatorError
from fries.failing import MOST_PROBLEM, MOST_STORY, described, shortened, story_of, told
from fries.runtime.configuration import Configuration
from fries.runtime.dead_letters import MOST_MESSAGE, batch_of_letters
from fries.runtime.keyed import results
from fries.runtime.sparing import letter_of
from fries.runtime.spec import DROP, DeadLetters, Style
from fries.runtime.stage import Stage
from tests.runtime.test_blame import blamed, failing_fold, fold, shipped
from tests.runtime.test_keyed_stage import Bench, aggregate, process
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


def refuse(*_: object, **__: object) -> NoReturn:
    """Any method of something that wants to tell nothing."""
    raise SystemExit("not even this")


class Text(str):
    """A text whose own methods all raise."""

    __slots__ = ()
    __len__ = __getitem__ = __format__ = __iter__ = __add__ = __mod__ = __contains__ = refuse
    __str__ = __repr__ = encode = splitlines = strip = refuse


class Nameless(type):
    """Classes that do not tell their names."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        """Not even to Fries."""
        raise SystemExit("no name")


class TextualError(Exception):
    """It tells all that is asked, with texts of its own kind."""

    def __repr__(self) -> str:
        return Text("its repr")

    def __str__(self) -> str:
        return Text("its words")


class NamelessError(ShyError, metaclass=Nameless):
    """Of no known class, without words, and no exception if one asks it."""

    def __bool__(self) -> bool:
        raise SystemExit("neither true nor false")

    @property
    def __class__(self) -> type:
        """Not that either."""
        raise SystemExit("no class")

    @__class__.setter
    def __class__(self, kind: type) -> None: ...


class LongError(Exception):
    """Its words are long, and cannot be told with its traceback."""

    def __repr__(self) -> str:
        return "x" * 10_000_000

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        """Nobody may know."""
        raise SystemExit("no cause")


class Row(dict[str, object]):
    """A row that cannot be shown."""

    def __repr__(self) -> str:
        return Text("a row")

    __iter__ = keys = items = __getitem__ = refuse


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
    "no memory": lambda: _raise(MemoryError()),
    "a message of 10 MB": lambda: _raise(ValueError("x" * 10_000_000)),
    "half a character": lambda: _raise(ValueError("\ud800")),
    "too deep": lambda: _deep(0),
    "texts of its own kind": lambda: _raise(TextualError()),
    "a class without a name": lambda: _raise(NamelessError()),
    "long, without a traceback": lambda: _raise(LongError()),
    "a group": lambda: _raise(BaseExceptionGroup("two", [SystemExit(1), ShyError()])),
}


def _deep(level: int) -> int:
    return _deep(level + 1) + 1


def raised(stage: Stage) -> OperatorError | None:
    """How a stage fails on a row; nothing but such an error may leave it."""
    try:
        list(stage.run(SOURCE, rows(1, [0])))
    except OperatorError as error:
        return error
    return None


DROPPED = DeadLetters(DROP, limit=1.0)


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


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("style", [Style.ROW, Style.ARROW])
def test_a_row_that_fails_in_any_way_is_set_apart_or_blamed(style: Style, name: str) -> None:
    _, spec = chain()
    bad = replace(operator("B"), style=style, function=lambda _: FAILURES[name](), on_error=DROPPED)
    script = Script()
    stage = Stage(spec, Configuration([operator("A"), bad]), script)
    error = raised(stage)
    assert script.failures == [(0, error)] * (error is not None)


@pytest.mark.parametrize("name", FAILURES)
def test_a_row_that_was_set_apart_can_be_written(name: str) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        FAILURES[name]()
    try:
        letter = letter_of(operator("B"), 0, {"n": 1}, caught.value)
    except OperatorError:  # no matter of the row
        assert not issubclass(type(caught.value), Exception) or name == "no memory"
        return
    (written,) = batch_of_letters("B", 0, [letter]).to_pylist()
    assert len(written["error_message"]) <= MOST_MESSAGE


VALUES: dict[str, Callable[[], object]] = {
    "a text": lambda: Text("a"),
    "a list of it": lambda: [Text("a")],
    "of a class without a name": NamelessError,
    "a class without a name": lambda: NamelessError,
    "a row": Row,
}


@pytest.mark.parametrize("name", VALUES)
def test_showing_a_value_never_fails(name: str) -> None:
    assert type(shortened(VALUES[name]())) is str


RESULTS: dict[str, Callable[[], object]] = {
    "a row": Row,
    "a row with another column": lambda: {"n": 1, Text("m"): 2},
    "a row with a number that is none": lambda: {"n": NamelessError()},
    "a row with a text": lambda: {"n": Text("1")},
    "a column of 10 MB": lambda: {"x" * 10_000_000: 1},
    "a text of 10 MB": lambda: {"n": "x" * 10_000_000},
    "no row": lambda: Text("row"),
    "something without a class": NamelessError,
}


@pytest.mark.parametrize("rule", [None, DROPPED])
@pytest.mark.parametrize("culprit", ["A", "B"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_function_may_return_anything(name: str, culprit: str, rule: DeadLetters | None) -> None:
    _, spec = chain()
    bad = replace(operator(culprit), function=lambda _: RESULTS[name](), on_error=rule)
    operators = {"A": operator("A"), "B": operator("B"), culprit: bad}
    script = Script()
    stage = Stage(spec, Configuration(list(operators.values())), script)
    error = raised(stage)
    assert script.failures == [(0, error)] * (error is not None)
    assert error is None or len(error.problem) < 3 * MOST_PROBLEM


class Lazy(Row):
    """A row that fails when it is read, and has no words for it."""

    __iter__ = keys = items = refuse

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise NamelessError


class Number:
    """A value that Arrow takes once."""

    def __init__(self) -> None:
        self.left = 1

    def __index__(self) -> int:
        self.left -= 1
        return 1 if self.left >= 0 else refuse()

    __int__ = __index__


def endless_failure() -> Iterator[object]:
    """A generator that fails after its first row."""
    yield {"k": 1, "n": 1, "seen": ""}
    raise NamelessError


TAKEN_ONCE = "a value that can be read once"
KEYED: dict[str, tuple[bool, Callable[[], object]]] = {
    **{name: (False, made) for name, made in RESULTS.items()},
    **{f"several: {name}": (True, made) for name, made in RESULTS.items()},
    "a row that is read late": (False, Lazy),
    TAKEN_ONCE: (False, lambda: {"k": 1, "n": Number(), "seen": ""}),
    "a generator that fails": (True, endless_failure),
    "rows that fail one by one": (True, lambda: [Lazy(), Lazy()]),
}


def answering(name: str, state: object, row: dict[str, object]) -> object:  # noqa: ARG001
    return row["n"], KEYED[name][1]()


@pytest.mark.parametrize("name", [name for name in KEYED if name != TAKEN_ONCE])
def test_a_keyed_function_may_return_anything(name: str) -> None:
    bench = Bench()
    bad = replace(process(), function=partial(answering, name), many=KEYED[name][0])
    bench.configuration.load(7, 1, shipped(bad))
    assert blamed(failing_fold(bench, [2])) == (7, "F")
    assert bench.store.values == {}


@pytest.mark.parametrize("name", KEYED)
def test_a_row_for_which_a_keyed_function_returns_anything_is_set_apart_or_blamed(
    name: str,
) -> None:
    many, function = KEYED[name][0], partial(answering, name)
    bench = Bench(replace(process(), function=function, many=many, on_error=DROPPED))
    script = Script()
    try:
        fold(bench, [0], script)
    except OperatorError:
        assert blamed(script) == (0, "F")
    else:
        assert script.set_apart["F"] == 1


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_of_an_aggregate_may_be_anything(name: str) -> None:
    bad = replace(aggregate(), result=lambda _: RESULTS[name]())
    with pytest.raises(OperatorError, match="operator 'A' failed"):
        results(bad, {1: (0, 1)})


def test_an_exception_without_a_repr_is_told_by_its_class() -> None:
    assert described(ShyError()) == "<ShyError, whose repr raises RuntimeError>"


def test_a_traceback_begins_in_the_users_function() -> None:
    story = failing("an exception").story
    assert "functions.py" not in story
    frames = [line for line in story.splitlines() if line.startswith("  File")]
    assert all(__file__ in frame for frame in frames)
    assert story.endswith("ValueError: no\n")
