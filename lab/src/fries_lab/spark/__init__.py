"""What the experiments need of Spark, beside flows."""
