"""Topics and their partitions: by id, by name, by (topic id, index), and in bulk by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from metaquorum.metadata.image.chunk import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    FLAGS,
    INDEX,
    LEADER,
    LISTS,
    N_ISR,
    N_REPLICAS,
    RARE_FLAG,
    RECOVERING_FLAG,
    TOPIC,
    Chunk,
    RowArray,
    Run,
    TopicEntry,
    with_run,
)
from metaquorum.metadata.image.columns import (
    NO_RARE_FIELDS,
    ColumnsBuilder,
    PartitionColumns,
    RareFields,
    RowLists,
    split_by_chunk,
)
from metaquorum.metadata.image.compare import topics_equal
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.image.maps import MapBuilder, ShardedMap
from metaquorum.metadata.image.types import NO_LEADER, PartitionInfo, TopicInfo

_FEW_ROWS = 6
"""Up to this many rows are read faster one by one."""


class TopicsImage:
    """Immutable. Row addresses hold within one image and the images replayed from it."""

    __slots__ = ("by_id", "by_name", "by_slot", "columns", "next_slot")

    def __init__(
        self,
        columns: PartitionColumns | None = None,
        by_id: ShardedMap[bytes, TopicEntry] | None = None,
        by_name: ShardedMap[str, bytes] | None = None,
        by_slot: ShardedMap[int, bytes] | None = None,
        next_slot: int = 0,
    ) -> None:
        self.columns = PartitionColumns(DirectoryTable()) if columns is None else columns
        self.by_id: ShardedMap[bytes, TopicEntry] = ShardedMap() if by_id is None else by_id
        self.by_name: ShardedMap[str, bytes] = ShardedMap() if by_name is None else by_name
        self.by_slot: ShardedMap[int, bytes] = ShardedMap() if by_slot is None else by_slot
        self.next_slot = next_slot

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def partition_count(self) -> int:
        return self.columns.count

    def topic(self, topic_id: bytes) -> TopicInfo | None:
        entry = self.by_id.get(topic_id)
        return None if entry is None else entry.info

    def topic_named(self, name: str) -> TopicInfo | None:
        topic_id = self.by_name.get(name)
        return None if topic_id is None else self.by_id[topic_id].info

    def all(self) -> list[TopicInfo]:
        """Every topic, sorted by name."""
        return [self.by_id[topic_id].info for _, topic_id in self.by_name.items_sorted()]

    def partition_count_of(self, topic_id: bytes) -> int:
        entry = self.by_id.get(topic_id)
        return 0 if entry is None else entry.partition_count

    def partition(self, topic_id: bytes, index: int) -> PartitionInfo | None:
        row = self.row_of(topic_id, index)
        return None if row < 0 else self.at(row)

    def partitions_of(self, topic_id: bytes) -> list[PartitionInfo]:
        """The topic's partitions by ascending index; empty for an unknown topic."""
        entry = self.by_id.get(topic_id)
        return [] if entry is None else [self.at(row) for row in entry.rows().tolist()]

    def row_of(self, topic_id: bytes, index: int) -> int:
        """The row of a partition; -1 if the topic or partition does not exist."""
        entry = self.by_id.get(topic_id)
        return -1 if entry is None else entry.row_of(index)

    def rows_of(self, topic_id: bytes) -> RowArray:
        entry = self.by_id.get(topic_id)
        return np.empty(0, dtype=np.int64) if entry is None else entry.rows()

    def at(self, row: int) -> PartitionInfo:
        """The partition in a live row."""
        return partition_at(self.columns, self.by_slot, row)

    def seen(self, chunk: Chunk, rows: RowArray) -> list[PartitionInfo]:
        """As `TopicsBuilder.seen`."""
        return _seen(self.columns, self.by_slot, chunk, rows)

    def key_at(self, row: int) -> tuple[bytes, int]:
        """(topic id, partition index) of a live row."""
        data = self.columns.chunks[row >> CHUNK_SHIFT].data
        local = row & CHUNK_MASK
        return self.by_slot[int(data[TOPIC, local])], int(data[INDEX, local])

    def keys_at(self, rows: RowArray) -> list[tuple[bytes, int]]:
        """(topic id, partition index) of live rows, in their order."""
        slots = self.columns.gather(TOPIC, rows).tolist()
        indexes = self.columns.gather(INDEX, rows).tolist()
        ids = {slot: self.by_slot[slot] for slot in set(slots)}
        return [(ids[slot], index) for slot, index in zip(slots, indexes, strict=True)]

    def replica_counts(self) -> Mapping[int, int]:
        """How many replicas each broker holds, for every broker in a replica list: an index that every record
        updates, so reading it costs nothing (S0.16)."""
        return self.columns.replica_counts

    def rows_led_by(self, broker_id: int) -> RowArray:
        """Rows of partitions whose leader is `broker_id`, ascending."""
        return self.columns.rows_where(LEADER, broker_id)

    def rows_without_leader(self) -> RowArray:
        return self.columns.rows_where(LEADER, NO_LEADER)

    def rows_with_replica(self, broker_id: int) -> RowArray:
        """Rows of partitions that have a replica on `broker_id`, ascending."""
        return self.columns.rows_with_replica(broker_id)

    def rows_with_isr(self, broker_id: int) -> RowArray:
        """Rows of partitions whose ISR contains `broker_id`, ascending."""
        return self.columns.rows_with_isr(broker_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicsImage):
            return False
        return self is other or topics_equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def builder(self) -> TopicsBuilder:
        return TopicsBuilder(self)


def partition_at(
    columns: PartitionColumns | ColumnsBuilder,
    by_slot: ShardedMap[int, bytes] | MapBuilder[int, bytes],
    row: int,
) -> PartitionInfo:
    """The partition in a live row of `columns`."""
    chunk = columns.chunks[row >> CHUNK_SHIFT]
    values = chunk.data[:, row & CHUNK_MASK].tolist()
    return _partition(columns, by_slot[values[TOPIC]], row, chunk, values)


def _partition(
    columns: PartitionColumns | ColumnsBuilder, topic_id: bytes, row: int, chunk: Chunk, values: list[int]
) -> PartitionInfo:
    """The partition for a row's values in all columns of its chunk."""
    n_replicas, n_isr, flags = values[N_REPLICAS], values[N_ISR], values[FLAGS]
    directories = LISTS + chunk.replica_width
    isr = directories + chunk.replica_width
    rare = NO_RARE_FIELDS
    if flags & RARE_FLAG:
        rare = columns.rare.get(row) or NO_RARE_FIELDS
    return PartitionInfo(
        topic_id=topic_id,
        index=values[INDEX],
        replicas=tuple(values[LISTS : LISTS + n_replicas]),
        isr=tuple(values[isr : isr + n_isr]),
        leader=values[LEADER],
        leader_epoch=values[3],
        partition_epoch=values[4],
        leader_recovery_state=flags & RECOVERING_FLAG,
        directories=columns.directories.ids(values[directories : directories + n_replicas]),
        removing=rare.removing,
        adding=rare.adding,
        elr=rare.elr,
        last_known_elr=rare.last_known_elr,
    )


def _seen(
    columns: PartitionColumns | ColumnsBuilder,
    by_slot: ShardedMap[int, bytes] | MapBuilder[int, bytes],
    chunk: Chunk,
    rows: RowArray,
) -> list[PartitionInfo]:
    return [
        _partition(columns, by_slot[values[TOPIC]], row, chunk, values)
        for row, values in zip(rows.tolist(), chunk.data.T.tolist(), strict=True)
    ]


class TopicsBuilder:
    """Edits a TopicsImage in place, copying only what a frozen image still shares."""

    __slots__ = ("_base", "by_id", "by_name", "by_slot", "columns", "next_slot")

    def __init__(self, base: TopicsImage) -> None:
        self._base = base
        self.columns = ColumnsBuilder(base.columns)
        self.by_id: MapBuilder[bytes, TopicEntry] = base.by_id.builder()
        self.by_name: MapBuilder[str, bytes] = base.by_name.builder()
        self.by_slot: MapBuilder[int, bytes] = base.by_slot.builder()
        self.next_slot = base.next_slot

    def freeze(self) -> TopicsImage:
        """The current topics: the same object as before if nothing changed."""
        columns, by_id = self.columns.freeze(), self.by_id.freeze()
        if columns is not self._base.columns or by_id is not self._base.by_id:
            self._base = TopicsImage(
                columns, by_id, self.by_name.freeze(), self.by_slot.freeze(), self.next_slot
            )
        return self._base

    def add_topic(self, topic_id: bytes, name: str) -> None:
        """Adds a topic whose id and name are both new (the caller checked)."""
        entry = TopicEntry(TopicInfo(topic_id, name), self.next_slot)
        self.by_id.put(topic_id, entry)
        self.by_name.put(name, topic_id)
        self.by_slot.put(self.next_slot, topic_id)
        self.next_slot += 1

    def remove_topic(self, entry: TopicEntry) -> None:
        """Removes a topic and all its partitions."""
        for _, count, row in entry.runs:
            self.columns.release(row, count)
        self.by_id.remove(entry.info.topic_id)
        self.by_name.remove(entry.info.name)
        self.by_slot.remove(entry.slot)

    def row_of(self, topic_id: bytes, index: int) -> int:
        entry = self.by_id.get(topic_id)
        return -1 if entry is None else entry.row_of(index)

    def is_led_by(self, broker_id: int) -> bool:
        """Whether a broker leads a partition."""
        return self.led_by(broker_id) > 0

    def led_by(self, broker_id: int) -> int:
        """How many partitions a broker leads."""
        data = (chunk.data for chunk in self.columns.chunks)
        return sum(int(np.count_nonzero((one[LEADER] == broker_id) & (one[TOPIC] >= 0))) for one in data)

    def put_partition(self, entry: TopicEntry, info: PartitionInfo) -> None:
        """Stores the whole state of one partition, new or not."""
        columns = self.columns
        row = entry.row_of(info.index)
        if row < 0:
            row = columns.allocate(1, len(info.replicas), len(info.isr))
            self.add_run(entry, (info.index, 1, row))
        self.write(row, entry.slot, info)

    def write(self, row: int, slot: int, info: PartitionInfo) -> None:
        code = self.columns.directories.code
        flags = RECOVERING_FLAG if info.leader_recovery_state else 0
        self.columns.write(
            row,
            (slot, info.index, info.leader, info.leader_epoch, info.partition_epoch, flags),
            RowLists(info.replicas, tuple([code(directory) for directory in info.directories]), info.isr),
            RareFields(info.removing, info.adding, info.elr, info.last_known_elr),
        )

    def add_run(self, entry: TopicEntry, run: Run) -> None:
        """Notes the rows of new partitions of a topic. Raises ValueError if one of them existed."""
        runs = with_run(entry.runs, run)
        if runs is None:
            raise ValueError(f"topic {entry.info.name} already has a partition of {run}")
        self.by_id.put(entry.info.topic_id, TopicEntry(entry.info, entry.slot, runs))

    def at(self, row: int) -> PartitionInfo:
        return partition_at(self.columns, self.by_slot, row)

    def partitions(self, keys: Iterable[tuple[bytes, int]]) -> list[PartitionInfo | None]:
        """The partitions for many keys (topic id, index), in their order; None if one does not exist. Faster
        than one by one, and fastest if a topic's keys are adjacent."""
        rows: list[int] = []
        topic_ids: list[bytes] = []
        last: bytes | None = None
        entry: TopicEntry | None = None
        for topic_id, index in keys:
            if topic_id != last:
                last, entry = topic_id, self.by_id.get(topic_id)
            rows.append(-1 if entry is None else entry.row_of(index))
            topic_ids.append(topic_id)
        if len(rows) < _FEW_ROWS:
            return [None if row < 0 else self.at(row) for row in rows]
        partitions: list[PartitionInfo | None] = [None] * len(rows)
        there = [place for place, row in enumerate(rows) if row >= 0]
        columns = self.columns
        for at, within, local in split_by_chunk(np.array([rows[place] for place in there], dtype=np.int64)):
            chunk = columns.chunks[at]
            for n, values in zip(within.tolist(), chunk.data[:, local].T.tolist(), strict=True):
                position = there[n]
                partitions[position] = _partition(columns, topic_ids[position], rows[position], chunk, values)
        return partitions

    def seen(self, chunk: Chunk, rows: RowArray) -> list[PartitionInfo]:
        """The partitions of live `rows` with the column values of `chunk`, which were
        copied and maybe changed."""
        return _seen(self.columns, self.by_slot, chunk, rows)
