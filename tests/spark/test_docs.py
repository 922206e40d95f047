"""The quick start does what it says: its Python blocks run, in order, as one script."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fries

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([\w./-]*)(?:#([\w-]+))?\)")


def script(page: str) -> str:
    """The Python blocks of a page, each at the line where it stands, so that errors point there."""
    text = (DOCS / page).read_text()
    lines: list[str] = []
    for found in BLOCK.finditer(text):
        begins = text.count("\n", 0, found.start(1))
        lines += [""] * (begins - len(lines))
        lines += found[1].splitlines()
    return "\n".join(lines)


def test_the_quick_start_runs_and_nothing_is_mixed(spark: SparkSession) -> None:
    code = compile(script("quickstart.md"), str(DOCS / "quickstart.md"), "exec")
    page: dict[str, Any] = {"__name__": "__main__"}  # as a script: functions travel by value
    try:
        exec(code, page)
        assert page["spark"] is spark, "the page takes the session that there is"
        assert page["change"].state == "done"
        assert (page["verdict"].mixed, page["verdict"].transactions) == (0, 4000)
        (tally,) = page["verdict"].tallies
        assert tally.old > 0, "the change came in the middle of a batch"
        assert tally.new > 0
        scores = spark.table("scores").collect()
        assert sorted(row.id for row in scores) == list(range(4000))
        assert {row.version for row in scores} == {1, 2}
        _check_alarms(spark)
    finally:
        shutil.rmtree(page.get("folder", ""), ignore_errors=True)
        for name in ("scores", "alarms"):
            spark.catalog.dropTempView(name)


def _check_alarms(spark: SparkSession) -> None:
    """Versions go together, decisions fit the unit, and no migration has lost a cent."""
    rows = spark.table("alarms").collect()
    assert sorted(row.id for row in rows) == list(range(4000))
    sums: dict[int, float] = {}
    euros: dict[int, float] = {}
    for row in rows:
        assert row.summed_by == row.decided_by
        total = row.total if row.summed_by == 1 else row.total / 100
        assert row.decision == ("alarm" if total > 4000 else "fine")
        sums[row.customer] = sums.get(row.customer, 0.0) + row.amount
        euros[row.customer] = max(euros.get(row.customer, 0.0), total)
    assert euros == sums
    assert {row.decision for row in rows} == {"alarm", "fine"}


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_pages_link_to_files_that_exist(page: str) -> None:
    for target, anchor in LINK.findall((DOCS / page).read_text()):
        assert (DOCS / target).exists(), target
        assert not anchor or anchor in _anchors(target or page), f"{target}#{anchor}"


def _anchors(page: str) -> set[str]:
    """What a heading is called in a link, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-") for text in headings}


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text()
    headings = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    listed = {name for name in fries.__all__ if f"`{name}" in headings}
    assert listed == set(fries.__all__)


@pytest.mark.parametrize("owner", [fries.Flow, fries.Stream, fries.Reconfiguration])
def test_the_reference_has_every_method(owner: type) -> None:
    text = (DOCS / "reference.md").read_text()
    public = [name for name in vars(owner) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"\.{name}\b", text)] == []
