"""Schemas between Spark and Arrow, and columns by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from fries.errors import SchemaError
from fries.spark.ddl import parsed

if TYPE_CHECKING:
    import pandas as pd


def arrow_schema(schema: str | StructType) -> pa.Schema:
    """A Spark schema, or its text such as ``"user long, amount double"``, as an Arrow schema.

    Every column may hold nulls: what functions return is theirs to decide.
    """
    made = _parsed(schema) if isinstance(schema, str) else schema
    if not isinstance(made, StructType):
        raise SchemaError(f"schema {schema!r}", 'name the columns, as in "user long, p double"')
    fields = to_arrow_schema(made, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in fields])


def _parsed(schema: str) -> DataType:
    if SparkContext._active_spark_context is None:
        found = parsed(schema)
        if found is None:
            raise SchemaError(
                f"schema {schema!r}",
                "it cannot be read without a Spark session; make one, or give a pyarrow.Schema",
            )
        return found
    try:
        return DataType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).strip().partition("\n")[0]
        raise SchemaError(f"schema {schema!r}", f"Spark cannot read it: {reason}") from None


def from_pandas(where: str, frame: pd.DataFrame) -> pa.Table:
    """A frame of pandas, without its index, with the types that Spark would give its columns."""
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return table.cast(arrow_schema(spark_schema(table.schema)))
    except (pa.ArrowException, PySparkException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SchemaError(where, f"Spark has no types for its frame of pandas: {reason}") from None


def spark_schema(schema: pa.Schema) -> StructType:
    """An Arrow schema as a Spark schema."""
    return from_arrow_schema(schema)


def column(name: str) -> Column:
    """A column of any name, dots and backticks included."""
    return F.col("`" + name.replace("`", "``") + "`")
