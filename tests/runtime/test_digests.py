"""Digests of code: equal in every process for what does the same, different for what does not."""

from __future__ import annotations

import enum
import functools
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fries.runtime.digests import LABEL, digest_of, digest_of_operator, short_form
from fries.runtime.spec import Keying, Kind, OperatorSpec, Style
from fries.spark.pickling import dumps

SCHEMA = pa.schema({"x": pa.int64()})
SPEC = OperatorSpec("F", Kind.MAP, SCHEMA, abs)


def made(source: str, name: str = "f", module: str = "__main__", **held: object) -> Any:  # noqa: ANN401
    """What some lines of a user's program define."""
    space: dict[str, Any] = {"__name__": module, **held}
    exec(compile(source, "/some/where.py", "exec"), space)
    return space[name]


SAME = [
    ("def f(row): return row", "\n\n# moved\ndef f(row):\n    # a comment\n    return row"),
    ("def f(row): return row", "def g(row): return row\nf = g"),
    ("f = lambda row: {1, 2, 'a'}", "f = lambda row: {'a', 2, 1}"),
    ("K = {'a': 1, 'b': 2}\ndef f(row): return K", "K = {'b': 2, 'a': 1}\ndef f(row): return K"),
    ("def f(row): return 1", "import re\nunused = 3\ndef f(row): return 1"),
]
DIFFERENT = [
    ("def f(row): return 1", "def f(row): return 2"),
    ("def f(row): return 1", "def f(row): return 1.0"),
    ("def f(row): return 1", "def f(row): return True"),
    ("def f(row): return len(row)", "def f(row): return max(row)"),
    ("def f(row, k=1): return k", "def f(row, k=2): return k"),
    ("def f(row, *, k=1): return k", "def f(row, *, k=2): return k"),
    ("K = 1\ndef f(row): return K", "K = 2\ndef f(row): return K"),
    (
        "K = [1]\ndef f(row): return [K for _ in row]",
        "K = [2]\ndef f(row): return [K for _ in row]",
    ),
    ("def g(): return 1\ndef f(row): return g()", "def g(): return 2\ndef f(row): return g()"),
    (
        "class C:\n def m(self): return 1\ndef f(row): return C()",
        "class C:\n def m(self): return 2\ndef f(row): return C()",
    ),
    (
        "class C:\n @property\n def m(self): return 1\nf = C()",
        "class C:\n @property\n def m(self): return 2\nf = C()",
    ),
    (
        "import functools\n@functools.lru_cache\ndef f(row): return 1",
        "import functools\n@functools.lru_cache\ndef f(row): return 2",
    ),
    ("f = lambda row: (lambda: 1)()", "f = lambda row: (lambda: 2)()"),
    ("def f(n): return 1 if n else f(n - 1)", "def f(n): return 2 if n else f(n - 1)"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_does_the_same_has_one_digest(one: str, other: str) -> None:
    assert digest_of(made(one)) == digest_of(made(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_does_something_else_has_another(one: str, other: str) -> None:
    assert digest_of(made(one)) != digest_of(made(other))


class Colour(enum.Enum):
    """A value of a closed list."""

    RED = 1
    BLUE = 2


@dataclass
class Model:
    """A function that holds data."""

    weights: Any
    names: dict[str, set[str]] = field(default_factory=dict)

    def __call__(self, row: dict[str, Any]) -> object:
        """Use all of it."""
        return self.weights, self.names, row


@dataclass(frozen=True, slots=True)
class Point:
    """An object without a dict."""

    x: int = 1


def model(scale: float = 1.0) -> Model:
    return Model(np.arange(5.0) * scale, {"a": {"x", "y"}, "b": set()})


def bound(value: object) -> FunctionType:
    return lambda row: (value, row)  # type: ignore[return-value]


HELD = {
    "a closure": lambda: bound([1, {"a": (2, None)}]),
    "a model": model,
    "a partial": lambda: functools.partial(digest_of, model()),
    "a method": lambda: model().__call__,
    "an enum": lambda: bound(Colour.RED),
    "a class": lambda: bound(Model),
    "slots": lambda: bound(Point(3)),
    "a table": lambda: bound(pa.table({"a": [1, 2], "b": ["x", "y"]})),
    "nested columns": lambda: bound(pa.table({"a": [[1], [2]]})),
    "objects in an array": lambda: bound(np.array([1, "a", None], dtype=object)),
    "containers": lambda: bound([OrderedDict(a=1), defaultdict(list, {1: [2]}), bytearray(b"x")]),
    "an array": lambda: bound(np.arange(6).reshape(2, 3)[:, ::2]),
}


@pytest.mark.parametrize("make", HELD.values(), ids=HELD.keys())
def test_a_digest_is_the_same_again_and_after_a_journey(make: Any) -> None:  # noqa: ANN401
    value = make()
    assert digest_of(value) == digest_of(make())
    assert digest_of(pickle.loads(dumps(value))) == digest_of(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (model(), model(2.0)),
        (Model(1), Model(1, {"a": set()})),
        (bound(Colour.RED), bound(Colour.BLUE)),
        (bound(Point(1)), bound(Point(2))),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(4), np.zeros(4, dtype=np.float32)),
        (pa.table({"a": [1, 2]}), pa.table({"a": [1, 3]})),
        (pa.table({"a": [[1]]}), pa.table({"a": [[2]]})),
        (functools.partial(max, 1), functools.partial(max, 2)),
        ([1, 2], (1, 2)),
        (["ab", "c"], ["a", "bc"]),
    ],
)
def test_other_data_have_another_digest(one: object, other: object) -> None:
    assert digest_of(one) != digest_of(other)


def test_the_rows_of_a_table_may_come_in_any_order() -> None:
    one, other = pa.table({"a": [1, 2], "b": ["x", "y"]}), pa.table({"a": [2, 1], "b": ["y", "x"]})
    assert digest_of(one) == digest_of(other)
    nested, turned = pa.table({"a": [[1], [2]]}), pa.table({"a": [[2], [1]]})
    assert digest_of(nested) == digest_of(turned)


def test_circles_end() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [1]
    other.append(other)
    assert digest_of(one) == digest_of(other)


def test_what_is_nested_without_end_has_a_digest() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert len(digest_of(value)) == 32
    while value:  # else Python ends it by recursion, too
        value = value.pop()


def test_what_cannot_be_pickled_has_a_digest_of_its_fields() -> None:
    class Locked:
        def __init__(self, number: int) -> None:
            self.lock, self.number = threading.Lock(), number

    assert digest_of(Locked(1)) == digest_of(Locked(1))
    assert digest_of(Locked(1)) != digest_of(Locked(2))


def test_code_of_a_module_of_ones_own_counts_and_that_of_a_library_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for body in ("1", "1  # a comment", "2"):
        (tmp_path / "own_rules.py").write_text(f"def rule(row):\n    return {body}\nother = {body}")
        monkeypatch.delitem(sys.modules, "own_rules", raising=False)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        found.append(digest_of(made("import own_rules\ndef f(row): return own_rules.rule(row)")))
        sys.dont_write_bytecode = before
    assert found[0] == found[1] != found[2]
    parsed = made("import json\ndef f(row): return json.loads(row)")
    monkeypatch.setattr("json.loads", print)
    assert digest_of(parsed) == digest_of(made("import json\ndef f(row): return json.loads(row)"))


def test_the_functions_style_and_columns_of_a_version_count_and_nothing_else() -> None:
    others = [
        replace(SPEC, function=len),
        replace(SPEC, result=len),
        replace(SPEC, style=Style.ARROW),
        replace(SPEC, schema=pa.schema({"x": pa.string()})),
        replace(SPEC, takes=SCHEMA),
    ]
    digests = {digest_of_operator(spec) for spec in (SPEC, *others)}
    assert len(digests) == 6
    keyed = replace(SPEC, name="G", keying=Keying(("x",), initial=3, migrations=(abs,)))
    assert digest_of_operator(keyed) == digest_of_operator(SPEC)
    assert short_form(digest_of_operator(SPEC)) == digest_of_operator(SPEC)[:LABEL]


PROGRAM = """
from dataclasses import dataclass
from fries.runtime.digests import digest_of
WORDS = {"a", "b", "c", "d"}
@dataclass
class Rule:
    limit: int = 3
    def __call__(self, row): return row["x"] in WORDS or self.limit
def make(words): return lambda row: sorted(words) + [rule(row) for rule in (Rule(), Rule(4))]
print(digest_of(make({"x", "y", "z"})))
"""


def test_two_processes_with_other_hash_seeds_agree(tmp_path: Path) -> None:
    found = set()
    for seed, name in (("1", "first.py"), ("2", "second.py")):
        path = tmp_path / name
        path.write_text("#" * int(seed) + "\n" * int(seed) + PROGRAM)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
