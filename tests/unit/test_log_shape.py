"""Whether a flow fits its log, and what it is told if not."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from fries.errors import LogMismatchError
from fries.log.records import Shape
from fries.log.shape import check_fits, shape_of
from fries.runtime.spec import EdgeSpec, Keying, Kind, OperatorSpec

ROWS = pa.schema({"k": pa.int64()})
KEYED = OperatorSpec("F", Kind.PROCESS, ROWS, keying=Keying(("k",)))
OTHER = OperatorSpec("G", Kind.MAP, ROWS)
EDGES = (EdgeSpec(0, "", "F"), EdgeSpec(1, "F", "G"), EdgeSpec(2, "G", "out"))
FLOW = shape_of((KEYED, OTHER), EDGES, 4)


@pytest.mark.parametrize(
    ("now", "differences"),
    [
        (shape_of((KEYED, OTHER), EDGES, 8), ["it had 4 key groups, now 8"]),
        (
            shape_of((replace(KEYED, name="E"), replace(OTHER, name="D")), EDGES, 4),
            [f"operator '{name}' is missing" for name in "FG"]
            + [f"operator '{name}' is new" for name in "DE"],
        ),
        (
            shape_of((replace(KEYED, keying=Keying(("k", "n"))), OTHER), EDGES, 4),
            ["operator 'F': key was 'k', now 'k, n'"],
        ),
        (
            shape_of((replace(KEYED, keying=Keying(("k",), ("n",))), OTHER), EDGES, 4),
            ["operator 'F': order_by was '', now 'n'"],
        ),
        (
            shape_of((replace(KEYED, keying=Keying(("k",), migrations=(abs,))), OTHER), EDGES, 4),
            ["operator 'F': number of migrations was '0', now '1'"],
        ),
        (
            shape_of((KEYED, replace(OTHER, schema=pa.schema({"k": pa.string()}))), EDGES, 4),
            ["operator 'G': columns was 'k int64', now 'k string'"],
        ),
        (
            shape_of((KEYED, replace(OTHER, keying=Keying(("k",)))), EDGES, 4),
            [
                "operator 'G': key was 'none', now 'k'",
                "operator 'G': number of migrations was 'none', now '0'",
                "operator 'G': order_by was 'none', now ''",
            ],
        ),
        (
            shape_of((KEYED, OTHER), (*EDGES[:1], EdgeSpec(1, "F", "G", 1), EDGES[2]), 4),
            [
                "the edge F -> G (branch 0) is missing",
                "the edge F -> G (branch 1) is new",
            ],
        ),
        (
            shape_of((KEYED, OTHER), (EDGES[1], EDGES[0], EDGES[2]), 4),
            ["the operators were added in another order"],
        ),
        (
            shape_of((KEYED, OTHER), EDGES[1:], 4),
            ["the edge outside -> F (branch 0) is missing"],
        ),
    ],
)
def test_another_flow_is_refused_with_all_that_is_different(
    now: Shape, differences: list[str]
) -> None:
    with pytest.raises(LogMismatchError) as caught:
        check_fits(FLOW, now, "memory")
    assert list(caught.value.differences) == differences
    for difference in differences:
        assert difference in str(caught.value)


def test_functions_may_be_others() -> None:
    check_fits(FLOW, shape_of((replace(KEYED, function=print), OTHER), EDGES, 4), "memory")
