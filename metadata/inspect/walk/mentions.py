"""Which parts of a log mention which topic or broker: a question about one need not go through the others.

A part that is named too often costs time; one that is left out would make an answer wrong. So whatever cannot
be read, and every batch of a metadata transaction, counts as a mention of everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

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
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import decode
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun, run_of
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

PART_RECORDS = 4_096
"""A part begins with the first batch after a multiple of this offset."""
_EVERYTHING = 0
"""The key of a part that may mention anything."""
_INDEX_BYTES, _ID_BYTES = 4, 16
_ENDS = (r.EndTransactionRecord, r.AbortTransactionRecord)

Keys = npt.NDArray[np.uint32]


class Mentions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a log up to `end_offset`. Part N begins at `starts[N]`; `named[N]` has the sorted keys of
    topics and brokers in its records, `changed[N]` those of topics whose partitions it changes."""

    starts: list[int]
    named: list[Keys]
    changed: list[Keys]
    end_offset: int

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return sum(keys.nbytes + 200 for keys in (*self.named, *self.changed))

    def parts_about(self, entity: str, *, changes: bool) -> list[tuple[int, int]] | None:
        """From and up to which offsets records about `topic/NAME`, `broker/ID` or what is below one may be
        found, in log order; without `changes`, those that only change its partitions are left out. None:
        anywhere."""
        key = _key_of(entity)
        if key is None:
            return None
        parts: list[tuple[int, int]] = []
        for number, (start, end) in enumerate(pairwise([*self.starts, self.end_offset])):
            if not _has(self.named[number], key) and not (changes and _has(self.changed[number], key)):
                continue
            joins = bool(parts) and parts[-1][1] == start
            parts.append((parts.pop()[0] if joins else start, end))
        return parts or None


def mentions_of(log: MetadataLog) -> Mentions | None:
    """Reads a log once. None for a damaged one."""
    made = _Maker(log.namer())
    for item in log.runs():
        if isinstance(item, Damage) or not made.take(item):
            return None
    return made.result()


def _has(keys: Keys, key: int) -> bool:
    at = int(np.searchsorted(keys, key))
    return (at < len(keys) and int(keys[at]) == key) or (len(keys) > 0 and int(keys[0]) == _EVERYTHING)


def _key_of(entity: str) -> int | None:
    """The key of a topic by its name, or of a broker; None for anything else."""
    kind, _, rest = entity.partition("/")
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


class _Maker:
    """Takes the batches of a log in order."""

    def __init__(self, namer: EntityNamer) -> None:
        self._namer = namer
        self._starts: list[int] = []
        self._named: list[set[int]] = []
        self._changed: list[set[int]] = []
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
        return Mentions(starts=self._starts, named=named, changed=changed, end_offset=self._end or 0)

    def _part(self, base_offset: int) -> int:
        """The number of the part that holds the batch at an offset."""
        if not self._starts or base_offset // PART_RECORDS > self._starts[-1] // PART_RECORDS:
            self._starts.append(base_offset)
            self._named.append(set())
            self._changed.append(set())
            if self._is_in_transaction:
                self._named[-1].add(_EVERYTHING)
        return len(self._starts) - 1

    def _take_run(self, run: BatchRun, frames: Frames) -> None:
        batches = run.batch_of(np.arange(len(frames.keys), dtype=np.int64))
        bases = run.offsets[:-1] // PART_RECORDS
        edges = [0, *(np.flatnonzero(np.diff(bases)) + 1).tolist(), len(bases)]
        records = np.searchsorted(batches, edges).tolist()
        for number, (low, high) in enumerate(pairwise(records)):
            part = self._part(int(run.offsets[edges[number]]))
            self._take_records(part, frames, low, high)

    def _take_records(self, part: int, frames: Frames, low: int, high: int) -> None:
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
        for wanted, into in ((has_topic & ~is_change, self._named), (is_change & has_topic, self._changed)):
            starts = frames.starts[low + np.flatnonzero(wanted)] + FRAME_BYTES + _INDEX_BYTES
            if len(starts):
                ids: Any = np.unique(gather(frames, starts, _ID_BYTES, np.dtype("V16")))
                into[part].update(map(self._key_of_id, (each.tobytes() for each in ids)))

    def _take_batch(self, batch: RecordBatch) -> None:
        part = self._part(batch.header.base_offset)
        for item in decode_item(batch):
            if not isinstance(item, ReadBatch):
                self._named[part].add(_EVERYTHING)
                continue
            for decoded in item.records:
                record = decoded.record
                if isinstance(record, r.PartitionChangeRecord):
                    self._changed[part].add(self._key_of_id(record.topic_id))
                else:
                    self._take_record(part, record)

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
