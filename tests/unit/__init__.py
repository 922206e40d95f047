"""Unit tests: one module or one claim of the paper each."""
