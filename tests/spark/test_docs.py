"""The Python of the README and of every page of the docs runs, and prints what it should."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import fries
from fries.reconfiguration import IN_PLACE
from fries_lab.workloads import w1
from tests.spark.streams import FileStream, until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^\n`]*)\n(.*?)^ *\2 *$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4,}\S.*\n(?:^ {4}.*\n|^ *\n(?= {4}))*)+", re.MULTILINE)
LABEL = re.compile(r"^(?:#+ `?|\*\*`)([\w. ]+)", re.MULTILINE)
DOES = (ast.Call, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.FunctionDef, ast.Import)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([\w./-]*)(?:#([\w-]+))?\)")
RUN = {
    "README.md": 1,
    "concepts.md": 4,
    "quickstart.md": 8,
    "reference.md": 37,
    "security.md": 1,
    "survival.md": 3,
    "testing.md": 4,
    "workloads.md": 1,
}
"""How many blocks of Python each page has that the tests below run."""


Space = dict[str, Any]
"""What the blocks of a page see and define."""

LANGUAGES = {"python", "sh"}
"""Of blocks in which Python is run, or there is none."""
CHECKS: dict[str, Callable[[Space, str], object]] = {
    "flow.source": lambda page, _: page["payments"].schema.names == ["id", "user", "amount"],
    "flow.output": lambda page, _: "_output" in page["result"].columns,
    "flow.select": lambda page, _: page["frame"].columns == ["id", "user", "amount", "n"],
    "flow.start": lambda page, _: page["query"].isActive,
    "flow.wait_until_running": lambda _, told: int(told.split()[0]) > 0,
    "flow.explain": lambda _, told: "flow fraud: 2 stages" in told and "alarms" in told,
    "flow.plan": lambda _, told: "{[FM], MC}" in told,
    "flow.reconfigure": lambda page, _: page["change"].number == 1,
    "flow.history": lambda _, told: re.match(r"1\. .* FM v1 .*, MC v1 .*\(ticket 17\)$", told),
    "Function": lambda page, _: page["score"](2.0)({"amount": 3.0})["p"] == 6.0,
    "Update": lambda page, _: page["sums_too"].label == "sums too",
    "change.wait": lambda page, told: (
        "change 1 of FM" in told and all(one.new >= 1_000 for one in page["change"].rows.values())
    ),
    "change.undo": lambda page, _: page["flow"].versions == {"payments": 0, "FM": 2, "MC": 2},
    "Supervision": lambda page, _: page["query"].isActive,
    "Tls": lambda page, _: page["sealed"].name == "sealed",
    "Plan": lambda _, told: told.startswith("flowchart LR") and "FM" in told,
    "SCHEDULERS": lambda _, told: told.startswith("epoch: update FM") and "[payments]" in told,
    "Graph": lambda page, told: page["graph"].order == ("S", "A") and "{[A]}" in told,
    "Verdict": lambda page, told: page["verdict"].mixed == 0 and told.startswith("serializable"),
    "TraceBuilder": lambda _, told: "not" in told and "1 of them mixed" in told,
    "FriesError": lambda _, told: "'FX'" in told and "FM" in told,
}
"""What the examples of the reference give and print, by the heading or signature before them."""
CHECKED_LATER = {
    "flow.listen",
    "Stream",
    *(f"stream.{name}" for name in ("map", "flat_map", "filter", "split", "replicate", "union")),
    *(f"stream.{name}" for name in ("process", "aggregate", "lookup", "join")),
    "on_error",
    "DeadLetters",
}
"""By what is printed in the end, or by the rows of the streams."""
ROWS: dict[str, tuple[str, list[tuple[object, ...]]]] = {
    "payments_rows": ("id line", [(1, "late night"), (2, "shop"), (3, "")]),
    "scored_rows": ("id p", [(1, 0.5), (2, 0.5), (3, 0.5)]),
    "scaled_rows": ("id p", [(1, 1.0), (2, 1.0), (3, 1.0)]),
    "judged_rows": ("id p", [(1, 0.5), (2, 0.25), (3, 0.5 / 3)]),
    "rated_rows": ("id amount", [(1, 40.0), (2, 180.0), (3, 20.0)]),
    "asked_rows": ("id amount", [(1, 40.0), (2, 180.0), (3, 20.0)]),
    "words_rows": ("word", [("late",), ("night",), ("shop",)]),
    "large_rows": ("id amount", [(2, 180.0)]),
    "even_rows": ("id", [(2,)]),
    "odd_rows": ("id", [(1,), (3,)]),
    "ratios_rows": ("id p", [(1, 1.0), (2, 0.125)]),
    "copies_rows": ("id p", [(1, 0.5), (2, 0.5), (3, 0.5)]),
    "both_rows": ("id", [(1,), (2,), (3,)]),
    "counted_rows": ("id n", [(1, 1), (2, 2), (3, 1)]),
    "sums_rows": ("user total", [(7, 220.0), (9, 20.0)]),
    "named_rows": ("id name", [(1, "Ada"), (2, "Ada"), (3, None)]),
    "joined_rows": ("id p name", [(1, 0.5, "Ada"), (2, 0.5, "Ada"), (3, 0.5, None)]),
    "careful_rows": ("id p", [(1, 1.0), (2, 0.125)]),
    "rejected": (
        "error_operator error_type",
        [("careful", "ZeroDivisionError"), ("ratio", "ZeroDivisionError")],
    ),
}
"""What the streams of the reference's batch job have: columns, and their values."""


def blocks(page: Path, language: str = "python") -> list[str]:
    """The blocks of a page, each at the line where it stands, so that errors point there."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, found.start(2)) + found[2]
        for found in BLOCK.finditer(text)
        if found[1] == language
    ]


def run(page: Path, number: int | None, space: Space) -> Space:
    """Run one block of a page, or all of them as one script; what it has defined."""
    space |= {"fries": fries, "__name__": "__main__"}  # as a script: functions travel by value
    chosen = blocks(page) if number is None else [blocks(page)[number]]
    for block in chosen:
        exec(compile(block.replace('"out/', f'"{space.get("out", "out")}/'), page, "exec"), space)
    return space


def escaped(text: str) -> list[str]:
    """Python of a page that is in no block of Python, and would not be run: code that does a thing.

    Each paragraph of a block counts by itself, so that what is printed below does not hide it.
    """
    fenced = [found[4] for found in FENCE.finditer(text) if found[3].strip() not in LANGUAGES]
    indented = INDENTED.findall(FENCE.sub("", text))
    parts = [part for block in fenced + indented for part in (block, *re.split(r"\n\s*\n", block))]
    return [part for part in parts if _is_python(textwrap.dedent(part))]


def _is_python(text: str) -> bool:
    try:
        parsed = ast.parse(text)
    except SyntaxError:
        return text.startswith(">>> ")
    return any(isinstance(node, DOES) for node in ast.walk(parsed))


def test_every_block_of_python_is_run() -> None:
    found = {page.name: len(blocks(page)) for page in PAGES}
    assert {name: count for name, count in found.items() if count} == RUN


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda page: page.parent.name + "/" + page.name,
)
def test_all_python_of_a_page_is_in_blocks_of_python(page: Path) -> None:
    assert escaped(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "So:\n\n    listening = flow.listen(print)\n\nand so on.\n",
        "- a list:\n\n      flow.stop()\n",
        "```text\nfrom fries.events import Event\n\ndef page(event: Event) -> None: ...\n```\n",
        "```\nflow.stop()\n```\n",
        "~~~py\nflow.stop()\n~~~\n",
        "    flow.stop()\n\n    flow alarms: 2 stages, one Spark plan\n",
        "    >>> flow.versions\n    {'score': 1}\n",
    ],
)
def test_python_that_no_test_would_run_is_found(text: str) -> None:
    assert escaped(f"# A page\n\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        "    fries-lab plan W3 J5 J6 J7 J8\n",
        "    flow scores: 1 stage, one Spark plan\n      sources: payments\n",
        "```python\nflow.stop()\n```\n",
        "```sh\nmake=1\n```\n",
        "```text\nFlow(name: str, groups: int = 64)\n```\n",
    ],
)
def test_what_is_no_python_may_stand_in_any_block(text: str) -> None:
    assert escaped(f"# A page\n\n{text}") == []


def test_the_readme_changes_a_running_query_and_prints_alarms_of_both_versions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run(ROOT / "README.md", 0, {"out": str(tmp_path)})
    printed = capsys.readouterr().out
    assert re.search(r"change 1 of FC \(#\w+\), F \(#\w+\) by fries: .*switched", printed)
    assert "{[FC], F}" in printed
    assert page["change"].state == "done"
    five, ten = re.findall(r"^\| +(\d+)\| *([\d.]+) *\| +(\d+)\|$", printed, re.MULTILINE)
    assert (five[0], ten[0]) == ("5", "10")
    assert min(int(five[2]), int(ten[2])) > 0, "alarms of both versions"
    assert float(five[1]) > 0.5
    assert 0.2 < float(ten[1]) < 0.5
    alarms = spark.read.parquet(str(tmp_path / "alarms"))
    assert alarms.where("of = 5 AND p <= 0.5").count() == 0, "no rule was new with an old score"


def test_the_concepts_explore_every_interleaving(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "concepts.md", 0, {})
    printed = capsys.readouterr().out
    assert "{[FM], MC}" in printed
    for scheduler, is_bad in (("fries", False), ("epoch", False), ("naive", True)):
        (bad,) = re.findall(rf"^{scheduler} [\d,]+ schedules, (\d+) bad", printed, re.MULTILINE)
        assert (int(bad) > 0) == is_bad
    assert re.search(r"used FM old and MC new", printed)


@pytest.fixture
def quickstart(spark: SparkSession) -> Iterator[Space]:
    page: Space = {}
    yield page
    shutil.rmtree(page.get("folder", ""), ignore_errors=True)
    for name in ("scores", "alarms"):
        spark.catalog.dropTempView(name)


def test_the_quick_start_runs_and_nothing_is_mixed(
    spark: SparkSession, quickstart: Space, capsys: pytest.CaptureFixture[str]
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
    space: Space = {
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
    page = run(DOCS / "concepts.md", 1, space)
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
    run(DOCS / "concepts.md", 2, space)
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
    query = run(DOCS / "concepts.md", 3, space)["query"]
    try:
        query.processAllAvailable()
        counts = [spark.read.parquet(path).count() for path in paths.values()]
        assert counts == [5, 10]
    finally:
        query.stop()


@pytest.fixture
def reference(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Space]:
    monkeypatch.chdir(tmp_path)
    for commands in blocks(DOCS / "security.md", "sh"):  # the files of the example with TLS
        subprocess.run(["sh", "-ec", commands], check=True, capture_output=True)
    page: Space = {"out": str(tmp_path)}
    yield page
    for one in page.values():
        if isinstance(one, fries.Flow):
            one.stop()
    assert page.get("spark", spark) is spark, "the page takes the session that there is"


def test_the_examples_of_the_reference_give_what_it_says(
    reference: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "reference.md"
    text = page.read_text()
    printed, labels = "", set()
    for number, found in enumerate(one for one in BLOCK.finditer(text) if one[1] == "python"):
        label = LABEL.findall(text, 0, found.start())[-1]
        labels.add(label)
        run(page, number, reference)
        told = capsys.readouterr().out
        printed += told
        if label in CHECKS:
            holds = CHECKS[label](reference, told)
            assert holds, f"{label} prints {told}"
    assert labels == {*CHECKS, *CHECKED_LATER}, "every example has a check, and every check one"
    until(lambda: reference["change"].state == "done")
    printed += capsys.readouterr().out
    assert "change 2 of" in printed, "the listener was told of the undo"
    _check_streams(reference)


def _check_streams(page: Space) -> None:
    """Run the flow that the examples of streams have built, and compare what each stream has."""
    streams = {
        f"{name}_rows": one
        for name, one in page.items()
        if isinstance(one, fries.Stream) and one.flow is page["shop"]
    }
    rows = page["shop"].output(**streams).collect()
    assert {*streams, "rejected"} == set(ROWS)
    for name, (columns, expected) in ROWS.items():
        found = [tuple(row[one] for one in columns.split()) for row in rows if row._output == name]
        assert sorted(found) == expected, name


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


def test_a_failure_is_logged_and_heard_as_survival_says(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = DOCS / "survival.md"
    (shown,) = (one for one in blocks(page, "text") if "is rolled back" in one)
    (line,) = re.findall(r"^ +return .+$", shown, re.MULTILINE)
    job = tmp_path / "job.py"
    job.write_text(f"def better(state, row):\n{line}\n")
    schema = "id long, total double, amount double"
    stream = FileStream(spark, tmp_path / "in", schema)
    sent: list[str] = []
    space: Space = {"send": sent.append, "__name__": "__main__"}
    exec(compile(job.read_text(), job, "exec"), space)
    with fries.Flow("fraud", groups=2) as flow:
        rated = flow.source("payments", stream.frame).process(
            "FM",
            lambda n, row: (n, {**row, "rate": 0.0}),
            "id",
            f"{schema}, rate double",
            initial=0,
        )
        writer = flow.output(rated).writeStream.format("noop")
        flow.start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        run(page, 1, space | {"flow": flow})
        flow.reconfigure({"FM": fries.Update(space["better"], migrate=str, label="rules v2")})
        stream.add([{"id": 57, "total": 9.0, "amount": 0.0}])
        until(lambda: sent)  # the query fails once, and is started again
    assert sent == [
        "FM failed on {'id': 57, 'total': 9.0, 'amount': 0.0}: "
        "ZeroDivisionError('float division by zero')"
    ]
    logged = caplog.text.replace(f"{tmp_path}/", "")
    for told in re.sub(r"-\w+\.log", "-0.log", shown).strip().splitlines():
        assert re.search(_vaguely(told), logged), f"{told} is not in {logged}"


def test_rows_that_fail_come_out_apart_as_survival_says(spark: SparkSession) -> None:
    with fries.Flow("letters") as flow:
        payments = flow.source("payments", spark.range(20).selectExpr("id", "0L AS a"))
        score = {"score": lambda row: {**row, "a": 10 // row["id"]}}
        space = run(DOCS / "survival.md", 2, {"flow": flow, "payments": payments, **score})
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


def test_a_flow_is_tried_as_the_page_on_testing_says(capsys: pytest.CaptureFixture[str]) -> None:
    page: Space = {}
    run(DOCS / "testing.md", 0, page)
    assert capsys.readouterr().out == "30 large sums\n"
    run(DOCS / "testing.md", 1, page)
    assert "{[sum], large}" in capsys.readouterr().out
    totals = sorted(row["total"] for row in page["rows"])
    assert totals[0] < 300 < totals[-1], "both rules were at work"
    run(DOCS / "testing.md", 2, page)
    assert capsys.readouterr().out == "60 large sums, none lost and none twice\n"
    run(DOCS / "testing.md", 3, page)
    assert capsys.readouterr().out == "{'ann': 1250, 'bob': 30}\n"


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
    errors = text.partition("\n## `FriesError`\n")[2]
    told = {name: errors if name.endswith("Error") else headings for name in fries.__all__}
    assert [name for name, where in told.items() if f"`{name}" not in where] == ["FriesError"]
    assert "`FriesError`" in headings


@pytest.mark.parametrize("owner", [fries.Flow, fries.Stream, fries.Reconfiguration])
def test_the_reference_has_every_method(owner: type) -> None:
    text = (DOCS / "reference.md").read_text()
    public = [name for name in vars(owner) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"\.{name}\b", text)] == []
