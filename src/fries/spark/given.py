"""What a flow is given of Spark's, checked: DataFrames of classic PySpark, writers of streams."""

from __future__ import annotations

import reprlib

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.errors import ArgumentError

CONNECT = "pyspark.sql.connect"
"""Package of the DataFrames of Spark Connect, which has no workers that could be reached."""


def check_frame(where: str, frame: object) -> None:
    """Refuse what is no DataFrame, and one of Spark Connect."""
    if type(frame).__module__.startswith(CONNECT):
        raise ArgumentError(
            where,
            "its DataFrame is one of Spark Connect, which cannot reach Spark's workers; make the "
            "session with SparkSession.builder.master(...), and unset SPARK_REMOTE",
        )
    if not isinstance(frame, DataFrame):
        raise ArgumentError(
            where,
            f"it is given {reprlib.repr(frame)}; give a DataFrame of Spark, such as "
            "spark.readStream.load(...) or spark.createDataFrame(rows)",
        )


def check_writer(where: str, writer: object) -> None:
    """Refuse what is no writer of a stream."""
    if type(writer).__module__.startswith(CONNECT) or not isinstance(writer, DataStreamWriter):
        raise ArgumentError(
            where,
            f"start() takes a writer, and is given {reprlib.repr(writer)}; give it "
            "flow.output(stream).writeStream with a format and a checkpointLocation, before its "
            "own start() (a batch job needs no flow.start)",
        )
