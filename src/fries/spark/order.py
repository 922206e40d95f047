"""Whether a task that is executed again gets its rows in the same order."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame

KEEPS_ORDER: Final = frozenset(
    {
        "EventTimeWatermark",
        "Filter",
        "LocalRelation",
        "LogicalRelation",
        "DataSourceV2Relation",
        "Project",
        "Range",
        "StreamingDataSourceV2Relation",
        "StreamingExecutionRelation",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "View",
        "WithCTE",
    }
)
"""Logical operators whose partitions come row by row from the source. Behind an exchange rows
come as they are fetched, and a function of the user's own (``mapInArrow``) may do anything."""


def has_fixed_order(frame: DataFrame) -> bool:
    """Whether each partition of a source gives the same rows in the same order, every time."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return bool(plan.deterministic()) and _all_keep_order(plan)


def _all_keep_order(plan: Any) -> bool:  # noqa: ANN401
    children = plan.children()
    return plan.nodeName() in KEEPS_ORDER and all(
        _all_keep_order(children.apply(number)) for number in range(children.size())
    )
