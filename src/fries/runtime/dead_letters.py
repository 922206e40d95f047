"""Rows that their operator could not process: where they go, what they look like, how many may be.

A row on which a function raises, or for which it returns what its operator did not declare, leaves
its operator by an edge of its own, as a row that says what happened. It takes its transaction and
its epoch along, like any other row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fries.errors import OperatorError
from fries.runtime.arrow import Integers
from fries.runtime.spec import DeadLetters

_TYPES: dict[str, pa.DataType] = {
    "error_operator": pa.string(),
    "error_change": pa.int64(),
    "error_type": pa.string(),
    "error_message": pa.string(),
    "error_row": pa.string(),
}
COLUMNS: Final = pa.schema(_TYPES)
"""Of the rows that leave by such an edge: the operator, the change that brought its version (0: the
flow was built with it), what went wrong, and the row as JSON."""
MOST_MESSAGE: Final = 1_000
"""Characters of a message: an exception may say 100 MB."""
MOST_ROW: Final = 10_000
"""Characters of a row."""
WINDOW: Final = 1_000
"""Rows after which older ones count half: a version that begins to fail is found out soon. More
where the limit is low, so that more than :data:`LEAST` rows are counted at once."""
LEAST: Final = 10
"""Failing rows that a version may have whatever their share: one of two rows is no half."""


class DeadLetter(NamedTuple):
    """A row that failed."""

    number: int
    """In the batch that its operator got."""
    row: Any
    kind: str
    """The type of the exception."""
    message: str
    """As text that Arrow takes, and not too much of it."""


def batch_of_letters(operator: str, change: int, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Rows that failed as rows of their output."""
    columns = (
        [operator] * len(letters),
        [change] * len(letters),
        [letter.kind for letter in letters],
        [letter.message for letter in letters],
        [as_json(letter.row) for letter in letters],
    )
    return pa.RecordBatch.from_pydict(dict(zip(COLUMNS.names, columns, strict=True)), COLUMNS)


def parents_of(letters: Sequence[DeadLetter]) -> Integers:
    """The rows that failed, by their numbers."""
    return np.array([letter.number for letter in letters], dtype=np.int64)


def as_json(row: object) -> str:
    """A row as JSON, as far as it goes: other values as text, and a very long row cut off."""
    return plain(json.dumps(row, default=str, ensure_ascii=False), MOST_ROW)


def plain(text: str, most: int = MOST_MESSAGE) -> str:
    """The beginning of a text, in UTF-8: Python's may hold what has no place there."""
    return text[:most].encode(errors="backslashreplace").decode()[:most]


def _window(rule: DeadLetters) -> float:
    return max(WINDOW, LEAST / rule.limit) if rule.limit else math.inf


class FailingShare:
    """How many rows of each version have failed of late, in one worker."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], tuple[float, float]] = {}
        """By operator and change, its rows and those that failed; older ones count less."""

    def note(
        self,
        operator: str,
        change: int,
        rule: DeadLetters,
        rows: int,
        letters: Sequence[DeadLetter],
    ) -> None:
        """Count rows of a version; raises if too many of them have failed."""
        key, failed = (operator, change), len(letters)
        if key not in self._counts:
            for older in sorted(one for one in self._counts if one[0] == operator)[:-1]:
                del self._counts[older]
        before = self._counts.get(key, (0.0, 0.0))
        taken, bad = before[0] + rows, before[1] + failed
        while taken > 2 * _window(rule):
            taken, bad = taken / 2, bad / 2
        self._counts[key] = taken, bad
        if failed and bad > LEAST and bad > rule.limit * taken:
            del self._counts[key]
            raise OperatorError(
                operator,
                f"it failed on {bad:.0f} of its last {taken:.0f} rows in a worker, with a limit of "
                f"{100 * rule.limit:g}%; the last one: {letters[-1].kind}: "
                f"{letters[-1].message}",
                as_json(letters[-1].row)[:MOST_MESSAGE],
            )
