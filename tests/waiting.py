"""How long tests wait: until something holds.

No deadline of a test decides anything but that the run is over, and that is the runner's: see
``timeout`` in ``pyproject.toml``. A machine may be as slow and as busy as it likes.
"""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 86_400.0
"""Seconds, for calls and settings that want a number: a day, of which the runner waits a part."""
