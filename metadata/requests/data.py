"""Requests to a broker about partition data, and the responses, as values.

They follow Kafka's messages of the same names; every service in front of the core (gRPC, another protocol)
translates to and from these. Offsets that end something are exclusive. A request that fails as a whole is
answered with an `ApiError`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.types import LogPosition

# Requests about the ends of logs: deleting records at the start, and where epochs end.
# A `key` is (topic id, partition index).

TO_HIGH_WATERMARK = -1
"""`DeleteRecordsPartition.offset`: everything that clients may read."""


class DeleteRecordsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes everything below `offset`."""

    key: tuple[bytes, int]
    offset: int


class DeleteRecordsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DeleteRecords (key 21), to leaders."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


class DeletedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """`low_watermark`: no in-sync replica holds records below it."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    low_watermark: int = -1


class DeleteRecordsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[DeletedRecords, ...]


class EpochPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Requests the end of `leader_epoch`. `current_leader_epoch` -1: unknown."""

    key: tuple[bytes, int]
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """OffsetForLeaderEpoch (key 23), to leaders."""

    partitions: tuple[EpochPartition, ...]


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The largest epoch not above the requested one, and where it ends; -1 if the log has none."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[EpochEnd, ...]


# Moving replicas between the log directories of a broker (KIP-113), as values.


class WantedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The directory that the receiving broker should keep a replica in, whether the replica
    exists yet or not."""

    path: str
    topic: str
    partition: int


class AlterReplicaLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """AlterReplicaLogDirs (key 34)."""

    wanted: tuple[WantedDirectory, ...]


class AlterReplicaLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each replica, in the order of the request."""

    errors: tuple[ErrorCode, ...]


PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""

CONSUMER = -1
"""`replica_id` of a client."""

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
NEWEST_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
BEFORE_ALL = -99
"""A time before that of any record, even one without a time (-1)."""


class ProducePartition(Struct, frozen=True, kw_only=True):
    """`batch`: as the producer built it, parsed and not checked (`Batches.arrived`); the leader sets its base
    offset and leader epoch. `guard`: the value from `BeginVerification`, once the coordinator has confirmed
    that the partition is in the producer's transaction. `opened`: what the leader's checks of the records
    found (`replica.partition.validation.OpenedEarlier`), if they ran before."""

    key: PartitionKey
    batch: Batches
    guard: int | None = None
    opened: Any = None


class ProduceRequest(Struct, frozen=True, kw_only=True):
    """Produce (key 0). `acks`: 0, 1 or -1 (all). `timeout_ms` bounds the wait for the other replicas.
    `by_coordinator`: the batches are from a coordinator, which may write markers, and whose batches in a
    transaction have no sequences."""

    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]
    by_coordinator: bool = False


class RefusedRecord(msgspec.Struct, frozen=True):
    """A record that caused its whole batch to be refused (KIP-467); `index` counts from 0."""

    index: int
    message: str


class ProduceResult(Struct, frozen=True, kw_only=True):
    """If `error` is NONE, `base_offset` is that of the first record (for a duplicate: as first stored),
    otherwise -1. `leader`, `leader_epoch`: the broker to use instead, if known. `refused_records`: the
    records that caused the error."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    leader: int | None = None
    leader_epoch: int = -1
    refused_records: tuple[RefusedRecord, ...] = ()


class ProduceResponse(Struct, frozen=True, kw_only=True):
    results: tuple[ProduceResult, ...]


class TransactionalPartition(Struct, frozen=True, kw_only=True):
    """A partition that a producer is about to write to in a transaction."""

    key: PartitionKey
    producer_id: int
    producer_epoch: int


class BeginVerification(Struct, frozen=True, kw_only=True):
    """Requests guards for the first batches of a transaction to these partitions: the coordinator must
    confirm each partition unless the transaction is already ongoing there (KIP-890)."""

    partitions: tuple[TransactionalPartition, ...]


NOT_LED = 0
"""The guard of a partition that this broker did not lead: no batch is accepted with it."""


class VerificationGuard(Struct, frozen=True, kw_only=True):
    """If `guard` is None, no confirmation is needed. Otherwise the batch is accepted with this guard, unless
    a marker for the producer was written in between, or another leader may have written one."""

    key: PartitionKey
    guard: int | None = None


class VerificationBegun(Struct, frozen=True, kw_only=True):
    guards: tuple[VerificationGuard, ...]


class DescribeProducersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DescribeProducers (key 61)."""

    partitions: tuple[PartitionKey, ...]


class ActiveProducer(msgspec.Struct, frozen=True, kw_only=True):
    """`last_sequence` -1: no batch of this epoch is known. `open_from` -1: no transaction is ongoing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_from: int


class DescribedProducers(msgspec.Struct, frozen=True, kw_only=True):
    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    producers: tuple[ActiveProducer, ...] = ()


class DescribeProducersResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[DescribedProducers, ...]


class FetchPartition(Struct, frozen=True, kw_only=True):
    """Where to read. `current_leader_epoch` -1: unknown (a client may leave it out, a follower may not).
    `last_fetched_epoch` -1: nothing fetched yet, or unknown; otherwise the leader checks for divergence
    (KIP-595). A follower's `fetch_offset` states that it holds everything below it, durably
    (`log.flush.before.ack`)."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchRequest(Struct, frozen=True, kw_only=True):
    """Fetch (key 1) with sessions (KIP-227).

    `session_id` 0, `session_epoch` -1: no session, all partitions are listed. `session_epoch` 0: begin a
    session. Later epochs: `partitions` are those that changed and `forgotten` those removed, and the response
    has only partitions with news. A session belongs to one (follower, its local directory). `replica_epoch`
    is the follower's broker epoch (KIP-903). `read_committed`: the client reads up to the last stable offset
    and receives aborted transactions. `rack` is that of a client that also reads from followers ("": it has
    none); None: from leaders only (KIP-392)."""

    replica_id: int = CONSUMER
    replica_epoch: int = -1
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int = 0
    session_epoch: int = -1
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[PartitionKey, ...] = ()
    read_committed: bool = False
    rack: str | None = None


class FetchedPartition(Struct, frozen=True, kw_only=True):
    """`records`: whole batches, the first of which holds the fetch offset. `diverging`: the caller must
    truncate its log there first, and there are no records (KIP-595). `aborted`: (producer id, first offset)
    of the aborted transactions that may have records among these; None if not requested.
    `preferred_read_replica`: the broker to read from instead (KIP-392); there are no records."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: LogPosition | None = None
    leader: int | None = None
    leader_epoch: int = -1
    last_stable_offset: int = -1
    aborted: tuple[tuple[int, int], ...] | None = None
    preferred_read_replica: int = -1
    records: bytes = b""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the reader is sent to another replica."""
        return self.preferred_read_replica >= 0


class FetchResponse(Struct, frozen=True, kw_only=True):
    """`session_id` 0: there is no session. If the broker does not know (or no longer knows) a session, the
    response is an ApiError (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH): begin a new one."""

    session_id: int
    partitions: tuple[FetchedPartition, ...]


class ListOffsetsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`timestamp_ms`: -1 the high watermark (or the last stable offset), -2 the log's start, -3 the record
    with the newest timestamp (KIP-734), -4 the start of what is on this broker's disk (KIP-405), -5 the end
    of what is in remote storage (KIP-1005), else the first record that is not older."""

    key: PartitionKey
    timestamp_ms: int
    current_leader_epoch: int = -1


class ListOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """ListOffsets (key 2). `read_committed`: ignore everything above the last stable offset. For a follower
    (`replica_id`) the latest offset is the log's end."""

    replica_id: int = CONSUMER
    partitions: tuple[ListOffsetsPartition, ...]
    read_committed: bool = False


class ListedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` -1 with `timestamp_ms` -1: no record is that recent."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    leader: int | None = None


class ListOffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[ListedOffset, ...]


class InitProducerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """InitProducerId (key 22) without transactions: always a new producer id (a producer raises its epoch
    by itself, KIP-360)."""


class InitProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DescribeLogDirs (key 35). `topic_ids` None: all."""

    topic_ids: tuple[bytes, ...] | None = None


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`lag`: offsets behind the high watermark known to this replica. `future`: it is being copied from
    another directory, and its lag is what is not copied yet."""

    key: PartitionKey
    topic: str
    size_bytes: int
    start_offset: int
    end_offset: int
    high_watermark: int
    lag: int
    future: bool


class LogDirDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`error` NONE: usable; KAFKA_STORAGE_ERROR: offline, for the reason in `message`. `directory_id` is None
    if it could not be read. Sizes are in bytes, -1 if unknown. `replicas` of an offline directory are those
    that the metadata log assigns to it."""

    path: str
    directory_id: bytes | None
    error: ErrorCode
    message: str | None
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaDescription, ...]


class DescribeLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    directories: tuple[LogDirDescription, ...]


class MarkLogDirOfflineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator declares a directory offline (S3.39), as if it had failed. Path or id."""

    path: str | None = None
    directory_id: bytes | None = None


class MarkLogDirOfflineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`was_offline`: it was offline before."""

    directory_id: bytes | None
    was_offline: bool


class CoordinatorRequest(Struct, frozen=True, kw_only=True):
    """A request to the coordinator in partition `partition` of the internal topic `topic`. `body` is Kafka's
    message of version `version`, or the part of it for this coordinator. `client_id` and `client_host` are
    stored with group members. `principal` is the client's."""

    topic: str
    partition: int
    body: Any
    version: int = 0
    client_id: str = ""
    client_host: str = ""
    principal: str = ANONYMOUS


class CoordinatorResponse(Struct, frozen=True, kw_only=True):
    """`body`: Kafka's message, or the part of it that was requested."""

    body: Any


DataRequest = (
    ProduceRequest
    | BeginVerification
    | DescribeProducersRequest
    | FetchRequest
    | ListOffsetsRequest
    | DeleteRecordsRequest
    | OffsetForLeaderEpochRequest
    | InitProducerIdRequest
    | DescribeLogDirsRequest
    | AlterReplicaLogDirsRequest
    | MarkLogDirOfflineRequest
    | CoordinatorRequest
)
DataResponse = (
    ProduceResponse
    | VerificationBegun
    | DescribeProducersResponse
    | FetchResponse
    | ListOffsetsResponse
    | DeleteRecordsResponse
    | OffsetForLeaderEpochResponse
    | InitProducerIdResponse
    | DescribeLogDirsResponse
    | AlterReplicaLogDirsResponse
    | MarkLogDirOfflineResponse
    | CoordinatorResponse
)
