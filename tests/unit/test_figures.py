"""Figures of measurements, also of delays that a logarithmic axis has no place for."""

from __future__ import annotations

import pytest

from fries_lab.experiments.estimates import Estimate
from fries_lab.experiments.figures import Panel, decades, draw_delays, draw_rows

ZERO = Estimate(0.0, 0.0, 0.0, 5)
SOME = Estimate(20.0, 3.0, 400.0, 5)


@pytest.mark.parametrize(
    ("found", "ends"),
    [
        ([SOME], (1.0, 1000.0)),
        ([Estimate(10.0, None, None, 1)], (10.0, 100.0)),
        ([ZERO, SOME], (1.0, 1000.0)),
        ([Estimate(20.0, -3.0, 400.0, 5)], (100.0, 1000.0)),
        ([ZERO], (1.0, 10.0)),
        ([], (1.0, 10.0)),
    ],
)
def test_an_axis_ends_at_powers_of_ten(found: list[Estimate], ends: tuple[float, float]) -> None:
    assert decades(found) == ends


@pytest.mark.parametrize("found", [[SOME, SOME], [ZERO, SOME], [ZERO, ZERO]])
def test_delays_of_zero_are_drawn_where_they_can_be_seen(found: list[Estimate]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw_delays(axes, [1.0, 2.0], {"fries": found})
    (rows,) = draw_rows("rows", "ms", [Panel("one", ["a", "b"], {"fries": found})]).axes
    lowest = min(one.value if one.low is None else one.low for one in found)
    for low, high in (axes.get_ylim(), rows.get_xlim()):
        assert low <= lowest < high


def test_a_figure_of_nothing_can_be_drawn() -> None:
    pytest.importorskip("matplotlib")
    assert draw_rows("rows", "ms", [Panel("one", ["a"], {"fries": [None]})]).axes
