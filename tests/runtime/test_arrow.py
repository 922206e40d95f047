"""Arrow's functions as this project uses them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fries.runtime.arrow import rows_of
from tests.runtime.test_chains import MANY, chunk


@pytest.mark.parametrize("size", [0, 1, 40])
def test_rows_are_those_that_arrow_gives(size: int) -> None:
    whole = chunk(size, MANY).batch
    missing = pa.RecordBatch.from_pylist([{}, *whole.to_pylist(), {}], schema=MANY)
    for batch in (whole, missing, missing.slice(1), whole.select(["x"]), whole.select([])):
        rows = rows_of(batch)
        assert rows == batch.to_pylist()
        assert [list(row) for row in rows] == [batch.schema.names] * batch.num_rows


def test_columns_of_one_name_are_left_to_arrow() -> None:
    arrays = [pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])]
    batch = pa.RecordBatch.from_arrays(arrays, names=["a", "b", "a"])
    assert rows_of(batch) == batch.to_pylist()
