"""What the tests of the control channel share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.sites import Site


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()
