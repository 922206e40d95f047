"""Why a version was taken back, in words."""

from __future__ import annotations

import re
from typing import Final

from fries.control.messages import Failed
from fries.failing import clipped

MOST_EVIDENCE: Final = 600
"""Characters of what Spark says about a failure; its stack traces have a thousand lines."""
MOST_CAUSES: Final = 2
"""That are told, of a chain of many."""
_CAUSE: Final = re.compile(r"\b(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b.*")
"""An exception of Java's with its message."""


def headline(failed: Failed) -> str:
    """Which operator failed on which row, and how."""
    if not failed.operator:
        return failed.problem
    row = f" on {failed.row}" if failed.row else ""
    return f"operator {failed.operator!r} failed{row}: {failed.problem}"


def story(failed: Failed) -> str:
    """The same with the traceback."""
    return f"{headline(failed)}\n{failed.story}".rstrip()


def cause_of(text: str) -> str:
    """The last causes in what Spark says about a query that failed: the first that happened.

    The last one may be a symptom: a worker that has ended is an ``EOFException`` to its reader.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    causes = dict.fromkeys(found[0] for line in reversed(lines) if (found := _CAUSE.search(line)))
    last = [*causes][:MOST_CAUSES]  # Spark repeats what it has said: the last time counts
    said = ", caused by ".join(reversed(last)) or text.strip()
    return clipped(said, MOST_EVIDENCE)
