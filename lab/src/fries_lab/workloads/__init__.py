"""The paper's dataflows: its figures, and the workflows W1 to W5 of its experiments."""
