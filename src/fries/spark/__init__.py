"""The only package that imports PySpark: stages as Spark tasks."""
