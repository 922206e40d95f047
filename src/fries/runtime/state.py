"""The states of a key group: loaded for a batch, migrated when touched, saved at its end.

A group's keys are spread over *buckets*, a few keys each, and a bucket is one value of
the store. A batch loads and saves only the buckets that its keys are in, so its cost follows
the keys that it touches, not the size of the state; and a bucket is one access for several
keys, because accesses cost more than bytes. When a group has grown, its buckets are doubled.
In a bucket each state is bytes of its own, with the version that wrote it: only those that a batch
touches are unpickled, and one that cannot be is no harm to the others.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from fries.errors import OperatorError, StateError
from fries.failing import described, story_of
from fries.runtime.arrow import Integers
from fries.runtime.buckets import (
    CLASS,
    SCALARS,
    Bucket,
    Dumps,
    Key,
    keys_shown,
    packed,
    present,
    read_back,
    unpacked,
)
from fries.runtime.spec import OnUnreadable, Unreadable

META: Final = -1
"""Number under which a group keeps how many buckets and keys it has."""
NOTHING_PUT: Final = b""
"""In the journal of a group: a key has what the store has."""
KEYS_PER_BUCKET: Final = 16
"""On average at the most. An access costs as much as a few thousand bytes of states."""

Entry: TypeAlias = "tuple[int, Any, int]"
"""How many migrations the operator had had when a state was written, the state, and the change that
wrote it in this batch; 0: an earlier batch did, or the flow as it was built."""


_logger = logging.getLogger(__name__)


class Store(Protocol):
    """Where a key group is kept between batches: numbered values."""

    def get_many(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Some values; ``None`` where there is none."""

    def put_many(self, values: Mapping[int, bytes | None]) -> None:
        """Replace some values; ``None`` removes one."""


class KeyGroup:
    """The states of one key group in one batch. Without a store, they end with the batch."""

    def __init__(
        self,
        operator: str,
        store: Store | None,
        dumps: Dumps = pickle.dumps,
        on_unreadable: OnUnreadable = Unreadable.FAIL,
        first: int = 0,
    ) -> None:
        """``first`` is the version of states whose version is not known."""
        self._operator, self._store, self._dumps = operator, store, dumps
        self._on_unreadable, self._first = on_unreadable, first
        self._buckets: dict[int, Bucket] = {}
        self._sizes: dict[int, int] = {}
        """By bucket, how many keys it had when it was loaded."""
        self._bits = self._count = 0
        self._homes: dict[Key, tuple[int, Bucket]] = {}
        """By key of the batch, its hash and the bucket that it is in."""
        self._live: dict[Key, Entry | None] = {}
        """By key that the batch has given a state, or taken it from, what it has now."""
        self._journal: dict[Key, Entry | bytes | None] | None = None
        """By key that was read since :meth:`begin`, what it had then; bytes are a pickled entry."""
        self.writer = 0
        """The change whose version puts states now."""
        self.given_up = 0
        """States that could not be read, and were skipped or repaired."""

    def load(self, keys: Sequence[Key], hashes: Integers) -> None:
        """Fetch the states of all keys of a batch."""
        if self._store is not None:
            (meta,) = self._store.get_many([META])
            self._bits, self._count = pickle.loads(meta) if meta else (0, 0)
        hashed = hashes.tolist()
        numbers = [self._number(value) for value in hashed]
        damaged = self._fetch(sorted(set(numbers)))
        self._homes = {
            key: (value, self._buckets[number])
            for key, value, number in zip(keys, hashed, numbers, strict=True)
        }
        for number, (data, error) in damaged.items():
            mine = {key: None for key, at in zip(keys, numbers, strict=True) if at == number}
            self._live.update(self._without(tuple(mine), self._first, data, error))

    def begin(self) -> None:
        """From now on the group can go back to what it is now."""
        self._journal = {}

    def rewind(self) -> bool:
        """Go back to what the group was; ``False`` if some state cannot."""
        journal, self._journal = self._journal, None
        if journal is None:
            return False
        try:
            self._live.update(
                (key, _entry(kept) if isinstance(kept, bytes) else kept)
                for key, kept in journal.items()
                if kept is not NOTHING_PUT
            )
        except BaseException:  # the user's code may raise anything, even SystemExit
            return False
        for key in (key for key, kept in journal.items() if kept is NOTHING_PUT):
            self._live.pop(key, None)
        return True

    def _remember(self, key: Key, journal: dict[Key, Entry | bytes | None]) -> None:
        """A function is about to get a state, and may change the object itself."""
        entry = self._live.get(key)
        if entry is None or type(entry[1]) in SCALARS:
            journal[key] = entry if key in self._live else NOTHING_PUT
            return
        try:
            journal[key] = self._dumps(entry)
        except BaseException:  # as above
            self._journal = None

    def get(self, key: Key) -> Entry | None:
        """The state of a key, if it has one."""
        if self._journal is not None and key not in self._journal:
            self._remember(key, self._journal)
        entry = self._live.get(key)
        if entry is not None or key in self._live:
            return entry
        kept = self._homes[key][1].get(key)
        if kept is None:
            return None
        _, version, data = kept
        return self._read(key, version, data) if type(data) is bytes else (version, data, 0)

    def put(self, key: Key, version: int, state: object) -> None:
        """Replace the state of a key; ``None`` removes it."""
        self._live[key] = None if state is None else (version, state, self.writer)

    def saved(self, key: Key) -> bytes | None:
        """What :meth:`put_back` needs of a key; ``None`` if its state cannot change in place."""
        entry = self._live.get(key)
        if entry is None or type(entry[1]) in SCALARS:
            return None
        return self._bytes(key, entry[1], entry[2])

    def put_back(self, key: Key, data: bytes | None) -> None:
        """The state of a key is as it was when :meth:`saved` was called, whatever was done to it.

        One that no row of the batch has put is read from its bytes again, each time.
        """
        entry = self._live.get(key)
        if entry is None or data is None:
            return
        version, _, writer = entry
        try:
            self._live[key] = version, present(pickle.loads(data)), writer
        except BaseException as error:  # as above
            problem = f"it cannot be put back after a row that failed ({described(error)})"
            raise self._lost((key,), problem, error, writer) from None

    def entries(self) -> Iterable[tuple[Key, Entry]]:
        """Every key of the batch with a state, in the order in which they were first touched."""
        for key, entry in self._live.items():
            if entry is not None:
                yield key, entry

    def save(self) -> bytes:
        """Keep what the batch has changed; returns one bucket, as a sample of live states.

        Every state is read back before any is kept.
        """
        if self.given_up:
            told = "operator %r: %d states could not be read, and were skipped or repaired"
            _logger.warning(told, self._operator, self.given_up)
        if self._store is None:
            with suppress(OperatorError):  # nothing is kept, so nothing must be picklable
                some = islice(self.entries(), KEYS_PER_BUCKET)
                return packed({key: (0, v, self._pickled(key, s, 0)) for key, (v, s, _) in some})
            return b""
        self._settle()
        before = self._bits, self._count
        self._count += sum(len(b) - self._sizes[n] for n, b in self._buckets.items())
        if self._count > KEYS_PER_BUCKET << self._bits:
            self._grow()
        values: dict[int, bytes | None] = {
            number: packed(bucket) if bucket else None for number, bucket in self._buckets.items()
        }
        sample = next(filter(None, values.values()), b"")
        if (self._bits, self._count) != before:
            values[META] = pickle.dumps((self._bits, self._count))
        self._store.put_many(values)
        return sample

    def _number(self, value: int) -> int:
        """Bucket of a hash. Its upper half: the lower one chose the group."""
        return value >> 32 & (1 << self._bits) - 1

    def _fetch(self, numbers: Sequence[int]) -> dict[int, tuple[bytes, BaseException]]:
        """Load buckets; gives those that cannot be read, which count as empty."""
        found: Sequence[bytes | None] = [None] * len(numbers)
        if self._store is not None:
            found = self._store.get_many(numbers)
        damaged: dict[int, tuple[bytes, BaseException]] = {}
        for number, data in zip(numbers, found, strict=True):
            bucket: Bucket = {}
            if data:
                try:
                    bucket = unpacked(data, self._dumps)
                except BaseException as error:  # one of the older form runs the users' code
                    damaged[number] = data, error
            self._buckets[number] = bucket
            self._sizes[number] = len(bucket)
        return damaged

    def _read(self, key: Key, version: int, data: bytes) -> Entry | None:
        """A state that was stored as bytes."""
        try:
            return version, pickle.loads(data), 0
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            self._live.update(self._without((key,), version, data, error))
            return self._live[key]

    def _without(
        self, keys: tuple[Key, ...], version: int, data: bytes, error: BaseException
    ) -> dict[Key, Entry | None]:
        """What keys have whose states cannot be read; raises if nobody has said what."""
        if self._on_unreadable is Unreadable.FAIL:
            problem = (
                f"it cannot be read: {described(error)}; to go on without it, or to repair it, "
                "give process(..., on_unreadable=)"
            )
            raise self._lost(keys, problem, error, 0) from None
        self.given_up += len(keys)
        if isinstance(self._on_unreadable, Unreadable):
            return dict.fromkeys(keys)
        made: dict[Key, Entry | None] = {}
        for key in keys:
            try:
                state = self._on_unreadable(key, data, error)
            except BaseException as failed:
                problem = f"on_unreadable= cannot repair it: {described(failed)}"
                raise self._lost((key,), problem, failed, 0) from None
            made[key] = None if state is None else (version, state, 0)
        return made

    def _settle(self) -> None:
        """Put what the batch has touched into its buckets."""
        homes = self._homes
        for key, entry in self._live.items():
            value, bucket = homes[key]
            if entry is None:
                bucket.pop(key, None)
                continue
            version, state, writer = entry
            scalar = type(state) in SCALARS
            bucket[key] = value, version, state if scalar else self._pickled(key, state, writer)

    def _pickled(self, key: Key, state: object, writer: int) -> bytes:
        """A state that is no scalar; raises if it could not be read again."""
        data = self._bytes(key, state, writer)
        if CLASS in data and self._store is not None:
            try:
                read_back(state, data)
            except BaseException as error:
                problem = f"once pickled it cannot be read ({described(error)})"
                raise self._lost((key,), problem, error, writer) from None
        return data

    def _bytes(self, key: Key, state: object, writer: int) -> bytes:
        try:
            return self._dumps(state)
        except BaseException as error:  # the user's code may raise anything, even SystemExit
            problem = f"it cannot be pickled ({described(error)}); keep plain values in it"
            raise self._lost((key,), problem, error, writer) from None

    def _grow(self) -> None:
        """Double the buckets until they are small again, and deal the keys out anew."""
        others = [n for n in range(1 << self._bits) if n not in self._buckets]
        if self._fetch(others):  # one that cannot be read stays where its keys will look for it
            for number in others:
                del self._buckets[number]
            return
        while self._count > KEYS_PER_BUCKET << self._bits:
            self._bits += 1
        dealt: dict[int, Bucket] = {number: {} for number in range(1 << self._bits)}
        for bucket in self._buckets.values():
            for key, kept in bucket.items():
                dealt[self._number(kept[0])][key] = kept
        self._buckets = dealt

    def _lost(
        self, keys: tuple[Key, ...], problem: str, error: BaseException, change: int
    ) -> StateError:
        where = f"the state of key {keys_shown(keys)}"
        return StateError(self._operator, problem, where, story_of(error), change, keys)


def _entry(data: bytes) -> Entry:
    version, state, writer = pickle.loads(data)
    return version, present(state), writer
