"""Columns of text whose values were looked at before, told by their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fries.runtime.arrow import Integers

Objects: TypeAlias = "npt.NDArray[Any]"


class Texts(NamedTuple):
    """The values of a column, each a text or ``None``."""

    kept: tuple[Objects, ...]
    """Has all of them, so that no other object gets one of their addresses."""
    addresses: Integers

    @classmethod
    def of(cls, values: Objects) -> Texts:
        """A column that others may change later."""
        return cls((values.copy(),), np.frombuffer(values.tobytes(), dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Several columns as one."""
        kept = {id(one): one for part in parts for one in part.kept}
        return cls(tuple(kept.values()), np.concatenate([part.addresses for part in parts]))

    def take(self, rows: Integers) -> Texts:
        """Some of the values."""
        return Texts(self.kept, self.addresses.take(rows))

    def are(self, values: Objects) -> bool:
        """Whether a column has the same objects."""
        return values.tobytes() == self.addresses.tobytes()
