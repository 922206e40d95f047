"""The rows that the experiments give to W2 to W5 in every micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fries_lab.experiments.experiment import Bench
from fries_lab.experiments.workflows import Query40, Query71, TwoModels, Users
from fries_lab.workloads import generate, w2, w3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def query40(bench: Bench) -> Query40:
    """W2 on some sales of the catalogue."""
    data = bench.tpcds(bench.profile.scale)
    return Query40(w2.sales(bench.spark, data).limit(bench.profile.sales), w2.tables(data))


def query71(bench: Bench) -> Query71:
    """W3 on some sales of each channel."""
    data = bench.tpcds(bench.profile.scale)
    sales = w3.sales(bench.spark, data)
    share = bench.profile.sales // len(sales)
    return Query71(w3.Sales(*(rows.limit(share) for rows in sales)), w3.tables(data))


def users(bench: Bench) -> Users:
    """W4 on as many users as have some number of payments together."""
    folder = bench.users(bench.profile.batch)
    all_users = generate.read_users(bench.spark, folder)
    return Users(_with_payments(all_users, bench.profile.batch))


def two_models(bench: Bench) -> TwoModels:
    """W5 on the first payments."""
    folder = bench.payments(bench.profile.batch)
    payments = generate.read_payments(bench.spark, folder)
    return TwoModels(payments.orderBy("id").limit(bench.profile.batch))


def _with_payments(users: DataFrame, payments: int) -> DataFrame:
    """Users in a fixed random order, until they have so many payments."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

    order = "xxhash64(user)"
    sizes = users.selectExpr("size(payments) AS n", f"{order} AS place").orderBy("place").collect()
    count, total = 0, 0
    while count < len(sizes) and total < payments:
        total += sizes[count]["n"]
        count += 1
    return users.orderBy(F.expr(order)).limit(count)
