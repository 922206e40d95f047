"""The pieces of the demo: its operators, its change, and what its last screen says."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from fries.flow import Flow
from fries.serializability import check_trace
from fries.trace import TraceBuilder
from fries_lab.workloads.payments import DDL, payments

SCRIPT = Path(__file__).parents[2] / "examples" / "fraud_detection.py"


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fraud_detection", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fraud_detection"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fraud_detection"]


@pytest.fixture
def rows(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(demo, "MODEL_SECONDS", 0.0)
    return payments(0, 12).to_pylist()


def test_new_fm_goes_on_with_the_states_of_the_old_one(
    demo: ModuleType, rows: list[dict[str, Any]]
) -> None:
    state = kept = [None] * 5
    for row in rows[:7]:
        state, old = demo.score_merchant_5(state, row)
        kept, _ = demo.score_merchant_5(kept, row)
    state = demo.to_ten()["FM"].migrate(state)
    assert len(state) == 10
    for row in rows[7:]:
        state, new = demo.score_merchant_10(state, row)
        kept, old = demo.score_merchant_5(kept, row)
        assert new["p_m5"] == old["p_m5"]
    assert new["p_m10"] != new["p_m5"]
    assert demo.to_five()["FM"].migrate(state) == kept


def test_mc_must_fit_fm(demo: ModuleType, rows: list[dict[str, Any]]) -> None:
    _, customer = demo.score_customer([None] * 5, rows[0])
    _, old = demo.score_merchant_5([None] * 5, customer)
    _, new = demo.score_merchant_10([None] * 10, customer)
    assert demo.combine_two(old).keys() == demo.combine_three(new).keys()
    with pytest.raises(KeyError):
        demo.combine_three(old)


def test_plan_is_one_component_with_head_fm(
    demo: ModuleType, spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow("demo")
    try:
        demo.build(flow, spark.readStream.schema(DDL).parquet(str(tmp_path)))
        plan = flow.plan(demo.to_ten())
    finally:
        flow.stop()
    assert plan.heads == ("FM",)
    assert plan.members == ("FM", "MC")


@pytest.mark.parametrize(
    ("version", "said"), [(1, "0 mixed, serializable"), (0, "1 mixed, NOT SERIALIZABLE")]
)
def test_last_line_is_the_verdict(demo: ModuleType, version: int, said: str) -> None:
    trace = TraceBuilder(("FM", "MC"))
    trace.record(0, 0, 1)
    trace.record(0, 1, version)
    verdict = check_trace(trace.build([{"FM": 1, "MC": 1}]))
    assert demo.verdict_line(verdict) == f"audit: 1 tuples, 2 operations checked, {said}"


def test_ways_are_compared_with_fries(demo: ModuleType) -> None:
    ways = [
        demo.Measured("Fries", SimpleNamespace(delay=0.01), None, "little"),
        demo.Measured("restart", SimpleNamespace(delay=1.0), 6.5, "much", began_again=5.0),
    ]
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(demo.comparison(ways))
    lines = [line for line in console.export_text().splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells == [
        ["Fries", "10 ms", "1", "-", "little"],
        ["restart", "5.0 s", "500", "6.5 s", "much"],
    ]
