"""W1: fraud detection with one model per user.

::

    source -> FD -> sink

FD remembers the last ten payments of each user and asks a model about each new one. The model
can be swapped while payments flow: the states stay as they are.

    flow = Flow("W1")
    scored = w1.build(flow, payments)
    query = flow.start(scored.writeStream.format("parquet")...)
    flow.reconfigure({"FD": Inference(trained("user_lstm_small"))}).wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fries import Flow
from fries_lab.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = ("id", "user", "amount", "use_chip", "errors")
"""Attributes of a payment that the flow needs."""
SCORED: Final = "id long, user long, amount double, use_chip string, errors string, p double"


def build(flow: Flow, payments: DataFrame, model: str = "user_lstm") -> DataFrame:
    """Payments with their probability of fraud ``p``."""
    source = flow.source("source", payments.select(*COLUMNS))
    scored = source.process(
        "FD",
        Inference(trained(model)),
        key="user",
        initial=(),
        order_by="id",
        schema=SCORED,
    )
    return flow.output(sink=scored)
