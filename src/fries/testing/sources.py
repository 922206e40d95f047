"""Sources of flows in tests: their columns; a test gives the rows of each batch."""

from __future__ import annotations

from fries.sources import TestStream
from fries.stream import Schema, as_arrow


def stream(schema: Schema) -> TestStream:
    """A source with these columns: for :meth:`fries.Flow.source`, in place of a DataFrame."""
    made = as_arrow(schema)
    assert made is not None, "there is always a schema"
    return TestStream(made)
