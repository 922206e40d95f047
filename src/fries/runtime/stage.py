"""A stage at work: chunks go through its operators, in topological order, in one process.

``control.poll`` between two chunks is the only place where the configuration may change, so
a chunk goes through all operators of the stage under one configuration.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol, TypeAlias

import numpy as np

from fries.runtime.chunks import Chunk, Pacer
from fries.runtime.configuration import Configuration
from fries.runtime.functions import Integers
from fries.runtime.spec import EdgeSpec, OperatorSpec, StageSpec

Branches: TypeAlias = "Integers | None"


class Control(Protocol):
    """What a stage needs of the control channel."""

    def poll(self) -> None:
        """Take up what has arrived, without waiting."""


class Recorder(Protocol):
    """Notes data operations, in audit mode."""

    def record(self, operator: str, version: int, chunk: Chunk) -> None:
        """An operator processes a chunk at some version."""


class Stage:
    """One stage of a flow in one task."""

    def __init__(
        self,
        spec: StageSpec,
        configuration: Configuration,
        control: Control,
        recorder: Recorder | None = None,
    ) -> None:
        self._configuration = configuration
        self._control = control
        self._recorder = recorder
        self._pacer = Pacer()
        self._operators = spec.operators
        here = {operator.name for operator in spec.operators}
        self._inner = {edge.number for edge in spec.edges if edge.target in here}
        self._outputs: dict[str, list[EdgeSpec]] = defaultdict(list)
        for edge in spec.edges:
            self._outputs[edge.source].append(edge)
        self.last_old: dict[int, float] = {}
        """By change, when one of its targets last used the version from before it."""

    def run(self, edge: EdgeSpec, rows: Chunk) -> Iterator[tuple[EdgeSpec, Chunk]]:
        """Push rows that came over an edge through the stage; what leaves it comes out."""
        start = 0
        while start < len(rows):
            self._control.poll()
            chunk = rows.slice(start, self._pacer.rows)
            began = time.perf_counter()
            leaving = self._push(edge, chunk)
            self._pacer.measured(len(chunk), time.perf_counter() - began)
            start += len(chunk)
            yield from leaving

    def _push(self, edge: EdgeSpec, chunk: Chunk) -> list[tuple[EdgeSpec, Chunk]]:
        """One chunk through all operators, under one configuration."""
        inbox: dict[str, list[Chunk]] = defaultdict(list)
        leaving: list[tuple[EdgeSpec, Chunk]] = []
        self._send(edge, chunk, inbox, leaving)
        for operator in self._operators:
            for arrived in inbox.pop(operator.name, ()):
                for made, branches in self._apply(operator, arrived):
                    for out in self._outputs[operator.name]:
                        mine = made if branches is None else made.where(branches == out.branch)
                        self._send(out, mine, inbox, leaving)
        return leaving

    def _send(
        self,
        edge: EdgeSpec,
        chunk: Chunk,
        inbox: dict[str, list[Chunk]],
        leaving: list[tuple[EdgeSpec, Chunk]],
    ) -> None:
        """Hand rows over an edge: stamp them where it enters a component of a change."""
        if not len(chunk):
            return
        if edge.number in self._inner:
            stamp = self._configuration.stamp_on(edge.number)
            inbox[edge.target].append(chunk.stamped(stamp))
        else:
            leaving.append((edge, chunk))

    def _apply(self, operator: OperatorSpec, chunk: Chunk) -> Iterator[tuple[Chunk, Branches]]:
        """Let an operator process rows, each by the version that its epoch asks for."""
        bits = self._configuration.bits_of(operator.name)
        for mask, part in _by_mask(chunk, bits):
            if self._recorder is not None:
                version = self._configuration.version(operator.name, mask)
                self._recorder.record(operator.name, version, part)
            output = self._configuration.call(operator.name, mask)(part.batch)
            if mask != bits:
                now = time.time()
                for change in self._configuration.changes(bits & ~mask):
                    self.last_old[change] = now
            yield part.children(output), output.branches


def _by_mask(chunk: Chunk, bits: int) -> Iterator[tuple[int, Chunk]]:
    """Rows that get the same version, those of older versions first."""
    if not bits:
        yield 0, chunk
        return
    masks = chunk.epochs & bits
    for mask in sorted(map(int, np.unique(masks)), key=int.bit_count):
        kept = masks == mask
        yield mask, chunk if kept.all() else chunk.where(kept)
