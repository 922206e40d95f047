"""Listeners of a flow: events are logged, and handed to callbacks on threads of their own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from fries.arguments import expect_callable
from fries.events import Event
from fries.failing import story_of

Callback: TypeAlias = "Callable[[Event], object]"
MOST_WAITING: Final = 10_000
"""Events that wait for a slow callback: beyond that it misses some, so that memory suffices."""
FAREWELL_SECONDS: Final = 1.0
"""For so long a flow that is stopped waits for each callback to get the last events."""
_logger = logging.getLogger("fries.events")


class Listening:
    """A callback that hears of a flow's events, until :meth:`stop`; also a context manager."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._waiting: queue.Queue[Event | None] = queue.Queue(MOST_WAITING)
        self._stopped = False
        self.lost = 0
        """Events that the callback was too slow for."""
        self._thread = threading.Thread(target=self._run, name="fries-listener", daemon=True)
        self._thread.start()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Hear no more. A call that is under way goes on to its end."""
        self._stopped = True
        with suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _hand(self, event: Event) -> None:
        """Have the callback called with an event, soon."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self.lost += 1
            if self.lost == 1:
                _logger.warning("a listener is too slow: it misses events (see its .lost)")

    def _finish(self) -> None:
        """No more events will come: wait a moment for the last ones to be heard."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None and not self._stopped:
            try:
                self._callback(event)
            except BaseException as error:  # the user's code may raise anything, even SystemExit
                _logger.error("a listener failed on: %s\n%s", event, story_of(error))


class Announcer:
    """Tells of a flow's events, from any thread; nobody who tells ever waits for who hears."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self.details: Callable[[], str] = str
        """Says where there is more about what went wrong, if there is: logged with it."""
        self._listeners: tuple[Listening, ...] = ()
        self._lock = threading.Lock()

    def listen(self, callback: Callback) -> Listening:
        """Call back with every event from now on, one after the other, on a thread for it."""
        expect_callable(f"flow {self.flow!r}", "its callback", callback, "a function of an event")
        listening = Listening(callback)
        with self._lock:
            still = (one for one in self._listeners if not one._stopped)
            self._listeners = (*still, listening)
        return listening

    def tell(self, event: Event, level: int | None = None) -> None:
        """Something happened; it is logged at its own level, or at another one."""
        level = event.level if level is None else level
        if _logger.isEnabledFor(level):
            _logger.log(level, "%s%s", event, self._more(level))
        for listening in self._listeners:
            if not listening._stopped:
                listening._hand(event)

    def _more(self, level: int) -> str:
        more = self.details() if level >= logging.WARNING else ""
        return f"\n    {more}" if more else ""

    def close(self) -> None:
        """Nothing more will happen."""
        with self._lock:
            listeners, self._listeners = self._listeners, ()
        for listening in listeners:
            listening._finish()
