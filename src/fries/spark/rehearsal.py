"""Calls of the user's functions in the driver, to see what they give for an empty batch.

A function may open a session, or load a model, when it is called first; then it may not pickle any
more, or not be what the workers have. So a copy is called, as a worker would get it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fries.runtime.frozen import Frozen
from fries.runtime.rehearsed import REHEARSED
from fries.runtime.spec import Function
from fries.spark.pickling import Pickled, pickled


@contextmanager
def rehearsed(function: Function) -> Iterator[Function]:
    """A copy of a function; what its calls leave in modules counts as it was before.

    A function that cannot travel is called itself: that it cannot is told when it is sent.
    """
    one = function.function if isinstance(function, Frozen) else function
    made = Pickled(b"", (), {}, frozenset())
    with suppress(Exception, SystemExit):  # the user's own code may raise anything
        made = pickled(one)
        one = pickle.loads(made.data, buffers=map(bytes, made.buffers))
    modules = [sys.modules[name] for name in sorted(made.compared) if name in sys.modules]
    with REHEARSED.during(modules):
        yield one
