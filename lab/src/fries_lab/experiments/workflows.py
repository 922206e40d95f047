"""The workflows as experiments run them: on streams that never end, with changes that are dummies.

A query gets the same rows in every micro-batch. Each change brings the same tables and models
as another version, so that the work stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from fries import Flow
from fries_lab.workloads import tpcds, w2, w3, w4, w5
from fries_lab.workloads.layouts import Layout
from fries_lab.workloads.models import Inference, trained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMES: Final[dict[Layout, int]] = {"fused": 1, "exchanged": 2}
"""How often a micro-batch of W2 and W3 has each row. Their joins are so fast that behind an
exchange a micro-batch would end before anything could happen in it."""


class Workflow(Protocol):
    """A workflow that can be changed without a change of its results."""

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output, on streams that never end; they keep their files in a folder."""

    def update(self, target: str, version: int) -> Any:  # noqa: ANN401 - what reconfigure takes
        """One of its operators as another version."""


class Again:
    """A function as another version of itself."""

    def __init__(self, function: Callable[..., Any], version: int) -> None:
        self._function = function
        self.version = version

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        """Do the same."""
        return self._function(*arguments)


@dataclass(frozen=True)
class Query40:
    """W2."""

    sales: DataFrame
    tables: w2.Tables

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        stream = _endless(self.sales, place / "source", TIMES[layout])
        return w2.build(flow, stream, self.tables, layout)

    def update(self, target: str, version: int) -> pa.Table:
        """The table of a join."""
        table = dict(zip(("J1", "J2", "J3", "J4"), self.tables, strict=True))[target]
        return tpcds.renewed(table, version)


@dataclass(frozen=True)
class Query71:
    """W3."""

    sales: w3.Sales
    tables: w3.Tables

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        streams = (
            _endless(rows, place / channel, TIMES[layout])
            for channel, rows in zip(w3.PREFIXES, self.sales, strict=True)
        )
        return w3.build(flow, w3.Sales(*streams), self.tables, layout)

    def update(self, target: str, version: int) -> pa.Table:
        """The table of a join."""
        dates = dict.fromkeys(("J5", "J6", "J7"), self.tables.date)
        table = {**dates, "J8": self.tables.item, "J9": self.tables.time}[target]
        return tpcds.renewed(table, version)


@dataclass(frozen=True)
class Users:
    """W4."""

    users: DataFrame

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:  # noqa: ARG002
        """Its output; both layouts are the same."""
        return w4.build(flow, _endless(self.users, place / "source"))

    def update(self, target: str, version: int) -> Again:
        """The function of an operator."""
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            "F1": lambda: w4.busy(2),
            "U2": lambda: w4.unnest,
            "FD1": lambda: Inference(trained("user_lstm"), "p_user"),
            "LP": lambda: w4.mark(w4.LARGE),
            "FD2": lambda: Inference(trained("merchant_lstm"), "p_merchant"),
            "MC": lambda: w4.combine,
            "F2": lambda: w4.flag(w4.THRESHOLD),
        }
        return Again(makers[target](), version)


@dataclass(frozen=True)
class TwoModels:
    """W5."""

    payments: DataFrame

    def build(self, flow: Flow, place: Path, layout: Layout) -> DataFrame:
        """Its output."""
        return w5.build(flow, _endless(self.payments, place / "source"), layout)

    def update(self, target: str, version: int) -> Again:
        """The function of an operator."""
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            "FD3": lambda: Inference(trained("user_lstm"), "p_user"),
            "FD4": lambda: Inference(trained("merchant_lstm"), "p_merchant"),
            "S1": lambda: w5.select,
            "F3": lambda: w5.note(w5.SUSPICIOUS),
            "F4": lambda: w5.worth(w5.LEAST),
            "E1": lambda: w5.flag(w5.THRESHOLD),
        }
        return Again(makers[target](), version)


def _endless(rows: DataFrame, folder: Path, times: int = 1) -> DataFrame:
    from fries_lab.spark.replay import endless
    from fries_lab.spark.sessions import workers

    return endless(rows, folder, workers(rows.sparkSession), times)
