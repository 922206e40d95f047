"""The paper's experiments, measured on Spark: ``fries bench`` runs them."""
