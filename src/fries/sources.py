"""What stands for a DataFrame in a flow that is not run by Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TestStream:
    """What a flow takes for a streaming DataFrame if a trial is to run it: its columns."""

    __test__ = False  # no test, whatever pytest thinks of its name
    schema: pa.Schema
    isStreaming: bool = True  # noqa: N815 - as Spark names it
