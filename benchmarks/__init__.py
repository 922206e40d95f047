"""Benchmarks of the project; each module runs with ``python -m benchmarks.NAME``."""
