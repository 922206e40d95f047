"""W5: each payment goes to a model per user and to one per merchant, and is put together again.

::

    source -> RE -> FD3 -> S1 -> F3 -> SJ -> E1 -> sink
              RE -> F4 -> FD4 -------> SJ

RE copies each payment (one-to-many, but one on each edge). FD3 and FD4 remember the last
payments of a user and of a merchant. S1 selects what the join needs and F3 notes what the
first model thinks; F4 keeps payments that are worth asking the second one about. SJ joins
the copies on the payment's id, unique per payment, and E1 draws the conclusion.

    flow = Flow("W5")
    judged = w5.build(flow, payments, "exchanged")
    flow.reconfigure({"FD4": Inference(trained("merchant_lstm"), "p_merchant")}).wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fries import Flow, Function
from fries_lab.workloads.layouts import Layout
from fries_lab.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = ("id", "user", "amount", "use_chip", "merchant", "errors")
"""Attributes of a payment that the flow needs."""
PAYMENT: Final = "id long, user long, amount double, use_chip string, merchant long, errors string"
LEAST: Final = 1.0
"""Amount below which nobody asks the merchant's model."""
SUSPICIOUS: Final = 0.5
"""Probability from which the user's model finds a payment suspicious."""
THRESHOLD: Final = 0.9
"""Probability from which a payment is flagged; a suspicious one is flagged from half on."""


def build(flow: Flow, payments: DataFrame, layout: Layout = "fused") -> DataFrame:
    """Payments with two probabilities of fraud, flagged or not."""
    copies = flow.source("source", payments.select(*COLUMNS)).replicate("RE")
    by_user = copies.process(
        "FD3",
        Inference(trained("user_lstm"), "p_user"),
        key="user",
        initial=(),
        order_by="id",
        schema=f"{PAYMENT}, p_user double",
    )
    selected = by_user.map(
        "S1",
        select,
        schema="id long, user long, amount double, p_user double",
        shuffle="id" if layout == "exchanged" else (),
    )
    noted = selected.map(
        "F3",
        note(SUSPICIOUS),
        schema="id long, user long, amount double, p_user double, suspicious boolean",
    )
    by_merchant = copies.filter("F4", worth(LEAST), batch="arrow").process(
        "FD4",
        Inference(trained("merchant_lstm"), "p_merchant"),
        key="merchant",
        initial=(),
        order_by="id",
        schema=f"{PAYMENT}, p_merchant double",
    )
    joined = noted.join("SJ", by_merchant, on="id")
    flagged = joined.map(
        "E1", flag(THRESHOLD), schema="id long, user long, merchant long, amount double, "
        "p_user double, p_merchant double, flagged boolean",
    )  # fmt: skip
    return flow.output(sink=flagged)


def select(row: dict[str, Any]) -> dict[str, Any]:
    """What the join needs of the user's branch."""
    return {name: row[name] for name in ("id", "user", "amount", "p_user")}


def note(least: float) -> Function:
    """Notes which payments are suspicious."""
    return lambda row: {**row, "suspicious": row["p_user"] >= least}


def worth(least: float) -> Function:
    """Keeps payments from some amount on."""

    def keeps(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
        return batch["amount"].to_numpy() >= least

    return keeps


def flag(threshold: float) -> Function:
    """Flags payments by both probabilities."""

    def conclude(row: dict[str, Any]) -> dict[str, Any]:
        limit = threshold / 2 if row["suspicious"] else threshold
        kept = ("id", "user", "merchant", "amount", "p_user", "p_merchant")
        found = {name: row[name] for name in kept}
        return {**found, "flagged": max(row["p_user"], row["p_merchant"]) > limit}

    return conclude
