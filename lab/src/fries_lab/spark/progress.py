"""A progress bar for a Spark job that the driver waits for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TypeVar

from pyspark import SparkContext
from rich.console import Console

from fries_lab.workloads.folders import bars

T = TypeVar("T")
LOOK = 0.2
"""Seconds between two looks at the tasks that are done."""


def watched(context: SparkContext, what: str, action: Callable[[], T], console: Console) -> T:
    """Run Spark jobs, and show how many of their tasks are done and how long the rest takes.

    If the wait is interrupted, the jobs are cancelled.
    """
    group = f"fries-{uuid.uuid4().hex}"

    def run() -> T:
        context.setJobGroup(group, what, interruptOnCancel=True)
        return action()

    with bars(console) as progress, ThreadPoolExecutor(1) as executor:
        bar = progress.add_task(what, total=None)
        future = executor.submit(run)
        try:
            while not wait_for([future], LOOK).done:
                done, total = _tasks(context, group)
                progress.update(bar, completed=done, total=total or None)
            return future.result()
        except BaseException:
            context.cancelJobGroup(group)
            raise


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """Done and all tasks of the jobs of a group, as far as Spark has planned them."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    known = [stage for stage in map(tracker.getStageInfo, stages) if stage is not None]
    return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
