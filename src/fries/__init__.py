"""Fries on Spark: change the operators of a running PySpark job, fast and consistently."""
