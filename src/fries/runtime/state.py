"""The states of a key group: loaded for a batch, migrated when touched, saved at its end.

A group's keys are spread over *buckets*, a few keys each, and a bucket is one value of
the store. A batch loads and saves only the buckets that its keys are in, so its cost follows
the keys that it touches, not the size of the state; and a bucket is one access for several
keys, because accesses cost more than bytes. When a group has grown, its buckets are doubled.
Each state carries the version that wrote it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from fries.errors import OperatorError
from fries.runtime.arrow import Integers

Key: TypeAlias = Any
"""The value of a key column, or a tuple of several."""
Dumps: TypeAlias = "Callable[[object], bytes]"
META: Final = -1
"""Number under which a group keeps how many buckets and keys it has."""
KEYS_PER_BUCKET: Final = 16
"""On average at the most. An access costs as much as a few thousand bytes of states."""


Entry: TypeAlias = "tuple[int, int, Any]"
"""The state of one key: the key's hash, how many migrations the operator had had when the state was
written, and the state. A plain tuple, because buckets are pickled and unpickled all the time."""
Bucket: TypeAlias = "dict[Key, Entry]"


class Store(Protocol):
    """Where a key group is kept between batches: numbered values."""

    def get_many(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Some values; ``None`` where there is none."""

    def put_many(self, values: Mapping[int, bytes | None]) -> None:
        """Replace some values; ``None`` removes one."""


class KeyGroup:
    """The states of one key group in one batch. Without a store, they end with the batch."""

    def __init__(self, operator: str, store: Store | None, dumps: Dumps = pickle.dumps) -> None:
        self._operator, self._store, self._dumps = operator, store, dumps
        self._buckets: dict[int, Bucket] = {}
        self._sizes: dict[int, int] = {}
        """By bucket, how many keys it had when it was loaded."""
        self._bits = self._count = 0
        self._homes: dict[Key, tuple[int, Bucket]] = {}
        """By key of the batch, its hash and the bucket that it is in."""

    def load(self, keys: Sequence[Key], hashes: Integers) -> None:
        """Fetch the states of all keys of a batch."""
        if self._store is not None:
            (meta,) = self._store.get_many([META])
            self._bits, self._count = pickle.loads(meta) if meta else (0, 0)
        hashed = hashes.tolist()
        numbers = [self._number(value) for value in hashed]
        self._fetch(sorted(set(numbers)))
        self._homes = {
            key: (value, self._buckets[number])
            for key, value, number in zip(keys, hashed, numbers, strict=True)
        }

    def get(self, key: Key) -> Entry | None:
        """The state of a key, if it has one."""
        return self._homes[key][1].get(key)

    def put(self, key: Key, version: int, state: object) -> None:
        """Replace the state of a key; ``None`` removes it."""
        value, bucket = self._homes[key]
        if state is None:
            bucket.pop(key, None)
        else:
            bucket[key] = (value, version, state)

    def entries(self) -> Iterable[tuple[Key, Entry]]:
        """Every key with a state, in the order in which they were first put."""
        for bucket in self._buckets.values():
            yield from bucket.items()

    def save(self) -> bytes:
        """Keep what the batch has changed; returns one bucket, as a sample of live states."""
        if self._store is None:
            with suppress(OperatorError):  # nothing is kept, so nothing must be picklable
                return self._pickled(dict(islice(self.entries(), KEYS_PER_BUCKET)))
            return b""
        before = self._bits, self._count
        self._count += sum(len(b) - self._sizes[n] for n, b in self._buckets.items())
        if self._count > KEYS_PER_BUCKET << self._bits:
            self._grow()
        values: dict[int, bytes | None] = {
            number: self._pickled(bucket) if bucket else None
            for number, bucket in self._buckets.items()
        }
        sample = next(filter(None, values.values()), b"")
        if (self._bits, self._count) != before:
            values[META] = pickle.dumps((self._bits, self._count))
        self._store.put_many(values)
        return sample

    def _number(self, value: int) -> int:
        """Bucket of a hash. Its upper half: the lower one chose the group."""
        return value >> 32 & (1 << self._bits) - 1

    def _fetch(self, numbers: Sequence[int]) -> None:
        found: Sequence[bytes | None] = [None] * len(numbers)
        if self._store is not None:
            found = self._store.get_many(numbers)
        for number, data in zip(numbers, found, strict=True):
            bucket: Bucket = pickle.loads(data) if data else {}
            self._buckets[number] = bucket
            self._sizes[number] = len(bucket)

    def _grow(self) -> None:
        """Double the buckets until they are small again, and deal the keys out anew."""
        self._fetch([n for n in range(1 << self._bits) if n not in self._buckets])
        while self._count > KEYS_PER_BUCKET << self._bits:
            self._bits += 1
        dealt: dict[int, Bucket] = {number: {} for number in range(1 << self._bits)}
        for bucket in self._buckets.values():
            for key, entry in bucket.items():
                dealt[self._number(entry[0])][key] = entry
        self._buckets = dealt

    def _pickled(self, bucket: Bucket) -> bytes:
        try:
            return self._dumps(bucket)
        except Exception as error:
            raise OperatorError(
                self._operator, f"its state cannot be pickled ({error}); keep plain values in it"
            ) from error
