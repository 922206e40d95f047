"""The Python of the README and of every page of the docs runs, and prints what it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import fries
from fries.reconfiguration import IN_PLACE
from fries.workloads import w1
from tests.spark.streams import FileStream, until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([\w./-]*)(?:#([\w-]+))?\)")
RUN = {
    "README.md": 2,
    "concepts.md": 3,
    "quickstart.md": 8,
    "security.md": 1,
    "survival.md": 2,
    "workloads.md": 1,
}
"""How many blocks of Python each page has that the tests below run."""


def blocks(page: Path, language: str = "python") -> list[str]:
    """The blocks of a page, each at the line where it stands, so that errors point there."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, found.start(2)) + found[2]
        for found in BLOCK.finditer(text)
        if found[1] == language
    ]


def run(page: Path, number: int | None, space: dict[str, Any]) -> dict[str, Any]:
    """Run one block of a page, or all of them as one script; what it has defined."""
    space |= {"fries": fries, "__name__": "__main__"}  # as a script: functions travel by value
    chosen = blocks(page) if number is None else [blocks(page)[number]]
    for block in chosen:
        exec(compile(block.replace('"out/', f'"{space.get("out", "out")}/'), page, "exec"), space)
    return space


def test_every_block_of_python_is_run() -> None:
    found = {page.name: len(blocks(page)) for page in PAGES}
    assert {name: count for name, count in found.items() if count} == RUN


def test_the_readme_changes_a_running_query_and_prints_alarms_of_both_versions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run(ROOT / "README.md", 0, {"out": str(tmp_path)})
    printed = capsys.readouterr().out
    assert "flow fraud: 2 stages, one Spark plan" in printed
    assert re.search(r"change 1 of FC \(#\w+\), F \(#\w+\) by fries: .*switched", printed)
    assert "{[FC], F}" in printed
    assert page["change"].state == "done"
    five, ten = re.findall(r"^\| +(\d+)\| +(\d+)\| *([\d.]+) *\|$", printed, re.MULTILINE)
    assert (five[0], ten[0]) == ("5", "10")
    assert min(int(five[1]), int(ten[1])) > 0, "alarms of both versions"
    assert float(five[2]) > 0.5
    assert 0.2 < float(ten[2]) < 0.5
    alarms = spark.read.parquet(str(tmp_path / "alarms"))
    assert alarms.where("of = 5 AND p <= 0.5").count() == 0, "no rule was new with an old score"


def test_the_readme_explores_every_interleaving(capsys: pytest.CaptureFixture[str]) -> None:
    run(ROOT / "README.md", 1, {})
    printed = capsys.readouterr().out
    assert "{[FM], MC}" in printed
    for scheduler, is_bad in (("fries", False), ("epoch", False), ("naive", True)):
        (bad,) = re.findall(rf"^{scheduler} [\d,]+ schedules, (\d+) bad", printed, re.MULTILINE)
        assert (int(bad) > 0) == is_bad
    assert re.search(r"used FM old and MC new", printed)


@pytest.fixture
def quickstart(spark: SparkSession) -> Iterator[dict[str, Any]]:
    page: dict[str, Any] = {}
    yield page
    shutil.rmtree(page.get("folder", ""), ignore_errors=True)
    for name in ("scores", "alarms"):
        spark.catalog.dropTempView(name)


def test_the_quick_start_runs_and_nothing_is_mixed(
    spark: SparkSession, quickstart: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page = run(DOCS / "quickstart.md", None, quickstart)
    printed = capsys.readouterr().out
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
    for shown in shown_by(DOCS / "quickstart.md"):
        for line in shown.splitlines():
            assert re.search(_vaguely(line), printed), line


def shown_by(page: Path) -> list[str]:
    """What a page says that its Python prints: indented blocks, but commands of a shell."""
    text = BLOCK.sub("", page.read_text())
    found = re.findall(r"(?:^ {4}\S.*\n(?:^ {4}.*\n)*)+", text, re.MULTILINE)
    return [text for text in found if "pip install" not in text and "make setup" not in text]


def _vaguely(line: str) -> str:
    """A line as a pattern in which every number, and every hash of code, may be another one."""
    words = [re.split(r"(#[0-9a-f]{8}|\d[\d,.]*)", word) for word in line.split()]
    patterns = (
        "".join(r"[#\w,.]+" if place % 2 else re.escape(part) for place, part in enumerate(parts))
        for parts in words
    )
    return r"\s*".join(patterns)


def test_the_example_of_the_concepts_is_planned_as_shown(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(id=n, customer=n % 3, items=[n % 2, 7]) for n in range(10)]
    space: dict[str, Any] = {
        "payments_df": spark.createDataFrame(rows, "id long, customer long, items array<long>"),
        "count_customer": lambda state, row: (state + 1, {**row, "n": state + 1}),
        "model": lambda row: {"id": row["id"], "p": row["id"] / 10},
        "to_merchants": lambda row: [
            {"id": row["id"], "p": row["p"], "n": row["n"], "merchant": one} for one in row["items"]
        ],
        "count_merchant": lambda state, row: (
            state + 1,
            {"id": row["id"], "p": row["p"], "n": row["n"], "m": state + 1},
        ),
        "combine": lambda row: {"id": row["id"], "p": row["p"] * row["n"] / row["m"]},
    }
    page = run(DOCS / "concepts.md", 0, space)
    shown = next(one for one in shown_by(DOCS / "concepts.md") if "flow shop" in one)
    printed = capsys.readouterr().out
    assert printed.split() == shown.split()
    assert page["result"].count() == 20
    page["flow"].stop()


class Sums:
    """A query that sums payments per customer, fed by a test."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, schema: str) -> None:
        self.folder, self.flow = folder, fries.Flow("docs")
        self.stream = FileStream(spark, folder / "in", schema)
        self.rows = self.flow.source("rows", self.stream.frame)
        self.name = name

    def writer(self, last: fries.Stream) -> Any:  # noqa: ANN401 - Spark's
        """Of the query."""
        return self.flow.output(last).writeStream.format("noop")

    def add(self, **row: object) -> None:
        """One row, through the whole flow."""
        self.stream.add([row])
        until(lambda: self.stream.done(self.flow), self.flow)


@pytest.fixture
def sums(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str, str], Sums]]:
    made: list[Sums] = []

    def make(name: str, schema: str) -> Sums:
        made.append(Sums(spark, tmp_path, name, schema))
        return made[-1]

    yield make
    for one in made:
        one.flow.stop()


def test_states_of_earlier_versions_are_brought_up_as_the_concepts_say(
    sums: Callable[[str, str], Sums],
) -> None:
    one = sums("FC", "customer long")
    space = {"payments": one.rows, "newest": lambda state, row: (state, row), "widen": dict}
    run(DOCS / "concepts.md", 1, space)
    (spec,) = (spec for spec in one.flow._operators.values() if spec.name == "FC")
    assert spec.keying is not None
    assert spec.keying.migrations == (dict,)


def test_several_outputs_are_taken_apart_as_the_concepts_say(
    spark: SparkSession, sums: Callable[[str, str], Sums], tmp_path: Path
) -> None:
    one = sums("", "id long")
    paths = {f"{name}_path": str(tmp_path / name) for name in ("alarms", "statistics")}
    alarms = one.rows.filter("odd", lambda row: row["id"] % 2)
    space = {"flow": one.flow, "alarms": alarms, "statistics": one.rows, **paths}
    one.stream.add([{"id": number} for number in range(10)])
    query = run(DOCS / "concepts.md", 2, space)["query"]
    try:
        query.processAllAvailable()
        counts = [spark.read.parquet(path).count() for path in paths.values()]
        assert counts == [5, 10]
    finally:
        query.stop()


def test_survival_s_change_is_undone_and_told(
    sums: Callable[[str, str], Sums], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = sums("FM", "id long, n long")
    last = one.rows.process("FM", lambda n, row: (n + 1, {**row, "n": n + 1}), "id", initial=0)
    space = {
        "flow": one.flow,
        "writer": one.writer(last),
        "place": str(tmp_path / "checkpoint"),
        "better": lambda state, row: ({"n": state["n"] + 2}, {**row, "n": state["n"] + 2}),
        "widen": lambda n: {"n": n},
        "narrow": lambda state: state["n"],
    }
    run(DOCS / "survival.md", 0, space)
    change, undo = capsys.readouterr().out.splitlines()
    assert "ticket 17" in change
    assert "undo of change 1" in undo
    one.add(id=1, n=0)
    assert space["change"].state in IN_PLACE


def test_rows_that_fail_come_out_apart_as_survival_says(spark: SparkSession) -> None:
    with fries.Flow("letters") as flow:
        payments = flow.source("payments", spark.range(20).selectExpr("id", "0L AS a"))
        score = {"score": lambda row: {**row, "a": 10 // row["id"]}}
        space = run(DOCS / "survival.md", 1, {"flow": flow, "payments": payments, **score})
        assert sorted(row.id for row in space["good"].collect()) == list(range(1, 20))
        (row,) = space["rejected"].collect()
        assert (row.error_operator, row.error_type) == ("score", "ZeroDivisionError")
        assert row.error_row == '{"id": 0, "a": 0}'


def test_a_trained_model_is_put_in_as_the_workloads_say(sums: Callable[[str, str], Sums]) -> None:
    one = sums("FD", "id long, user long, amount double, use_chip string, errors string")
    frame = one.rows.flow._sources["rows"]
    flow = fries.Flow("W1")
    writer = w1.build(flow, frame).writeStream.format("noop")
    one.flow, kept = flow, one.flow
    try:
        flow.start(writer, fries.Supervision(rollback=False, restarts=0))
        run(DOCS / "workloads.md", 0, {"flow": flow})
        one.add(id=1, user=1, amount=5.0, use_chip="Swipe Transaction", errors="")
        assert flow.versions["FD"] == 1
    finally:
        flow.stop()
        one.flow = kept


def test_certificates_are_made_and_used_as_the_page_on_security_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for commands in blocks(DOCS / "security.md", "sh"):
        subprocess.run(["sh", "-ec", commands], check=True, capture_output=True)
    assert run(DOCS / "security.md", 0, {})["flow"].name == "fraud"


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


@pytest.mark.parametrize("page", [path.name for path in PAGES[1:]])
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
