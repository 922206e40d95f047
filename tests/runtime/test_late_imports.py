"""Modules that a function imports when it is called: the worker's must be as the driver's are."""

from __future__ import annotations

import importlib

import pytest

from fries.errors import StaleCodeError
from tests.runtime.project import Project

TABLES = """
import tempfile, time
STARTED = time.perf_counter_ns()
FOLDER = tempfile.mkdtemp
CALLS = 0
CACHE = {}
RATE = 1
RATES = {"a": [1]}

def grow(row):
    global CALLS
    CALLS += 1
    CACHE[row] = CALLS
    return row + RATE
"""
READS = """
import importlib

def a_value(row):
    import tables
    return row + tables.RATES["a"][0]

def its_name(row):
    from tables import RATE
    return row + RATE

def a_function(row):
    import tables
    return tables.grow(row)

def its_own_name(row):
    from tables import grow
    return grow(row)

def another_name(row):
    import tables as t
    return row + t.RATE

def a_text(row):
    import tables
    return row + getattr(tables, "RATE")

def handed_on(row):
    import tables
    return pick(tables, row)

def pick(module, row):
    return row + module.RATE

def by_a_helper(row):
    return its_name(row)

def nested(row):
    return (lambda: its_name(row))()

def by_hand(row):
    return row + importlib.import_module("tables").RATE

def underscored(row):
    return row + __import__("tables").RATE

def a_method(row):
    return Reads().now(row)

class Reads:
    def now(self, row):
        import tables
        return row + tables.RATE

def late_by_late(row):
    import calls
    return calls.deep(row)

def handed_through(row):
    from package import RATE
    return row + RATE

def its_function(row):
    import package
    return package.grow(row)

def a_submodule(row):
    import package.sub
    return row + package.sub.RATE

def its_package(row):
    import package.sub
    return row + package.RATE

def from_a_package(row):
    from package import sub
    return row + sub.RATE

def inside_of_a_package(row):
    import package
    return row + package.sub.RATE

def inside_of_no_package(row):
    import space.deep.leaf
    return row + space.deep.leaf.RATE
"""
CALLS = """
import threading
lock = threading.Lock()

def deep(row):
    with lock:
        return deeper(row)

def deeper(row):
    from tables import RATE
    return row + RATE
"""
NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for line in READS.splitlines()
    if line.startswith("def ") and "module" not in line.partition("(")[2]
]


def texts(rate: int) -> dict[str, str]:
    """A project with a rate in it."""
    return {
        "tables": TABLES.replace("RATE = 1", f"RATE = {rate}").replace("[1]", f"[{rate}]"),
        "calls": CALLS,
        "package/sub": f"RATE = {rate}",
        "package/__init__": "from tables import RATE, grow\nfrom package import sub",
        "space/deep/leaf": f"RATE = {rate}",
        "reads": READS,
    }


@pytest.mark.parametrize("name", NAMES)
def test_what_a_function_imports_is_compared(project: Project, name: str) -> None:
    project.edit(texts(1))
    function = getattr(importlib.import_module("reads"), name)
    assert project.returns(function, 1) == function(1) == 2
    project.edit(texts(1))
    same = getattr(importlib.import_module("reads"), name)
    for row in range(3):
        assert project.returns(same, row) == row + 1, "whatever was counted and cached meanwhile"
    project.edit(texts(100))
    edited = getattr(importlib.import_module("reads"), name)
    with pytest.raises(StaleCodeError, match=r"(tables|package|calls|leaf|sub)\."):
        project.arrives(edited)
    project.worker = {}
    assert project.returns(edited, 1) == edited(1) == 101, "in a new worker"


def test_the_error_tells_which_value_is_another_one(project: Project) -> None:
    project.edit(texts(1))
    project.returns(importlib.import_module("reads").a_value, 1)
    project.edit(texts(2))
    with pytest.raises(StaleCodeError, match=r"^tables\.RATES is other code here"):
        project.arrives(importlib.import_module("reads").a_value)


def test_values_that_nobody_names_may_differ(project: Project) -> None:
    project.edit(texts(1))
    project.returns(importlib.import_module("reads").its_name, 1)
    project.edit({"tables": TABLES + "MORE = 1"})
    assert project.returns(importlib.import_module("reads").its_name, 1) == 2
    project.edit(
        {"tables": TABLES, "timed": "def f(row):\n    import tables\n    return tables.STARTED"}
    )
    with pytest.raises(StaleCodeError, match=r"tables\.STARTED"):
        project.arrives(importlib.import_module("timed").f)


CLIENTS = """
import os, threading
from fractions import Fraction
from http.client import HTTPConnection

class Pool:
    def __init__(self):
        self.lock, self.connection = threading.Lock(), HTTPConnection("localhost")
        self.connection.opened = os.urandom(8)

    def get(self, row):
        return row + 1

POOL = Pool()
CLIENTS = {"a": POOL.connection}
SHARE = Fraction(1, 2)

def get(row):
    return POOL.get(row) if CLIENTS and SHARE else None
"""


@pytest.mark.parametrize("used", ["get(row)", "POOL.get(row)", "CLIENTS and row + 1"])
def test_each_process_has_its_own_connections(project: Project, used: str) -> None:
    """They are opened where they are used, which is what such imports are for."""
    function = f"def f(row):\n    import clients\n    return clients.{used}"
    project.edit({"clients": CLIENTS, "reads": function})
    assert project.returns(importlib.import_module("reads").f, 1) == 2
    project.edit({"clients": CLIENTS})
    assert project.returns(importlib.import_module("reads").f, 1) == 2
    project.edit({"clients": CLIENTS.replace("row + 1", "row + 2").replace('"a"', '"b"')})
    with pytest.raises(StaleCodeError, match=r"clients\."):
        project.arrives(importlib.import_module("reads").f)


def test_a_value_of_others_that_can_be_compared_is(project: Project) -> None:
    function = "def f(row):\n    import clients\n    return clients.SHARE * row"
    project.edit({"clients": CLIENTS, "reads": function})
    project.returns(importlib.import_module("reads").f, 1)
    project.edit({"clients": CLIENTS.replace("Fraction(1, 2)", "Fraction(1, 3)")})
    with pytest.raises(StaleCodeError, match=r"clients\.SHARE"):
        project.arrives(importlib.import_module("reads").f)


def test_relative_imports(project: Project) -> None:
    project_of = {
        "pack/deep/constant": "N = 1",
        "pack/early": "from .deep import constant\ndef f(row):\n    return constant.N + row",
        "pack/late": "def f(row):\n    from .deep import constant\n    return constant.N + row",
        "pack/whole": "def f(row):\n    from . import deep\n    return deep.constant.N + row",
        "caller": "import pack.early\ndef f(row):\n    return pack.early.f(row)",
    }
    callers = ("pack.early", "pack.late", "pack.whole", "caller")
    project.edit(project_of)
    for caller in callers:
        function = importlib.import_module(caller).f
        assert project.returns(function, 1) == 2
    project.edit({"pack/deep/constant": "N = 50"})
    for caller in callers:
        function = importlib.import_module(caller).f
        assert function(1) == 51
        if caller in ("pack.early", "caller"):
            assert project.returns(function, 1) == 51, "it comes by value"
        else:
            with pytest.raises(StaleCodeError, match=r"pack\.deep\.constant\.N"):
                project.arrives(function)


def test_what_the_driver_cannot_import_is_the_worker_s(project: Project) -> None:
    project.edit(
        {
            "failing": "raise SystemExit('not here')",
            "reads": "def f(row):\n    import failing, missing, json.missing\n    return row",
        }
    )
    assert project.arrives(importlib.import_module("reads").f) is not None


def test_looking_at_imports_imports_nothing_else(project: Project) -> None:
    """A name in a text is no import, and a function is not hidden by a module of its name."""
    project.edit(
        {
            "train": "raise AssertionError('imported')",
            "package/__init__": "def train(row):\n    return row",
            "package/train": "raise AssertionError('imported')",
            "unknown": "",
            "reads": "import importlib, unknown\ndef f(row):\n"
            "    from package import train\n"
            "    importlib.import_module('package')\n"
            "    return train(row), unknown and 'train'",
        }
    )
    importlib.import_module("unknown")
    (project.folder / "unknown.py").unlink()
    assert project.returns(importlib.import_module("reads").f, 1) == (1, "train")
