"""What a flow shows before it runs: text, a ``with`` block, listeners. No Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from fries import listening
from fries.errors import UsageError
from fries.events import Event, QueryEnded
from fries.flow import Flow
from fries.graph import Edge, Graph, Operator
from fries.schedulers import scheduler


def test_a_flow_and_a_plan_show_themselves_as_text() -> None:
    flow = Flow("demo")
    assert repr(flow) == str(flow) == "flow 'demo': 0 operators"
    graph = Graph([Operator("A", source=True), Operator("B")], [Edge("A", "B")])
    plan = scheduler("fries")(graph, ("B",))
    assert repr(plan) == str(plan)
    assert repr(plan).startswith("fries: update B at once")


def test_a_flow_is_stopped_at_the_end_of_its_block_and_its_listeners_hear_the_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "FAREWELL_SECONDS", None)  # a busy machine is no failure
    heard: list[Event] = []
    with Flow("demo") as flow:
        listener = flow.listen(heard.append)
        flow._events.tell(QueryEnded("demo"))
    assert [type(event) for event in heard] == [QueryEnded]
    flow._events.tell(QueryEnded("demo"))
    assert len(heard) == 1
    assert not listener._thread.is_alive()


async def later(event: Event) -> None:
    """Nobody would await it."""


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        (3, "its callback is 3; give a function of an event"),
        (None, "its callback is None; give a function of an event"),
        (later, "its callback is an async function"),
    ],
)
def test_a_listener_that_cannot_be_called_is_refused_at_once(
    callback: Any,  # noqa: ANN401
    problem: str,
) -> None:
    with pytest.raises(UsageError, match=problem):
        Flow("demo").listen(callback)
