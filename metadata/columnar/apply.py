"""Replays a batch in columns: splits it into segments, checks each, then writes rows in bulk.

A segment is a run of records in which the order between different partitions does not matter. It is
checked before anything is written, and left to the per-record path if one of its records could fail or touch
a partition twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partition_records import (
    CHANGE_API_KEY,
    PARTITION_API_KEY,
    ChangeRows,
    Frames,
    PartitionRows,
    Words,
    decode_changes,
    decode_partitions,
    read_frames,
)
from metaquorum.metadata.columnar.partition_records import CHANGE_API_KEY as API_KEY
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.chunk import (
    CHUNK_SHIFT,
    FLAGS,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    TOPIC,
    Chunk,
    IntArray,
    RowArray,
    Run,
    TopicEntry,
    with_run,
)
from metaquorum.metadata.image.columns import split_by_chunk
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.records import types as a
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord, TopicRecord
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.batches.places import Places

MIN_RECORDS = 24
"""Batches (and segments) with fewer partition records are faster one by one."""

_TOPIC_KEY = 2
_NEUTRAL, _CREATE, _CHANGE, BARRIER = 0, 1, 2, 3
_UNPLACED = 1 << 40
"""Row numbers for partitions that are checked but not yet stored; above every real row."""

CLASS_OF_KEY = np.full(128, BARRIER, dtype=np.uint8)
CLASS_OF_KEY[[_TOPIC_KEY, PARTITION_API_KEY]] = _CREATE
CLASS_OF_KEY[CHANGE_API_KEY] = _CHANGE
CLASS_OF_KEY[
    [
        each.api_key
        for each in (
            *(a.AccessControlEntryRecord, a.RemoveAccessControlEntryRecord),
            *(a.DelegationTokenRecord, a.RemoveDelegationTokenRecord),
            *(a.UserScramCredentialRecord, a.RemoveUserScramCredentialRecord),
            *(r.BrokerRecord, r.UnregisterBrokerRecord, r.FenceBrokerRecord, r.UnfenceBrokerRecord),
            *(r.BrokerRegistrationChangeRecord, r.ControllerRecord, r.UnregisterControllerRecord),
            *(r.ConfigRecord, r.ClientQuotaRecord, r.FeatureLevelRecord, r.ProducerIdsRecord),
            *(r.NoOpRecord, r.ZkMigrationStateRecord),
        )
    ]
] = _NEUTRAL
"""What replay may do earlier or later than the partition records around it: what neither reads nor writes
topics and partitions. Every other type, also one that this release does not know, stays where it is."""


class Engine(Protocol):
    """What the column path requires of `metadata.replay.Replayer`."""

    builder: ImageBuilder
    keeps_changes: bool

    def apply(self, record: object, offset: int, epoch: int, timestamp_ms: int) -> None: ...

    def refuse(self, error: ReplayError) -> None: ...


def apply_batch(engine: Engine, batch: RecordBatch) -> bool:
    """Applies every record of `batch`; False, with nothing applied, if the per-record path must do it."""
    frames = read_frames(batch.data, batch.header)
    if frames is None:
        return False
    bulk = (frames.keys == PARTITION_API_KEY) | (frames.keys == CHANGE_API_KEY)
    if np.count_nonzero(bulk) < MIN_RECORDS:
        return False
    apply_places(engine, frames, batch.header, np.arange(len(frames.keys), dtype=np.int64))
    return True


def apply_places(engine: Engine, frames: Frames, header: BatchHeader, places: Places) -> None:
    """Applies the records with the ascending numbers `places`; `header` gives the place of record 0."""
    one_by_one = _OneByOne(engine, frames, header)
    for kind, low, high in _segments(frames.keys[places]):
        _apply_segment(kind, engine.builder, frames, places[low:high], one_by_one)


def _apply_segment(
    kind: int, builder: ImageBuilder, frames: Frames, records: Places, one_by_one: _OneByOne
) -> None:
    """Applies a segment. An unusual segment is halved until the records that make it unusual are alone."""
    done = False
    if len(records) >= MIN_RECORDS:
        if kind == _CREATE:
            done = _create(builder, frames, records, one_by_one)
        elif kind == _CHANGE:
            done = apply_changes(builder, frames, records, one_by_one)
    if done:
        return
    if len(records) < 2 * MIN_RECORDS or kind not in (_CREATE, _CHANGE):
        one_by_one(records)
        return
    middle = len(records) // 2
    _apply_segment(kind, builder, frames, records[:middle], one_by_one)
    _apply_segment(kind, builder, frames, records[middle:], one_by_one)


class _OneByOne:
    """Applies records of the batch through the per-record path."""

    def __init__(self, engine: Engine, frames: Frames, header: BatchHeader) -> None:
        self._engine = engine
        self._frames = frames
        self._header = header

    @property
    def keeps_changes(self) -> bool:
        """Whether partition changes in their usual forms are stored, not only checked."""
        return self._engine.keeps_changes

    def __call__(self, records: Places) -> None:
        engine, frames, header = self._engine, self._frames, self._header
        starts = frames.starts[records].tolist()
        lengths = frames.lengths[records].tolist()
        for record, start, length in zip(records.tolist(), starts, lengths, strict=True):
            offset = header.base_offset + record
            try:
                _, decoded = decode(frames.data, start, start + length)
            except RecordDecodeError as error:
                failure = ReplayError(offset, None, str(error))
                failure.__cause__ = error
                engine.refuse(failure)
                continue
            engine.apply(decoded, offset, header.leader_epoch, header.max_timestamp_ms)


def _segments(keys: npt.NDArray[np.uint8]) -> list[tuple[int, int, int]]:
    """(class, first record, end) of parts that hold one class of records, and neutral ones."""
    classes = CLASS_OF_KEY[keys]
    marked = np.flatnonzero(classes)
    if not marked.size:
        return [(_NEUTRAL, 0, len(keys))]
    kinds = classes[marked]
    edges = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    starts = [0, *marked[edges].tolist()]
    return [
        (int(kind), low, high)
        for kind, low, high in zip(
            [kinds[0], *kinds[edges].tolist()], starts, [*starts[1:], len(keys)], strict=True
        )
    ]


def _create(builder: ImageBuilder, frames: Frames, records: Places, one_by_one: _OneByOne) -> bool:
    """Applies a segment of topics and partitions; False, with nothing applied, if it is unusual."""
    keys = frames.keys[records]
    is_partition = keys == PARTITION_API_KEY
    rows, odd = decode_partitions(frames, records[is_partition], builder.topics.columns.directories)
    if len(rows.records) < MIN_RECORDS or (rows.block[1] < 0).any():
        return False
    created = _created_topics(builder, frames, records[keys == _TOPIC_KEY])
    if created is None:
        return False
    rows = _in_order(rows)
    parts = _parts(rows)
    planned = _plan(builder, rows, parts, created)
    if planned is None or not _odd_are_apart(frames, records[is_partition][odd], planned):
        return False
    others = records[~is_partition]
    one_by_one(np.sort(np.concatenate([others, records[is_partition][odd]])) if odd.any() else others)
    _store(builder, rows, parts)
    return True


def _created_topics(builder: ImageBuilder, frames: Frames, records: Places) -> dict[bytes, int] | None:
    """Record number by topic id for the segment's TopicRecords; None if one of them would be refused."""
    topics = builder.topics
    created: dict[bytes, int] = {}
    names: set[str] = set()
    for record in records.tolist():
        topic = _decoded(frames, record)
        if not isinstance(topic, TopicRecord) or topic.topic_id in created or topic.name in names:
            return None
        if topic.topic_id in topics.by_id or topic.name in topics.by_name:
            return None
        created[topic.topic_id] = record
        names.add(topic.name)
    return created


def _decoded(frames: Frames, record: int) -> object:
    start = int(frames.starts[record])
    try:
        return decode(frames.data, start, start + int(frames.lengths[record]))[1]
    except RecordDecodeError:
        return None


def _breaks(rows: PartitionRows) -> Places:
    """Places where the topic changes or the index does not increase by one."""
    index, topics = rows.block[1], rows.topics
    breaks = (topics[1:, 0] != topics[:-1, 0]) | (topics[1:, 1] != topics[:-1, 1])
    breaks |= index[1:] != index[:-1] + 1
    return np.flatnonzero(breaks) + 1


def _in_order(rows: PartitionRows) -> PartitionRows:
    """The rows sorted by topic and index, if storing them in order of arrival would be slow."""
    count = len(rows.records)
    if len(_breaks(rows)) * 4 <= count:
        return rows
    _, first, group = np.unique(
        np.ascontiguousarray(rows.topics).view("V16").ravel(), return_index=True, return_inverse=True
    )
    order = np.lexsort((rows.block[1], first[group.ravel()]))
    return rows._replace(
        records=rows.records[order],
        topics=rows.topics[order],
        block=np.ascontiguousarray(rows.block[:, order]),
    )


TopicPart = tuple[bytes, int, int, int]
"""(topic id, first index, count, place of the first row in the block)."""


def _parts(rows: PartitionRows) -> list[TopicPart]:
    edges = _breaks(rows)
    places = np.concatenate([np.zeros(1, np.int64), edges])
    counts = np.diff(np.concatenate([places, np.array([len(rows.records)])]))
    raw = np.ascontiguousarray(rows.topics[places]).tobytes()
    ids = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    first = rows.block[1][places]
    return list(zip(ids, first.tolist(), counts.tolist(), places.tolist(), strict=True))


def _plan(
    builder: ImageBuilder, rows: PartitionRows, parts: list[TopicPart], created: dict[bytes, int]
) -> dict[bytes, tuple[Run, ...]] | None:
    """Where each topic's partitions will be; None if a topic is unknown or a partition exists twice."""
    by_id = builder.topics.by_id
    planned: dict[bytes, tuple[Run, ...]] = {}
    for topic_id, first, count, first_row in parts:
        if topic_id in created:
            if created[topic_id] > int(rows.records[first_row : first_row + count].min()):
                return None
            runs = planned.get(topic_id, ())
        else:
            entry = by_id.get(topic_id)
            if entry is None:
                return None
            runs = planned.get(topic_id, entry.runs)
        extended = with_run(runs, (first, count, _UNPLACED + first_row))
        if extended is None:
            return None
        planned[topic_id] = extended
    return planned


def _odd_are_apart(frames: Frames, odd: Places, planned: dict[bytes, tuple[Run, ...]]) -> bool:
    """Whether no odd record's partition is also among the rows."""
    for record in odd.tolist():
        decoded = _decoded(frames, record)
        if not isinstance(decoded, PartitionRecord):
            return False
        runs = planned.get(decoded.topic_id, ())
        for first, count, row in runs:
            if row >= _UNPLACED and first <= decoded.partition_id < first + count:
                return False
    return True


def _store(builder: ImageBuilder, rows: PartitionRows, parts: list[TopicPart]) -> None:
    topics = builder.topics
    count = len(rows.records)
    start = topics.columns.allocate(count, rows.replica_width, rows.isr_width)
    slots = []
    entry: TopicEntry | None = None
    runs: tuple[Run, ...] = ()
    for topic_id, first, size, first_row in parts:
        if entry is None or entry.info.topic_id != topic_id:
            if entry is not None:
                topics.by_id.put(entry.info.topic_id, TopicEntry(entry.info, entry.slot, runs))
            entry = topics.by_id[topic_id]
            runs = entry.runs
        extended = with_run(runs, (first, size, start + first_row))
        if extended is None:
            raise RuntimeError("a partition was stored twice although the check said that it is new")
        runs = extended
        slots.append(entry.slot)
    if entry is not None:
        topics.by_id.put(entry.info.topic_id, TopicEntry(entry.info, entry.slot, runs))
    sizes = [size for _, _, size, _ in parts]
    rows.block[TOPIC] = np.repeat(np.array(slots, dtype=np.int32), sizes)
    topics.columns.write_block(start, rows.block, rows.replica_width, rows.isr_width)


# Replays many PartitionChangeRecords at once, including several of one partition.
# The bulk form of a partition change: partition epochs increase by one, leader epochs if a leader is
# named, lists are replaced. `merge_change` does the same for one record. What each change found and left
# is kept side by side (`Versions`), for the image and for code that looks at the steps between.

Bools = npt.NDArray[np.bool_]


class Versions(NamedTuple):
    """Changes by row, those of one row in log order. `records` are their numbers; `first` marks the first
    change of each row. `base` has the rows (each once) before their changes, `after` each row after each
    change, in a chunk's layout with lists of these widths."""

    records: Places
    rows: RowArray
    first: Bools
    base: IntArray
    after: IntArray
    replica_width: int
    isr_width: int

    def before(self) -> IntArray:
        """The rows as each change found them."""
        found = np.empty_like(self.after)
        found[:, 1:] = self.after[:, :-1]
        found[:, self.first] = self.base
        return found

    def chunk(self, block: IntArray) -> Chunk:
        """`before` or `after` in the form of a chunk."""
        return Chunk(block, self.replica_width, self.isr_width)


def apply_changes(builder: ImageBuilder, frames: Frames, records: Places, one_by_one: _OneByOne) -> bool:
    """Applies a segment of changes; False, with nothing applied, if it is unusual."""
    is_change = frames.keys[records] == API_KEY
    groups, odd = decode_changes(frames, records[is_change])
    if not one_by_one.keeps_changes and all(_fits(builder, group) for group in groups):
        one_by_one(np.sort(np.concatenate([records[~is_change], odd])))
        return True
    versions = merged(builder, groups)
    odd_rows = _odd_rows(builder, frames, odd)
    if versions is None or odd_rows is None or (len(odd_rows) and np.isin(odd_rows, versions.rows).any()):
        return False
    one_by_one(np.sort(np.concatenate([records[~is_change], odd])))
    store(builder, versions)
    return True


def versions_of(builder: ImageBuilder, frames: Frames, records: Places) -> Versions | None:
    """What changes with these ascending numbers would do; None if one is unusual."""
    groups, odd = decode_changes(frames, records)
    return None if len(odd) else merged(builder, groups)


def _fits(builder: ImageBuilder, group: ChangeRows) -> bool:
    """Whether replay accepts changes of one shape. What they set decides about no later record: neither their
    leader, ISR and recovery state, nor as many directories as there are replicas."""
    rows = rows_of(builder, group.topics, group.indexes)
    if rows is None or group.directories is None:
        return rows is not None
    chunks, count = builder.topics.columns.chunks, group.directories.shape[1]
    return all(
        bool((chunks[at].data[N_REPLICAS, local] == count).all()) for at, _, local in split_by_chunk(rows)
    )


def rows_of(builder: ImageBuilder, topics: Words, index: npt.NDArray[np.int32]) -> RowArray | None:
    """The row of each partition; None if one of them does not exist."""
    word = topics[:, 0]
    steps = np.count_nonzero(word[1:] != word[:-1])
    if steps * 4 > len(word) and (word[1:] < word[:-1]).any():  # mixed: look up each topic once
        order = np.argsort(word, kind="stable")
        ordered = rows_of(builder, topics[order], index[order])
        if ordered is None:
            return None
        mixed = np.empty_like(ordered)
        mixed[order] = ordered
        return mixed
    edges = np.flatnonzero((topics[1:, 0] != topics[:-1, 0]) | (topics[1:, 1] != topics[:-1, 1])) + 1
    places = [0, *edges.tolist(), len(index)] if len(index) else [0]
    raw = topics[places[:-1]].tobytes()
    entries = builder.topics.by_id.get_all([raw[at : at + 16] for at in range(0, len(raw), 16)])
    known = [entry.runs for entry in entries if entry is not None and entry.runs]
    if len(known) != len(entries):
        return None
    firsts, counts, starts = np.array([runs[0] for runs in known], dtype=np.int64).reshape(-1, 3).T
    scattered = [
        (places[at], places[at + 1], entry)
        for at, entry in enumerate(entries)
        if entry is not None and len(entry.runs) > 1
    ]
    ends = np.array(places, dtype=np.int64)
    sizes = ends[1:] - ends[:-1]
    within = index.astype(np.int64) - np.repeat(firsts, sizes)
    rows: RowArray = within + np.repeat(starts, sizes)
    rows[(within < 0) | (within >= np.repeat(counts, sizes))] = -1
    for low, high, entry in scattered:
        rows[low:high] = [entry.row_of(at) for at in index[low:high].tolist()]
    return None if (rows < 0).any() else rows


def _odd_rows(builder: ImageBuilder, frames: Frames, odd: Places) -> RowArray | None:
    """The rows that odd changes touch; None if one is not a change, or if its partition is unknown."""
    rows = []
    for record in odd.tolist():
        start = int(frames.starts[record])
        try:
            _, decoded = decode(frames.data, start, start + int(frames.lengths[record]))
        except RecordDecodeError:
            return None
        if not isinstance(decoded, PartitionChangeRecord):
            return None
        rows.append(builder.topics.row_of(decoded.topic_id, decoded.partition_id))
    found = np.array(rows, dtype=np.int64)
    return None if (found < 0).any() else found


def merged(builder: ImageBuilder, groups: list[ChangeRows]) -> Versions | None:
    """The versions that result from the groups; None if a partition does not exist, or if its number of
    replicas differs from that of a change's directories."""
    own = [rows_of(builder, group.topics, group.indexes) for group in groups]
    group_rows = [rows for rows in own if rows is not None]
    if len(group_rows) != len(own):
        return None
    columns = builder.topics.columns
    rows = np.concatenate([*group_rows, np.empty(0, dtype=np.int64)])
    records = np.concatenate([*(group.records for group in groups), np.empty(0, dtype=np.int64)])
    place_of = None
    if (rows[1:] <= rows[:-1]).any():
        order = np.lexsort((records, rows))
        place_of = np.empty(len(rows), dtype=np.int64)
        place_of[order] = np.arange(len(rows))
        rows, records = rows[order], records[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = rows[1:] != rows[:-1]
    touched = rows if first.all() else rows[first]
    chunks = [columns.chunks[at] for at in np.unique(touched >> CHUNK_SHIFT).tolist()]
    width = max((chunk.replica_width for chunk in chunks), default=0)
    isr_width = max(
        *(chunk.isr_width for chunk in chunks),
        *(group.isr.shape[1] for group in groups if group.isr is not None),
        0,
        0,
    )
    base = rows_block(columns, touched, width, isr_width)
    merge = _Merge(base, first, width)
    low = 0
    for group, rows_of_group in zip(groups, group_rows, strict=True):
        span = slice(low, low + len(rows_of_group))
        if not merge.take(builder, group, span if place_of is None else place_of[span]):
            return None
        low = span.stop
    merge.finish()
    return Versions(records, rows, first, base, merge.after, width, isr_width)


class _Merge:
    """Writes what each change sets into its own version, then what it leaves unchanged."""

    def __init__(self, base: IntArray, first: Bools, width: int) -> None:
        self._first = first
        self._width = width
        self._is_named = np.zeros((4, len(first)), dtype=bool)
        self._each_once = bool(first.all())
        self.after: IntArray = base.copy() if self._each_once else base[:, np.cumsum(first) - 1]

    def take(self, builder: ImageBuilder, group: ChangeRows, versions: Places | slice) -> bool:
        """Takes one group, which these versions hold. False if the directories do not match the replicas."""
        after, width, named = self.after, self._width, self._is_named
        if group.leader is not None:
            named[0, versions] = True
            after[LEADER, versions] = group.leader
        if group.isr is not None:
            named[1, versions] = True
            n_isr, start = group.isr.shape[1], LISTS + 2 * width
            after[N_ISR, versions] = n_isr
            after[start : start + n_isr, versions] = group.isr.T
            after[start + n_isr :, versions] = PADDING
        if group.recovery is not None:
            named[2, versions] = True
            after[FLAGS, versions] = after[FLAGS, versions] & ~RECOVERING_FLAG | group.recovery
        if group.directories is not None:
            if (after[N_REPLICAS, versions] != group.directories.shape[1]).any():
                return False
            named[3, versions] = True
            table = builder.topics.columns.directories
            codes = table.codes_of(group.directories.reshape(-1, 2)).reshape(len(group.indexes), -1)
            after[LISTS + width : LISTS + width + codes.shape[1], versions] = codes.T
        return True

    def finish(self) -> None:
        """Sets epochs, and copies what a change did not set from the version before it."""
        after, first, named = self.after, self._first, self._is_named
        if self._each_once:
            after[PARTITION_EPOCH] += 1
            after[LEADER_EPOCH] += named[0]
            return
        places = np.arange(len(first))
        starts = np.maximum.accumulate(np.where(first, places, 0))
        after[PARTITION_EPOCH] += (places - starts + 1).astype(np.int32)
        led = np.cumsum(named[0])
        after[LEADER_EPOCH] += (led - (led - named[0])[starts]).astype(np.int32)
        directories, isr = LISTS + self._width, LISTS + 2 * self._width
        fields: tuple[tuple[Any, ...], ...] = (
            (LEADER,),
            (N_ISR, slice(isr, None)),
            (FLAGS,),
            (slice(directories, isr),),
        )
        for is_named, columns in zip(named, fields, strict=True):
            if not is_named.any():
                continue
            source = np.maximum.accumulate(np.where(is_named, places, 0))
            taken = np.flatnonzero((source >= starts) & (source != places) & is_named[source])
            for column in columns:
                after[column, taken] = after[column, source[taken]]


def store(builder: ImageBuilder, versions: Versions) -> None:
    """Writes the newest version of every row, each chunk once."""
    if not len(versions.rows):
        return
    columns = builder.topics.columns
    rows, block = versions.rows, versions.after
    if not versions.first.all():
        last = np.ones(len(rows), dtype=bool)
        last[:-1] = versions.first[1:]
        rows, block = rows[last], block[:, last]
    width, isr_width = versions.replica_width, versions.isr_width
    longest = block[N_ISR]
    middle = LISTS + width
    isr_start = middle + width
    for at, place, local in split_by_chunk(rows):
        chunk = columns.own_wide(at, 0, int(longest[place].max()))
        part = block[:, place[0] : place[-1] + 1]
        data = chunk.data
        if chunk.replica_width == width and chunk.isr_width == isr_width:
            data[:, local] = part
            continue
        # A chunk's lists may be shorter or longer: records replayed one by one in between may have widened
        # it.
        _put(data, local, part, (0, LISTS + chunk.replica_width), (0, middle))
        _put(data, local, part, (LISTS + chunk.replica_width, chunk.isr_start), (middle, isr_start))
        _put(data, local, part, (chunk.isr_start, len(data)), (isr_start, len(part)))


def _put(data: IntArray, local: Places, part: IntArray, to: tuple[int, int], source: tuple[int, int]) -> None:
    """Copies the columns of one list; further columns of `data` are padding."""
    both = min(to[1] - to[0], source[1] - source[0])
    data[to[0] : to[0] + both, local] = part[source[0] : source[0] + both]
    data[to[0] + both : to[1], local] = PADDING
