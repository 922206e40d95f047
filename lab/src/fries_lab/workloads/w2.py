"""W2: TPC-DS query 40, catalog sales before and after a change of prices, per warehouse and item.

::

    source -> J1 -> J2 -> J3 -> J4 -> sums -> sink

Each join probes a static table by its primary key, so a sale leaves it at most once: J1 adds
what was refunded, J2 the state of the warehouse, J3 keeps the cheap items and J4 the 60 days.
A table can be exchanged for a newer one while sales flow.

    flow = Flow("W2")
    sums = w2.build(flow, w2.sales(spark, folder), w2.tables(folder))
    w2.answer(sums).show()
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fries import Flow
from fries_lab.workloads import tpcds
from fries_lab.workloads.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "cs_order_number", "cs_item_sk", "cs_warehouse_sk", "cs_sold_date_sk", "cs_sales_price",
)  # fmt: skip
"""What the query reads of a sale."""
CHANGE: Final = date(2000, 3, 11)
"""The day that separates before and after."""
DAYS: Final = (date(2000, 2, 10), date(2000, 4, 10))
PRICES: Final = (Decimal("0.99"), Decimal("1.49"))
SUMS: Final = (
    "w_state string, i_item_id string, sales_before decimal(38,2), sales_after decimal(38,2)"
)
ZERO: Final = Decimal(0)
Sum: TypeAlias = "Decimal | None"
"""A sum as SQL has it: of nulls alone, or of nothing, it is null."""


class Tables(NamedTuple):
    """What the joins probe."""

    returns: pa.Table
    warehouse: pa.Table
    item: pa.Table
    date: pa.Table


def sales(spark: SparkSession, folder: Path) -> DataFrame:
    """The source: sales of the catalog."""
    return spark.read.parquet(tpcds.path(folder, "catalog_sales")).select(*COLUMNS)


def tables(folder: Path) -> Tables:
    """The tables that the joins probe, with the rows that the query is about."""
    item = tpcds.table(folder, "item", ["i_item_sk", "i_item_id", "i_current_price"])
    dates = tpcds.table(folder, "date_dim", ["d_date_sk", "d_date"])
    return Tables(
        tpcds.table(
            folder, "catalog_returns", ["cr_order_number", "cr_item_sk", "cr_refunded_cash"]
        ),
        tpcds.table(folder, "warehouse", ["w_warehouse_sk", "w_state"]),
        _between(item, "i_current_price", PRICES).drop_columns(["i_current_price"]),
        _between(dates, "d_date", DAYS),
    )


def build(flow: Flow, sales: DataFrame, tables: Tables, layout: Layout = "fused") -> DataFrame:
    """Sums per state and item; in a stream, those of each micro-batch."""
    shuffle = layout == "exchanged"
    source = flow.source("source", sales)
    refunded = source.lookup(
        "J1",
        tables.returns,
        on=["cs_order_number", "cs_item_sk"],
        to=["cr_order_number", "cr_item_sk"],
        how="left",
        shuffle=shuffle,
    )
    stored = refunded.lookup(
        "J2", tables.warehouse, on="cs_warehouse_sk", to="w_warehouse_sk", shuffle=shuffle
    )
    cheap = stored.lookup("J3", tables.item, on="cs_item_sk", to="i_item_sk", shuffle=shuffle)
    recent = cheap.lookup("J4", tables.date, on="cs_sold_date_sk", to="d_date_sk", shuffle=shuffle)
    sums = recent.aggregate(
        "sums",
        add_sale,
        SUMS,
        key=["w_state", "i_item_id"],
        initial=(None, None),
        result=lambda sums: {"sales_before": sums[0], "sales_after": sums[1]},
    )
    return flow.output(sink=sums)


def add_sale(sums: tuple[Sum, Sum], row: dict[str, Any]) -> tuple[Sum, Sum]:
    """What a sale earned, without what was refunded, goes to one sum, and 0 to the other."""
    price, refund = row["cs_sales_price"], row["cr_refunded_cash"]
    earned = None if price is None else price - (refund or ZERO)
    before, after = sums
    if row["d_date"] < CHANGE:
        return plus(before, earned), plus(after, ZERO)
    return plus(before, ZERO), plus(after, earned)


def plus(total: Sum, value: Sum) -> Sum:
    """The next step of a sum in SQL: nulls do not count."""
    if value is None:
        return total
    return value if total is None else total + value


def answer(sums: DataFrame) -> DataFrame:
    """The answer to the query, from the sums of all micro-batches."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

    total = sums.groupBy("w_state", "i_item_id").agg(
        *(F.sum(name).cast("decimal(38,2)").alias(name) for name in ("sales_before", "sales_after"))
    )
    return total.orderBy(*(F.asc_nulls_last(name) for name in ("w_state", "i_item_id"))).limit(100)


def _between(table: pa.Table, column: str, bounds: tuple[Any, Any]) -> pa.Table:
    least, most = bounds
    return table.filter((pc.field(column) >= least) & (pc.field(column) <= most))
