"""The memory of pandas frames, as pandas 2 has it: blocks of columns of one type.

pandas has no quick way to tell the types of a frame's columns, and none to tell whether somebody
else has its memory. Where a manager of blocks is not as expected, somebody else may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from fries.runtime.arrow import Integers
from fries.runtime.settle import ALONE

Values: TypeAlias = "npt.NDArray[Any]"
_ANY_FRAME: Any = pd.DataFrame
"""For the stubs do not know managers."""
MANAGER: Final = type(_ANY_FRAME()._mgr)
"""The usual one."""


def types_of(frame: Any) -> list[Any]:  # noqa: ANN401 - the stubs know no managers
    """Of each column, its type."""
    return list(frame._mgr.get_dtypes())


def values_of(frame: Any, column: int) -> Values:  # noqa: ANN401
    """The memory of a column of objects."""
    values: Values = frame._mgr.iget_values(column)
    return values


def taken(frame: pd.DataFrame, rows: Integers) -> pd.DataFrame:
    """Some of the rows, in memory of their own."""
    return numbered(frame.take(rows))


def numbered(frame: Any) -> pd.DataFrame:  # noqa: ANN401
    """The same rows in the same memory, numbered from 0."""
    made: pd.DataFrame = frame.set_axis(pd.RangeIndex(len(frame)), copy=False)
    return made


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of the same columns as one."""
    return pd.concat(frames, ignore_index=True)


def taken_over(held: list[Any]) -> tuple[pd.DataFrame, bool]:
    """The frame in a list, and whether nobody else can read or change its memory any more.

    The list must be the only one on the caller's side that has the frame. Whoever else has the
    frame, a column, an array or a view of one has a reference to something that is counted here.
    """
    if sum(map(getrefcount, held)) > ALONE or held[0].attrs:
        return held[0], False
    managers = [held.pop()._mgr]  # without the frame and the columns that it has remembered
    alone = type(managers[0]) is MANAGER and _is_alone(managers)
    return _ANY_FRAME._from_mgr(managers[0], managers[0].axes), alone


def _is_alone(managers: Sequence[Any]) -> bool:
    """Whether nobody has a manager but its list, and nobody has any memory of it."""
    parts = *managers, *managers[0].blocks, *managers[0].axes
    values = [block.values for block in managers[0].blocks]
    if not all(type(one) is np.ndarray and one.flags.writeable for one in values):
        return False
    bases = [one.base for one in values if one.base is not None]
    if not all(type(one) is np.ndarray and one.flags.owndata for one in bases):
        return False
    # each is counted where it belongs, and in one of the three lists above
    counted = sum(map(getrefcount, parts)) + sum(map(getrefcount, values))
    counted += sum(map(getrefcount, bases))
    return counted == (ALONE + 1) * (len(parts) + len(values) + len(bases))
