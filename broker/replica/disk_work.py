"""The work that a broker's replicas give to their log directories, and the directories' reports, as values.

Work is named by (directory id, partition, `incarnation`). The manager gives a replica a new incarnation
whenever earlier work must no longer count (recreated, truncated, moved), and drops reports on older ones. A
directory carries out its work in the order given; its reports come in that order too. Reads may overtake. A
disk error is never a report on one work item: it is one `DirectoryFailed`, after which the directory reports
nothing more.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.cleaner.plan import CleanerSettings
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable


class ReplicaLog(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's log when it was opened: everything in it is durable. `end_offset` is exclusive;
    `high_watermark` comes from the checkpoint, is within the log and only bounds reads (KIP-101)."""

    start_offset: int = 0
    end_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    epochs: EpochTable = msgspec.field(default_factory=EpochTable)
    producers: ProducerTable = msgspec.field(default_factory=ProducerTable)


class FoundReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica in a directory, with the incarnation under which its log was opened. `future`: it is being
    copied from another directory of this broker."""

    key: PartitionKey
    topic: str
    incarnation: int
    log: ReplicaLog
    future: bool = False


# ---- reports ---------------------------------------------------------------------------------------


class ReplicaCreated(msgspec.Struct, frozen=True, kw_only=True):
    """The replica's directory and identity file are durable, and its log is open and empty."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int


class ReplicaPromoted(msgspec.Struct, frozen=True, kw_only=True):
    """The future replica now has the replica's name, and everything in it is durable."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    log: ReplicaLog


class LogAppended(Struct, frozen=True, kw_only=True):
    """Written, not yet durable. `end_offset` exclusive, `size_bytes` of the whole log."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    end_offset: int
    size_bytes: int


class LogsSynced(Struct, frozen=True, kw_only=True):
    """Durable parts of one directory: (partition, incarnation, exclusive end offset, bytes of the log)."""

    directory_id: bytes
    ends: tuple[tuple[PartitionKey, int, int, int], ...]


class LogCut(msgspec.Struct, frozen=True, kw_only=True):
    """The log was durably truncated (or emptied); holds what is left, with the producers' state rebuilt."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    log: ReplicaLog


class ReplicaLogTrimmed(msgspec.Struct, frozen=True, kw_only=True):
    """Retention, a cleaner or an operator made the log smaller; its start may have moved up."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    start_offset: int
    size_bytes: int


class ReplicaRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """The replica's directory was renamed away, durably (its files follow later)."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int


class PartitionRead(Struct, frozen=True, kw_only=True):
    """The answer to a `ReadPartition`: whole batches, or None where the log no longer holds the offset.
    `problem` (one line; `data` is then None): the bytes there are damaged; nothing may be concluded about the
    log's ends, and the reader must get KAFKA_STORAGE_ERROR with it."""

    token: int
    data: bytes | None
    problem: str | None = None


class OffsetFound(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `FindOffset`: the first record that is not older, below the bound; None if there is
    none. `problem`: as for `PartitionRead`."""

    token: int
    offset: int | None
    timestamp_ms: int
    leader_epoch: int
    problem: str | None = None


class DirectoryFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A directory returned an error, hangs, or was found unusable by the probe. `reason` is one line."""

    directory_id: bytes
    reason: str


class DirectoryMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """Free space in a good directory, reported now and then."""

    directory_id: bytes
    total_bytes: int
    usable_bytes: int


DiskReport = (
    ReplicaCreated
    | ReplicaPromoted
    | LogAppended
    | LogsSynced
    | LogCut
    | ReplicaLogTrimmed
    | ReplicaRemoved
    | PartitionRead
    | OffsetFound
    | DirectoryFailed
    | DirectoryMeasured
)

# ---- work ------------------------------------------------------------------------------------------


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration for its logs. Bytes and ms; -1: unlimited."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    retention_ms: int = 7 * 86_400_000
    file_delete_delay_ms: int = 60_000
    deletes: bool = True
    """False: `cleanup.policy` is compact alone, and retention removes nothing."""
    compacts: bool = False
    """`cleanup.policy` has compact."""
    cleaner: CleanerSettings = msgspec.field(default_factory=CleanerSettings)


class CreateReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Create the replica's directory, `<topic>-<partition>`, durably, and open its log: `ReplicaCreated`.
    `future`: it gets the name of a replica that is being copied, until `PromoteReplica`."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    topic: str
    settings: LogSettings
    future: bool = False


class PromoteReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Make everything in a future replica durable, and then give it the replica's name: `ReplicaPromoted`."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int


class AppendPartition(Struct, frozen=True, kw_only=True):
    """Append batches that were checked: `LogAppended`, then, with `sync`, a `LogsSynced` that covers it, or
    only the latter."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    batches: Batches
    sync: bool


class CutPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Truncate to `end_offset` (a batch that contains it is removed whole), under the new incarnation:
    `LogCut`. With `start_over` the log is emptied and starts at `end_offset`."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    end_offset: int
    start_over: bool = False


class RemoveReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Durably rename the replica's directory to `...-delete`: `ReplicaRemoved`; its files are deleted after
    the delay of its topic. `reason` is for the operator's log."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    reason: str


class ChangeLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    directory_id: bytes
    key: PartitionKey
    incarnation: int
    settings: LogSettings


class EnforceRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Remove old segments that end at or below `below_offset` (the high watermark) as the settings allow:
    `ReplicaLogTrimmed` if any were removed. `wall_ms`: the wall clock for the age of records' timestamps."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    below_offset: int
    wall_ms: int


class CompactPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Compact the log below `below_offset` (the last stable offset), if it is dirty enough and when its turn
    comes. A pass over it may report a `ReplicaLogTrimmed`, with another size and the same start."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    below_offset: int
    wall_ms: int


class TrimTo(Struct, frozen=True, kw_only=True):
    """A follower's log starts where its leader's starts; segments entirely below are removed:
    `ReplicaLogTrimmed`."""

    directory_id: bytes
    key: PartitionKey
    incarnation: int
    start_offset: int


class ReadPartition(Struct, frozen=True, kw_only=True):
    """Whole batches from the one that contains `from_offset`, none that begins at or above `to_offset`; at
    least one if there is one: `PartitionRead`."""

    token: int
    directory_id: bytes
    key: PartitionKey
    incarnation: int
    from_offset: int
    to_offset: int
    max_bytes: int


class FindOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The first record below `below_offset` that is not older than `timestamp_ms`, or with -3 than any other
    record of the log: `OffsetFound`."""

    token: int
    directory_id: bytes
    key: PartitionKey
    incarnation: int
    timestamp_ms: int
    below_offset: int


class CheckpointHighWatermarks(msgspec.Struct, frozen=True, kw_only=True):
    """Write a directory's `replication-offset-checkpoint` (Kafka's format): all replicas in it, by
    (topic, partition, high watermark)."""

    directory_id: bytes
    high_watermarks: tuple[tuple[str, int, int], ...]


class AbandonDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """No more work for a failed directory: close its files, keep its lock."""

    directory_id: bytes


DiskWork = (
    CreateReplica
    | PromoteReplica
    | AppendPartition
    | CutPartition
    | RemoveReplica
    | ChangeLogSettings
    | EnforceRetention
    | CompactPartition
    | TrimTo
    | ReadPartition
    | FindOffset
    | CheckpointHighWatermarks
    | AbandonDirectory
)


# What a start finds in a log directory.
# What becomes of a replica is decided in `placement`.


class DamagedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica in a good directory whose log is damaged: it is not open, and nothing in it was changed.
    `problem` names file and place."""

    key: PartitionKey
    topic: str
    problem: str
    size_bytes: int


class FoundDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A configured directory. `problem` None: good. `directory_id` None: it could not be read. A directory
    that fails while it is opened has its problem here and no replicas."""

    path: str
    directory_id: bytes | None
    replicas: tuple[FoundReplica, ...] = ()
    damaged: tuple[DamagedReplica, ...] = ()
    problem: str | None = None
    total_bytes: int = -1
    usable_bytes: int = -1
    ignores_case: bool = False
    """Two names that differ only in case are one file there, as on macOS and Windows."""
