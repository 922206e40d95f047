"""Key groups against a plain dict: nothing lost, nothing twice, only what is touched is moved."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fries.errors import OperatorError
from fries.runtime.arrow import Integers
from fries.runtime.buckets import Bucket, state_of, unpacked
from fries.runtime.state import KEYS_PER_BUCKET, META, KeyGroup

Hashing = Callable[[int], int]
Batch = dict[int, int | None]
"""By key, the state to put; ``None`` removes it."""


def opened(bucket: bytes) -> Bucket:
    """A stored bucket, with its states unpickled."""
    kept = unpacked(bucket, pickle.dumps)
    return {key: (value, version, state_of(data)) for key, (value, version, data) in kept.items()}


class MemoryStore:
    """A store that is a dict, and knows what was asked of it."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.read: list[int] = []
        self.written: list[int] = []

    def get_many(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Some values; ``None`` where there is none."""
        self.read += numbers
        return [self.values.get(number) for number in numbers]

    def put_many(self, values: Mapping[int, bytes | None]) -> None:
        """Replace some values; ``None`` removes one."""
        self.written += values
        for number, value in values.items():
            if value is None:
                self.values.pop(number, None)
            else:
                self.values[number] = value

    def forget(self) -> None:
        """Count accesses from now on."""
        self.read, self.written = [], []

    @property
    def buckets(self) -> dict[int, Bucket]:
        """All buckets, with their states unpickled."""
        return {n: opened(value) for n, value in self.values.items() if n != META}


def spread(key: int) -> int:
    """A hash as good as Spark's: all 64 bits depend on the key, and half are negative."""
    mixed = (key + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % 2**64
    return (mixed ^ mixed >> 32) - 2**63


def lopsided(key: int) -> int:
    """A bad one, with four values."""
    return (key % 4 - 2) << 32


HASHINGS: list[Hashing] = [spread, lopsided, lambda key: -1]


def hashes(keys: Sequence[int], hashing: Hashing) -> Integers:
    return np.array([hashing(key) for key in keys], dtype=np.int64)


def loaded(store: MemoryStore | None, keys: Sequence[int], hashing: Hashing = spread) -> KeyGroup:
    group = KeyGroup("op", store)
    group.load(keys, hashes(keys, hashing))
    return group


def put(store: MemoryStore, batch: Batch, hashing: Hashing = spread, version: int = 0) -> bytes:
    """One batch: load the group, change some states, save it."""
    group = loaded(store, list(batch), hashing)
    for key, state in batch.items():
        group.put(key, version, state)
    return group.save()


def found(store: MemoryStore, keys: Sequence[int], hashing: Hashing = spread) -> dict[int, Any]:
    """By key, its state, if it has one."""
    group = loaded(store, keys, hashing)
    entries = {key: group.get(key) for key in keys}
    return {key: entry[1] for key, entry in entries.items() if entry is not None}


BATCHES = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, 80), st.none() | st.integers(), max_size=20),
        st.builds(  # many keys at once, so that groups grow
            lambda first, count, state: dict.fromkeys(range(first, first + count), state),
            st.integers(0, 60),
            st.integers(0, 80),
            st.none() | st.integers(),
        ),
    ),
    max_size=8,
)


@given(BATCHES, st.sampled_from(HASHINGS))
@settings(deadline=None)
def test_a_group_is_a_dict_that_outlives_its_batches(
    batches: list[Batch], hashing: Hashing
) -> None:
    store, oracle = MemoryStore(), dict[int, int]()
    everything = range(150)
    for batch in batches:
        put(store, batch, hashing)
        oracle.update({key: state for key, state in batch.items() if state is not None})
        for key in [key for key, state in batch.items() if state is None]:
            oracle.pop(key, None)
        assert found(store, everything, hashing) == oracle
        kept = Counter(key for bucket in store.buckets.values() for key in bucket)
        assert kept == Counter(oracle.keys()), "no key lost, none in two buckets"
        assert all(store.buckets.values()), "no empty bucket is kept"


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers()), max_size=30))
@settings(deadline=None)
def test_the_last_put_of_a_batch_counts(puts: list[tuple[int, int | None]]) -> None:
    store = MemoryStore()
    group = loaded(store, [key for key, _ in puts])
    oracle: dict[int, int | None] = {}
    for key, state in puts:
        group.put(key, 0, state)
        oracle[key] = state
        entry = group.get(key)
        assert (None if entry is None else entry[1]) == state
    group.save()
    kept = {key: state for key, state in oracle.items() if state is not None}
    assert found(store, range(6)) == kept


def test_what_is_not_saved_never_happened() -> None:
    store = MemoryStore()
    put(store, {1: 10})
    group = loaded(store, [1, 2])
    group.put(1, 0, 11)
    group.put(2, 0, 20)
    assert found(store, [1, 2]) == {1: 10}


def test_a_state_keeps_the_hash_of_its_key_and_the_version_that_wrote_it() -> None:
    store = MemoryStore()
    put(store, {5: 50}, version=3)
    assert loaded(store, [5]).get(5) == (3, 50, 0)
    assert opened(store.values[0])[5] == (spread(5), 3, 50)


@pytest.mark.parametrize("key", [None, "text", b"bytes", ("a", None), ()])
def test_keys_of_any_type(key: object) -> None:
    store = MemoryStore()
    for count in (1, 2):
        group = KeyGroup("op", store)
        group.load([key], np.array([-7]))
        entry = group.get(key)
        group.put(key, 0, count)
        group.save()
        assert (entry and entry[1]) == (None if count == 1 else 1)


def test_a_group_that_grows_spreads_its_keys_over_more_buckets() -> None:
    store = MemoryStore()
    for first in range(0, 2000, 50):
        put(store, dict.fromkeys(range(first, first + 50), 1))
    sizes = [len(bucket) for bucket in store.buckets.values()]
    assert sum(sizes) == 2000
    assert len(sizes) >= 2000 // KEYS_PER_BUCKET
    assert max(sizes) <= 4 * KEYS_PER_BUCKET, "no bucket is far above the average"


def test_the_keys_of_one_group_do_not_crowd_in_few_of_its_buckets() -> None:
    """Spark has put keys together whose hashes have the same remainder."""
    keys = [key for key in range(40_000) if spread(key) % 64 == 5]
    store = MemoryStore()
    put(store, dict.fromkeys(keys, 1))
    assert max(map(len, store.buckets.values())) <= 4 * KEYS_PER_BUCKET


def test_growth_at_once_and_step_by_step_come_to_the_same_buckets() -> None:
    at_once, by_steps = MemoryStore(), MemoryStore()
    put(at_once, dict.fromkeys(range(500), 1))
    for key in range(500):
        put(by_steps, {key: 1})
    assert {n: set(bucket) for n, bucket in at_once.buckets.items()} == {
        n: set(bucket) for n, bucket in by_steps.buckets.items()
    }


def homes(store: MemoryStore, keys: Sequence[int]) -> set[int]:
    """The buckets that some keys are in."""
    return {n for n, bucket in store.buckets.items() for key in keys if key in bucket}


def test_only_the_buckets_of_the_batch_are_read_and_written() -> None:
    store = MemoryStore()
    put(store, dict.fromkeys(range(1000), 1))
    touched = homes(store, [3, 500, 999])
    store.forget()
    put(store, {3: 2, 500: 2, 999: 2})
    assert sorted(store.read) == sorted([META, *touched]), "each of them once"
    assert sorted(store.written) == sorted(touched), "and no meta data: nothing has been added"


@given(st.sets(st.integers(0, 1200), min_size=1, max_size=12))
@settings(deadline=None, max_examples=30)
def test_accesses_follow_the_keys_of_the_batch_and_not_the_size_of_the_state(
    keys: set[int],
) -> None:
    store = MemoryStore()
    put(store, dict.fromkeys(range(1000), 1))
    store.forget()
    put(store, dict.fromkeys(keys, 2))
    assert len(store.read) <= len(keys) + 1
    assert len(store.written) <= len(keys) + 1


def test_a_group_that_shrinks_leaves_no_bucket_behind() -> None:
    store = MemoryStore()
    put(store, dict.fromkeys(range(100), 1))
    put(store, dict.fromkeys(range(100), None))
    assert store.buckets == {}
    put(store, {7: 70})
    assert found(store, range(100)) == {7: 70}


def test_removing_what_is_not_there_changes_nothing() -> None:
    store = MemoryStore()
    put(store, {1: None, 2: None})
    assert store.buckets == {}
    assert put(store, {1: None}) == b"", "and there is no live state to sample"


def test_saving_gives_a_sample_of_live_states() -> None:
    store = MemoryStore()
    oracle = {key: key * 10 for key in range(100)}
    sample = opened(put(store, {**oracle}, version=2))
    assert 0 < len(sample) < 100
    assert sample == {key: (spread(key), 2, oracle[key]) for key in sample}


def test_without_a_store_states_end_with_the_batch() -> None:
    group = loaded(None, [3, 1, 2])
    for key in (3, 1, 2):
        group.put(key, 1, key * 10)
    group.put(1, 1, None)
    assert dict(group.entries()) == {3: (1, 30, 0), 2: (1, 20, 0)}
    assert opened(group.save()) == {3: (0, 1, 30), 2: (0, 1, 20)}
    assert loaded(None, [3]).get(3) is None


def test_a_state_that_is_not_kept_need_not_be_picklable() -> None:
    group = KeyGroup("scores", None)
    group.load([1], np.array([1]))
    group.put(1, 0, threading.Lock())
    assert group.save() == b""


def test_a_state_that_cannot_be_pickled_names_the_operator() -> None:
    store = MemoryStore()
    group = KeyGroup("scores", store)
    group.load([1], np.array([1]))
    group.put(1, 0, threading.Lock())
    with pytest.raises(
        OperatorError, match="'scores' failed on the state of key 1: it cannot"
    ) as lost:
        group.save()
    assert lost.value.operator == "scores"
    assert "keep plain values in it" in str(lost.value)
    assert store.values == {}, "nothing was saved"


def test_states_are_pickled_as_the_caller_wants() -> None:
    pickled: list[object] = []

    def dumps(value: object) -> bytes:
        pickled.append(value)
        return pickle.dumps(value)

    store = MemoryStore()
    group = KeyGroup("op", store, dumps)
    group.load([1], np.array([1]))
    group.put(1, 0, ["state"])
    group.save()
    assert pickled == [["state"]]
