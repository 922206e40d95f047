"""Without the extra ``spark``: what does not need it works, what does says so in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fries
from fries import extras
from fries.errors import SparkVersionError

BARE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pandas", "google", "duckdb"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

import fries
from typer.testing import CliRunner
from fries.cli import app

found = {}
for command in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, command.split())
    found[command] = [done.exit_code, done.stdout, done.stderr]
edges = [fries.Edge("S", "A"), fries.Edge("A", "B")]
graph = fries.Graph([fries.Operator("S", source=True), *map(fries.Operator, "AB")], edges)
found["plan"] = str(fries.SCHEDULERS["fries"](graph, ["A", "B"]))
for name in fries.__all__:
    try:
        getattr(fries, name)
    except fries.FriesError as error:
        found[name] = str(error)
try:
    fries.Flow("x")
except fries.FriesError as error:
    found["Flow()"] = str(error)
print(json.dumps(found))
"""
"""A process in which only Fries and its own dependencies are installed tries everything."""
WORKS = {"--version": "fries 0.", "log --help": "repair"}
NEEDS = (
    "this needs PySpark 4.2 or 4.3, and pyspark is not installed; install it with: "
    "pip install 'fries-spark[spark]'"
)


def test_without_spark_all_works_that_can_and_the_rest_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps([*WORKS])],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    for command, printed in WORKS.items():
        code, stdout, stderr = found.pop(command)
        assert (code, stderr) == (0, "")
        assert printed in stdout
    assert "{[A], B}, longest path 1" in found.pop("plan")
    assert found == {"SupervisedQuery": NEEDS, "Flow()": NEEDS}


@pytest.mark.parametrize("version", ["4.1.0", "4.0.1", "3.5.6", "4.4.0.dev1", "5.0", "?"])
def test_other_versions_of_spark_are_refused_when_a_flow_is_built(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__=version))
    with pytest.raises(SparkVersionError, match=r"4\.2 or 4\.3, and pyspark .* is installed"):
        fries.Flow("x")


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.1.dev0", "4.3.0+vendor"])
def test_supported_versions_are_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__=version))
    extras.require_spark()
