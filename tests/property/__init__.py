"""Property tests: random dataflows against oracles written from the definitions."""
