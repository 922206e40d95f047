"""Which batch runs: actions that overlap count as one, also while none of them has a task."""

from __future__ import annotations

from fries.control.batches import Batches


def task(batches: Batches, batch: int) -> bool:
    """A task from its begin to its end; whether a batch began with it."""
    began = batches.begin("worker", batch)
    batches.end("worker")
    return began


def test_an_action_between_two_stages_of_another_one_begins_no_batch() -> None:
    over: set[int] = set()
    batches = Batches(over.__contains__)
    assert task(batches, -1)
    assert not task(batches, -2), "the first one has another stage to come"
    assert not task(batches, -1)
    over.add(-1)
    assert not task(batches, -3), "the second one is not over"
    over.update((-2, -3))
    assert task(batches, -4)


def test_jobs_are_over_when_spark_says_so_and_no_task_runs() -> None:
    over: set[int] = set()
    batches = Batches(over.__contains__)
    assert not batches.jobs_over, "none has begun"
    batches.begin("worker", -1)
    over.add(-1)
    assert not batches.jobs_over, "a task runs"
    batches.end("worker")
    assert batches.jobs_over
    task(batches, -2)
    assert not batches.jobs_over
    task(batches, 0)
    assert not batches.jobs_over, "a micro-batch is no job"


def test_actions_one_after_the_other_are_batches_of_their_own() -> None:
    batches = Batches()
    assert [task(batches, number) for number in (-1, -1, -2, -3)] == [True, False, True, True]
