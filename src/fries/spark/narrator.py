"""What a supervisor does about failures, told to people: operator and row come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pyspark.errors import StreamingQueryException

from fries.control.messages import Failed
from fries.events import QueryEnded, QueryGivenUp, QueryRestarting, first_line
from fries.listening import Announcer
from fries.spark.blame import story
from fries.spark.policy import Supervision

PLAN: Final = "=== Streaming Query ==="
"""What Spark's error goes on with: offsets and the whole plan."""
MOST_LINES: Final = 12
"""Of what Spark says: it begins with what happened, and ends with why."""


class Narrator:
    """Tells what becomes of one query; each traceback once."""

    def __init__(self, events: Announcer, over: Callable[[str], None] = lambda _: None) -> None:
        """``over`` is called when the query is over, with the reason."""
        self._events, self._over = events, over
        self._told = ""

    def restarting(
        self, error: Exception, blamed: Iterable[Failed], restart: int, policy: Supervision
    ) -> None:
        """The query failed, and is started again after a pause."""
        why = self._why(error, blamed)
        short = first_line(why) if why == self._told else why
        self._told = why
        pause = policy.pause_before(restart)
        self._events.tell(
            QueryRestarting(self._events.flow, short, restart, policy.restarts, pause)
        )

    def given_up(self, error: Exception, blamed: Iterable[Failed]) -> Exception:
        """The query failed for good; gives the error that says why in its first line."""
        why = self._why(error, blamed)
        self._events.tell(QueryGivenUp(self._events.flow, why))
        self._over(f"the query was given up: {first_line(why)}")
        if not isinstance(error, StreamingQueryException) or str(error).startswith(why):
            return error
        return StreamingQueryException(why)

    def ended(self) -> None:
        """The query was stopped, or has no more to do."""
        self._events.tell(QueryEnded(self._events.flow))
        self._over("the query has ended")

    def _why(self, error: Exception, blamed: Iterable[Failed]) -> str:
        """What failed, as its worker has told; or else what Spark says, without the plan."""
        known = next((failed for failed in blamed if failed.operator), None)
        if known is None:
            said, _, _ = str(error).partition(PLAN)
            return condensed(said.strip()) or repr(error)
        return "\n    ".join(story(known).splitlines())


def condensed(text: str, most: int = MOST_LINES) -> str:
    """A text without its middle lines, if it is long."""
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join([*lines[:2], f"    [{len(lines) - most} lines left out]", *lines[2 - most :]])
