"""An event loop in a thread of its own, which other threads ask to do things."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from fries.errors import WireError

ANSWER_SECONDS: Final = 30.0
"""Until a caller gives up on an event loop that has stopped in this moment."""
Answer = TypeVar("Answer")


class LoopThread:
    """Runs ``begin``, then whatever it is asked for, and ``end`` when it is stopped."""

    def __init__(
        self, name: str, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]
    ) -> None:
        self._begin, self._end = begin, end
        self._started: Future[None] = Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Wait until it has begun; raises ``OSError`` if it cannot."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """End the thread; once is enough."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def ask(self, what: Callable[[], Answer]) -> Answer:
        """Have something done, and wait for it; it never takes long. Call it from any thread."""
        if not self._thread.is_alive():
            raise WireError(
                "the controller does not run: it was not started yet, or it was stopped"
            )
        answer: Future[Answer] = Future()

        def do() -> None:
            try:
                answer.set_result(what())
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(do)
            return answer.result(ANSWER_SECONDS)
        except (RuntimeError, TimeoutError) as error:
            raise WireError("the controller has stopped") from error

    def tell(self, what: Callable[[], None]) -> None:
        """Have something done, if the loop still runs. Call it from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)

    def later(self, seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
        """Have something done after a while. Only for the loop's own thread."""
        return self._loop.call_later(seconds, what)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except OSError as error:
            self._started.set_exception(error)
        finally:
            self._loop.close()

    async def _main(self) -> None:
        await self._begin()
        self._started.set_result(None)
        await self._stopping.wait()
        await self._end()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=1.0) if others else None
