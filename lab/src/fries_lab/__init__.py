"""The laboratory of Fries: the paper's workflows, simulated and measured on Spark.

It is a distribution of its own, so that whoever installs Fries gets none of it.
"""
