"""Columns as text mean without Spark what they mean to Spark."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from fries.spark.ddl import SIMPLE, parsed

names = st.sampled_from(
    ["id", "a_b", "_x", "A", "`a b`", "`x``y`", "`1`", "date", "é", "1a", "a-b"]
)
simple = st.sampled_from([*SIMPLE, "LONG", "Decimal", "decimal(10)", "decimal( 10 , 2 )"])
odd = st.sampled_from(["decimal(39)", "decimal(2,3)", "nothing", "variant", "char(3)", "", "<"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.lists(
        st.tuples(names, st.sampled_from([":", " ", " : "]), inner), min_size=1, max_size=3
    )
    return st.one_of(
        inner.map("array<{}>".format),
        st.tuples(inner, inner).map(lambda two: f"map<{two[0]},{two[1]}>"),
        fields.map(lambda all_: f"struct<{', '.join(map(''.join, all_))}>"),
    )


types = st.recursive(simple | odd, nested, max_leaves=4)
columns = st.lists(st.tuples(names, types).map(" ".join), min_size=1, max_size=4).map(", ".join)


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=columns)
def test_what_is_understood_is_what_spark_understands(spark: SparkSession, text: str) -> None:
    assert spark is not None
    found = parsed(text)
    if found is not None:
        assert DataType.fromDDL(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "id long, name string, amount double",
        "tags array<string>, more map<string, array<int>>, deep struct<a: int, b: struct<c: date>>",
        "x decimal(10,2), `a b` timestamp",
    ],
)
def test_the_usual_is_understood(spark: SparkSession, text: str) -> None:
    assert parsed(text) == DataType.fromDDL(text)
    assert spark is not None


@pytest.mark.parametrize(
    "text", ["long", "id", "id nonsense", "id long,", "id array<long", "id long NOT NULL"]
)
def test_the_rest_is_left_to_spark(text: str) -> None:
    assert parsed(text) is None
