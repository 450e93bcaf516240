"""What is asked of a broker about partition data, and its answers, as values.

The shapes follow Kafka's messages of the same names; every service in front of the core (gRPC, another
protocol) translates to and from these. Topics are named by id (16 bytes): names are the service's business.
Offsets are exclusive ends where they end something. A request that fails as a whole is answered with an
`ApiError`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from metaquorum.metadata.access.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from metaquorum.metadata.requests.log_ends import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from metaquorum.storage.types import LogPosition

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
"""A time before that of any record, also of one without a time (-1)."""


class ProducePartition(Struct, frozen=True, kw_only=True):
    """`records`: one whole record batch (magic 2), as the producer made it; its base offset and leader epoch
    are the leader's to fill in. `guard`: what `BeginVerification` gave, once the coordinator has said that
    the partition is in the producer's transaction."""

    key: PartitionKey
    records: bytes
    guard: int | None = None


class ProduceRequest(Struct, frozen=True, kw_only=True):
    """Produce (key 0). `acks`: 0, 1 or -1 (all). `timeout_ms` bounds the wait for the others.
    `by_coordinator`: the batches are a coordinator's, which may write markers, and whose batches of a
    transaction have no sequences."""

    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]
    by_coordinator: bool = False


class RefusedRecord(msgspec.Struct, frozen=True):
    """A record for which its whole batch was refused (KIP-467); `index` counts from 0."""

    index: int
    message: str


class ProduceResult(Struct, frozen=True, kw_only=True):
    """`error` NONE: `base_offset` is that of the first record (of a duplicate: as it was stored first).
    Else -1. `leader`, `leader_epoch`: whom to ask instead, where it is known. `refused_records`: those that
    the error is about."""

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
    """A partition to which a producer is about to write in a transaction."""

    key: PartitionKey
    producer_id: int
    producer_epoch: int


class BeginVerification(Struct, frozen=True, kw_only=True):
    """Whether the first batch of a transaction may come to these partitions has to be asked of its
    coordinator, unless the transaction is under way there (KIP-890)."""

    partitions: tuple[TransactionalPartition, ...]


class VerificationGuard(Struct, frozen=True, kw_only=True):
    """`guard` None: nothing has to be asked. Else the batch is taken with this guard, unless a marker of the
    producer came in between."""

    key: PartitionKey
    guard: int | None = None


class VerificationBegun(Struct, frozen=True, kw_only=True):
    guards: tuple[VerificationGuard, ...]


class DescribeProducersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DescribeProducers (key 61)."""

    partitions: tuple[PartitionKey, ...]


class ActiveProducer(msgspec.Struct, frozen=True, kw_only=True):
    """`last_sequence` -1: of this epoch no batch is known. `open_from` -1: no transaction is under way."""

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
    """Where to read. `current_leader_epoch` -1: not known (a client may leave it out, a follower not).
    `last_fetched_epoch` -1: nothing fetched yet, or unknown; else divergence is looked for (KIP-595).
    A follower's `fetch_offset` says that it holds everything below it, durably (`log.flush.before.ack`)."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchRequest(Struct, frozen=True, kw_only=True):
    """Fetch (key 1) with sessions (KIP-227). `session_id` 0, `session_epoch` -1: no session, all partitions
    are named. `session_epoch` 0: begin one. Later epochs: `partitions` are those that changed, `forgotten`
    those that left, and the answer holds only partitions with something to say. A session belongs to one
    (follower, its local directory); `replica_epoch` is the follower's broker epoch (KIP-903).
    `read_committed`: a client reads up to the last stable offset, and hears of aborted transactions. `rack`:
    of a client that reads from followers, too ("": it names none); None: from leaders alone (KIP-392)."""

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
    """`records`: whole batches, the first of which holds the fetch offset. `diverging`: the caller must cut
    its log there first, and there are no records (KIP-595). `aborted`: (producer id, first offset) of the
    aborted transactions that may have records among these; None: not asked for. `preferred_read_replica`: the
    broker to read from instead (KIP-392), and there are no records."""

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
        """The reader is sent to another replica."""
        return self.preferred_read_replica >= 0


class FetchResponse(Struct, frozen=True, kw_only=True):
    """`session_id` 0: there is no session. A session that the broker does not know (any more) is answered
    with an ApiError (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH): begin a new one."""

    session_id: int
    partitions: tuple[FetchedPartition, ...]


class ListOffsetsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`timestamp_ms`: -1 the high watermark (or the last stable offset), -2 the log's start, -3 the record
    with the newest timestamp (KIP-734), -4 the start of what is on this broker's disk (KIP-405), -5 the end
    of what is in remote storage (KIP-1005), else the first record not older."""

    key: PartitionKey
    timestamp_ms: int
    current_leader_epoch: int = -1


class ListOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """ListOffsets (key 2). `read_committed`: nothing above the last stable offset counts. For a follower
    (`replica_id`) the latest offset is the log's end."""

    replica_id: int = CONSUMER
    partitions: tuple[ListOffsetsPartition, ...]
    read_committed: bool = False


class ListedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` -1 with `timestamp_ms` -1: no record is so young."""

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
    """InitProducerId (key 22) without transactions: a new producer id, whatever the producer had before (it
    raises its epoch by itself, KIP-360)."""


class InitProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DescribeLogDirs (key 35). `topic_ids` None: all."""

    topic_ids: tuple[bytes, ...] | None = None


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`lag`: offsets behind the high watermark that this replica knows. `future`: it is being copied from
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
    """`error` NONE: usable; KAFKA_STORAGE_ERROR: bad, for the reason in `message`. `directory_id` None: it
    could not be read. Sizes in bytes, -1 unknown. `replicas` of a bad directory are those that the metadata
    log says are there."""

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
    """An operator gives a directory up (S3.39): as if it had failed. Path, or the id."""

    path: str | None = None
    directory_id: bytes | None = None


class MarkLogDirOfflineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`was_offline`: it was bad before."""

    directory_id: bytes | None
    was_offline: bool


class CoordinatorRequest(Struct, frozen=True, kw_only=True):
    """A request to the coordinator that lives in partition `partition` of the internal topic `topic`. `body`
    is Kafka's message of version `version`, or the part of it that concerns this coordinator. `client_id` and
    `client_host` are stored with members of groups. `principal` is who asks."""

    topic: str
    partition: int
    body: Any
    version: int = 0
    client_id: str = ""
    client_host: str = ""
    principal: str = ANONYMOUS


class CoordinatorResponse(Struct, frozen=True, kw_only=True):
    """`body`: Kafka's message, or the part of it that the request was for."""

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
