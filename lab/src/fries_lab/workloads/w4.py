"""W4: the payments of each user, unnested, judged by a model per user and one per merchant.

::

    source -> F1 -> U2 -> FD1 -> LP -> FD2 -> MC -> F2 -> sink

A record is a user with a list of payments. F1 keeps users with many of them, and U2 makes a
row of each (one-to-many). FD1 and FD2 remember the last 10 payments of a user and the last 50
of a merchant. LP marks large payments, MC combines the two probabilities, F2 raises the flag.

    flow = Flow("W4")
    flagged = w4.build(flow, users)
    flow.reconfigure({"F1": w4.busy(5), "U2": w4.unnest}).wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fries import Flow, Function
from fries_lab.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYMENT: Final = "id long, user long, amount double, use_chip string, merchant long, errors string"
"""A payment as U2 makes it: the attributes that the flow needs."""
LARGE: Final = 100.0
"""Amount from which a payment is large."""
THRESHOLD: Final = 0.9
"""Probability from which a payment is flagged; a large one is flagged from half of it on."""


def build(flow: Flow, users: DataFrame, least: int = 2) -> DataFrame:
    """Payments of users with at least so many of them, flagged or not.

    Every keyed operator needs its keys together: both layouts are the same.
    """
    source = flow.source("source", users)
    payments = source.filter("F1", busy(least), batch="arrow").flat_map(
        "U2", unnest, schema=PAYMENT, batch="arrow"
    )
    by_user = payments.process(
        "FD1",
        Inference(trained("user_lstm"), "p_user"),
        key="user",
        initial=(),
        order_by="id",
        schema=f"{PAYMENT}, p_user double",
    )
    marked = by_user.map("LP", mark(LARGE), schema=f"{PAYMENT}, p_user double, large boolean")
    by_merchant = marked.process(
        "FD2",
        Inference(trained("merchant_lstm"), "p_merchant"),
        key="merchant",
        initial=(),
        order_by="id",
        schema=f"{PAYMENT}, p_user double, large boolean, p_merchant double",
    )
    columns = f"{PAYMENT}, p_user double, large boolean, p_merchant double, p double"
    combined = by_merchant.map("MC", combine, schema=columns)
    flagged = combined.map("F2", flag(THRESHOLD), schema=f"{columns}, flagged boolean")
    return flow.output(sink=flagged)


def busy(least: int) -> Function:
    """Keeps users with at least so many payments."""

    def keeps(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
        return pc.greater_equal(pc.list_value_length(batch["payments"]), pa.scalar(least))

    return keeps


def unnest(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row for each payment of each user; ``_row`` says whose it is."""
    lists: Any = batch["payments"]
    payments = lists.flatten()
    whose = pc.list_parent_indices(lists).cast(pa.int64())
    names = [column.split()[0] for column in PAYMENT.split(", ")]
    columns = {
        name: batch["user"].take(whose) if name == "user" else payments.field(name)
        for name in names
    }
    return pa.record_batch({**columns, "_row": whose})


def mark(least: float) -> Function:
    """Marks payments from some amount on."""
    return lambda row: {**row, "large": row["amount"] >= least}


def combine(row: dict[str, Any]) -> dict[str, Any]:
    """One probability from two: the worse one counts."""
    return {**row, "p": max(row["p_user"], row["p_merchant"])}


def flag(threshold: float) -> Function:
    """Flags payments by their probability, and large ones earlier."""
    return lambda row: {**row, "flagged": row["p"] > (threshold / 2 if row["large"] else threshold)}
