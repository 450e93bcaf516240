"""An immutable map in shards, and the builder that edits it with transient ownership.

How a large map (topics, configs, quotas) is shared between images: a write from a frozen map copies one small
shard and the list of shards; further writes by the same builder copy nothing. No write looks at all entries:
when the list of shards doubles, each shard has two places in it, and the next write to a shard divides it
(extendible hashing).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FIRST_SHARD_COUNT = 8
MAX_SHARD_LOAD = 48
"""Mean number of entries per place above which the number of places doubles."""


class ShardedMap(Generic[K, V]):
    """Immutable. `items_sorted` has the same order in every process, unlike hash order."""

    __slots__ = ("_count", "_mask", "_shards")

    def __init__(self, shards: list[dict[K, V]] | None = None, count: int = 0) -> None:
        self._shards: list[dict[K, V]] = [{} for _ in range(FIRST_SHARD_COUNT)] if shards is None else shards
        self._mask = len(self._shards) - 1
        self._count = count

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) & self._mask].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._count

    def _each_shard(self) -> Iterable[dict[K, V]]:
        """Every shard once, however many places it has."""
        return {id(shard): shard for shard in self._shards}.values()

    def values_unordered(self) -> Iterator[V]:
        """Every value, in an order that differs between processes: for sums and sets only."""
        for shard in self._each_shard():
            yield from shard.values()

    def items_sorted(self, key: Callable[[K], Any] | None = None) -> list[tuple[K, V]]:
        """Every entry, sorted by key (by `key(k)` if keys do not compare)."""
        entries = [entry for shard in self._each_shard() for entry in shard.items()]
        if key is None:
            return sorted(entries, key=lambda entry: entry[0])  # type: ignore[arg-type,return-value]
        return sorted(entries, key=lambda entry: key(entry[0]))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ShardedMap) or self._count != other._count:
            return False
        return not any(True for _ in self.changed_keys(other))

    __hash__ = None  # type: ignore[assignment]

    def changed_keys(self, other: ShardedMap[K, V]) -> Iterator[K]:
        """Keys whose value differs, or that only one side has; shared shards cost nothing."""
        mask = max(self._mask, other._mask)
        ours, others = self._in_places(mask + 1), other._in_places(mask + 1)
        for place, (mine, theirs) in enumerate(zip(ours, others, strict=True)):
            if mine is not theirs and mine != theirs:
                # A shard that is not divided yet also has the keys of its other places.
                yield from (key for key in _changed(mine, theirs) if hash(key) & mask == place)

    def _in_places(self, count: int) -> list[dict[K, V]]:
        return self._shards * (count // len(self._shards))

    def builder(self) -> MapBuilder[K, V]:
        return MapBuilder(self)


def _changed(mine: dict[K, V], theirs: dict[K, V]) -> Iterator[K]:
    for key, value in mine.items():
        if key not in theirs or theirs[key] != value:
            yield key
    for key in theirs:
        if key not in mine:
            yield key


class MapBuilder(Generic[K, V]):
    """Edits a ShardedMap. After `freeze` the builder continues from the frozen map without copying it."""

    __slots__ = ("_base", "_count", "_mask", "_owned", "_shards")

    def __init__(self, base: ShardedMap[K, V]) -> None:
        self._base: ShardedMap[K, V] | None = base
        self._shards = base._shards
        self._mask = base._mask
        self._count = base._count
        self._owned: set[int] = set()

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) & self._mask].get(key)

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """`get` of each key."""
        shards, mask = self._shards, self._mask
        return [shards[hash(key) & mask].get(key) for key in keys]

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._count

    def _edit(self, key: K) -> dict[K, V]:
        if self._base is not None:
            self._shards = list(self._shards)
            self._base = None
        slot = hash(key) & self._mask
        if slot not in self._owned:
            shard = self._shards[slot]
            if shard is self._shards[slot ^ (self._mask + 1 >> 1)]:
                self._divide(shard, slot)
            else:
                self._shards[slot] = dict(shard)
                self._owned.add(slot)
        return self._shards[slot]

    def put(self, key: K, value: V) -> None:
        shard = self._edit(key)
        before = len(shard)
        shard[key] = value
        if len(shard) != before:
            self._count += 1
            if self._count > MAX_SHARD_LOAD * (self._mask + 1):
                # Each shard has two places from now on, and none is owned before it is divided.
                self._shards *= 2
                self._mask = len(self._shards) - 1
                self._owned.clear()

    def remove(self, key: K) -> None:
        """Removes `key`; an absent key is not an error."""
        if key in self:
            del self._edit(key)[key]
            self._count -= 1

    def _divide(self, shard: dict[K, V], number: int) -> None:
        """Gives each place of a shard its own shard; the places share some of the low bits of `number`."""
        step = self._mask + 1
        while step > FIRST_SHARD_COUNT and self._shards[number ^ (step >> 1)] is shard:
            step >>= 1
        places = range(number & (step - 1), self._mask + 1, step)
        for each in places:
            self._shards[each] = {}
        self._owned.update(places)
        for key, value in shard.items():
            self._shards[hash(key) & self._mask][key] = value

    def freeze(self) -> ShardedMap[K, V]:
        if self._base is None:
            self._base = ShardedMap(self._shards, self._count)
            self._owned = set()
        return self._base
