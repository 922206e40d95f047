"""Tests on a real Spark, sharing one session."""
