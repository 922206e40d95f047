"""Whether somebody else has the memory of a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fries.runtime.blocks import taken_over

KEEP: Final[dict[str, Callable[[Any], object]]] = {
    "the frame": lambda frame: frame,
    "a column": lambda frame: frame["x"],
    "a column of text": lambda frame: frame["s"],
    "an array": lambda frame: frame["n"].to_numpy(),
    "a view of an array": lambda frame: frame["n"].to_numpy()[1:],
    "a memoryview": lambda frame: memoryview(frame["x"].to_numpy()),
    "an Arrow array": lambda frame: pa.array(frame["x"].to_numpy()),
    "some rows": lambda frame: frame.iloc[1:],
    "all rows": lambda frame: frame[:],
    "a shallow copy": lambda frame: frame.copy(deep=False),
    "another frame": pd.DataFrame,
    "columns": lambda frame: frame.columns,
    "index": lambda frame: frame.index,
    "manager": lambda frame: frame._mgr,
    "a block": lambda frame: frame._mgr.blocks[0],
    "a method": lambda frame: frame.sum,
}


def made() -> pd.DataFrame:
    frame = pd.DataFrame({"n": [1, 2, 3], "x": [0.5, 1.5, 2.5], "s": ["a", "b", None]})
    return frame.assign(x=frame["x"] * 2)


def looked_at() -> pd.DataFrame:
    frame = made()
    frame["n"] += int(frame["x"].sum())
    return frame


@pytest.mark.parametrize("make", [made, looked_at, lambda: made().take([2, 0])])
def test_a_frame_that_its_maker_has_forgotten_is_alone(make: Callable[[], pd.DataFrame]) -> None:
    held = [make()]
    expected = held[0].copy()
    frame, alone = taken_over(held)
    assert alone
    pd.testing.assert_frame_equal(frame, expected)


@pytest.mark.parametrize("what", KEEP)
def test_a_frame_is_not_alone_while_somebody_has_its_memory(what: str) -> None:
    held = [made()]
    kept = KEEP[what](held[0])
    assert not taken_over(held)[1]
    del kept


def test_memory_of_another_owner_is_not_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [0.5, 1.5]})
    read_only = np.array([1.0])
    read_only.flags.writeable = False
    with_notes = made()
    with_notes.attrs["notes"] = []
    frames = [
        batch.to_pandas(),
        pd.DataFrame({"x": np.frombuffer(bytearray(16))}, copy=False),
        pd.DataFrame({"x": read_only}, copy=False),
        pd.DataFrame({"x": pd.Categorical(["a"])}),
        with_notes,
    ]
    del with_notes, read_only
    while frames:
        assert not taken_over([frames.pop()])[1]
