"""Functions as they were when they were sent, for whoever takes a change back.

A function is not all of itself: reloading its module, or running a cell of a notebook again, gives
it other helpers and constants. What an undo sends must be what ran before, so it is kept as bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import cached_property
from types import FunctionType
from typing import Any


class Frozen:
    """One of several pickled functions. Where it arrives it is that function again."""

    def __init__(
        self,
        data: bytes,
        buffers: tuple[pickle.PickleBuffer, ...],
        place: int,
        digest: bytes,
        classes: Mapping[str, bytes],
        outline: FunctionType | None,
    ) -> None:
        self.data, self.buffers, self._place = data, buffers, place
        self.digest, self.classes = digest, classes
        """Of everything that was pickled together with it; the digest may be empty."""
        self.outline = outline
        """Its code with nothing around it but numbers and texts, if it is a plain function."""

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        """Call it in this process, to try it."""
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (pickle.PickleBuffer(buffer) for buffer in self.buffers)
        return thawed, (self.data, self._place, *parts)

    @cached_property
    def function(self) -> Any:  # noqa: ANN401
        """The function itself, as it was."""
        return thawed(self.data, self._place, *self.buffers)


def thawed(data: bytes, place: int, *buffers: pickle.PickleBuffer) -> object:
    """The function itself."""
    return pickle.loads(data, buffers=buffers)[place]
