"""What tests of code that travels have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.project import Project, start_anew


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder of modules that can be imported, and classes that nobody knows yet."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    start_anew(monkeypatch)
    made = Project(tmp_path)
    yield made
    for name in made.modules():
        del sys.modules[name]
