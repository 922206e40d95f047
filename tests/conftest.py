"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fries", deadline=None)  # a busy machine is no failure
settings.load_profile("fries")
