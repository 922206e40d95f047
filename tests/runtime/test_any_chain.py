"""Any chain of functions, however it is called, against the same functions row by row.

They change their rows in place, keep what they return, and use their memory again. Chunks are
repeated, versions change, fail and are taken back. Each row must become what it becomes alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from fries.runtime import runs
from fries.runtime.arrow import Integers
from fries.runtime.chunks import Chunk
from fries.runtime.configuration import Configuration
from fries.runtime.pacer import Pacer
from fries.runtime.shipped import Shipped
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec, StageSpec, Style
from fries.runtime.stage import Stage
from tests.runtime.test_columns import schema
from tests.runtime.test_stage import Script, pickled

Row = dict[str, Any]
ROWS: Final = schema(id=pa.int64(), n=pa.int64(), x=pa.float64())
IN: Final = EdgeSpec(0, "", "O0")
KINDS: Final = {
    "filter": Kind.FILTER,
    "split": Kind.SPLIT,
    "ways": Kind.SPLIT,
    "both": Kind.FLAT_MAP,
    "listed": Kind.FLAT_MAP,
}
STYLES: Final = {"arrow": Style.ARROW, "pandas": Style.PANDAS}
NAMES: Final = (
    *("copy", "in_place", "in_place", "keep", "integer", "both"),
    *("filter", "filter", "split", "ways", "listed", "arrow", "pandas"),
)
"""Those are there twice that change what others may still need."""


class Step:
    """One version of one function."""

    def __init__(self, name: str, version: int = 0, fails_on: int = -1) -> None:
        self.name, self.version, self.fails_on = name, version, fails_on
        self._kept: Row = {}
        self._list: list[Row] = []
        self._memory = np.zeros(1000, dtype=np.int64)

    def fails(self) -> bool:
        """Whether it may fail now."""
        return True

    def __call__(self, rows: Any) -> Any:  # noqa: ANN401
        """Rows of its style."""
        if self.fails_on in np.atleast_1d(np.asarray(rows["id"])) and self.fails():
            raise ArithmeticError(self.fails_on)
        return getattr(self, self.name)(rows)

    def copy(self, row: Row) -> Row:
        """Returns another dict."""
        return {**row, "n": row["n"] * 2 + self.version}

    def in_place(self, row: Row) -> Row:
        """Changes its row."""
        row["n"] += 3 + self.version
        row["x"] *= 2
        return row

    def keep(self, row: Row) -> Row:
        """Returns one dict again and again."""
        self._kept.update(row, n=row["n"] + 7 + self.version)
        return self._kept

    def integer(self, row: Row) -> Row:
        """Gives a number of another type than its column has."""
        row["x"] = row["n"] + self.version
        return row

    def filter(self, row: Row) -> bool:
        """Changes a row that is not its own."""
        row["n"] += self.version
        return bool(row["n"] % 3)

    def split(self, row: Row) -> int:
        """The same."""
        row["n"] += self.version
        return int(row["n"] % 2)

    def ways(self, row: Row) -> int:
        """The same, and a union follows."""
        return self.split(row)

    def listed(self, row: Row) -> list[Row]:
        """Gives its row and others in a list that it uses again."""
        self._list[:] = [{**row, "n": row["n"] + more} for more in range(row["id"] % 3)]
        self._list.append(row)
        return self._list

    def both(self, row: Row) -> Iterator[Row]:
        """Gives its row twice, changed."""
        for _ in range(2):
            row["n"] += 1 + self.version
            yield row

    def arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Uses its memory again."""
        made = self._memory[: len(batch)]
        np.add(batch.column("n").to_numpy(), 5 + self.version, out=made)
        columns = [batch.column("id"), pa.array(made), batch.column("x")]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)

    def pandas(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Changes its frame."""
        frame["n"] += 9 + self.version
        return frame

    def alone(self, row: Row) -> list[Row]:
        """What becomes of one row."""
        if self.name in ("arrow", "pandas"):
            return [{**row, "n": row["n"] + self.version + (5 if self.name == "arrow" else 9)}]
        given = getattr(self, self.name)(dict(row))
        if self.name in ("filter", "split"):
            return [row] if bool(given) == (self.name == "filter") else []
        if self.name == "ways":
            return [row]
        return [dict(one) for one in given] if self.name in KINDS else [dict(given)]


class Channel(Script):
    """Switches to change 1 at some poll, presses now and then, and takes what fails back."""

    def __init__(self, configuration: Configuration, switch: int, undo: OperatorSpec) -> None:
        super().__init__({switch: lambda: configuration.switch(1)})
        self._configuration, self._undo = configuration, undo
        self._looks = itertools.count(1)

    @property
    def pressed(self) -> bool:
        """At every 40th look."""
        return next(self._looks) % 40 == 0

    def hold(self, operator: str, change: int, stage: int) -> bool:  # noqa: ARG002
        """Back to the first version."""
        self._configuration.load(2, 1, shipped(self._undo))
        self._configuration.switch(2)
        return True


class Records:
    """By operator, the rows that the audit says it has had."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)

    def record(self, operator: str, version: int, txns: Integers | None, moment: float) -> None:  # noqa: ARG002
        """Some more of them."""
        assert txns is not None
        self.rows[operator] += txns.tolist()


def shipped(spec: OperatorSpec) -> bytes:
    return pickled(Shipped({spec.name: spec}, entries=frozenset({IN.number})))


def operator(place: int, step: Step) -> OperatorSpec:
    style, kind = STYLES.get(step.name, Style.ROW), KINDS.get(step.name, Kind.MAP)
    branches = 2 if kind is Kind.SPLIT else 1
    return OperatorSpec(f"O{place}", kind, ROWS, step, style=style, branches=branches)


def alone(steps: list[Step], count: int) -> dict[int, list[Row]]:
    """What becomes of each row if no other is there."""
    found = {}
    for number in range(count):
        rows = [first(number)]
        for step in steps:
            rows = [made for row in rows for made in step.alone(row)]
        found[number] = [{**row, "x": float(row["x"])} for row in rows]
    return found


def line(steps: list[Step]) -> tuple[tuple[OperatorSpec, ...], list[EdgeSpec], dict[int, str]]:
    """The operators of a chain, the edges between them, and whose edge each place is left by."""
    operators, edges, last = [], [IN], {}
    for place, step in enumerate(steps):
        operators.append(operator(place, step))
        last[place] = f"O{place}"
        if step.name == "ways":
            last[place] = f"U{place}"
            operators.append(OperatorSpec(last[place], Kind.PASS, ROWS))
            edges += [EdgeSpec(50 + 2 * place + b, f"O{place}", last[place], b) for b in (0, 1)]
        edges.append(EdgeSpec(place + 1, last[place], f"O{place + 1}"))
    return tuple(operators), edges, last


def first(number: int) -> Row:
    return {"id": number, "n": number * 5, "x": number / 2}


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=6),
    count=st.integers(1, 300),
    size=st.integers(1, 150),
    mode=st.sampled_from(["as it is", "repeated", "changed", "taken back", "taken back"]),
    data=st.data(),
)
@settings(deadline=None, max_examples=80)
def test_each_row_becomes_what_it_becomes_alone(
    names: list[str], count: int, size: int, mode: str, data: st.DataObject
) -> None:
    event(mode)
    steps = [Step(name) for name in names]
    place = data.draw(st.integers(0, len(names) - 1))
    victim = data.draw(st.integers(0, count - 1))
    new = Step(names[place], 1, victim if mode == "taken back" else -1)
    operators, edges, last = line(steps)
    outputs = {f"O{len(names)}": len(names)}
    if data.draw(st.booleans()):  # what some operator gives leaves by another way as well
        aside = data.draw(st.integers(0, len(names) - 1))
        edges.append(EdgeSpec(99, last[aside], "aside"))
        outputs["aside"] = aside + 1
    configuration = Configuration(operators)
    if mode in ("changed", "taken back"):
        configuration.load(1, 0, shipped(operator(place, new)))
    undo = operator(place, steps[place])
    script = Channel(configuration, data.draw(st.integers(0, 4)), undo)
    records = Records() if data.draw(st.booleans()) else None  # with them there are no runs
    stage = Stage(StageSpec(0, operators, tuple(edges)), configuration, script, records)
    stage.on_probation = data.draw(st.booleans())
    if mode == "repeated":
        steps[place].fails_on = victim
        steps[place].fails = lambda: not stage._strict  # type: ignore[method-assign]
    found = run(stage, count, size, records is not None or data.draw(st.booleans()))
    for target, end in outputs.items():
        got, old = found[target], alone(steps[:end], count)
        newer = alone([*steps[:place], new, *steps[place + 1 :]][:end], count)
        if mode in ("as it is", "repeated") and "ways" not in names:
            assert list(got) == [n for n in range(count) if old[n]], "in order"
        if "ways" in names:  # of a row that has become several some may have overtaken others
            for rows in itertools.chain.from_iterable(one.values() for one in (got, old, newer)):
                rows.sort(key=repr)
        is_new = [got[n] != old[n] for n in range(count)]
        assert all(got[n] == newer[n] for n in range(count) if is_new[n])
        assert not any(is_new) or mode in ("changed", "taken back")
        assert not is_new[victim] or mode == "changed"
    if mode in ("as it is", "repeated"):
        assert_noted(steps, count, last, script, records)


def assert_noted(
    steps: list[Step], count: int, last: dict[int, str], script: Script, records: Records | None
) -> None:
    """Counters and audit have of each operator what it takes and gives by itself."""
    for place in last:
        taken, given = alone(steps[:place], count), alone(steps[: place + 1], count)
        rows = [number for number, rows in taken.items() for _ in rows]
        gives = sum(map(len, given.values()))
        if steps[place].name == "split":
            gives = len(rows)
        for name in {f"O{place}", last[place]} if rows else ():
            assert script.counts[name] == [len(rows), gives]
            assert records is None or sorted(records.rows[name]) == rows


def run(stage: Stage, count: int, size: int, traced: bool) -> dict[str, dict[int, list[Row]]]:
    """By output and row, what came of it, read when all chunks are through."""
    batch = pa.RecordBatch.from_pylist([first(n) for n in range(count)], schema=ROWS)
    found: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    pace: Callable[..., int] = lambda self, left, hurried: min(left, size)  # noqa: E731
    rows = Chunk.fresh(batch, np.arange(count) if traced else None)
    with patch.object(Pacer, "next", pace), patch.object(runs, "ENOUGH", 1):
        leaving = [(edge, made.owned()) for edge, made in stage.run(IN, rows)]
    for edge, made in leaving:
        for row in made.batch.to_pylist():
            found[edge.target][row["id"]].append(row)
    return found
