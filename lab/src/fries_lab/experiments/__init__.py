"""The paper's experiments, measured on Spark: ``fries-lab bench`` runs them."""
