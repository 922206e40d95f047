"""Which batch runs: actions that overlap count as one, also while none of them has a task."""

from __future__ import annotations

from fries.change.tasks import Batches


def over(batches: Batches, *jobs: int) -> bool:
    """Spark says which actions are over; whether none is under way."""
    return batches.end_jobs(jobs)


def task(batches: Batches, batch: int) -> bool:
    """A task from its begin to its end; whether a batch began with it."""
    began = batches.begin("worker", batch)
    batches.end("worker")
    return began


def test_an_action_between_two_stages_of_another_one_begins_no_batch() -> None:
    batches = Batches()
    assert task(batches, -1)
    assert not task(batches, -2), "the first one has another stage to come"
    assert not task(batches, -1)
    over(batches, -1)
    assert not task(batches, -3), "the second one is not over"
    over(batches, -2, -3)
    assert task(batches, -4)


def test_jobs_are_over_when_spark_says_so_and_no_task_runs() -> None:
    batches = Batches()
    assert not over(batches), "none has begun"
    batches.begin("worker", -1)
    assert not over(batches, -1), "a task runs"
    batches.end("worker")
    assert over(batches, -1)
    task(batches, -2)
    assert not over(batches)
    task(batches, 0)
    assert not over(batches, -2), "a micro-batch is no job"


def test_actions_one_after_the_other_are_batches_of_their_own() -> None:
    batches, began = Batches(), []
    for number in (-1, -1, -2, -3):
        over(batches, *batches.jobs - {number})
        began.append(task(batches, number))
    assert began == [True, False, True, True]
