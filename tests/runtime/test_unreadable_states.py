"""States that pickle and do not unpickle: never kept, and if there are some, each alone."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fries.errors import StateError
from fries.runtime.spec import DROP, DeadLetters, OnUnreadable, Unreadable
from fries.runtime.stage import Stage
from fries.runtime.state import META, KeyGroup
from tests.runtime.test_blame import blamed, failing_fold, shipped, with_states
from tests.runtime.test_keyed_stage import BIT, TO_F, Bench, process, rows
from tests.runtime.test_stage import Script
from tests.runtime.test_state import MemoryStore, hashes, put, spread

Row = dict[str, Any]


class TwoArgumentsError(Exception):
    """Pickles as its one argument, and wants two."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


class Raising:
    """Raises whatever it is told to while it is unpickled."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise state["error"]


class Garbage:
    """Its ``__reduce__`` gives nothing that pickle could use."""

    def __reduce__(self) -> Any:  # noqa: ANN401
        return 1, 2, 3


def nothing() -> None:
    """What an object should not become."""


class Vanishing(int):
    """Is read without an error, as nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return nothing, ()


class Calling:
    """Unpickled by a call of something that cannot be called so."""

    def __reduce__(self) -> tuple[Any, ...]:
        return len, (1, 2, 3)


class Shy:
    """Raises something that is no ``Exception`` while it is pickled."""

    def __getstate__(self) -> object:
        raise SystemExit(3)


class UnspeakableError(Exception):
    """Not even its ``repr`` works."""

    def __repr__(self) -> str:
        raise ValueError("no words")


def deep(count: int) -> int:
    return deep(count + 1)


class Bottomless:
    """Unpickled without end."""

    def __reduce__(self) -> tuple[Any, ...]:
        return deep, (0,)


class Fragile:
    """Can be read until it is broken."""

    broken: BaseException | None = None

    def __init__(self, value: int) -> None:
        self.value = value

    def __setstate__(self, state: dict[str, Any]) -> None:
        if Fragile.broken is not None:
            raise Fragile.broken
        self.__dict__.update(state)


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    yield
    Fragile.broken = None


def nowhere() -> object:
    """An object of a class whose module only this process has."""
    module = types.ModuleType("fries_nowhere")
    exec("class Here: pass", module.__dict__)
    sys.modules["fries_nowhere"] = module
    return module.__dict__["Here"]()


POISON: dict[str, Callable[[], object]] = {
    "a constructor of its own": lambda: TwoArgumentsError("row", "3"),
    "inside plain values": lambda: {"last": [TwoArgumentsError("row", "3")]},
    "setstate": lambda: Raising(ValueError("no")),
    "exit": lambda: Raising(SystemExit(1)),
    "not an Exception": lambda: Raising(GeneratorExit()),
    "interrupted": lambda: Raising(KeyboardInterrupt()),
    "no words": lambda: Raising(UnspeakableError()),
    "garbage": Garbage,
    "nothing": lambda: Vanishing(3),
    "wrong call": Calling,
    "exit while pickled": Shy,
    "without end": Bottomless,
    "module": nowhere,
}


@pytest.mark.parametrize("kind", POISON)
def test_a_state_that_could_not_be_read_again_is_not_kept(kind: str) -> None:
    store = MemoryStore()
    put(store, {1: 10, 2: 20})
    before = dict(store.values)
    group = KeyGroup("scores", store)
    group.load([1, 2], hashes([1, 2], spread))
    group.put(1, 0, 11)
    group.writer = 7
    group.put(2, 0, POISON[kind]())
    with pytest.raises(StateError, match="'scores' failed on the state of key 2, ") as lost:
        group.save()
    assert (lost.value.operator, lost.value.keys, lost.value.change) == ("scores", (2,), 7)
    assert store.values == before, "nothing was saved"
    again = pickle.loads(pickle.dumps(lost.value))
    assert str(again) == str(lost.value)


def poisoned(kind: str, state: object, row: Row) -> tuple[object, Row]:  # noqa: ARG001
    return POISON[kind](), row


def harmless(state: object, row: Row) -> tuple[object, Row]:  # noqa: ARG001
    return 1, row


@pytest.mark.parametrize("kind", POISON)
def test_it_is_blamed_on_the_version_that_made_it(kind: str) -> None:
    bench = with_states()
    poison = replace(process(), function=partial(poisoned, kind))
    bench.configuration.load(7, 1, shipped(poison))
    before = dict(bench.store.values)
    assert blamed(failing_fold(bench, [0, 2, 0])) == (7, "F")
    assert bench.store.values == before


def test_it_is_not_blamed_on_a_newer_version_that_came_to_other_keys() -> None:
    bench = Bench(replace(process(), function=partial(poisoned, "setstate")))
    bench.configuration.load(7, 1, shipped(replace(process(), function=harmless)))
    assert blamed(failing_fold(bench, [0, 2])) == (0, "F")


def poisoned_once(kind: str, state: object, row: Row) -> tuple[object, Row]:
    """The row behind the one that made the state fails, and may: its state is put back."""
    if state is not None:
        raise ValueError("this row fails")
    return POISON[kind](), row


@pytest.mark.parametrize("kind", POISON)
def test_a_state_that_cannot_be_put_back_is_blamed_on_the_version_that_made_it(kind: str) -> None:
    bench = Bench(replace(process(), on_error=DeadLetters(DROP, limit=1.0)))
    poison = replace(bench.spec, function=partial(poisoned_once, kind))
    bench.configuration.load(7, BIT, shipped(poison))
    script, group = Script(), KeyGroup("F", bench.store)
    chunk = rows([(1, 0), (1, 1)], [1 << BIT] * 2)
    stage = Stage(bench.stage_spec, bench.configuration, script)
    with pytest.raises(StateError, match="'F' failed on the state of key 1, which change 7 wrote"):
        list(stage.run_group(bench.spec, TO_F, chunk, group, hashes([1, 1], spread)))
    assert blamed(script) == (7, "F")
    assert bench.store.values == {}


def test_a_group_does_not_go_back_to_a_state_that_is_read_as_none() -> None:
    group = KeyGroup("scores", None)
    group.load([1], hashes([1], spread))
    group.put(1, 0, Vanishing(3))
    group.begin()
    group.get(1)
    assert not group.rewind()


def test_states_that_end_with_their_batch_need_not_be_readable() -> None:
    group = KeyGroup("sums", None)
    group.load([1], hashes([1], spread))
    group.put(1, 0, TwoArgumentsError("a", "b"))
    group.save()


def test_classes_of_any_module_that_others_can_import_are_kept() -> None:
    store = MemoryStore()
    states: dict[int, Any] = {
        1: Fragile(3),
        2: types.SimpleNamespace(a=1),
        3: ValueError("one argument"),
        4: spread,
        5: b"\x93" * 20,
    }
    put(store, states)
    group = KeyGroup("scores", store)
    group.load(list(states), hashes(list(states), spread))
    kept = {key: group.get(key) for key in states}
    assert kept[5] == (0, b"\x93" * 20, 0)
    assert [type(entry and entry[1]) for entry in kept.values()] == [
        type(state) for state in states.values()
    ]


# States that were kept, and cannot be read any more


def stored() -> MemoryStore:
    """Keys 0 to 11 in one bucket, all of them readable; 3 and 5 will not be."""
    store = MemoryStore()
    put(store, {key: key * 10 for key in range(12)} | {3: Fragile(30), 5: Fragile(50)})  # type: ignore[dict-item]
    assert len(store.values) == 2, "one bucket, and how many keys it has"
    return store


def older() -> MemoryStore:
    """The same as releases wrote it that had one pickle for a bucket."""
    store = stored()
    bucket = {key: (spread(key), 2, key * 10) for key in range(12)}
    bucket |= {3: (spread(3), 2, Fragile(30))}  # type: ignore[dict-item]
    store.values[0] = pickle.dumps(bucket)
    return store


def opened(
    store: MemoryStore, keys: Sequence[int], on_unreadable: OnUnreadable = Unreadable.FAIL
) -> KeyGroup:
    group = KeyGroup("scores", store, pickle.dumps, on_unreadable, 4)
    group.load(keys, hashes(keys, spread))
    return group


def state_at(group: KeyGroup, key: int) -> Any:  # noqa: ANN401
    entry = group.get(key)
    assert entry is not None
    return entry[1]


def test_a_state_that_cannot_be_read_does_not_take_its_neighbours_with_it() -> None:
    store = stored()
    Fragile.broken = SystemExit(1)
    group = opened(store, [0, 1, 99])
    assert group.get(0) == (0, 0, 0)
    group.put(1, 0, 11)
    group.put(99, 0, 990)
    group.save()
    Fragile.broken = None
    group = opened(store, [1, 3, 5, 99])
    values = [state_at(group, 1), state_at(group, 99)]
    assert values == [11, 990]
    assert [state_at(group, key).value for key in (3, 5)] == [30, 50]


def test_a_group_grows_around_states_that_cannot_be_read() -> None:
    store = stored()
    Fragile.broken = ValueError("no")
    put(store, dict.fromkeys(range(100, 400), 1))
    assert len(store.values) > 20
    Fragile.broken = None
    assert state_at(opened(store, [3]), 3).value == 30


def test_whoever_needs_it_hears_the_operator_the_key_and_what_to_do() -> None:
    store = stored()
    Fragile.broken = ValueError("another layout")
    group = opened(store, [2, 3])
    assert group.get(2) == (0, 20, 0)
    with pytest.raises(StateError, match="'scores' failed on the state of key 3") as lost:
        group.get(3)
    assert lost.value.keys == (3,)
    assert lost.value.change == 0, "no change of this batch wrote it"
    assert "another layout" in lost.value.problem
    assert "on_unreadable=" in lost.value.problem


def test_a_fold_that_needs_it_is_not_to_blame() -> None:
    bench = Bench()
    put(bench.store, {0: Fragile(1)})  # type: ignore[dict-item]
    bench.configuration.load(7, BIT, shipped(process()))
    bench.configuration.begin([7])
    Fragile.broken = ValueError("no")
    assert blamed(failing_fold(bench, [0])) == (0, "F")


def test_it_can_be_skipped(caplog: pytest.LogCaptureFixture) -> None:
    store = stored()
    Fragile.broken = ValueError("no")
    group = opened(store, [2, 3], Unreadable.SKIP)
    assert [group.get(key) for key in (2, 3)] == [(0, 20, 0), None]
    group.save()
    assert "'scores': 1 states could not be read" in caplog.text
    Fragile.broken = None
    group = opened(store, [3, 5])
    assert group.get(3) is None
    assert state_at(group, 5).value == 50, "nobody has asked for this one"


def test_it_can_be_repaired() -> None:
    store = stored()
    Fragile.broken = ValueError("no")
    seen: list[tuple[object, bytes, BaseException]] = []

    def repair(key: int, data: bytes, error: BaseException) -> int | None:
        seen.append((key, data, error))
        return None if key == 5 else key * 100

    group = opened(store, [2, 3, 5], repair)
    assert [group.get(key) for key in (2, 3, 5)] == [(0, 20, 0), (0, 300, 0), None]
    ((_, data, error), _) = seen
    assert error is Fragile.broken
    assert b"Fragile" in data
    group.save()
    assert opened(store, [3]).get(3) == (0, 300, 0), "once and for all"


@pytest.mark.parametrize("error", [ValueError("I cannot either"), SystemExit(2)])
def test_a_repair_that_fails_says_so(error: BaseException) -> None:
    def repair(*_: object) -> object:
        raise error

    Fragile.broken = None
    store = stored()
    Fragile.broken = ValueError("no")
    with pytest.raises(StateError, match="on_unreadable= cannot repair it"):
        opened(store, [3], repair).get(3)


# Buckets of older releases


def test_buckets_of_older_releases_are_read() -> None:
    store = older()
    group = opened(store, [1, 3])
    assert group.get(1) == (2, 10, 0)
    group.put(1, 2, 11)
    group.save()
    kept = {key: value for key, (_, _, value) in store.buckets[0].items() if key != 3}
    assert kept == {key: key * 10 for key in range(12) if key != 3} | {1: 11}
    assert {version for _, version, _ in store.buckets[0].values()} == {2}


def test_a_bucket_of_an_older_release_that_cannot_be_read_names_the_keys_that_need_it() -> None:
    store = older()
    Fragile.broken = ValueError("another layout")
    with pytest.raises(StateError, match="the state of key 1, 7: it cannot be read") as lost:
        opened(store, [1, 7])
    assert lost.value.keys == (1, 7)


def test_a_bucket_of_an_older_release_is_skipped_as_a_whole() -> None:
    store = older()
    Fragile.broken = ValueError("no")
    group = opened(store, [1, 7], Unreadable.SKIP)
    assert [group.get(key) for key in (1, 7)] == [None, None]
    group.put(1, 0, 5)
    group.save()
    assert list(store.buckets[0]) == [1]


def test_a_bucket_of_an_older_release_is_repaired_key_by_key() -> None:
    store = older()
    whole = store.values[0]
    Fragile.broken = ValueError("no")
    group = opened(store, [1, 7], lambda key, data, _: (key, data == whole))
    assert group.get(7) == (4, (7, True), 0), "of the version that the flow was built with"


def test_a_bucket_that_cannot_be_read_stays_when_its_group_grows() -> None:
    store = MemoryStore()
    put(store, dict.fromkeys(range(60), 1))
    bad = next(n for n in store.values if n != META)
    keys = list(store.buckets[bad])
    store.values[bad] = damaged = pickle.dumps({keys[0]: (spread(keys[0]), 0, Fragile(1))})
    Fragile.broken = ValueError("no")
    others = [key for key in range(1000, 4000) if (spread(key) >> 32 & 3) != bad][:200]
    put(store, dict.fromkeys(others, 1))
    assert store.values[bad] == damaged
    Fragile.broken = None
    assert state_at(opened(store, keys[:1]), keys[0]).value == 1
    put(store, dict.fromkeys(others, 2))
    assert len(store.values) > 12, "it grows as soon as it can"
