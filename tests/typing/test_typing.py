"""Mypy reads this folder: in the project's configuration, and here, with the project's options."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = ("api.py", "mistakes.py")


def test_the_project_checks_this_folder() -> None:
    """So that ``make check`` finds a type that has changed."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert options["strict"] is True, "strict warns of ignores that are not needed"
    assert options.get("warn_unused_ignores", True) is True
    assert any(HERE.is_relative_to(ROOT / folder) for folder in options["files"])
    assert "exclude" not in options
    assert all((HERE / page).is_file() for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_modules(page: str) -> None:
    """They can be imported, and importing them calls nothing of Spark."""
    compile((HERE / page).read_text(), page, "exec")
    __import__(f"tests.typing.{page.removesuffix('.py')}")


def test_mypy_agrees_and_sees_every_mistake(tmp_path: Path) -> None:
    """Without its ignores, each line of ``mistakes.py`` is an error with the code that it names."""
    text = (HERE / "mistakes.py").read_text()
    expected = [
        (number, code)
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"# type: ignore\[([a-z-]+)\]", line)
    ]
    bare = tmp_path / "bare_mistakes.py"
    bare.write_text(re.sub(r"  # type: ignore\[[a-z-]+\]", "", text))
    config, cache = str(ROOT / "pyproject.toml"), str(ROOT / ".mypy_cache")
    arguments = ["--config-file", config, "--cache-dir", cache, "--no-pretty"]
    report, problems, _ = api.run([*arguments, str(HERE / "api.py"), str(bare)])
    assert not problems
    found = re.findall(r"(\w+\.py):(\d+):(?:\d+:)? error: .*\[([a-z-]+)\]$", report, re.MULTILINE)
    assert [where for where, *_ in found if where != bare.name] == [], report
    assert [(int(line), code) for _, line, code in found] == expected, report
