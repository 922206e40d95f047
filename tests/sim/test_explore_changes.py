"""Every interleaving of small dataflows with checkpoints, or with several changes at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fries.change.model import Phase
from fries.protocol.messages import Abort
from fries.protocol.worker_events import Received
from fries.schedulers import (
    fries,
)
from fries_lab.sim.behaviour import Behaviour
from fries_lab.sim.explore import explore, random_walk
from fries_lab.sim.model import Model, Scenario
from fries_lab.workloads.graphs import (
    running_example,
    scope_figure,
)
from tests.sim.scenarios import (
    TWO_ARMS,
    checkpointed,
    commits_first,
    flow,
    one_behind_the_other,
    running,
    tagged,
)

# Checkpoints during a change (section 7.3)


def test_without_the_rule_a_checkpoint_can_hold_half_a_change() -> None:
    found = explore(checkpointed(scope_figure(), "C F G", guard=False))
    assert found.mixed_checkpoints > 0
    assert found.schedules == 56_517_452


def test_with_the_rule_no_checkpoint_holds_half_a_change() -> None:
    found = explore(checkpointed(scope_figure(), "C F G", guard=True))
    assert found.mixed_checkpoints == 0
    assert found.consistent
    assert found.schedules == 6_386_256


def test_without_the_rule_alignment_can_deadlock() -> None:
    """E waits for the marker on one channel, behind a barrier, and the other way round."""
    found = explore(checkpointed(TWO_ARMS, "C D E", guard=False))
    assert found.deadlocks > 0
    assert found.schedules == 12_250


@pytest.mark.parametrize("late", [False, True])
def test_with_the_rule_alignment_never_deadlocks(late: bool) -> None:
    found = explore(checkpointed(TWO_ARMS, "C D E", guard=True, late=late))
    assert found.consistent
    assert found.mixed_checkpoints == 0
    assert found.schedules == (44_871_279_942 if late else 4_224)


def test_cancelled_checkpoints_start_again_and_leave_nothing_behind() -> None:
    """W may see the new barrier from U, then the cancelled one from R, then the cancel.

    The cancelled barrier used to count for the new checkpoint: a channel stayed blocked.
    """
    graph = flow("S -> U -> W", "R -> W")
    found = explore(checkpointed(graph, "U W", guard=True, late=True))
    assert found.consistent
    assert found.mixed_checkpoints == 0
    assert (found.states, found.schedules) == (845, 28_720_876)


def test_the_rule_with_tuples_under_way() -> None:
    graph = flow("S -> U -> W", "R -> W")
    plan = fries(graph, ["U", "W"])
    found = explore(Scenario(graph, (plan,), 1, checkpoints=1))
    assert found.consistent
    assert found.mixed_checkpoints == 0


def test_checkpoints_around_two_changes_one_after_the_other() -> None:
    """They overlap, so the second waits for the first, and may cancel a checkpoint."""
    graph = flow("S -> U -> W", "R -> W")
    plans = (fries(graph, ["U"]), fries(graph, ["U", "W"]))
    found = explore(Scenario(graph, plans, 0, checkpoints=2))
    assert found.consistent
    assert found.mixed_checkpoints == 0, "U is a version ahead of W for good, and no mixture"


@pytest.mark.parametrize("seed", range(8))
def test_the_rule_with_late_requests_on_the_scope_figure(seed: int) -> None:
    scenario = checkpointed(scope_figure(), "C F G", guard=True, late=True)
    state = random_walk(scenario, seed)
    assert state.completed
    assert not Model(scenario).mixed_checkpoint(state)


# Two changes at once


@pytest.mark.parametrize(
    ("tuples", "with_tags", "schedules"),
    [
        (1, False, 128),
        (2, False, 26_317),
        (3, False, 9_916_035),
        (1, True, 285),
        (2, True, 79_502),
        (3, True, 39_233_255),
    ],
)
def test_a_change_and_its_undoing_have_one_serial_order(
    tuples: int, with_tags: bool, schedules: int
) -> None:
    """The same components: each tuple meets the changes where it enters, in their order."""
    graph = running_example()
    plan = fries(graph, ["FM", "MC"])
    twice = (tagged(plan),) * 2 if with_tags else (plan,) * 2
    found = explore(Scenario(graph, twice, tuples))
    assert found.consistent
    assert found.schedules == schedules
    assert found.outcomes == math.comb(tuples + 2, 2), "each tuple in one of three versions"


@pytest.mark.parametrize(
    ("tuples", "states", "schedules"), [(1, 55, 45), (2, 311, 8_194), (3, 1_242, 3_059_507)]
)
def test_a_change_waits_for_a_tagged_one_that_it_overlaps_and_then_happens(
    tuples: int, states: int, schedules: int
) -> None:
    """The tagged change used to last for ever, and nobody noticed that the other never began."""
    scenario = one_behind_the_other(tuples)
    found = explore(scenario)
    assert found.consistent
    assert (found.states, found.schedules) == (states, schedules)
    assert found.outcomes == math.comb(tuples + 2, 2), "each tuple in one of three versions"
    last = commits_first(scenario)
    assert last.controller.last == 2
    assert not last.controller.changes
    used = {(op.operator, op.version) for op in last.history if op.operator in ("FM", "MC")}
    assert used == {("FM", 1), ("MC", 2)}, "both changes are complete before the first tuple"


def test_a_change_that_is_not_over_is_work_left() -> None:
    scenario = one_behind_the_other(1)
    model = Model(scenario)
    state = random_walk(scenario, 1)
    assert model.finished(state)
    waiting = model.initial.controller
    assert [change.phase for change in waiting.changes] == [Phase.COMMITTED, Phase.QUEUED]
    assert not model.finished(state._replace(controller=waiting))


@pytest.mark.parametrize("joins", [2, 3])
def test_half_a_join_delays_the_end_of_a_tagged_change_only_while_it_can_be_completed(
    joins: int,
) -> None:
    """SJ gets two tuples of each transaction: it waits for a third in vain."""
    graph = flow("S -> RE -> C -> SJ -> X", "RE -> D -> SJ", unique={"SJ"})
    plans = (tagged(fries(graph, ["RE", "X"])), fries(graph, ["SJ", "X"]))
    scenario = Scenario(graph, plans, 1, {"SJ": Behaviour(joins=joins)})
    assert plans[0].heads == ("RE",)
    found = explore(scenario)
    assert found.deadlocks == 0
    assert all(verdict.atomic for verdict in found.violations)


def test_an_aborted_tagged_change_leaves_no_trace_but_one_that_is_over_stays() -> None:
    model = Model(running("multi_version", 0))
    base = model.initial
    (mc,) = model.topology.of_operator["MC"]
    assert base.versions[mc] == 0
    assert base.tags[mc] == 0b10
    aborted = model._tell(base, mc, Received(Abort(1)))
    assert (aborted.versions[mc], aborted.tags[mc]) == (0, 0)
    over = commits_first(running("multi_version", 0))
    assert (over.versions[mc], over.tags[mc]) == (1, 0)


def test_checkpoints_around_a_tagged_change_and_one_behind_it() -> None:
    """MC is a version ahead of FM once the tagged change is part of it: that is no mixture."""
    found = explore(replace(one_behind_the_other(0), checkpoints=1, late=True))
    assert found.consistent
    assert found.mixed_checkpoints == 0


@pytest.mark.parametrize("with_tags", [False, True])
def test_changes_of_disjoint_components_have_one_serial_order_in_a_pipeline(
    with_tags: bool,
) -> None:
    graph = running_example()
    plans = [fries(graph, ["FC"]), fries(graph, ["MC"])]
    found = explore(Scenario(graph, tuple(map(tagged, plans)) if with_tags else tuple(plans), 3))
    assert found.consistent
    assert (found.schedules, found.outcomes) == (69_317_009 if with_tags else 1_633_632, 16)


@pytest.mark.parametrize("with_tags", [False, True])
def test_changes_of_disjoint_components_are_atomic_but_may_lack_a_common_order(
    with_tags: bool,
) -> None:
    """The guarantee is per reconfiguration.

    With two workers per operator the two tuples overtake the changes on different ways:
    one sees only the first change, the other only the second. Each is all or nothing.
    """
    graph = running_example(2)
    plans = [fries(graph, ["FC"]), fries(graph, ["MC"])]
    found = explore(Scenario(graph, tuple(map(tagged, plans)) if with_tags else tuple(plans), 1))
    assert found.deadlocks == 0
    assert (found.schedules, found.outcomes) == (77_544_960 if with_tags else 6_054_048, 16)
    assert all(verdict.atomic for verdict in found.violations)
    assert {str(verdict.contradiction) for verdict in found.violations} == {
        f"U1 before U2 (tuple {one} used FC new and MC old) "
        f"and U2 before U1 (tuple {other} used MC new and FC old)"
        for one, other in ((0, 1), (1, 0))
    }


def test_even_changes_that_wait_for_each_other_may_lack_a_common_order() -> None:
    """The second starts when the first is complete, but a tuple between them sees it first.

    The tuple passes B before the first change and A behind the second; the first comes
    first because it updated M first. Again each change is all or nothing.
    """
    graph = flow("S -> B -> M", "B -> A")
    plans = (fries(graph, ["B", "M"]), fries(graph, ["M", "A"]))
    found = explore(Scenario(graph, plans, 1))
    assert (found.schedules, found.outcomes, found.deadlocks) == (70, 4, 0)
    (verdict,) = found.violations
    assert verdict.atomic
    assert str(verdict.contradiction) == (
        "U1 before U2 (it updated M first) and U2 before U1 (tuple 0 used A new and B old)"
    )


@pytest.mark.parametrize("with_tags", [False, True])
def test_parallel_workers(with_tags: bool) -> None:
    graph = running_example(2)
    plan = fries(graph, ["FM", "MC"])
    found = explore(Scenario(graph, (tagged(plan) if with_tags else plan,), 1))
    assert found.consistent
    assert (found.schedules, found.outcomes) == (104_334 if with_tags else 672_672, 4)
