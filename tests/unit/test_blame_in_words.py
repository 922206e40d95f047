"""What is told of a failure that nobody has reported: what Spark says, in a line."""

from __future__ import annotations

from fries.spark.blame import MOST_EVIDENCE, cause_of

CRASH = """[STREAM_FAILED] Query [id = 3f] terminated with exception: Job aborted: Lost task 1.0
in stage 9.0 (TID 97) (executor driver): org.apache.spark.SparkException: Python worker exited
\tat org.apache.spark.SparkException.internalError(SparkException.scala:601)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:601)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readFully(DataInputStream.java:210)
"""


def test_the_last_causes_are_told_without_stack_traces() -> None:
    assert cause_of(CRASH) == (
        "org.apache.spark.SparkException: Python worker exited, caused by java.io.EOFException"
    )


def test_of_causes_that_are_told_twice_the_last_time_counts() -> None:
    assert cause_of(f"Caused by: java.io.EOFException\n{CRASH}") == cause_of(CRASH)


def test_without_causes_all_is_told() -> None:
    assert cause_of("  it failed \n") == "it failed"


def test_evidence_is_short() -> None:
    assert len(cause_of("x" * 100_000)) < MOST_EVIDENCE + 100
