"""What runs inside a Python worker: chunks, epochs, operators. Knows no Spark."""
