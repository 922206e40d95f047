"""From the flat rows of an exchange to the rows of the output, in Spark's own expressions.

A keyed stage of a streaming query gives flat rows. Where every type of the output has a form
that Spark can convert by itself, no further Python process is needed for that.
"""

from __future__ import annotations

import math

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

from fries.runtime.layout import EDGE, OUTPUT_NAME, Layout, Result
from fries.runtime.layout import Column as Place
from fries.spark.schemas import column, spark_schema
from fries.spark.tasks import Unpacking


def unpacked(frame: DataFrame, takes: Layout, gives: Result) -> DataFrame:
    """The rows of the output."""
    schema = spark_schema(gives.schema)
    kinds = [field.type for field in gives.schema]
    if not all(map(_is_simple, kinds)):
        return frame.mapInArrow(Unpacking(takes, gives), schema)
    columns = [
        _merged(field.name, takes, gives).cast(field.dataType).alias(field.name)
        for field in schema.fields
    ]
    return frame.select(*columns)


def _is_simple(kind: pa.DataType) -> bool:
    """Whether Spark can make values of this type from what they travel as."""
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_decimal,
        pa.types.is_date32,
    )
    return any(test(kind) for test in tests)


def _merged(name: str, takes: Layout, gives: Result) -> Column:
    """A column of the output: each row has that of the edge that it came over."""
    found: Column | None = None
    for edge, (output, schema) in gives.outputs.items():
        mine = F.col(EDGE) == edge
        if name == OUTPUT_NAME and len(gives.outputs) > 1:
            value = F.lit(output)
        elif name in schema.names:
            value = _value(takes, takes.column(edge, name))
        else:
            continue
        found = F.when(mine, value) if found is None else found.when(mine, value)
    assert found is not None, "every column belongs to an output"
    return found


def _value(takes: Layout, place: Place) -> Column:
    """One column of one edge, as it was before it travelled."""
    kind = place.logical.type
    value = column(place.physical)
    if pa.types.is_floating(kind):
        value = F.coalesce(value, F.lit(math.nan))  # pandas has taken a NaN for a null
    elif pa.types.is_date32(kind):
        value = F.date_from_unix_date(value.cast("int"))
    if place.bit < 0:
        return value
    mask, bit = takes.null_bit(place)
    is_null = F.col(mask).bitwiseAND(F.lit(1 << bit)) != 0
    return F.when(~is_null, value)
