"""Stages as one linear Spark plan: sources, stage, exchange, stage, ... , output.

Between stages rows are flat. Keys are hashed and key groups numbered by Spark expressions, so
they are the same in every run. A keyed stage runs on Spark's state store in a streaming query,
and behind a sort by key group in a batch job.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

from fries.runtime.layout import EDGE, GROUP, HASH, OPERATOR, Layout, Result
from fries.spark.order import has_fixed_order
from fries.spark.schemas import column, spark_schema
from fries.spark.stateful import GroupedStage
from fries.spark.tasks import (
    Session,
    ShuffledStage,
    SortedStage,
    SourceStage,
    Work,
    source_column,
)
from fries.spark.unpacking import unpacked
from fries.stages import Exchange, PhysicalFlow, PhysicalStage

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that keyed stages need; Spark's default cannot hold map states."""
CHANGELOG: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""Commit what a batch has changed, and leave whole snapshots to a background thread: else every
keyed stage waits for some hundred milliseconds at the end of every batch."""


class Planner:
    """Builds the DataFrame of one flow."""

    def __init__(self, flow: PhysicalFlow, session: Session, groups: int) -> None:
        self._flow, self._session, self._groups = flow, session, groups
        self._audit = session.audit is not None
        self._result = Result({e.number: (e.target, flow.schemas[e.number]) for e in flow.outputs})

    def dataframe(self, sources: Mapping[str, DataFrame]) -> DataFrame:
        """The output of the flow, as a plan that Spark runs when it is asked to."""
        first, *others = self._flow.stages
        layout = self._layout(first)
        last = not others
        gives: Layout | Result = self._result if last else layout
        feed = tuple((edge, self._flow.schemas[edge.number]) for edge in first.incoming)
        rows = [sources[first.incoming[0].target]]
        if len(feed) > 1:
            rows = [
                sources[edge.target].select(
                    F.lit(edge.number).alias(EDGE),
                    *(_named(name, source_column(edge, name, feed)) for name in schema.names),
                )
                for edge, schema in feed
            ]
        ordered = all(map(has_fixed_order, sources.values()))
        task = SourceStage(Work(self._session, first, gives, ordered), feed)
        frame = reduce(_union, rows).mapInArrow(task, spark_schema(gives.schema))
        for stage in others:
            frame, layout = self._staged(frame, stage, layout, stage is others[-1])
        return frame

    def _staged(
        self, frame: DataFrame, stage: PhysicalStage, takes: Layout, last: bool
    ) -> tuple[DataFrame, Layout]:
        """One more exchange and stage."""
        frame = self._with_keys(frame, stage, takes)
        leaving = self._layout(stage)
        if stage.exchange is Exchange.GROUPED and frame.isStreaming:
            return self._stateful(frame, stage, takes, leaving, last), leaving
        work = Work(self._session, stage, self._result if last else leaving)
        count = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
        if stage.exchange is Exchange.GROUPED:
            exchanged = frame.repartition(count, OPERATOR, GROUP)
            exchanged = exchanged.sortWithinPartitions(OPERATOR, GROUP)
            task: SortedStage | ShuffledStage = SortedStage(work, takes)
        else:
            exchanged = frame.repartition(count, HASH)
            task = ShuffledStage(work, takes)
        return exchanged.mapInArrow(task, spark_schema(work.gives.schema)), leaving

    def _stateful(
        self,
        frame: DataFrame,
        stage: PhysicalStage,
        takes: Layout,
        leaving: Layout,
        last: bool,
    ) -> DataFrame:
        """A keyed stage of a streaming query; the output is unpacked from flat rows."""
        _choose_state_store(frame.sparkSession)
        added = [(HASH, pa.int64()), (OPERATOR, pa.string()), (GROUP, pa.int64())]
        schema = pa.schema([*takes.schema, *(pa.field(*one) for one in added)])
        processor = GroupedStage(Work(self._session, stage, leaving), takes, schema)
        made = frame.groupBy(OPERATOR, GROUP).transformWithStateInPandas(
            statefulProcessor=processor,
            outputStructType=spark_schema(leaving.schema),
            outputMode="append",
            timeMode="none",
        )
        return unpacked(made, leaving, self._result) if last else made

    def _with_keys(self, frame: DataFrame, stage: PhysicalStage, takes: Layout) -> DataFrame:
        """Say where each row must go: the hash of its key, its operator and its key group."""
        operator = F.lit("")
        hashed = F.spark_partition_id().cast("long")
        for edge in stage.incoming:
            spec = stage.keyed(edge)
            if spec is None or spec.keying is None:
                continue
            mine = F.col(EDGE) == edge.number
            columns = [column(takes.physical(edge.number, c)) for c in spec.keying.columns]
            operator = F.when(mine, F.lit(spec.name)).otherwise(operator)
            key = F.xxhash64(*columns) if columns else F.lit(0).cast("long")
            hashed = F.when(mine, key).otherwise(hashed)
        keyed = frame.withColumn(HASH, hashed).withColumn(OPERATOR, operator)
        return keyed.withColumn(GROUP, F.pmod(F.col(HASH), F.lit(self._groups).cast("long")))

    def _layout(self, stage: PhysicalStage) -> Layout:
        """The flat rows that leave a stage."""
        schemas = {edge.number: self._flow.schemas[edge.number] for edge in stage.leaving}
        return Layout(schemas, self._audit)


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _named(name: str, alias: str) -> Column:
    return column(name).alias(alias)


def _choose_state_store(session: SparkSession) -> None:
    """Set what keyed stages need and what makes them fast, unless the user has chosen."""
    chosen = session.conf.get(PROVIDER, "") or ""
    if not chosen or chosen.endswith("HDFSBackedStateStoreProvider"):
        session.conf.set(PROVIDER, ROCKSDB)
    if not session.conf.get(CHANGELOG, ""):
        session.conf.set(CHANGELOG, "true")
