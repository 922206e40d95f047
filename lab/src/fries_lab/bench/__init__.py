"""The paper's experiments: results as data, as tables, and as figures."""
