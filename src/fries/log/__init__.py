"""The durable log of a flow's changes: what a restart must know, whole or not at all."""
