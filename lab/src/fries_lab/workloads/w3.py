"""W3: TPC-DS query 71, what three sales channels sold of one manager's brands at meal times.

::

    web     -> J5 -+
    catalog -> J6 -+-> U1a -+
    store   -> J7 ----------+-> U1b -> J8 -> J9 -> sums -> sink

J5 to J7 keep the sales of one month, J8 adds the brand and J9 the time. The paper's U1 is two
unions here. Each join probes a static table by its primary key.

    flow = Flow("W3")
    sums = w3.build(flow, w3.sales(spark, folder), w3.tables(folder))
    w3.answer(sums).show()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fries import Flow
from fries_lab.workloads import tpcds
from fries_lab.workloads.layouts import Layout
from fries_lab.workloads.w2 import plus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MONTH: Final = (1999, 11)
MANAGER: Final = 1
MEALS: Final = ["breakfast", "dinner"]
PREFIXES: Final = {"web": "ws", "catalog": "cs", "store": "ss"}
"""How the columns of a channel's sales begin."""
COLUMNS: Final = {
    "ext_sales_price": "ext_price",
    "sold_date_sk": "sold_date_sk",
    "item_sk": "sold_item_sk",
    "sold_time_sk": "time_sk",
}
"""What the query reads of a sale, without the prefix, and how it calls it."""
KEYS: Final = ("brand_id", "brand", "t_hour", "t_minute")
SUMS: Final = "brand_id long, brand string, t_hour long, t_minute long, ext_price decimal(38,2)"


class Sales(NamedTuple):
    """The sources."""

    web: DataFrame
    catalog: DataFrame
    store: DataFrame


class Tables(NamedTuple):
    """What the joins probe."""

    date: pa.Table
    item: pa.Table
    time: pa.Table


def sales(spark: SparkSession, folder: Path) -> Sales:
    """The sources: sales of three channels, with the same names for their columns."""
    return Sales(*(_channel(spark, folder, channel) for channel in PREFIXES))


def tables(folder: Path) -> Tables:
    """The tables that the joins probe, with the rows that the query is about."""
    dates = tpcds.table(folder, "date_dim", ["d_date_sk", "d_year", "d_moy"])
    item = tpcds.table(folder, "item", ["i_item_sk", "i_brand_id", "i_brand", "i_manager_id"])
    time = tpcds.table(folder, "time_dim", ["t_time_sk", "t_hour", "t_minute", "t_meal_time"])
    year, month = MONTH
    in_month = (pc.field("d_year") == year) & (pc.field("d_moy") == month)
    managed = item.filter(pc.field("i_manager_id") == MANAGER)
    return Tables(
        dates.filter(in_month).select(["d_date_sk"]),
        managed.select(["i_item_sk", "i_brand_id", "i_brand"]).rename_columns(
            ["i_item_sk", "brand_id", "brand"]
        ),
        time.filter(pc.field("t_meal_time").isin(MEALS)).drop_columns(["t_meal_time"]),
    )


def build(flow: Flow, sales: Sales, tables: Tables, layout: Layout = "fused") -> DataFrame:
    """Sums per brand and minute; in a stream, those of each micro-batch."""
    shuffle = layout == "exchanged"
    web, catalog, store = (
        flow.source(channel, rows).lookup(
            join, tables.date, on="sold_date_sk", to="d_date_sk", shuffle=shuffle
        )
        for join, channel, rows in zip(("J5", "J6", "J7"), PREFIXES, sales, strict=True)
    )
    sold = web.union("U1a", catalog).union("U1b", store)
    branded = sold.lookup("J8", tables.item, on="sold_item_sk", to="i_item_sk", shuffle=shuffle)
    timed = branded.lookup("J9", tables.time, on="time_sk", to="t_time_sk", shuffle=shuffle)
    sums = timed.aggregate(
        "sums",
        lambda total, row: (plus(total[0], row["ext_price"]),),
        SUMS,
        key=KEYS,
        initial=(None,),
        result=lambda total: {"ext_price": total[0]},
    )
    return flow.output(sink=sums)


def answer(sums: DataFrame) -> DataFrame:
    """The answer to the query, from the sums of all micro-batches."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

    total = sums.groupBy(*KEYS).agg(F.sum("ext_price").cast("decimal(38,2)").alias("ext_price"))
    return total.orderBy(
        F.desc_nulls_first("ext_price"), F.asc_nulls_first("brand_id"), F.asc_nulls_first("t_hour")
    )


def _channel(spark: SparkSession, folder: Path, channel: str) -> DataFrame:
    rows = spark.read.parquet(tpcds.path(folder, f"{channel}_sales"))
    prefix = PREFIXES[channel]
    return rows.selectExpr(*(f"{prefix}_{name} AS {alias}" for name, alias in COLUMNS.items()))
