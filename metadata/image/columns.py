"""Partitions in columns: fixed-width integers in copy-on-write chunks.

The storage of partition rows: how they are read, scanned, written and shared between images; `chunk` has
their layout. A row number is an address, not an identity: it stays the same as long as its partition exists,
and is reused afterwards.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.chunk import (
    CHUNK_MASK,
    CHUNK_ROWS,
    CHUNK_SHIFT,
    FLAGS,
    LISTS,
    PADDING,
    RARE_FLAG,
    TOPIC,
    Chunk,
    IntArray,
    RowArray,
    new_chunk,
)
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.image.maps import MapBuilder, ShardedMap

_COUNTED_DIRECTLY_BELOW = 1 << 14
"""Broker ids below this are counted with one array of this size; larger ones by sorting."""


class RareFields(NamedTuple):
    """Lists that are empty for nearly every partition, kept in a sparse map by row."""

    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


NO_RARE_FIELDS = RareFields()


class PartitionColumns:
    """Every partition row of one image. Immutable."""

    __slots__ = (
        *("__weakref__", "_parent", "_touched"),
        *("chunks", "count", "directories", "free", "rare", "replica_counts", "row_limit"),
    )

    def __init__(
        self,
        directories: DirectoryTable,
        *,
        chunks: list[Chunk] | None = None,
        rare: ShardedMap[int, RareFields] | None = None,
        free: tuple[tuple[int, int], ...] = (),
        row_limit: int = 0,
        count: int = 0,
        replica_counts: dict[int, int] | None = None,
    ) -> None:
        self.directories = directories
        self.chunks: list[Chunk] = [] if chunks is None else chunks
        self.rare: ShardedMap[int, RareFields] = ShardedMap() if rare is None else rare
        self.free = free
        self.row_limit = row_limit
        self.count = count
        self.replica_counts: dict[int, int] = {} if replica_counts is None else replica_counts
        """How many replicas each broker holds, without zeros: finds the brokers in replica
        lists without a scan."""
        self._parent: weakref.ref[PartitionColumns] | None = None
        self._touched: frozenset[int] = frozenset()

    def derived_from(self, parent: PartitionColumns, touched: frozenset[int]) -> None:
        """Notes the numbers of chunks that differ from `parent`'s; does not keep `parent` alive."""
        self._parent = weakref.ref(parent)
        self._touched = touched

    def differing_chunks(self, other: PartitionColumns) -> list[int]:
        """Numbers of the chunks not shared with `other`; between neighbouring images of a log, without
        looking at the other chunks."""
        for one, two in ((self, other), (other, self)):
            if one._parent is not None and one._parent() is two:
                return sorted(one._touched)
        mine, theirs = self.chunks, other.chunks
        both = min(len(mine), len(theirs))
        found = list(itertools.compress(range(both), map(operator.is_not, mine, theirs)))
        return [*found, *range(both, max(len(mine), len(theirs)))]

    def rare_fields(self, row: int) -> RareFields:
        return self.rare.get(row) or NO_RARE_FIELDS

    def gather(self, column: int, rows: RowArray) -> IntArray:
        """One of the fixed columns (TOPIC .. FLAGS) at `rows`, in the rows' order."""
        out = np.empty(len(rows), dtype=np.int32)
        for chunk, place, local in self.by_chunk(rows):
            out[place] = chunk.data[column, local]
        return out

    def by_chunk(self, rows: RowArray) -> list[tuple[Chunk, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """`rows` split by chunk: (chunk, places in `rows`, rows within the chunk)."""
        return [(self.chunks[at], place, local) for at, place, local in split_by_chunk(rows)]

    def rows_where(self, column: int, value: int) -> RowArray:
        """Live rows whose fixed column equals `value`."""
        rows = []
        for at, chunk in enumerate(self.chunks):
            local = np.flatnonzero((chunk.data[column] == value) & (chunk.data[TOPIC] >= 0))
            if local.size:
                rows.append(local + (at << CHUNK_SHIFT))
        return _joined(rows)

    def rows_with_replica(self, broker_id: int) -> RowArray:
        return self._rows_listing(broker_id, 0)

    def rows_with_isr(self, broker_id: int) -> RowArray:
        return self._rows_listing(broker_id, 2)

    def _rows_listing(self, value: int, which: int) -> RowArray:
        rows = []
        for number, chunk in enumerate(self.chunks):
            width = chunk.replica_width
            start = LISTS + which * width
            stop = start + (chunk.isr_width if which == 2 else width)
            hits = chunk.data[start:stop] == value
            local = np.flatnonzero(hits.any(axis=0))
            if local.size:
                rows.append(local + (number << CHUNK_SHIFT))
        return _joined(rows)

    def live_rows(self) -> RowArray:
        rows = [
            np.flatnonzero(chunk.data[TOPIC] >= 0) + (at << CHUNK_SHIFT)
            for at, chunk in enumerate(self.chunks)
        ]
        return _joined(rows)


def split_by_chunk(
    rows: RowArray,
) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(chunk number, places in `rows`, row numbers within the chunk) for each chunk that `rows` touch."""
    if not len(rows):
        return []
    numbers = rows >> CHUNK_SHIFT
    local = rows & CHUNK_MASK
    steps = np.diff(numbers)
    if (steps < 0).any():
        order = np.argsort(numbers, kind="stable")
        numbers, local, steps = numbers[order], local[order], np.diff(numbers[order])
    else:
        order = np.arange(len(rows))
    edges = [0, *(np.flatnonzero(steps) + 1).tolist(), len(rows)]
    return [
        (int(numbers[start]), order[start:stop], local[start:stop])
        for start, stop in itertools.pairwise(edges)
    ]


def _joined(rows: list[npt.NDArray[np.int64]]) -> RowArray:
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


class ColumnsBuilder:
    """Edits PartitionColumns with transient ownership.

    The first write to a chunk after a freeze copies that chunk; later writes go in place.
    """

    __slots__ = (
        "_frozen",
        "_owns_counts",
        "_parent",
        "chunks",
        "count",
        "directories",
        "free",
        "owned",
        "rare",
        "replica_counts",
        "row_limit",
    )

    def __init__(self, base: PartitionColumns) -> None:
        self._frozen: PartitionColumns | None = base
        self._parent = weakref.ref(base)
        self.directories = base.directories
        self.chunks = base.chunks
        self.rare: MapBuilder[int, RareFields] = base.rare.builder()
        self.free: list[tuple[int, int]] = list(base.free)
        self.row_limit = base.row_limit
        self.count = base.count
        self.owned: set[int] = set()
        self.replica_counts = base.replica_counts
        self._owns_counts = False

    def freeze(self) -> PartitionColumns:
        if self._frozen is None:
            for at in self.owned:
                self.chunks[at].data.flags.writeable = False
            touched = frozenset(self.owned)
            self.owned = set()
            self._frozen = PartitionColumns(
                self.directories,
                chunks=self.chunks,
                rare=self.rare.freeze(),
                free=tuple(self.free),
                row_limit=self.row_limit,
                count=self.count,
                replica_counts=self.replica_counts,
            )
            self._owns_counts = False
            parent = self._parent()
            if parent is not None:
                self._frozen.derived_from(parent, touched)
            self._parent = weakref.ref(self._frozen)
        return self._frozen

    def _thaw(self) -> None:
        if self._frozen is not None:
            self.chunks = list(self.chunks)
            self._frozen = None

    def own(self, number: int) -> Chunk:
        """The chunk with number `number`, writable."""
        if number in self.owned:
            return self.chunks[number]
        self._thaw()
        chunk = self.chunks[number] = self.chunks[number].copy()
        self.owned.add(number)
        return chunk

    def own_wide(self, number: int, n_replicas: int, n_isr: int) -> Chunk:
        """The chunk with number `number`, writable and wide enough for lists of the given lengths."""
        chunk = self.chunks[number]
        if n_replicas <= chunk.replica_width and n_isr <= chunk.isr_width:
            return self.own(number)
        self._thaw()
        chunk = self.chunks[number] = chunk.widened(n_replicas, n_isr)
        self.owned.add(number)
        return chunk

    def allocate(self, count: int, n_replicas: int, n_isr: int) -> int:
        """Allocates `count` consecutive rows for lists of the given lengths. Returns the first row."""
        self._thaw()
        if self.free and self.free[-1][1] >= count:
            start, length = self.free.pop()
            if length > count:
                self.free.append((start + count, length - count))
        else:
            start = self.row_limit
            self.row_limit += count
            while len(self.chunks) << CHUNK_SHIFT < self.row_limit:
                self.owned.add(len(self.chunks))
                self.chunks.append(new_chunk(n_replicas, n_isr))
        self.count += count
        return start

    def release(self, start: int, count: int) -> None:
        """Empties `count` rows from `start` on, for reuse."""
        row, stop = start, start + count
        while row < stop:
            number, low = row >> CHUNK_SHIFT, row & CHUNK_MASK
            high = min(CHUNK_ROWS, low + stop - row)
            data = self.own(number).data
            for local in np.flatnonzero(data[FLAGS, low:high] & RARE_FLAG).tolist():
                self.rare.remove(row + local)
            self.count_replicas(data[LISTS : LISTS + self.chunks[number].replica_width, low:high], -1)
            data[:, low:high] = PADDING
            row += high - low
        self.count -= count
        if self.free and self.free[-1][0] == stop:
            self.free[-1] = (start, count + self.free[-1][1])
        elif self.free and sum(self.free[-1]) == start:
            self.free[-1] = (self.free[-1][0], count + self.free[-1][1])
        else:
            self.free.append((start, count))

    def write(self, row: int, fixed: tuple[int, ...], lists: RowLists, rare: RareFields) -> None:
        """Stores one row. `fixed` is (topic slot, index, leader, leader epoch, partition epoch, flags)."""
        n_replicas, n_isr = len(lists.replicas), len(lists.isr)
        chunk = self.own_wide(row >> CHUNK_SHIFT, n_replicas, n_isr)
        flags = fixed[5] & ~RARE_FLAG
        if rare != NO_RARE_FIELDS:
            flags |= RARE_FLAG
            self.rare.put(row, rare)
        elif row in self.rare:
            self.rare.remove(row)
        pad = (PADDING,) * (chunk.replica_width - n_replicas)
        isr_pad = (PADDING,) * (chunk.isr_width - n_isr)
        before = chunk.data[LISTS : LISTS + chunk.replica_width, row & CHUNK_MASK].tolist()
        if before != [*lists.replicas, *pad]:
            self._count(before, -1)
            self._count(lists.replicas, 1)
        chunk.data[:, row & CHUNK_MASK] = (
            *(*fixed[:5], n_replicas, n_isr, flags),
            *(*lists.replicas, *pad, *lists.directories, *pad, *lists.isr, *isr_pad),
        )

    def write_block(self, start: int, block: IntArray, replica_width: int, isr_width: int) -> None:
        """Stores consecutive new rows from `start` on; `block` has a chunk's layout with the given widths."""
        self.count_replicas(block[LISTS : LISTS + replica_width], 1)
        done, total = 0, block.shape[1]
        while done < total:
            row = start + done
            low = row & CHUNK_MASK
            size = min(CHUNK_ROWS - low, total - done)
            chunk = self.own_wide(row >> CHUNK_SHIFT, replica_width, isr_width)
            part = block[:, done : done + size]
            if chunk.replica_width == replica_width and chunk.isr_width == isr_width:
                chunk.data[:, low : low + size] = part
            else:
                _store_part(chunk, low, part, replica_width, isr_width)
            done += size

    def count_replicas(self, listed: IntArray, sign: int) -> None:
        """Notes that the replicas of many rows were added (`sign` 1) or removed (-1); padding does not count.

        Code that writes replicas into a chunk in place calls this before and after.
        """
        flat = listed[listed >= 0]
        if not flat.size:
            return
        if int(flat.max()) < _COUNTED_DIRECTLY_BELOW:
            counted = np.bincount(flat)
            ids = np.flatnonzero(counted)
            amounts = counted[ids]
        else:
            ids, amounts = np.unique(flat, return_counts=True)
        counts = self._own_counts()
        for broker_id, amount in zip(ids.tolist(), amounts.tolist(), strict=True):
            _add(counts, broker_id, sign * amount)

    def _count(self, replicas: Iterable[int], sign: int) -> None:
        counts = self._own_counts()
        for broker_id in replicas:
            if broker_id >= 0:
                _add(counts, broker_id, sign)

    def _own_counts(self) -> dict[int, int]:
        if not self._owns_counts:
            self.replica_counts = dict(self.replica_counts)
            self._owns_counts = True
        return self.replica_counts


def _add(counts: dict[int, int], broker_id: int, amount: int) -> None:
    after = counts.get(broker_id, 0) + amount
    if after:
        counts[broker_id] = after
    else:
        counts.pop(broker_id, None)


class RowLists(NamedTuple):
    """The lists of one row: broker ids, directory codes (one per replica), broker ids."""

    replicas: tuple[int, ...]
    directories: tuple[int, ...]
    isr: tuple[int, ...]


def _store_part(chunk: Chunk, low: int, part: IntArray, replica_width: int, isr_width: int) -> None:
    target = chunk.data[:, low : low + part.shape[1]]
    target[LISTS:] = PADDING
    middle = LISTS + replica_width
    target[:middle] = part[:middle]
    directories = LISTS + chunk.replica_width
    target[directories : directories + replica_width] = part[middle : middle + replica_width]
    target[chunk.isr_start : chunk.isr_start + isr_width] = part[middle + replica_width :]
