"""Which parts of a log mention which topic, partition or broker: a question about one need not go through the
others.

A part that is named too often costs time; one that is left out would make an answer wrong. So whatever cannot
be read, and every batch of a metadata transaction, counts as a mention of everything.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partition_records import (
    CHANGE_API_KEY,
    FRAME_BYTES,
    PARTITION_API_KEY,
    Frames,
    gather,
)
from metaquorum.metadata.columnar.runs import idle_frames, read_run
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.inspect.log.entities import EntityNamer, broker_of
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun, run_of
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

PART_RECORDS = 4_096
"""A part begins with the first batch after a multiple of this offset."""
_EVERYTHING = 0
"""The key of a part that may mention anything."""
_INDEX_BYTES, _ID_BYTES = 4, 16
_FILTER_BITS, _FILTER_HASHES = 1 << 15, 4
"""A Bloom filter of the partitions that a part changes: with 4,096, one in 40 others seems to be one."""
_FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
_BROKER_BYTES = 600
"""What a record about a broker takes in memory, with its listeners and directories, roughly."""
_ENDS = (r.EndTransactionRecord, r.AbortTransactionRecord)

Keys = npt.NDArray[np.uint32]
Filter = npt.NDArray[np.uint8]


class BrokerMention(NamedTuple):
    """A record about a broker, and the timestamp of its batch, Unix ms."""

    offset: int
    stamp_ms: int
    record: Any


class Mentions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a log up to `end_offset`. Part N begins at `starts[N]`; `named[N]` has the sorted keys of
    topics and brokers in its records, `changed[N]` those of topics whose partitions it changes, and
    `partitions[N]` the filter of these partitions, empty without any. `brokers` are all records about
    brokers: the cause of a change may be one that is far from it."""

    starts: list[int]
    named: list[Keys]
    changed: list[Keys]
    partitions: list[Filter]
    brokers: list[BrokerMention]
    end_offset: int

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        lists = (self.named, self.changed, self.partitions)
        arrays = sum(array.nbytes + 200 for arrays in lists for array in arrays)
        return arrays + _BROKER_BYTES * len(self.brokers)

    def parts_about(self, entity: str, *, changes: bool) -> list[tuple[int, int]] | None:
        """From and up to which offsets records about `topic/NAME`, `broker/ID`, what is below one, or its
        settings (`config/topic/NAME`) may be found, in log order; without `changes`, those that only change
        its partitions are left out. None: anywhere."""
        key = _key_of(entity)
        if key is None:
            return None
        bits = _bits_of(entity, key)
        changes = changes and not entity.startswith("config/")
        parts: list[tuple[int, int]] = []
        for number, (start, end) in enumerate(pairwise([*self.starts, self.end_offset])):
            if not _has(self.named[number], key) and not (changes and self._changes(number, key, bits)):
                continue
            joins = bool(parts) and parts[-1][1] == start
            parts.append((parts.pop()[0] if joins else start, end))
        return parts or None

    def _changes(self, number: int, key: int, bits: Places | None) -> bool:
        """Whether a part may change partitions of a topic or, with `bits`, the partition that sets them."""
        changed = self.changed[number]
        if bits is None or not _has(changed, key) or int(changed[0]) == _EVERYTHING:
            return _has(changed, key)
        return bool((self.partitions[number][bits >> 3] >> (bits & 7) & 1).all())


def mentions_of(log: MetadataLog) -> Mentions | None:
    """Reads a log once. None for a damaged one."""
    made = _Maker(log.namer())
    for item in log.runs():
        if isinstance(item, Damage) or not made.take(item):
            return None
    return made.result()


def between(brokers: Sequence[BrokerMention], first: int, end: int) -> Sequence[BrokerMention]:
    """Those from one offset up to another."""
    low, high = (bisect_left(brokers, offset, key=itemgetter(0)) for offset in (first, end))
    return brokers[low:high]


def _has(keys: Keys, key: int) -> bool:
    at = int(np.searchsorted(keys, key))
    return (at < len(keys) and int(keys[at]) == key) or (len(keys) > 0 and int(keys[0]) == _EVERYTHING)


def _key_of(entity: str) -> int | None:
    """The key of a topic by its name, or of a broker, also for its settings; None for anything else."""
    kind, _, rest = entity.removeprefix("config/").partition("/")
    name = rest.partition("/")[0]
    if kind not in ("topic", "broker") or not name:
        return None
    if kind == "topic":
        try:
            uuid_from_text(name)
        except ValueError:
            pass
        else:
            return None  # maybe a topic's id, which no key is made of
    return _key(f"{kind}/{name}")


def _key(path: str) -> int:
    return zlib.crc32(path.encode()) or 1


def _bits_of(entity: str, key: int) -> Places | None:
    """The bits of a partition in a filter; None for anything else. `key` is its topic's."""
    kind, _, rest = entity.partition("/")
    number = whole_number(rest.partition("/")[2], MAX_INT)
    return None if kind != "topic" or number is None else _bits(np.array([key]), np.array([number]))


def _bits(keys: npt.NDArray[Any], indexes: npt.NDArray[Any]) -> Places:
    """The bits that partitions set in a filter, by their topics' keys and their indexes."""
    mixed = keys.astype(np.uint64) << np.uint64(32) | indexes.astype(np.uint64)
    for factor in _FACTORS:  # the finalizer of splitmix64: every bit of the sum depends on every bit before
        mixed = (mixed ^ mixed >> np.uint64(31)) * factor
    width = _FILTER_BITS.bit_length() - 1
    parts = [mixed >> np.uint64(number * width) for number in range(_FILTER_HASHES)]
    return (np.concatenate(parts) & np.uint64(_FILTER_BITS - 1)).astype(np.int64)


class _Maker:
    """Takes the batches of a log in order."""

    def __init__(self, namer: EntityNamer) -> None:
        self._namer = namer
        self._starts: list[int] = []
        self._named: list[set[int]] = []
        self._changed: list[set[int]] = []
        self._partitions: list[Filter] = []
        self._brokers: list[BrokerMention] = []
        self._ids: dict[bytes, int] = {}
        self._end: int | None = None
        self._is_in_transaction = False

    def take(self, item: RecordBatch | BatchRun) -> bool:
        """Takes the next batch, or run of batches. False where records are missing."""
        run = run_of(item) if isinstance(item, RecordBatch) else item
        base = item.base_offset if isinstance(item, BatchRun) else item.header.base_offset
        if self._end not in (None, base):
            return False
        frames = None if run is None else read_run(run)
        if run is not None and frames is not None:
            self._take_run(run, frames)
            self._end = run.next_offset
            return True
        for batch in item.batches() if isinstance(item, BatchRun) else (item,):
            self._take_batch(batch)
            self._end = batch.header.next_offset
        return True

    def result(self) -> Mentions:
        """What was taken so far."""
        named, changed = (
            [np.array(sorted(keys), dtype=np.uint32) for keys in parts]
            for parts in (self._named, self._changed)
        )
        return Mentions(
            starts=self._starts,
            named=named,
            changed=changed,
            partitions=self._partitions,
            brokers=self._brokers,
            end_offset=self._end or 0,
        )

    def _part(self, base_offset: int) -> int:
        """The number of the part that holds the batch at an offset."""
        if not self._starts or base_offset // PART_RECORDS > self._starts[-1] // PART_RECORDS:
            self._starts.append(base_offset)
            self._named.append(set())
            self._changed.append(set())
            self._partitions.append(np.empty(0, dtype=np.uint8))
            if self._is_in_transaction:
                self._named[-1].add(_EVERYTHING)
        return len(self._starts) - 1

    def _take_run(self, run: BatchRun, frames: Frames) -> None:
        batches = run.batch_of(np.arange(len(frames.keys), dtype=np.int64))
        bases = run.offsets[:-1] // PART_RECORDS
        edges = [0, *(np.flatnonzero(np.diff(bases)) + 1).tolist(), len(bases)]
        records, stamps = np.searchsorted(batches, edges).tolist(), run.timestamps_ms()
        for number, (low, high) in enumerate(pairwise(records)):
            part = self._part(int(run.offsets[edges[number]]))
            for at, record in self._take_records(part, frames, low, high):
                if broker_of(record) is not None:
                    stamp_ms = int(stamps[batches[at]])
                    self._brokers.append(BrokerMention(run.base_offset + at, stamp_ms, record))

    def _take_records(self, part: int, frames: Frames, low: int, high: int) -> Iterator[tuple[int, Any]]:
        """Takes some records of a run. Yields those that are not about partitions, with their numbers."""
        rows = slice(low, high)
        keys = frames.keys[rows]
        is_change = keys == CHANGE_API_KEY
        has_topic = is_change | (keys == PARTITION_API_KEY)
        has_topic &= frames.lengths[rows] >= FRAME_BYTES + _INDEX_BYTES + _ID_BYTES
        others = low + np.flatnonzero(~has_topic & ~idle_frames(_rows(frames, rows)))
        for number in others.tolist():
            start = int(frames.starts[number])
            try:
                record = decode(frames.data, start, start + int(frames.lengths[number]))[1]
            except RecordDecodeError:
                self._named[part].add(_EVERYTHING)
                continue
            self._take_record(part, record)
            yield number, record
        for wanted, into in ((has_topic & ~is_change, self._named), (is_change & has_topic, self._changed)):
            starts = frames.starts[low + np.flatnonzero(wanted)] + FRAME_BYTES
            if not len(starts):
                continue
            ids: Any = gather(frames, starts + _INDEX_BYTES, _ID_BYTES, np.dtype("V16"))
            ids, topics = np.unique(ids, return_inverse=True)
            names = np.array([self._key_of_id(each.tobytes()) for each in ids])
            into[part].update(names.tolist())
            if into is self._changed:
                indexes = gather(frames, starts, _INDEX_BYTES, np.dtype(">i4"))
                self._change(part, names[topics], indexes)

    def _take_batch(self, batch: RecordBatch) -> None:
        part = self._part(batch.header.base_offset)
        for item in decode_item(batch):
            if not isinstance(item, ReadBatch):
                self._named[part].add(_EVERYTHING)
                continue
            for decoded in item.records:
                record = decoded.record
                if isinstance(record, r.PartitionChangeRecord):
                    key = self._key_of_id(record.topic_id)
                    self._changed[part].add(key)
                    self._change(part, np.array([key]), np.array([record.partition_id]))
                else:
                    self._take_record(part, record)
                if broker_of(record) is not None:
                    stamp_ms = batch.header.max_timestamp_ms
                    self._brokers.append(BrokerMention(decoded.offset, stamp_ms, record))

    def _change(self, part: int, keys: npt.NDArray[Any], indexes: npt.NDArray[Any]) -> None:
        if not len(self._partitions[part]):
            self._partitions[part] = np.zeros(_FILTER_BITS >> 3, dtype=np.uint8)
        bits = _bits(keys, indexes)
        np.bitwise_or.at(self._partitions[part], bits >> 3, (1 << (bits & 7)).astype(np.uint8))

    def _take_record(self, part: int, record: object) -> None:
        keys = self._named[part]
        if isinstance(record, r.BeginTransactionRecord):
            self._is_in_transaction = True
            keys.add(_EVERYTHING)
        elif isinstance(record, _ENDS):
            self._is_in_transaction = False
            keys.add(_EVERYTHING)
        keys.update(self._keys_of(record))

    def _keys_of(self, record: object) -> Iterator[int]:
        for path in self._namer.entities(record):
            kind, _, rest = path.partition("/")
            if kind in ("topic", "broker"):
                name = rest.partition("/")[0]
                yield _key(f"{kind}/{name}") if name else _EVERYTHING

    def _key_of_id(self, topic_id: bytes) -> int:
        key = self._ids.get(topic_id)
        if key is None:
            name = self._namer.topic_name(topic_id)
            if name == uuid_to_text(topic_id):
                return _EVERYTHING  # its name is not known here
            key = self._ids[topic_id] = _key(f"topic/{name}")
        return key


def _rows(frames: Frames, rows: slice) -> Frames:
    return frames._replace(
        starts=frames.starts[rows],
        lengths=frames.lengths[rows],
        keys=frames.keys[rows],
        versions=frames.versions[rows],
    )
