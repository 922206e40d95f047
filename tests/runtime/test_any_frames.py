"""Any chain of functions over frames: called the quick way, rows become what they become strictly.

The functions change what they get, keep what they get or return and change it in their next call,
give memory of their own, and frames whose columns, types and index are not those of Arrow.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.runtime.chunks import Chunk
from fries.runtime.functions import make_call, never
from fries.runtime.pacer import Pacer
from fries.runtime.spec import EdgeSpec, Kind, OperatorSpec, Style
from fries.runtime.stage import Stage
from tests.runtime.test_chains import spec, stage
from tests.runtime.test_columns import schema

ROWS: Final = schema(id=pa.int64(), n=pa.int64(), x=pa.float64(), s=pa.string())
Found = dict[str, list[dict[str, Any]]]
MAPS: Final = (
    *("assigns", "changes", "writes", "keeps", "keeps_input", "keeps_column", "keeps_view"),
    *("keeps_array", "keeps_batch", "keeps_manager", "keeps_weakly", "keeps_columns", "notes"),
    *("uses_again", "gives_a_table", "views", "reverses", "other_columns", "other_index"),
    *("other_types", "categories", "nulls", "texts", "no_text", "read_only", "attrs"),
)
OTHERS: Final = {
    "filters": Kind.FILTER,
    "splits": Kind.SPLIT,
    "doubles": Kind.FLAT_MAP,
    "same_rows": Kind.FLAT_MAP,
}


class Step:
    """One function, with whatever it keeps."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: Any = None
        self._noted: Any = None
        self._weak: Any = weakref.WeakValueDictionary()
        self._memory = np.zeros(1000)
        self._table = pd.DataFrame({"y": np.arange(1000.0), "t": [f"t{n}" for n in range(1000)]})

    def __call__(self, frame: pd.DataFrame) -> Any:  # noqa: ANN401
        """Calls it."""
        return getattr(self, f"_{self._name}")(frame)

    def _assigns(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(n=frame["n"] * 2 + 1)

    def _changes(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame["n"] += 9
        frame.loc[frame["id"] % 3 == 0, "s"] = "changed"
        return frame

    def _writes(self, frame: pd.DataFrame) -> pd.DataFrame:
        for name in ("n", "x"):
            values = frame[name].to_numpy()
            if values.flags.writeable:
                values += 1
            else:
                frame[name] = values + 1
        frame["s"].to_numpy()[frame["id"].to_numpy() % 5 == 0] = "written"
        return frame

    def _keeps(self, frame: pd.DataFrame) -> Any:  # noqa: ANN401
        return self._keep(frame.assign(n=frame["n"] + 1))

    def _keeps_input(self, frame: pd.DataFrame) -> pd.DataFrame:
        self._keep(frame)
        return frame.assign(n=frame["n"] + 2)

    def _keeps_column(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.assign(n=frame["n"] + 3)
        self._keep(made["x"])
        return made

    def _keeps_view(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.copy()
        self._keep(made.iloc[1:])
        return made

    def _keeps_array(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.assign(n=frame["n"] + 4)
        values: Any = made["x"].to_numpy()
        self._keep(memoryview(values))
        return made

    def _keeps_batch(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.assign(x=frame["x"] + 5)
        batch = pa.RecordBatch.from_pandas(made[["x"]], preserve_index=False)
        self._note(pa.array(made["x"].to_numpy()), made)
        return made.assign(n=made["n"] + batch.num_columns)

    def _keeps_manager(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.copy()
        self._keep(pd.DataFrame(made))
        return made

    def _keeps_weakly(self, frame: pd.DataFrame) -> pd.DataFrame:
        if (kept := self._weak.get("frame")) is not None:
            kept["n"] = -1
        made = frame.assign(n=frame["n"] + 6)
        self._weak["frame"] = made
        return made

    def _keeps_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        if self._kept is not None:
            self._kept.name = "changed"
        made = frame.copy()
        self._kept = made.columns
        return made

    def _notes(self, frame: pd.DataFrame) -> pd.DataFrame:
        """See that nobody changes what it has kept."""
        made = frame.assign(x=frame["x"] * 3)
        return self._note(made, made)

    def _note(self, kept: Any, made: pd.DataFrame) -> pd.DataFrame:  # noqa: ANN401
        if self._kept is not None and repr(self._kept) != self._noted:
            made["n"] = -1000
        self._kept, self._noted = kept, repr(kept)
        return made

    def _uses_again(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = self._memory[: len(frame)]
        np.add(frame["x"].to_numpy(), 7, out=made)
        columns = {name: frame[name].to_numpy() for name in ROWS.names}
        return pd.DataFrame({**columns, "x": made}, copy=False)

    def _gives_a_table(self, frame: pd.DataFrame) -> pd.DataFrame:
        part = self._table.iloc[: len(frame)]
        return part.rename(columns={"y": "x", "t": "s"}, copy=False).assign(
            id=frame["id"], n=frame["n"], x=part["y"].to_numpy() * 0 + frame["x"], s=frame["s"]
        )

    def _views(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[:]

    def _reverses(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.iloc[::-1].copy().iloc[::-1]

    def _other_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[["s", "x", "id", "n"]].assign(more=1)

    def _other_index(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(n=frame["n"] - 1).set_index(frame["id"] + 5)

    def _other_types(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(n=frame["n"].astype("float64"), x=frame["id"].astype("int32"))

    def _categories(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(s=frame["s"].astype("category"), x=frame["x"].astype(object))

    def _nulls(self, frame: pd.DataFrame) -> pd.DataFrame:
        some = frame["id"] % 4 == 1
        return frame.assign(n=frame["n"].mask(some), x=frame["x"].mask(some))

    def _texts(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(s=[f"text {n}" for n in frame["id"]])

    def _no_text(self, frame: pd.DataFrame) -> pd.DataFrame:
        texts = [("", np.nan, None)[n % 3] for n in frame["id"]]
        return frame.assign(s=np.array(texts, dtype=object))

    def _read_only(self, frame: pd.DataFrame) -> pd.DataFrame:
        values = frame["x"].to_numpy() + 8
        values.flags.writeable = False
        return frame.assign(x=values)

    def _attrs(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.copy()
        made.attrs["kept"] = self._table
        return made

    def _filters(self, frame: pd.DataFrame) -> Any:  # noqa: ANN401
        return self._writes(frame)["id"] % 7 != 3

    def _splits(self, frame: pd.DataFrame) -> Any:  # noqa: ANN401
        return self._changes(frame)["id"] % 2

    def _doubles(self, frame: pd.DataFrame) -> pd.DataFrame:
        rows = np.repeat(np.arange(len(frame)), np.where(frame["id"] % 3 == 0, 2, 1))
        return frame.iloc[rows].assign(n=frame["n"].to_numpy()[rows] + 1, _row=rows)

    def _same_rows(self, frame: pd.DataFrame) -> Any:  # noqa: ANN401
        frame["_row"] = np.arange(len(frame))
        return self._keep(frame)

    def _keep(self, made: Any) -> Any:  # noqa: ANN401
        """Change what was kept, and keep something."""
        if isinstance(self._kept, pd.DataFrame):
            for name in self._kept.columns:
                if name != "_row":
                    self._kept[name].to_numpy()[:] = "x" if name == "s" else -1
        elif self._kept is not None:
            np.asarray(self._kept)[:] = -2
        self._kept = made
        return made


def operator(place: int, name: str) -> OperatorSpec:
    kind = OTHERS.get(name, Kind.MAP)
    branches = 2 if kind is Kind.SPLIT else 1
    return spec(f"O{place}", Step(name), ROWS, kind=kind, style=Style.PANDAS, branches=branches)


def operators_of(names: list[str]) -> tuple[tuple[OperatorSpec, ...], list[EdgeSpec]]:
    """A line of operators; what a split parts is united behind it."""
    operators: list[OperatorSpec] = []
    pairs: list[tuple[str, str, int]] = []
    last = ""
    for place, name in enumerate(names):
        one = operator(place, name)
        operators.append(one)
        pairs.append((last, one.name, 0))
        last = one.name
        if one.kind is Kind.SPLIT:
            operators.append(OperatorSpec(f"U{place}", Kind.PASS, ROWS))
            pairs += [(last, f"U{place}", branch) for branch in (1, 0)]
            last = f"U{place}"
    pairs.append((last, "out", 0))
    return tuple(operators), list(itertools.starmap(EdgeSpec, _numbered(pairs)))


def _numbered(pairs: list[tuple[str, str, int]]) -> Iterator[tuple[int, str, str, int]]:
    for number, pair in enumerate(pairs):
        yield number, *pair


def rows_of(names: list[str], aside: str, count: int, size: int, strict: bool) -> Found:
    """By output, what leaves a chain, as it is when all chunks are through."""
    operators, edges = operators_of(names)
    if aside:
        edges.append(EdgeSpec(99, aside, "aside"))
    made, script = stage(*operators, edges=tuple(edges))
    rows = [
        {"id": n, "n": n * 5, "x": n / 2, "s": None if n % 9 == 4 else f"n{n % 9}"}
        for n in range(count)
    ]
    chunk = Chunk.fresh(pa.RecordBatch.from_pylist(rows, schema=ROWS))
    found: Found = defaultdict(list)
    with (
        patch.object(Pacer, "next", lambda _, left, __: min(left, size)),
        patch.object(Stage, "_quickly", (lambda *_: None) if strict else Stage._quickly),
    ):
        leaving = [(edge, part.owned()) for edge, part in made.run(edges[0], chunk)]
    assert script.failures == []
    for edge, part in leaving:
        found[edge.target].extend(part.batch.to_pylist())
    return found


@pytest.mark.filterwarnings("ignore")  # what pandas thinks of such functions
@given(
    names=st.lists(st.sampled_from([*MAPS, *OTHERS, *OTHERS]), min_size=1, max_size=7),
    count=st.integers(1, 60),
    size=st.integers(1, 40),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_rows_become_what_they_become_strictly(
    names: list[str], count: int, size: int, data: st.DataObject
) -> None:
    aside = data.draw(st.integers(-1, len(names) - 1))
    if aside >= 0 and names[aside] == "splits":
        aside = -1
    named = f"O{aside}" if aside >= 0 else ""
    quick = rows_of(names, named, count, size, strict=False)
    assert quick == rows_of(names, named, count, size, strict=True)


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.product([*MAPS, *OTHERS], ["writes", "keeps_input", "filters"])),
)
def test_two_functions_over_frames_do_not_meet(first: str, second: str) -> None:
    names = [first, second, "notes"]
    assert rows_of(names, "O0", 30, 8, strict=False) == rows_of(names, "O0", 30, 8, strict=True)


@pytest.mark.parametrize("style", Style)
def test_what_two_edges_bring_is_processed_together(style: Style) -> None:
    """Chunks do not become shorter with each split."""
    seen: list[Any] = []

    def sees(rows: Any) -> Any:  # noqa: ANN401
        seen.append(1 if style is Style.ROW else len(rows))
        return rows

    operators, edges = operators_of(["splits", "assigns", "splits", "assigns"])
    operators = (*operators, spec("Last", sees, ROWS, style=style))
    edges[-1] = EdgeSpec(edges[-1].number, edges[-1].source, "Last")
    made, _ = stage(*operators, edges=(*edges, EdgeSpec(98, "Last", "out")))
    rows = [{"id": n, "n": n, "x": 0.5, "s": str(n)} for n in range(32)]
    chunk = Chunk.fresh(pa.RecordBatch.from_pylist(rows, schema=ROWS))
    with patch.object(Pacer, "next", lambda _, left, __: min(left, 16)):
        leaving = list(made.run(edges[0], chunk))
    assert sum(len(part) for _, part in leaving) == 32
    assert seen == ([1] * 32 if style is Style.ROW else [16, 16])


@pytest.mark.parametrize(("name", "waits_for_nobody"), [("doubles", True), ("same_rows", False)])
def test_a_flat_map_gives_a_frame_that_is_copied_if_it_was_kept(
    name: str, waits_for_nobody: bool
) -> None:
    rows = [{"id": n, "n": n, "x": 0.5, "s": str(n)} for n in range(9)]
    call = make_call(operator(0, name))
    output = call(pa.RecordBatch.from_pylist(rows, schema=ROWS), never, strict=False)
    assert output.data.borrowed != waits_for_nobody
    assert output.data.frame.columns.tolist() == ROWS.names
