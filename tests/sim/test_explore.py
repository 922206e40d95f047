"""Every interleaving of small dataflows: the paper's examples, its rules, and their limits.

Numbers of schedules are exact. They are counted by the explorer without walking each of
them, so some are counted here in other ways: path by path, and by formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from fries.graph import Graph
from fries.schedulers import (
    Scheduler,
    epoch,
    fries,
    fries_unpruned,
    mini_batch,
    multi_version,
    naive,
    restart,
)
from fries.trace import updates_of
from fries_lab.errors import SimulationError
from fries_lab.sim.explore import explore, judge, random_walk
from fries_lab.sim.model import Model, Operation, Scenario, State
from fries_lab.workloads.graphs import (
    replicate_cases,
    running_example,
    self_join_figure,
    split_figure,
    w5,
)
from tests.sim.scenarios import (
    JOIN,
    TWO_ARMS,
    W5_TARGETS,
    algorithm_2,
    checkpointed,
    commits_first,
    flow,
    join_split,
    one_behind_the_other,
    running,
    sentences,
    tagged,
)

# Counting


def last_states(model: Model, state: State) -> Iterator[State]:
    """The end of every path, one by one: no memory of states."""
    actions = list(model.actions(state))
    for action in actions:
        yield from last_states(model, model.apply(state, action))
    if not actions:
        yield state


@pytest.mark.parametrize(
    "scenario",
    [
        running("fries", 1),
        running("fries", 2),
        running("epoch", 1),
        running("multi_version", 2),
        one_behind_the_other(1),
        one_behind_the_other(2),
        join_split(multi_version, 1),
        join_split(naive, 1),
        Scenario(running_example(), (fries(running_example(), ["FM"]),), 0, checkpoints=1),
    ],
    ids=[
        "fries",
        "fries, 2 tuples",
        "epoch",
        "multi_version",
        "multi_version, then fries",
        "multi_version, then fries, 2 tuples",
        "multi_version, one to many",
        "one to many",
        "checkpoint",
    ],
)
def test_the_explorer_finds_what_walking_every_path_finds(scenario: Scenario) -> None:
    model = Model(scenario)
    ends = list(last_states(model, model.initial))
    found = explore(scenario)
    assert found.schedules == len(ends)
    histories = {end.history for end in ends}
    assert found.outcomes == len(histories)
    verdicts = [judge(scenario, end) for end in ends]
    assert bool(found.violations) == any(not verdict.serializable for verdict in verdicts)
    assert found.deadlocks == len({end for end in ends if not model.finished(end)}) == 0
    assert found.mixed_checkpoints == len({end for end in ends if model.mixed_checkpoint(end)}) == 0


def pipeline_orders(tuples: int, operators: int) -> int:
    """In how many orders a pipeline processes its tuples: Young tableaux, by hook lengths."""
    hooks = [(tuples - t) + (operators - o) - 1 for t in range(tuples) for o in range(operators)]
    return math.factorial(tuples * operators) // math.prod(hooks)


@pytest.mark.parametrize("tuples", [1, 2, 3])
def test_the_number_of_schedules_of_a_pipeline_by_a_formula(tuples: int) -> None:
    """Commit messages that cause nothing further fall between the steps of the tuples."""
    orders, steps = pipeline_orders(tuples, 5), 5 * tuples
    assert explore(running("naive", tuples)).schedules == orders * (steps + 1) * (steps + 2)


def pipeline_steps(done: tuple[int, ...], operators: int) -> Iterator[list[int]]:
    """Each order in which a pipeline goes on, as the tuples of its steps; none overtakes."""
    if all(steps == operators for steps in done):
        yield []
    for t, steps in enumerate(done):
        if steps < (done[t - 1] if t else operators):
            for rest in pipeline_steps((*done[:t], steps + 1, *done[t + 1 :]), operators):
                yield [t, *rest]


@pytest.mark.parametrize("tuples", [1, 2, 3])
def test_the_number_of_schedules_of_a_tagged_change_of_a_pipeline_order_by_order(
    tuples: int,
) -> None:
    """Its commit falls between any steps, its end behind the last step of the old tuples."""
    orders = list(pipeline_steps((0,) * tuples, 5))
    assert len(orders) == pipeline_orders(tuples, 5)
    schedules = 0
    for order in orders:
        for commit in range(len(order) + 1):
            old = set(order[:commit])
            drained = max((i + 1 for i, t in enumerate(order) if t in old), default=0)
            schedules += len(order) + 1 - max(commit, drained)
    assert explore(running("multi_version", tuples)).schedules == schedules


# The running example and the one-to-many example


@pytest.mark.parametrize(
    ("name", "tuples", "states", "schedules"),
    [
        ("fries", 1, 21, 14),
        ("fries", 2, 84, 1_407),
        ("fries", 3, 252, 335_702),
        ("fries_unpruned", 1, 21, 14),
        ("fries_unpruned", 2, 84, 1_407),
        ("fries_unpruned", 3, 252, 335_702),
        ("epoch", 1, 41, 84),
        ("epoch", 2, 161, 18_018),
        ("epoch", 3, 476, 6_651_216),
        ("multi_version", 1, 28, 11),
        ("multi_version", 2, 137, 1_088),
        ("multi_version", 3, 480, 280_240),
    ],
)
def test_the_running_example_is_consistent_in_every_interleaving(
    name: str, tuples: int, states: int, schedules: int
) -> None:
    found = explore(running(name, tuples))
    assert found.consistent
    assert (found.states, found.schedules) == (states, schedules)
    assert found.outcomes == tuples + 1, "the change falls before, between or behind the tuples"


@pytest.mark.parametrize(("tuples", "mixed", "outcomes"), [(1, 2, 4), (2, 6, 9), (3, 12, 16)])
def test_naive_mixes_versions_in_the_running_example(
    tuples: int, mixed: int, outcomes: int
) -> None:
    scenario = running("naive", tuples)
    found = explore(scenario)
    assert not found.consistent
    assert found.deadlocks == 0
    assert (len(found.violations), found.outcomes) == (mixed, outcomes)
    both = [("FM", "MC"), ("MC", "FM")]
    assert sentences(scenario) == {
        f"tuple {txn} used {old} old and {new} new" for txn in range(tuples) for old, new in both
    }


@pytest.mark.parametrize(
    ("plan", "tuples", "states", "schedules"),
    [
        (fries, 1, 91, 4_842),
        (fries, 2, 1_038, 39_081_644_426),
        (fries_unpruned, 1, 91, 4_842),
        (fries_unpruned, 2, 1_038, 39_081_644_426),
        (epoch, 1, 249, 1_782_694),
        (epoch, 2, 2_289, 56_836_574_895_335),
        (multi_version, 1, 113, 1_050),
        (multi_version, 2, 1_552, 6_854_577_606),
    ],
)
def test_the_one_to_many_example_is_consistent_in_every_interleaving(
    plan: Scheduler, tuples: int, states: int, schedules: int
) -> None:
    found = explore(join_split(plan, tuples))
    assert found.consistent
    assert (found.states, found.schedules) == (states, schedules)


@pytest.mark.parametrize("plan", [algorithm_2, naive])
def test_algorithm_2_splits_a_transaction_of_the_one_to_many_example(plan: Scheduler) -> None:
    """Schedule S5: the control message falls between two tuples that J made of one."""
    scenario = join_split(plan, 2)
    found = explore(scenario)
    assert (found.schedules, len(found.violations)) == (2_707_272_900, 2)
    assert sentences(scenario) == {f"tuple {txn} used FMX old and FMX new" for txn in range(2)}


def test_naive_is_consistent_where_each_tuple_meets_one_target() -> None:
    """Example 1 of section 5: X sends each tuple to C or to D."""
    graph = split_figure()
    assert explore(Scenario(graph, (naive(graph, ["C", "D"]),), 3)).consistent


# Pruning


@pytest.mark.parametrize(
    ("case", "schedules", "unpruned"),
    [
        ("I", 3_113, 25_251),
        ("II", 9_795_028, 9_795_028),
        ("III", 7_169_268, 7_169_268),
    ],
)
def test_the_three_replicate_cases(case: str, schedules: int, unpruned: int) -> None:
    graph, targets = replicate_cases()[case]
    for plan, expected in ((fries, schedules), (fries_unpruned, unpruned)):
        found = explore(Scenario(graph, (plan(graph, targets),), 2))
        assert found.consistent
        assert found.schedules == expected


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("I", set()),
        ("II", {"tuple 0 used E old and F new", "tuple 0 used F old and E new"}),
        ("III", {"tuple 0 used X old and X new"}),
    ],
)
def test_replicate_can_be_left_out_in_the_first_case_only(case: str, why: set[str]) -> None:
    graph, targets = replicate_cases()[case]
    assert sentences(Scenario(graph, (algorithm_2(graph, targets),), 1)) == why


@pytest.mark.parametrize(
    ("plan", "schedules"),
    [(fries, 169_170), (fries_unpruned, 161_741_644), (epoch, 330_054_930)],
)
def test_the_self_join_figure(plan: Scheduler, schedules: int) -> None:
    graph = self_join_figure()
    found = explore(Scenario(graph, (plan(graph, ["E"]),), 2, JOIN))
    assert found.consistent
    assert (found.schedules, found.outcomes) == (schedules, 3)


@pytest.mark.parametrize(
    ("targets", "schedules", "unpruned"),
    [
        ("FD4", 420, 7_252),
        ("F3", 420, 21_780),
        ("F4", 420, 2_044),
        ("FD3 FD4", 59_019, 59_019),
        ("E1", 420, 21_660_484),
    ],
)
def test_the_rows_of_w5(targets: str, schedules: int, unpruned: int) -> None:
    graph, names = w5(), targets.split()
    for plan, expected in ((fries, schedules), (fries_unpruned, unpruned)):
        found = explore(Scenario(graph, (plan(graph, names),), 1, JOIN))
        assert found.consistent
        assert (found.schedules, found.outcomes) == (expected, 2)


@pytest.mark.parametrize("targets", W5_TARGETS)
def test_the_rows_of_w5_with_two_tuples_and_with_tags(targets: str) -> None:
    graph, names = w5(), targets.split()
    plan = fries(graph, names)
    assert explore(Scenario(graph, (plan,), 2, JOIN)).consistent
    assert explore(Scenario(graph, (tagged(plan),), 2, JOIN)).consistent


TWO_WAYS_TO_ONE = flow("S -> RE -> C -> O1 -> X", "RE -> D -> O2 -> X", unique=("O1", "O2"))
TWO_WAYS_TO_TWO = flow("S -> RE -> C -> O1 -> T1", "RE -> D -> O2 -> T2", unique=("O1", "O2"))


@pytest.mark.parametrize(
    ("graph", "targets", "why", "schedules"),
    [
        (TWO_WAYS_TO_ONE, ("X",), {"tuple 0 used X old and X new"}, 316_822),
        (
            TWO_WAYS_TO_TWO,
            ("T1", "T2"),
            {"tuple 0 used T1 old and T2 new", "tuple 0 used T2 old and T1 new"},
            391_820,
        ),
        (w5(), ("SJ",), {"tuple 0 used SJ old and SJ new"}, 10_783_900),
    ],
    ids=["two ways to one target", "two ways to two targets", "a unique target"],
)
def test_the_papers_second_pruning_rule_is_too_strong(
    graph: Graph, targets: tuple[str, ...], why: set[str], schedules: int
) -> None:
    """Taken literally it prunes RE: some unique operator is on each path to each target."""
    assert sentences(Scenario(graph, (algorithm_2(graph, targets),), 1, JOIN)) == why
    plan = fries(graph, targets)
    assert plan.heads == ("RE",)
    found = explore(Scenario(graph, (plan,), 1, JOIN))
    assert found.consistent
    assert found.schedules == schedules


# Blocking operators


def test_what_leaves_a_blocking_operator_begins_a_new_transaction() -> None:
    graph = flow("S -> A -> B -> C -> D", blocking={"B"})
    plan = fries(graph, ["A", "C", "D"])
    assert {part.members for part in plan.components} == {("A",), ("C", "D")}
    for each in (plan, tagged(plan), epoch(graph, ["A", "C", "D"])):
        assert explore(Scenario(graph, (each,), 2)).consistent
    whole = algorithm_2(flow("S -> A -> B -> C -> D"), ["A", "C", "D"])
    assert len(whole.components) == 1, "without the cut"


@pytest.mark.parametrize("with_tags", [False, True])
def test_tuples_from_a_blocking_operator_enter_a_component_and_are_stamped(with_tags: bool) -> None:
    """M is no head of {A, M, X}, but tuples of B enter there, over an edge that plans cut."""
    graph = flow("S -> A -> M -> X", "R -> B -> M", blocking={"B"})
    plan = fries(graph, ["A", "X"])
    assert plan.heads == ("A",)
    scenario = Scenario(graph, (tagged(plan) if with_tags else plan,), 1)
    assert explore(scenario).consistent
    used = [op for op in commits_first(scenario).history if op.operator in ("A", "X")]
    assert len(used) == 3
    assert all(op.version == 1 for op in used), "a change that is complete is complete for all"


# The explorer itself


def test_exploration_gives_up_at_a_limit() -> None:
    scenario = running("fries", 2)
    with pytest.raises(SimulationError) as raised:
        explore(scenario, most_states=50)
    assert str(raised.value) == ("more than 50 states; explore fewer tuples, workers or operators")
    assert explore(scenario, most_states=84).states == 84


@pytest.mark.parametrize("plan", [mini_batch, restart])
def test_plans_that_do_not_commit_at_once_are_refused(plan: Scheduler) -> None:
    graph = running_example()
    scenario = Scenario(graph, (fries(graph, ["FM"]), plan(graph, ["FM"])))
    for run in (explore, Model):
        with pytest.raises(SimulationError, match="only plans that commit at once"):
            run(scenario)


def test_violations_come_in_the_same_order_every_time() -> None:
    first, second = (
        [str(verdict) for verdict in explore(running("naive", 2)).violations] for _ in range(2)
    )
    assert first == second
    assert first[0].startswith("not atomic: tuple 0 used ")


def test_a_random_walk_is_one_of_the_interleavings_and_repeatable() -> None:
    scenario = running("naive", 2)
    model = Model(scenario)
    possible = {state.history for state in last_states(model, model.initial)}
    walked = [random_walk(scenario, seed) for seed in range(40)]
    assert {state.history for state in walked} <= possible
    assert any(not judge(scenario, state).serializable for state in walked)
    assert walked[:5] == [random_walk(scenario, seed) for seed in range(5)]


def test_a_random_walk_into_a_deadlock_says_so() -> None:
    scenario = checkpointed(TWO_ARMS, "C D E", guard=False)
    with pytest.raises(SimulationError, match=r"^the dataflow is stuck .*: a deadlock$"):
        _ = [random_walk(scenario, seed) for seed in range(100)]


def test_judge_reads_versions_against_the_changes_of_the_scenario() -> None:
    graph = running_example()
    plan = fries(graph, ["FM", "MC"])
    assert updates_of([plan.targets, ["MC"], plan.targets]) == [
        {"FM": 1, "MC": 1},
        {"MC": 2},
        {"FM": 2, "MC": 3},
    ]
    scenario = Scenario(graph, (plan,), 1)
    state = Model(scenario).initial
    mixed = {Operation(0, "FM", 0), Operation(0, "MC", 1)}
    verdict = judge(scenario, state._replace(history=frozenset(mixed)))
    assert str(verdict.contradiction) == "tuple 0 used FM old and MC new"
    clean = {Operation(0, "FM", 1), Operation(0, "MC", 1)}
    assert judge(scenario, state._replace(history=frozenset(clean))).serializable


def test_states_of_the_model_are_values() -> None:
    scenario = Scenario(w5(), (fries(w5(), ["E1"]),), 1, JOIN, checkpoints=1, late=True)
    assert random_walk(scenario, 1) == random_walk(scenario, 1)
    assert len({random_walk(scenario, seed) for seed in (1, 1)}) == 1
