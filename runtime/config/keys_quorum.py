"""The part of the table of keys about Raft and the metadata log on disk.

Owns these rows only; the whole table is `keys`. Defaults are those of `RaftConfig`. Does not have the
addresses of controllers (`keys`).
"""

from __future__ import annotations

from metaquorum.raft.config import RaftConfig
from metaquorum.runtime.config.key import CONTROLLER, MAX_LONG, MIB, Key, bytes_key, ms_key

_RAFT = RaftConfig()

QUORUM = (
    ms_key(
        "controller.quorum.election.timeout.ms",
        _RAFT.election_timeout_ms,
        "How long a candidate waits for votes, and a voter without a leader before its pre-vote; random, "
        "up to 1.5 times this.",
    ),
    ms_key(
        "controller.quorum.election.backoff.max.ms",
        _RAFT.election_backoff_max_ms,
        "Maximum wait after a lost election.",
    ),
    ms_key(
        "controller.quorum.fetch.timeout.ms",
        _RAFT.fetch_timeout_ms,
        "A follower that has not fetched for this long (random, up to 1.5 times this) stands for "
        "election. A leader without fetches from a majority for 1.5 times this resigns.",
    ),
    ms_key(
        "controller.quorum.request.timeout.ms",
        _RAFT.request_timeout_ms,
        "Timeout of a request between nodes.",
    ),
    ms_key(
        "controller.quorum.retry.backoff.ms",
        _RAFT.retry_backoff_ms,
        "Wait before a failed request is retried.",
    ),
    ms_key(
        "controller.quorum.retry.backoff.max.ms",
        _RAFT.retry_backoff_max_ms,
        "Maximum of `controller.quorum.retry.backoff.ms`, which doubles with every failure.",
        own=True,
    ),
    ms_key(
        "controller.quorum.fetch.max.wait.ms",
        _RAFT.fetch_max_wait_ms,
        "How long the leader holds a voter's fetch while there is nothing new.",
        own=True,
    ),
    ms_key(
        "controller.quorum.high.watermark.linger.ms",
        10,
        "How long a new high watermark waits for the next records before the leader sends it to voters.",
        minimum=0,
        maximum=1000,
        own=True,
    ),
    ms_key(
        "controller.quorum.observer.fetch.max.wait.ms",
        _RAFT.observer_fetch_max_wait_ms,
        "How long the leader holds a broker's fetch while there is nothing but NoOp records.",
        own=True,
    ),
    Key(
        "controller.quorum.lane.port",
        "int",
        0,
        "Port for Raft messages between controllers without gRPC. 0: any free port. -1: none. gRPC "
        "carries them if it cannot be reached.",
        minimum=-1,
        maximum=65_535,
        roles=(CONTROLLER,),
        own=True,
    ),
    bytes_key(
        "controller.quorum.fetch.max.bytes",
        _RAFT.fetch_max_bytes,
        "Maximum size of records in a fetch answer; at least one batch is sent.",
        minimum=1024,
        maximum=32 * MIB,
        own=True,
    ),
    bytes_key(
        "controller.quorum.fetch.snapshot.max.bytes",
        _RAFT.snapshot_chunk_bytes,
        "Chunk size of a snapshot fetch.",
        minimum=1024,
        maximum=32 * MIB,
        own=True,
    ),
)

METADATA_LOG = (
    bytes_key(
        "metadata.log.segment.bytes",
        1024 * MIB,
        "Size at which a new segment starts.",
        minimum=MIB,
    ),
    ms_key(
        "metadata.log.segment.ms",
        7 * 24 * 3_600_000,
        "Age at which a new segment starts.",
        maximum=MAX_LONG,
    ),
    Key(
        "metadata.max.retention.bytes",
        "int",
        100 * MIB,
        "Total size above which segments and snapshots that a newer snapshot covers are deleted. -1: no "
        "limit.",
        minimum=-1,
        maximum=MAX_LONG,
        unit="bytes",
    ),
    Key(
        "metadata.max.retention.ms",
        "int",
        7 * 24 * 3_600_000,
        "Age at which segments and snapshots that a newer snapshot covers are deleted. -1: no limit.",
        minimum=-1,
        maximum=MAX_LONG,
        unit="ms",
    ),
    ms_key(
        "metadata.max.idle.interval.ms",
        500,
        "Idle time after which the active controller writes a NoOp record. 0: never.",
        minimum=0,
        roles=(CONTROLLER,),
    ),
    Key(
        "metadata.log.causes.enable",
        "choice",
        "true",
        "Whether each batch begins with who or what caused it, for `log why`.",
        roles=(CONTROLLER,),
        choices=("false", "true"),
        own=True,
    ),
    bytes_key(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * MIB,
        "Bytes of records after which a snapshot is written.",
        minimum=1,
        maximum=MAX_LONG,
    ),
    ms_key(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "Maximum time between snapshots while records arrive. 0: no limit.",
        minimum=0,
        maximum=MAX_LONG,
    ),
)
