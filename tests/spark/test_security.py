"""Flows with TLS on a real Spark, and what Spark shows of a flow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from fries.control.tls import Tls
from fries.flow import Flow
from tests.control.conftest import authority, tls
from tests.control.test_secrets import shows
from tests.spark.test_flow import Running, chain, numbered, runs, set_a, set_b, until
from tests.waiting import PATIENCE

__all__ = ["authority", "tls"]  # fixtures


def test_a_change_in_the_middle_of_a_job_over_tls(
    spark: SparkSession, tls: Tls, tmp_path: Path
) -> None:
    flow = Flow("encrypted", audit=tmp_path / "audit", tls=tls)
    try:
        job = Running(chain(flow, numbered(spark, 2000), seconds=0.005))
        until(lambda: runs(flow))
        change = flow.reconfigure({"A": set_a(1, 0.005), "B": set_b(1)})
        assert change.wait(PATIENCE)
        rows = job.rows()
        assert {(row.a, row.b) for row in rows} == {(0, 0), (1, 1)}
        assert flow.audit().mixed == 0
    finally:
        flow.stop()


def test_spark_does_not_show_the_secret(spark: SparkSession) -> None:
    """Not in plans, which are on its pages and in its event log, nor in settings."""
    flow = Flow("discreet")
    try:
        frame = chain(flow, numbered(spark, 10))
        assert len(frame.collect()) == 10
        assert flow._engine is not None
        secret = flow._engine.server.secret
        plan = frame._jdf.queryExecution().toString()
        settings = spark.sparkContext.getConf().toDebugString()
        things = (flow, flow._engine, vars(flow), vars(flow._engine), vars(flow._engine.server))
        for text in (plan, settings, *map(repr, things), repr(os.environ), repr(sys.argv)):
            assert not shows(text, secret)
    finally:
        flow.stop()
