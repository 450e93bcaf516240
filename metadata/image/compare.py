"""Which partitions differ between two images: by chunk identity if they share history, otherwise by topic."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.chunk import (
    CHUNK_MASK,
    CHUNK_ROWS,
    CHUNK_SHIFT,
    FLAGS,
    INDEX,
    LISTS,
    PADDING,
    RARE_FLAG,
    TOPIC,
    Chunk,
    RowArray,
    TopicEntry,
)
from metaquorum.metadata.image.columns import ColumnsBuilder, PartitionColumns, split_by_chunk
from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.types import PartitionInfo

IntArray = npt.NDArray[np.int32]
FEW_CHUNKS = 4
"""Up to this many chunks, comparing whole chunks is faster than topic by topic, even if none is shared."""
FEW_ROWS = 6
"""Up to this many rows are looked up faster one by one."""
PartitionKey = tuple[bytes, int]


class ComparedTopics(Protocol):
    """What a comparison reads of `TopicsImage`."""

    columns: PartitionColumns
    by_id: ShardedMap[bytes, TopicEntry]
    by_name: ShardedMap[str, bytes]
    by_slot: ShardedMap[int, bytes]

    def __len__(self) -> int: ...
    def partition(self, topic_id: bytes, index: int) -> PartitionInfo | None: ...
    def row_of(self, topic_id: bytes, index: int) -> int: ...
    def key_at(self, row: int) -> PartitionKey: ...
    def keys_at(self, rows: RowArray) -> list[PartitionKey]: ...


class PartitionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions as (topic id, index), sorted. A partition that only moved to another row did not change."""

    added: tuple[PartitionKey, ...] = ()
    removed: tuple[PartitionKey, ...] = ()
    changed: tuple[PartitionKey, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def topics_equal(old: ComparedTopics, new: ComparedTopics) -> bool:
    """Whether both have the same topics with the same partitions, wherever their rows are."""
    if len(old) != len(new) or old.columns.count != new.columns.count:
        return False
    if any(True for _ in old.by_name.changed_keys(new.by_name)):
        return False
    return partition_changes(old, new).is_empty


def partition_changes(old: ComparedTopics, new: ComparedTopics) -> PartitionChanges:
    """Every partition added, removed or changed between `old` and `new`.

    Takes time in proportion to the chunks that are not shared; images that share no chunk (because one was
    loaded from a snapshot) are compared topic by topic, in numpy.
    """
    if old.columns is new.columns:
        return PartitionChanges()
    count = len(new.columns.chunks)
    if old.columns.directories.agrees_with(new.columns.directories):
        differing = new.columns.differing_chunks(old.columns)
        common = count - sum(at < count for at in differing)
        if 2 * common >= count or (count <= FEW_CHUNKS and _same_slots(old, new)):
            return _by_chunk(old, new, differing)
    return _by_topic(old, new)


def _same_slots(old: ComparedTopics, new: ComparedTopics) -> bool:
    """Whether a number in the TOPIC column means the same topic in both images."""
    return not any(
        slot in old.by_slot and slot in new.by_slot for slot in old.by_slot.changed_keys(new.by_slot)
    )


def _by_chunk(old: ComparedTopics, new: ComparedTopics, differing: list[int]) -> PartitionChanges:
    rows = _differing_rows(old.columns, new.columns, differing)
    gone = _keys(old, rows)
    here = _keys(new, rows)
    added, changed = [], []
    for key in here:
        before = old.partition(*key)
        if before is None:
            added.append(key)
        elif before != new.partition(*key):
            changed.append(key)
    removed = [key for key in gone if new.row_of(*key) < 0]
    return PartitionChanges(
        added=tuple(sorted(added)), removed=tuple(sorted(removed)), changed=tuple(sorted(changed))
    )


def _keys(topics: ComparedTopics, rows: RowArray) -> list[PartitionKey]:
    if len(rows) <= FEW_ROWS:
        columns = topics.columns
        return [
            topics.key_at(row)
            for row in rows.tolist()
            if row < columns.row_limit
            and columns.chunks[row >> CHUNK_SHIFT].data[TOPIC, row & CHUNK_MASK] >= 0
        ]
    rows = rows[rows < topics.columns.row_limit]
    return topics.keys_at(rows[topics.columns.gather(TOPIC, rows) >= 0])


def _differing_rows(old: PartitionColumns, new: PartitionColumns, differing: list[int]) -> RowArray:
    """Rows whose values differ; `differing` are the ascending numbers of the chunks that are not shared."""
    rows = []
    for at in differing:
        mine = old.chunks[at] if at < len(old.chunks) else None
        theirs = new.chunks[at] if at < len(new.chunks) else None
        rows.append(_differing_in_chunk(mine, theirs) + (at << CHUNK_SHIFT))
    if old.rare is not new.rare:
        rows.append(np.fromiter(old.rare.changed_keys(new.rare), dtype=np.int64))
        return np.unique(np.concatenate(rows))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def _differing_in_chunk(mine: Chunk | None, theirs: Chunk | None) -> RowArray:
    if mine is None or theirs is None:
        return np.arange(CHUNK_ROWS, dtype=np.int64)
    width = max(mine.replica_width, theirs.replica_width)
    isr_width = max(mine.isr_width, theirs.isr_width)
    differs = _as_wide(mine, width, isr_width) != _as_wide(theirs, width, isr_width)
    return np.flatnonzero(differs.any(axis=0))


def _as_wide(chunk: Chunk, replica_width: int, isr_width: int) -> IntArray:
    if chunk.replica_width == replica_width and chunk.isr_width == isr_width:
        return chunk.data
    return chunk.widened(replica_width, isr_width).data


def _by_topic(old: ComparedTopics, new: ComparedTopics) -> PartitionChanges:
    added: list[PartitionKey] = []
    removed: list[PartitionKey] = []
    changed: list[PartitionKey] = []
    translation = new.columns.directories.translation_from(old.columns.directories)
    for topic_id, entry in old.by_id.items_sorted():
        after = new.by_id.get(topic_id)
        before_rows = entry.rows()
        before = old.columns.gather(INDEX, before_rows)
        after_rows = np.empty(0, dtype=np.int64) if after is None else after.rows()
        present = new.columns.gather(INDEX, after_rows)
        if before.size and np.array_equal(before, present):  # true of most topics
            differs = _differ(old, before_rows, new, after_rows, translation)
            changed += [(topic_id, index) for index in before[differs].tolist()]
            continue
        both, mine, theirs = np.intersect1d(before, present, assume_unique=True, return_indices=True)
        removed += [(topic_id, index) for index in np.setdiff1d(before, both).tolist()]
        added += [(topic_id, index) for index in np.setdiff1d(present, both).tolist()]
        if both.size:
            differs = _differ(old, before_rows[mine], new, after_rows[theirs], translation)
            changed += [(topic_id, index) for index in both[differs].tolist()]
    for topic_id, entry in new.by_id.items_sorted():
        if topic_id not in old.by_id:
            added += [(topic_id, index) for index in new.columns.gather(INDEX, entry.rows()).tolist()]
    return PartitionChanges(added=tuple(sorted(added)), removed=tuple(removed), changed=tuple(changed))


def _differ(
    old: ComparedTopics, old_rows: RowArray, new: ComparedTopics, new_rows: RowArray, translation: IntArray
) -> npt.NDArray[np.bool_]:
    """For pairs of rows: whether the partitions' states differ."""
    width, isr_width = _widths(old.columns, old_rows, new.columns, new_rows)
    mine = rows_block(old.columns, old_rows, width, isr_width)
    theirs = rows_block(new.columns, new_rows, width, isr_width)
    codes = mine[LISTS + width : LISTS + 2 * width]
    codes[:] = np.where(codes >= 0, translation[np.maximum(codes, 0)], PADDING)
    differs: npt.NDArray[np.bool_] = (mine[INDEX:] != theirs[INDEX:]).any(axis=0)
    for at in np.flatnonzero(mine[FLAGS] & theirs[FLAGS] & RARE_FLAG).tolist():
        if old.columns.rare_fields(int(old_rows[at])) != new.columns.rare_fields(int(new_rows[at])):
            differs[at] = True
    return differs


def _widths(
    old: PartitionColumns, old_rows: RowArray, new: PartitionColumns, new_rows: RowArray
) -> tuple[int, int]:
    chunks = [old.chunks[at] for at in np.unique(old_rows >> CHUNK_SHIFT).tolist()]
    chunks += [new.chunks[at] for at in np.unique(new_rows >> CHUNK_SHIFT).tolist()]
    return max(chunk.replica_width for chunk in chunks), max(chunk.isr_width for chunk in chunks)


def rows_block(
    columns: PartitionColumns | ColumnsBuilder, rows: RowArray, replica_width: int, isr_width: int
) -> IntArray:
    """`rows` copied out in a chunk's layout, with lists of at least the given widths: (columns, rows)."""
    depth = LISTS + 2 * replica_width + isr_width
    block = np.full((depth, len(rows)), PADDING, dtype=np.int32)
    ascending = bool((rows[1:] >= rows[:-1]).all())
    for at, positions, local in split_by_chunk(rows):
        chunk = columns.chunks[at]
        width = chunk.replica_width
        source = chunk.data.take(local, axis=1)
        if ascending and width == replica_width and chunk.isr_width == isr_width:
            block[:, positions[0] : positions[0] + len(positions)] = source
            continue
        block[: LISTS + width, positions] = source[: LISTS + width]
        directories = LISTS + replica_width
        block[directories : directories + width, positions] = source[LISTS + width : LISTS + 2 * width]
        isr = LISTS + 2 * replica_width
        block[isr : isr + chunk.isr_width, positions] = source[chunk.isr_start :]
    return block
