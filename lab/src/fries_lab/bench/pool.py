"""Runs simulations on several processes and shows how far they are."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import Protocol, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


class Runner(Protocol):
    """Runs independent tasks and returns their results in the order of the tasks."""

    def __call__(self, what: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks; ``what`` names them for whoever waits."""
        ...


def in_process(what: str, tasks: Sequence[Callable[[], T]]) -> list[T]:  # noqa: ARG001 - a Runner
    """The simplest runner: one task after the other, silently."""
    return [task() for task in tasks]


class Pool:
    """A runner on ``jobs`` processes, with a progress bar. Results do not depend on ``jobs``."""

    def __init__(self, jobs: int, console: Console) -> None:
        self._executor = None
        if jobs > 1:  # spawned and not forked: the progress bar has a thread
            self._executor = ProcessPoolExecutor(
                jobs, multiprocessing.get_context("spawn"), initializer=_die_quietly
            )
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,  # else it writes empty lines into log files
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._executor is not None:
            self._executor.shutdown(wait=error is None, cancel_futures=True)

    def __call__(self, what: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks, on this process if there is only one."""
        bar = self._progress.add_task(what, total=len(tasks))
        results: list[T] = []
        try:
            if self._executor is None:
                for task in tasks:
                    results.append(task())
                    self._progress.advance(bar)
            else:
                futures = [self._executor.submit(task) for task in tasks]
                for future in as_completed(futures):
                    future.result()  # an error ends it all at once
                    self._progress.advance(bar)
                results.extend(future.result() for future in futures)
        finally:
            self._progress.remove_task(bar)
        return results


def _die_quietly() -> None:
    """Ctrl-C reaches the workers too; let them end without a traceback each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
