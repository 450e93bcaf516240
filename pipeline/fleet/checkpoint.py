"""Writes a snapshot of a synthetic cluster, from the generator's own columns instead of its log.

Owns the order of a snapshot's records. Must not replay the log: the snapshot and a replay are two independent
computations of one state. Knows no files (`files` has them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from metaquorum.metadata.columnar.encode import PartitionRowsToWrite, encode_records
from metaquorum.metadata.columnar.rows import topic_words
from metaquorum.metadata.features import record_version_for, write_version
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
)
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import SnapshotFooterRecord, SnapshotHeaderRecord
from metaquorum.metadata.records.types import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from metaquorum.pipeline.fleet.batches import LEVEL
from metaquorum.pipeline.fleet.cluster import Cluster
from metaquorum.pipeline.fleet.partitions import NO_BROKER, WIDTH, Rows
from metaquorum.storage.batches.encode import encode_batch, plain_header, seal_batch

_ROWS = 4096


class _Writer:
    def __init__(self, epoch: int, time_ms: int) -> None:
        self._epoch, self._time_ms, self._offset = epoch, time_ms, 0

    def control(self, record: Any) -> bytes:
        key, value = encode_control(record)
        data = encode_batch(
            base_offset=self._offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._time_ms,
            values=[value],
            keys=[key],
            is_control=True,
        )
        self._offset += 1
        return data

    def batch(self, payload: bytes, count: int) -> bytes:
        header = plain_header(self._offset, self._epoch, self._time_ms, count)
        self._offset += count
        return seal_batch(header, payload)

    def records(self, records: Iterable[Any]) -> Iterator[bytes]:
        values = {place: encode(one, write_version(one, LEVEL)) for place, one in enumerate(records)}
        if values:
            yield self.batch(encode_records(values, _no_rows(), 1), len(values))


def _no_rows() -> PartitionRowsToWrite:
    return PartitionRowsToWrite(
        np.empty(0, dtype=np.int64),
        np.empty((0, 2), dtype=np.uint64),
        np.empty((LISTS + 3 * WIDTH, 0), dtype=np.int32),
        WIDTH,
        np.empty((0, WIDTH, 2), dtype=np.uint64),
    )


def checkpoint(cluster: Cluster) -> Iterator[bytes]:
    """The batches of a snapshot of the log's current state."""
    writer = _Writer(cluster.log.epoch, cluster.log.last_ms)
    yield writer.control(SnapshotHeaderRecord(cluster.log.last_ms))
    brokers = [cluster.registration(broker) for broker in cluster.brokers.values()]
    yield from writer.records([FeatureLevelRecord("metadata.version", LEVEL), *cluster.controllers, *brokers])
    rows = cluster.partitions.live()
    rows = rows[np.lexsort((rows, cluster.partitions.at.topic[rows]))]
    for low in range(0, len(rows), _ROWS):
        yield _partitions(writer, cluster, rows[low : low + _ROWS], None if low == 0 else int(rows[low - 1]))
    yield from writer.records(
        ConfigRecord(kind, name, key, value) for (kind, name, key), value in sorted(cluster.configs.items())
    )
    yield from writer.records(cluster.quotas.values())
    if cluster.next_producer_id:
        holder = next(iter(cluster.brokers.values()))
        yield from writer.records(
            [ProducerIdsRecord(holder.broker_id, holder.epoch, cluster.next_producer_id)]
        )
    yield writer.control(SnapshotFooterRecord())


def _partitions(writer: _Writer, cluster: Cluster, rows: Rows, last: int | None) -> bytes:
    """One batch of rows, with each topic's record before its first partition."""
    partitions, at = cluster.partitions, cluster.partitions.at
    topics = at.topic[rows]
    previous = -1 if last is None else int(at.topic[last])
    starts = np.flatnonzero(topics != np.concatenate([[previous], topics[:-1]]))
    is_start = np.zeros(len(rows), dtype=np.int64)
    is_start[starts] = 1
    places = np.arange(len(rows)) + np.cumsum(is_start)
    values = {}
    for start in starts.tolist():
        number = int(topics[start])
        record = TopicRecord(partitions.topic_names[number], partitions.topic_ids[number])
        values[int(places[start]) - 1] = encode(record, write_version(record, LEVEL))
    block = np.zeros((LISTS + 3 * WIDTH, len(rows)), dtype=np.int32)
    block[INDEX], block[LEADER] = at.index[rows], at.leader[rows]
    block[LEADER_EPOCH], block[PARTITION_EPOCH] = at.leader_epoch[rows], at.partition_epoch[rows]
    replicas, isr = at.replicas[rows], at.isr[rows]
    block[N_REPLICAS], block[N_ISR] = (replicas != NO_BROKER).sum(axis=1), isr.sum(axis=1)
    block[LISTS : LISTS + WIDTH] = replicas.T
    in_sync_first = np.argsort(~isr, axis=1, kind="stable")
    block[LISTS + 2 * WIDTH :] = np.take_along_axis(replicas, in_sync_first, axis=1).T
    words = np.zeros((max(cluster.brokers) + 1, len(cluster.brokers[1].directories), 2), dtype=np.uint64)
    for broker_id, broker in cluster.brokers.items():
        words[broker_id] = topic_words(list(broker.directories))
    directories = words[np.maximum(replicas, 0), at.directory[rows]]
    ids = topic_words(partitions.topic_ids)[topics]
    version = record_version_for(PartitionRecord, LEVEL)
    payload = encode_records(values, PartitionRowsToWrite(places, ids, block, WIDTH, directories), version)
    return writer.batch(payload, len(rows) + len(values))
