"""What a worker process keeps between its tasks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from fries.spark.tasks import spare_modules


class Recursive:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_modules_are_spared_by_the_collector_and_what_comes_later_is_not() -> None:
    spare_modules()
    spared = gc.get_freeze_count()
    assert spared > 0
    function = Recursive()
    spare_modules()
    assert gc.get_freeze_count() <= spared
    replaced = weakref.ref(function)
    del function
    gc.collect()
    assert replaced() is None
