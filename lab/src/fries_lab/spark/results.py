"""What a query has written to a file sink."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def committed(folder: Path, columns: Sequence[str], condition: str) -> pa.Table:
    """Some columns of the rows of all micro-batches that are committed, where something is so.

    Spark's record of the sink says which files count: others may be left from batches that were
    thrown away.
    """
    session = SparkSession.active()
    return session.read.parquet(str(folder)).where(condition).select(*columns).toArrow()
