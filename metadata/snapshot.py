"""An image as a snapshot (KIP-630) and back: the batches of a `.checkpoint` file.

Partitions are encoded in columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from metaquorum.metadata.columnar.encode import LONGEST_LIST, PartitionRowsToWrite, encode_records
from metaquorum.metadata.errors import RecordDecodeError, ReplayError, UnsupportedVersionError
from metaquorum.metadata.features import MIN_FINALIZED_METADATA_VERSION, record_version_for, write_version
from metaquorum.metadata.image import (
    METADATA_VERSION,
    MIGRATING,
    BrokerRegistration,
    ControllerRegistration,
    MetadataImage,
    PartitionInfo,
    Provenance,
    TopicsImage,
    quota_sort_key,
)
from metaquorum.metadata.image.chunk import FLAGS, LISTS, N_ISR, N_REPLICAS, PADDING, RowArray, TopicEntry
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.records.codec import decode_control, encode, encode_control
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    ControllerRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    Record,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.replay import ErrorHandler, Replayer
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch, encode_batch, iter_batches, seal_batch
from metaquorum.storage.types import LogPosition

BATCH_RECORDS = 4096
"""Maximum number of records in a batch of a snapshot, and the amount of work between two slices."""
BATCH_BYTES = 1 << 20
"""A batch is closed at this size, well below the maximum of 8 MiB."""

_NO_SEQUENCE = -1
_MAGIC = 2

QuorumRecord: TypeAlias = KRaftVersionRecord | VotersRecord
"""The quorum's records in a snapshot."""


class SnapshotLoadError(ReplayError):
    """A snapshot that is incomplete, or contains what no snapshot may contain."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, None, reason)

    def __str__(self) -> str:
        return f"snapshot, record {self.offset}: {self.reason}; delete the file and fetch the snapshot again"


def snapshot_batches(
    image: MetadataImage,
    *,
    position: LogPosition,
    timestamp_ms: int | None = None,
    metadata_version: int | None = None,
    quorum: Sequence[QuorumRecord] = (),
) -> Iterator[bytes]:
    """The content of the snapshot of `image`, batch by batch; joined, they are the file.

    `position` is the snapshot's identity: its end offset, and the epoch of the record before it.
    `timestamp_ms` is the time of the last record inside (None: the image's); `metadata_version` is the level
    to write at (None: the image's). `quorum` is the finalized kraft.version and the voter set at that offset,
    from kraft.version 1 on: they follow the header, in its batch (KIP-853). Raises UnsupportedVersionError if
    the image holds something that the level cannot express.
    """
    level = image.features.metadata_version if metadata_version is None else metadata_version
    time = image.provenance.timestamp_ms if timestamp_ms is None else timestamp_ms
    writer = _Writer(position.epoch, max(time, 0))
    yield writer.control(SnapshotHeaderRecord(max(time, 0)), *quorum)
    yield from writer.plain(_encoded(records_before_topics(image, level), level))
    yield from _topic_batches(writer, image.topics, level)
    yield from writer.plain(_encoded(records_after_topics(image), level))
    yield writer.control(SnapshotFooterRecord())


def _encoded(records: Iterable[Any], level: int) -> Iterator[bytes]:
    for record in records:
        yield encode(record, write_version(record, level))


class _Writer:
    """Counts offsets from 0 and seals batches."""

    def __init__(self, epoch: int, timestamp_ms: int) -> None:
        self._epoch = epoch
        self._timestamp_ms = timestamp_ms
        self._offset = 0

    def control(self, *records: SnapshotHeaderRecord | SnapshotFooterRecord | QuorumRecord) -> bytes:
        keys, values = zip(*map(encode_control, records), strict=True)
        return self._batch(list(values), keys=list(keys))

    def _batch(self, values: list[bytes], keys: list[bytes] | None = None) -> bytes:
        batch = encode_batch(
            base_offset=self._offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._timestamp_ms,
            values=values,
            keys=keys,
            is_control=keys is not None,
        )
        self._offset += len(values)
        return batch

    def plain(self, values: Iterable[bytes]) -> Iterator[bytes]:
        pending: list[bytes] = []
        size = 0
        for value in values:
            if pending and (len(pending) == BATCH_RECORDS or size + len(value) > BATCH_BYTES):
                yield self._batch(pending)
                pending, size = [], 0
            pending.append(value)
            size += len(value)
        if pending:
            yield self._batch(pending)

    def raw(self, payload: bytes, count: int) -> bytes:
        header = BatchHeader(
            base_offset=self._offset,
            batch_length=0,
            leader_epoch=self._epoch,
            magic=_MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=count - 1,
            base_timestamp_ms=self._timestamp_ms,
            max_timestamp_ms=self._timestamp_ms,
            producer_id=_NO_SEQUENCE,
            producer_epoch=_NO_SEQUENCE,
            base_sequence=_NO_SEQUENCE,
            records_count=count,
        )
        self._offset += count
        return seal_batch(header, payload)


class _Part(NamedTuple):
    """A topic's rows for one batch; with `starts`, its TopicRecord precedes them."""

    entry: TopicEntry
    rows: RowArray
    starts: bool


def _topic_batches(writer: _Writer, topics: TopicsImage, level: int) -> Iterator[bytes]:
    encoder = _TopicEncoder(topics, level)
    pending: list[_Part] = []
    records = size = 0
    for _, topic_id in topics.by_name.items_sorted():
        for part, part_bytes in encoder.parts(topics.by_id[topic_id]):
            count = len(part.rows) + part.starts
            if pending and (records + count > BATCH_RECORDS or size + part_bytes > BATCH_BYTES):
                yield writer.raw(*encoder.payload(pending))
                pending, records, size = [], 0, 0
            pending.append(part)
            records += count
            size += part_bytes
    if pending:
        yield writer.raw(*encoder.payload(pending))


class _TopicEncoder:
    def __init__(self, topics: TopicsImage, level: int) -> None:
        self._topics = topics
        self._columns = topics.columns
        self._topic_version = record_version_for(TopicRecord, level)
        self._version = record_version_for(PartitionRecord, level)
        self._words = self._columns.directories.id_words()

    def parts(self, entry: TopicEntry) -> Iterator[tuple[_Part, int]]:
        """A topic's rows in pieces that fit into a batch, each with its approximate size in bytes."""
        rows = entry.rows()
        per_row = 64
        if len(rows):
            per_row += 20 * int(self._columns.gather(N_REPLICAS, rows).max())
            per_row += 4 * int(self._columns.gather(N_ISR, rows).max())
        piece = max(1, min(BATCH_RECORDS - 1, BATCH_BYTES // per_row))
        for low in range(0, max(1, len(rows)), piece):
            part = rows[low : low + piece]
            yield _Part(entry, part, low == 0), per_row * len(part) + 300

    def payload(self, parts: list[_Part]) -> tuple[bytes, int]:
        """(records section, number of records) of one batch."""
        rows = np.concatenate([part.rows for part in parts])
        values: dict[int, bytes] = {}
        places = np.empty(len(rows), dtype=np.int64)
        topic_ids = []
        count = done = 0
        for entry, own, starts in parts:
            if starts:
                record = TopicRecord(entry.info.name, entry.info.topic_id)
                values[count] = encode(record, self._topic_version)
                count += 1
            places[done : done + len(own)] = np.arange(count, count + len(own))
            topic_ids.append(entry.info.topic_id)
            count += len(own)
            done += len(own)
        words = np.frombuffer(b"".join(topic_ids), dtype=np.uint64).reshape(-1, 2)
        topics = np.repeat(words, [len(part.rows) for part in parts], axis=0)
        return self._encode(rows, places, topics, values), count

    def _encode(self, rows: RowArray, places: Any, topics: Any, values: dict[int, bytes]) -> bytes:
        chunks = [chunk for chunk, _, _ in self._columns.by_chunk(rows)]
        width = max((chunk.replica_width for chunk in chunks), default=0)
        isr_width = max((chunk.isr_width for chunk in chunks), default=0)
        block = rows_block(self._columns, rows, width, isr_width)
        codes = block[LISTS + width : LISTS + 2 * width]
        odd = (block[FLAGS] != 0) | (block[N_REPLICAS] > LONGEST_LIST) | (block[N_ISR] > LONGEST_LIST)
        if not self._version:
            # Version 0 has no directories; the per-record encoder refuses those that would be lost.
            odd |= ((codes != PADDING) & (codes != self._columns.directories.code(MIGRATING))).any(axis=0)
        for at in np.flatnonzero(odd).tolist():
            partition = self._topics.at(int(rows[at]))
            values[int(places[at])] = encode(partition_record(partition, self._version), self._version)
        usual = ~odd
        directories = self._words[np.maximum(codes, 0).T]
        return encode_records(
            values,
            PartitionRowsToWrite(places[usual], topics[usual], block[:, usual], width, directories[usual]),
            self._version,
        )


def partition_record(partition: PartitionInfo, version: int) -> PartitionRecord:
    """The record with a partition's whole state. Raises UnsupportedVersionError if
    `version` cannot express it."""
    unplaced = all(directory == MIGRATING for directory in partition.directories)
    if version == 0 and not unplaced:
        raise UnsupportedVersionError(
            f"partition {partition.index} has directories, which PartitionRecord v0 cannot record; write "
            "the snapshot at metadata.version 3.7-IV2 or later"
        )
    return PartitionRecord(
        partition.index,
        partition.topic_id,
        partition.replicas,
        partition.isr,
        partition.removing,
        partition.adding,
        partition.leader,
        partition.leader_recovery_state,
        partition.leader_epoch,
        partition.partition_epoch,
        () if version == 0 else partition.directories,
        partition.elr or None,
        partition.last_known_elr or None,
    )


def load_snapshot(
    batches: Iterable[RecordBatch | bytes],
    *,
    position: LogPosition,
    on_error: ErrorHandler | None = None,
    use_columns: bool = True,
) -> MetadataImage:
    """The image in a snapshot that is named for `position`.

    `batches` are record batches, or bytes that hold whole ones. Raises SnapshotLoadError if the header or
    footer is missing or something follows the footer, ReplayError for a record that does not fit (or calls
    `on_error` and skips it), CorruptLogError for damaged bytes.
    """
    engine = _SnapshotReplayer(on_error=on_error, use_columns=use_columns)
    header: SnapshotHeaderRecord | None = None
    footer = False
    for batch in _batches(batches):
        if footer:
            raise SnapshotLoadError(batch.header.base_offset, "records follow the snapshot's footer")
        if batch.header.is_control:
            for raw in batch.records():
                try:
                    record = decode_control(raw.key, raw.value)
                except RecordDecodeError as error:
                    raise SnapshotLoadError(raw.offset, str(error)) from error
                if isinstance(record, SnapshotHeaderRecord):
                    header = record
                footer = footer or isinstance(record, SnapshotFooterRecord)
        if header is None:
            raise SnapshotLoadError(batch.header.base_offset, "the first record is not a snapshot header")
        engine.apply_batch(batch)
    if header is None or not footer:
        raise SnapshotLoadError(engine.end_offset, "the snapshot ends without its footer")
    builder = engine.builder
    for broker_id in builder.brokers:
        builder.note_registration(broker_id, position.offset - 1)
    provenance = Provenance(position.offset, position.epoch, header.last_contained_log_timestamp)
    return engine.state().image.with_provenance(provenance)


class _SnapshotReplayer(Replayer):
    __slots__ = ()

    def apply(self, record: object, offset: int, epoch: int, timestamp_ms: int) -> None:
        if isinstance(record, BeginTransactionRecord | EndTransactionRecord | AbortTransactionRecord):
            self.refuse(SnapshotLoadError(offset, "a snapshot must not hold transaction markers"))
            return
        super().apply(record, offset, epoch, timestamp_ms)


def _batches(given: Iterable[RecordBatch | bytes]) -> Iterator[RecordBatch]:
    for item in given:
        if isinstance(item, RecordBatch):
            yield item
        else:
            yield from iter_batches(item, file="<snapshot>")


_ZK_MIGRATION_LEVEL = 8
"""3.4-IV0: from this level on, a snapshot has the state of the ZooKeeper migration (KIP-866)."""
_NO_ZK_LEVEL = 22
"""4.0-IV0: from this level on, Kafka has no ZooKeeper, and its snapshots lack the migration's state."""


def records_before_topics(image: MetadataImage, level: int) -> Iterator[Record]:
    """Feature levels (metadata.version first: it determines how to read the rest), brokers, controllers."""
    features = image.features
    if level >= MIN_FINALIZED_METADATA_VERSION:
        yield FeatureLevelRecord(METADATA_VERSION, level)
    for name in sorted(features.finalized):
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name, features.finalized[name])
    if _ZK_MIGRATION_LEVEL <= level < _NO_ZK_LEVEL or features.zk_migration_state:
        yield ZkMigrationStateRecord(features.zk_migration_state)
    for registration in image.brokers.values():
        yield broker_record(registration)
    for controller_id in sorted(image.controllers):
        yield controller_record(image.controllers[controller_id])


def broker_record(registration: BrokerRegistration) -> BrokerRecord:
    """The record with a whole registration."""
    return BrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=registration.epoch,
        end_points=tuple(
            BrokerEndpoint(at.name, at.host, at.port, at.security_protocol) for at in registration.endpoints
        ),
        features=tuple(
            BrokerFeature(at.name, at.min_supported_version, at.max_supported_version)
            for at in registration.features
        ),
        rack=registration.rack,
        fenced=registration.fenced,
        in_controlled_shutdown=registration.in_controlled_shutdown,
        is_migrating_zk_broker=registration.is_migrating_zk_broker,
        log_dirs=registration.directories,
    )


def controller_record(registration: ControllerRegistration) -> ControllerRecord:
    """The record with a controller's whole registration."""
    return ControllerRecord(
        controller_id=registration.controller_id,
        incarnation_id=registration.incarnation_id,
        zk_migration_ready=registration.zk_migration_ready,
        end_points=tuple(
            ControllerEndpoint(at.name, at.host, at.port, at.security_protocol)
            for at in registration.endpoints
        ),
        features=tuple(
            ControllerFeature(at.name, at.min_supported_version, at.max_supported_version)
            for at in registration.features
        ),
    )


def records_after_topics(image: MetadataImage) -> Iterator[Record]:
    """Configs, quotas, the next producer id, ACLs, SCRAM credentials, delegation tokens."""
    for resource, entries in image.configs.items_sorted():
        for name in sorted(entries):
            yield ConfigRecord(resource.resource_type, resource.name, name, entries[name])
    for entity, quotas in image.quotas.items_sorted(quota_sort_key):
        for key in sorted(quotas):
            yield ClientQuotaRecord(
                tuple(QuotaEntity(kind, name) for kind, name in entity), key, quotas[key], False
            )
    if image.producer_ids.next_producer_id >= 0:
        yield ProducerIdsRecord(-1, -1, image.producer_ids.next_producer_id)
    for acl_id, acl in image.acls.items_sorted():
        yield AccessControlEntryRecord(
            acl_id,
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
    for (mechanism, user), credential in image.scram.items_sorted():
        yield UserScramCredentialRecord(
            user,
            mechanism,
            credential.salt,
            credential.stored_key,
            credential.server_key,
            credential.iterations,
        )
    for _, token in image.delegation_tokens.items_sorted():
        yield DelegationTokenRecord(
            token.owner,
            token.requester,
            token.renewers,
            token.issue_timestamp_ms,
            token.max_timestamp_ms,
            token.expiration_timestamp_ms,
            token.token_id,
        )
