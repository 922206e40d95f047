"""Which of Spark's messages are about a supervised query. No Spark session."""

from __future__ import annotations

import re

from fries.spark.quiet import _Whose

OURS = "fc580fe8-c267-4c1d-a376-c43b7a9d25c1"
OTHER = "0b9c2d4e-54d3-4a63-9a0c-0c5f3f1d2a77"
RUNS = {OURS: "d03ddd11-run", OTHER: "aa11bb22-run"}


def lost_task(query: str) -> str:
    return f"[queryId = {query[:5]}] Lost task 0.0 in stage 3.0 (TID 7): Exception\n\tat one\n"


def not_cancelled(run: str) -> str:
    return f"Failed to cancel job group {run}. Cannot find active jobs for it."


def is_told(whose: _Whose, message: str) -> bool:
    """Whether the whole message matches, as Log4j asks."""
    return re.fullmatch(whose.scheduler(), message) is not None


def test_a_query_that_runs_is_known_by_its_id() -> None:
    whose = _Whose({OURS: RUNS[OURS]})
    for query in (OURS, OTHER):
        assert is_told(whose, lost_task(query)) is (query == OURS)
        assert is_told(whose, not_cancelled(RUNS[query])) is (query == OURS)
    assert whose.levels() == ({OURS: "ERROR"}, "OFF")


def test_a_query_that_starts_is_none_of_those_that_run() -> None:
    whose = _Whose({OTHER: RUNS[OTHER]}, others=True)
    for query in (OURS, OTHER):
        assert is_told(whose, lost_task(query)) is (query == OURS)
        assert is_told(whose, not_cancelled(RUNS[query])) is (query == OURS)
    assert whose.levels() == ({OTHER: "OFF"}, "ERROR")


def test_the_first_query_of_all_may_have_any_id() -> None:
    whose = _Whose({}, others=True)
    assert is_told(whose, lost_task(OURS))
    assert not is_told(whose, "Lost task 0.0 of a job without a query")
    assert whose.levels() == ({}, "ERROR")
