"""Who may import whom: dependencies point inwards, and a worker loads no planner."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import fries
import fries_lab

LIBRARY, LAB = (Path(str(package.__file__)).parent for package in (fries, fries_lab))
CORE: Final = ("graph", "mcs", "dominators", "broadcasts", "plan", "schedulers", "errors")
"""Planning, which knows nothing but graphs."""
CHECKING: Final = ("trace", "transactions", "precedence", "serializability")
PUBLIC: Final = ("errors", "mcs", "reconfiguration", *CORE, *CHECKING)
"""What others may build on."""
MACHINES: Final = ("change", "protocol", "control.messages")
"""What the simulator drives, as the sockets do."""
SHARED: Final = ("runtime.audit", "spark.local", "spark.plan", "spark.schemas")
"""What the experiments share with the library: audit records, settings and types of Spark."""
PLANNER: Final = frozenset({"networkx", "typer", "rich", "fries.schedulers", "fries.flow"})
"""What a worker has no use for, and should not wait for."""


class Import(NamedTuple):
    """A module that a module imports."""

    by: str
    name: str
    typing: bool
    """Whether only type checkers see it."""


@cache
def imports(folder: Path) -> tuple[Import, ...]:
    """All imports of a package, inside of functions, too."""
    return tuple(one for path in sorted(folder.rglob("*.py")) for one in _imports_of(path, folder))


def _imports_of(path: Path, folder: Path) -> Iterator[Import]:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    by = ".".join(part for part in parts if part != "__init__")
    tree = ast.parse(path.read_text())
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in _named(node, by):
            yield Import(by, name, id(node) in typing)


def _named(node: ast.AST, by: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    home = resolve_name("." * node.level + (node.module or ""), by)
    return [
        f"{home}.{one.name}" if _is_module(f"{home}.{one.name}") else home for one in node.names
    ]


@cache
def _is_module(name: str) -> bool:
    if name.partition(".")[0] not in ("fries", "fries_lab"):
        return False
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def below(name: str, *packages: str) -> bool:
    """Whether a module is one of some, or in one of them."""
    return any(name == one or name.startswith(f"{one}.") for one in packages)


def wrong(by: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    """Imports of some modules of the library from other parts of it than are allowed."""
    mine, may = (tuple(f"fries.{one}" for one in names) for names in (by, (*by, *allowed)))
    return [
        f"{one.by} imports {one.name}"
        for one in imports(LIBRARY)
        if below(one.by, *mine) and below(one.name, "fries") and not one.typing
        if not below(one.name, *may)
    ]


def test_the_library_knows_nothing_of_the_lab() -> None:
    assert not [one for one in imports(LIBRARY) if below(one.name, "fries_lab")]


def test_the_lab_uses_what_is_public() -> None:
    may = tuple(f"fries.{name}" for name in (*PUBLIC, *SHARED))
    machines = tuple(f"fries.{name}" for name in MACHINES)
    found = [
        f"{one.by} imports {one.name}"
        for one in imports(LAB)
        if below(one.name, "fries") and one.name != "fries" and not below(one.name, *may)
        if not (below(one.by, "fries_lab.sim", "fries_lab.world") and below(one.name, *machines))
    ]
    assert found == []


def test_spark_is_imported_in_one_package_alone() -> None:
    found = [one for one in imports(LIBRARY) if below(one.name, "pyspark", "py4j")]
    assert any(below(one.by, "fries.spark") for one in found)
    outside = {one.by for one in found if not below(one.by, "fries.spark") and not one.typing}
    assert outside == set()


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        (CORE, ()),
        (CHECKING, ("errors",)),
        (("protocol",), ("errors", "control.messages")),
        (("change",), ("errors", "protocol", "control.messages")),
        (
            ("runtime",),
            (
                "errors",
                "failing",
                "origins",
                "stages",
                "trace",
                "control.messages",
                "change.epochs",
            ),
        ),
    ],
)
def test_dependencies_point_inwards(modules: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    assert wrong(modules, allowed) == []


def test_the_core_does_no_input_or_output() -> None:
    machines = tuple(f"fries.{name}" for name in (*CORE, *CHECKING, *MACHINES))
    outside = {"socket", "asyncio", "threading", "time", "os", "pathlib", "pyspark", "pandas"}
    found = [one for one in imports(LIBRARY) if below(one.by, *machines)]
    assert {one.name.partition(".")[0] for one in found}.isdisjoint(outside)


def test_a_worker_loads_no_planner() -> None:
    script = "import sys, fries.spark.tasks, fries.spark.stateful; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert PLANNER.isdisjoint(done.stdout.split())
