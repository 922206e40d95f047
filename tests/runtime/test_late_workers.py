"""A worker that joins late counts the same versions as one that was there all the time."""

from __future__ import annotations

import pyarrow as pa

from fries.runtime.configuration import Configuration
from fries.runtime.shipped import Shipped
from fries.runtime.spec import Kind, OperatorSpec
from fries.spark.shipping import packed

NUMBERS = pa.schema([("n", pa.int64())])


def test_what_is_left_of_a_replaced_change_still_counts() -> None:
    """Its functions are forgotten when a later change has replaced them, its number is not."""
    spec = OperatorSpec("op", Kind.MAP, NUMBERS, lambda row: row)
    package = packed(Shipped({"op": spec}, {"op": None}), {"op": spec})
    there, late = Configuration([spec]), Configuration([spec])
    for configuration, first in ((there, package.payload), (late, package.residue)):
        configuration.load(1, 0, first, package.buffers if first is package.payload else ())
        configuration.adopt(1)
        configuration.load(2, 0, package.payload, package.buffers)
        configuration.adopt(2)
    assert there.version("op", 0) == late.version("op", 0) == 2
