"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.java import start_quickly

settings.register_profile("fries", deadline=None)  # a busy machine is no failure
settings.load_profile("fries")
start_quickly()
LONG = (
    "test_cluster",
    "test_chaos",
    "test_crashes",
    "test_survival",
    "test_docs",
    "test_noise",
    "test_deployment",
    "test_consistency",
)
"""The files that take longest."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that those who share the tests end together."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.path.stem in LONG:
        return LONG.index(item.path.stem)
    return len(LONG) + (item.path.parent.name != "spark")
