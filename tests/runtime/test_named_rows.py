"""The row that an error names is the one that the function got, as it got it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fries.errors import OperatorError
from fries.runtime.functions import make_call, never
from fries.runtime.keyed import make_fold
from fries.runtime.spec import Keying, Kind, Style
from fries.runtime.state import KeyGroup
from tests.runtime.test_chains import FRAME, chunk, same, spec, stage
from tests.runtime.test_runs import MANY_ROWS, WAY_IN, run_rows
from tests.runtime.test_state import MemoryStore, spread

Row = dict[str, Any]
CAME = r"failed on \{'n': 5, 'x': 2.5, 's': 'é5'\}"


def spoils(row: Row) -> Row:
    if row["n"] == 5:
        row.clear()
        raise ValueError("spoiled")
    return row


class NoTruth:
    """Is neither true nor false."""

    def __bool__(self) -> bool:
        raise SystemExit("no truth")


@pytest.mark.parametrize("kind", [Kind.MAP, Kind.FILTER, Kind.SPLIT, Kind.FLAT_MAP])
def test_a_row_that_its_function_has_changed(kind: Kind) -> None:
    """Whatever the kind of its operator."""
    gives: dict[Kind, Callable[[Row], Any]]
    gives = {Kind.SPLIT: lambda _: 0, Kind.FLAT_MAP: lambda row: [row]}
    give = gives.get(kind, same)
    made, _ = stage(spec("A", lambda row: give(spoils(row)), FRAME, kind=kind))
    with pytest.raises(OperatorError, match=f"'A' {CAME}.*spoiled"):
        list(made.run(WAY_IN, chunk(40, FRAME)))


def test_a_row_that_a_run_has_changed() -> None:
    """It is named as the function got it that failed."""
    made, _ = stage(*(spec(name, f, FRAME) for name, f in (("A", same), ("B", spoils))))
    with pytest.raises(OperatorError, match=f"'B' {CAME}.*spoiled"):
        run_rows(made, MANY_ROWS)


def test_a_row_that_a_keyed_function_has_changed() -> None:
    fold = make_fold(
        spec("K", lambda _, row: spoils(row), FRAME, kind=Kind.PROCESS, keying=Keying(("n",)))
    )
    group = KeyGroup("K", MemoryStore())
    group.load(list(range(6)), np.array([spread(n) for n in range(6)], dtype=np.int64))
    with pytest.raises(OperatorError, match=f"'K' {CAME}.*spoiled"):
        fold(chunk(6, FRAME).slice(5, 1).batch, group, 0, lambda _, state: state)


@pytest.mark.parametrize(
    ("kind", "style", "value", "problem"),
    [
        (Kind.SPLIT, Style.ROW, lambda row: 7 if row["n"] == 5 else 0, "the branch 7; there are"),
        (Kind.SPLIT, Style.ROW, lambda row: None if row["n"] == 5 else 0, "NoneType"),
        (Kind.SPLIT, Style.ARROW, lambda rows: np.asarray(rows["n"]) == 5, "the branch True;"),
        (Kind.FILTER, Style.ROW, lambda row: NoTruth() if row["n"] == 5 else True, "no truth"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_row_for_which_a_function_gave_what_means_nothing(
    kind: Kind, style: Style, value: Callable[[Any], Any], problem: str, strict: bool
) -> None:
    call = make_call(spec("A", value, FRAME, kind=kind, style=style))
    with pytest.raises(OperatorError, match=rf"(?s)'A' {CAME}.*{problem}"):
        call(chunk(40, FRAME).batch, never, strict)
