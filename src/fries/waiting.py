"""A line in the log when something that a caller waits for takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLOW_SECONDS: Final = 1.0
"""A call that takes longer would look as if it hung."""
_logger = logging.getLogger(__name__)


@contextmanager
def told_if_slow(what: str, advice: str) -> Iterator[None]:
    """Say what the caller is waiting for, once, if it lasts."""
    timer = threading.Timer(SLOW_SECONDS, _logger.warning, ("%s; %s", what, advice))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
