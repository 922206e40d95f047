"""The rows of the output from flat rows: Spark's expressions give what Python gives."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fries.runtime.arrow import Array
from fries.runtime.chunks import Chunk
from fries.runtime.layout import Layout, Result
from fries.spark.local import use_own_python
from fries.spark.schemas import spark_schema
from fries.spark.tasks import Unpacking
from fries.spark.unpacking import unpacked

DAY = datetime.date(1969, 12, 30)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
SIMPLE = {
    "flag": pa.array([True, None, False]),
    "tiny": pa.array([-1, None, 7], pa.int8()),
    "number": pa.array([2**62, None, -5], pa.int64()),
    "single": pa.array([1.5, None, math.nan], pa.float32()),
    "double": pa.array([math.nan, None, -math.inf], pa.float64()),
    "text": pa.array(["a", None, ""]),
    "bytes": pa.array([b"\x00", None, b""]),
    "price": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")]),
    "odd name": pa.array([DAY, None, datetime.date(2030, 1, 1)]),
}
OTHERS = {
    "moment": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", tz="UTC")),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
}


def shown(rows: Sequence[object]) -> list[str]:
    """Rows as text, so that NaN equals NaN."""
    return sorted(map(repr, rows))


@pytest.mark.parametrize("columns", [SIMPLE, {**SIMPLE, **OTHERS}], ids=["simple", "others"])
def test_one_output(spark: SparkSession, columns: dict[str, Array]) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    layout = Layout({3: batch.schema}, audit=True)
    result = Result({3: ("out", batch.schema)})
    check(spark, layout, result, {3: batch})


def test_several_outputs_have_their_own_columns(spark: SparkSession) -> None:
    left = pa.RecordBatch.from_pydict({"id": [1, None], "x": [0.5, None]})
    right = pa.RecordBatch.from_pydict({"id": [None, 2], "y": ["a", None]})
    layout = Layout({1: left.schema, 2: right.schema}, audit=False)
    result = Result({1: ("left", left.schema), 2: ("right", right.schema)})
    check(spark, layout, result, {1: left, 2: right})


def check(
    spark: SparkSession, layout: Layout, result: Result, batches: dict[int, pa.RecordBatch]
) -> None:
    flat = pa.Table.from_batches(
        [layout.encode(edge, chunk_of(layout, batch)) for edge, batch in batches.items()]
    )
    use_own_python(spark.sparkContext)
    frame = spark.createDataFrame(flat, spark_schema(layout.schema))
    by_spark = unpacked(frame, layout, result)
    by_python = frame.mapInArrow(Unpacking(layout, result), spark_schema(result.schema))
    assert by_spark.schema == by_python.schema
    assert shown(by_spark.collect()) == shown(by_python.collect())


def chunk_of(layout: Layout, batch: pa.RecordBatch) -> Chunk:
    if "_txn" not in layout.schema.names:
        return Chunk.fresh(batch)
    return Chunk.fresh(batch, pa.array(range(batch.num_rows)).to_numpy())
