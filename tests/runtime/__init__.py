"""Tests of what runs inside a worker, without Spark."""
