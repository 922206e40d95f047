"""The two layouts in which W2 to W5 are run."""

from __future__ import annotations

from typing import Literal, TypeAlias

Layout: TypeAlias = Literal["fused", "exchanged"]
"""``fused``: an exchange only where an operator needs its keys together, as a flow has it by
itself. ``exchanged``: one before each joined or keyed operator, as in the paper on Flink."""
