"""The types of the public API, checked by mypy and never executed."""  # noqa: A005
