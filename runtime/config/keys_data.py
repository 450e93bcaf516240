"""The part of the table of keys about partition data on brokers: replicas, log directories, bounds.

Owns these rows only; the whole table is `keys`. Defaults are those of `ReplicaConfig`, which are Kafka's
where Kafka has the key. Does not have the keys that topics inherit (`keys_topics`).
"""

from __future__ import annotations

from functools import partial

from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.runtime.config.key import BROKER, MAX_DOUBLE, MAX_INT, MAX_LONG, MIB, Key, bytes_key, ms_key

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_REPLICA = ReplicaConfig(broker_id=0)
_ms = partial(ms_key, roles=(BROKER,))
_bytes = partial(bytes_key, roles=(BROKER,))
_count = partial(Key, minimum=1, roles=(BROKER,), own=True)

DATA = (
    Key(
        "log.flush.before.ack",
        "choice",
        "true",
        "Whether a replica counts towards `acks=all` only with what it has synced. `false`: as in Kafka, "
        "acknowledged records may be only in the page cache.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    _ms(
        "replica.lag.time.max.ms",
        _REPLICA.replica_lag_time_max_ms,
        "A follower that has not caught up for this long leaves the ISR.",
    ),
    _bytes(
        "log.tail.cache.max.bytes",
        _REPLICA.log_tail_cache_max_bytes,
        "Memory for recent appends to partitions that this broker leads. 0: none.",
        minimum=0,
        own=True,
    ),
    _bytes(
        "replica.fetch.max.bytes",
        _REPLICA.replica_fetch_max_bytes,
        "Maximum size per partition in a follower's fetch; at least one batch is sent.",
        minimum=1024,
        maximum=32 * MIB,
    ),
    _bytes(
        "replica.fetch.response.max.bytes",
        _REPLICA.replica_fetch_response_max_bytes,
        "Maximum size of a follower's fetch.",
        minimum=1024,
        maximum=32 * MIB,
    ),
    _bytes(
        "replica.fetch.min.bytes",
        _REPLICA.replica_fetch_min_bytes,
        "A leader holds a follower's fetch until it has this much, or until the maximum wait.",
        minimum=1,
    ),
    _ms(
        "replica.fetch.wait.max.ms",
        _REPLICA.replica_fetch_wait_max_ms,
        "Maximum wait of a follower's fetch while there is nothing new; below `replica.lag.time.max.ms`.",
    ),
    _ms(
        "replica.fetch.backoff.ms",
        _REPLICA.replica_fetch_backoff_ms,
        "Wait after a refused fetch of a partition.",
    ),
    _ms(
        "replica.socket.timeout.ms",
        _REPLICA.replica_request_timeout_ms,
        "Timeout of a fetch from a leader; above `replica.fetch.wait.max.ms`.",
    ),
    _ms(
        "replica.high.watermark.checkpoint.interval.ms",
        _REPLICA.replica_high_watermark_checkpoint_interval_ms,
        "Interval between checkpoints of high watermarks.",
    ),
    _ms(
        "log.retention.check.interval.ms",
        _REPLICA.log_retention_check_interval_ms,
        "Interval between searches for old segments.",
    ),
    Key(
        "log.cleaner.enable",
        "choice",
        "true",
        "Whether logs with `cleanup.policy=compact` are compacted.",
        roles=(BROKER,),
        choices=("false", "true"),
    ),
    Key(
        "log.cleaner.threads",
        "int",
        1,
        "Processes that compact logs, for all log directories.",
        minimum=0,
        maximum=64,
        roles=(BROKER,),
    ),
    _bytes(
        "log.cleaner.dedupe.buffer.size",
        128 * MIB,
        "Memory for the keys of dirty segments, for all cleaners.",
        minimum=MIB,
        maximum=MAX_LONG,
    ),
    Key(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        MAX_DOUBLE,
        "Maximum rate at which all cleaners read and write.",
        minimum=1,
        roles=(BROKER,),
    ),
    _ms(
        "log.cleaner.backoff.ms",
        _REPLICA.log_cleaner_backoff_ms,
        "Interval between searches for logs to compact.",
        minimum=0,
    ),
    _ms(
        "log.dir.failure.timeout.ms",
        _REPLICA.log_dir_assignment_timeout_ms,
        "A broker stops when it could not report a failed log directory for this long.",
    ),
    _ms(
        "log.dir.hang.timeout.ms",
        30_000,
        "A log directory fails when a disk call takes longer than this.",
        minimum=100,
        own=True,
    ),
    _ms(
        "log.dir.probe.interval.ms",
        1_000,
        "How often a probe file is created, synced, renamed and removed in every log directory.",
        minimum=50,
        maximum=60_000,
        own=True,
    ),
    _bytes(
        "fetch.max.bytes",
        _REPLICA.fetch_max_bytes,
        "Maximum size of a fetch answer; at least one batch is sent.",
        minimum=1024,
    ),
    _bytes(
        "socket.request.max.bytes",
        100 * MIB,
        "Maximum size of a request, and of the answer to a follower's fetch.",
        minimum=MIB,
    ),
    _ms(
        "connections.max.idle.ms",
        600_000,
        "A client's connection that is idle for this long is closed. -1: never.",
        also=(-1,),
    ),
    Key(
        "max.connections",
        "int",
        MAX_INT,
        "Maximum number of clients' connections; further ones are closed. Where brokers have a listener of "
        "their own, it takes them, and the least recently used one of another listener is closed. "
        "`listener.name.NAME.max.connections`: of one listener.",
        minimum=1,
        roles=(BROKER,),
    ),
    Key(
        "max.connections.per.ip",
        "int",
        MAX_INT,
        "Maximum number of clients' connections from one IP address; further ones are closed.",
        minimum=1,
        roles=(BROKER,),
    ),
    Key(
        "socket.listen.backlog.size",
        "int",
        50,
        "Clients' connections that wait to be accepted, per listener.",
        minimum=1,
        roles=(BROKER,),
    ),
    Key(
        "queued.max.request.bytes",
        "int",
        256 * MIB,
        "Maximum size of a listener's requests that are being received or under way: further ones are "
        "read when there is room. The same for produced records that wait for disks or followers; more "
        "are refused as retriable. -1, Kafka's default: no limit.",
        minimum=MIB,
        also=(-1,),
        maximum=MAX_LONG,
        unit="bytes",
        roles=(BROKER,),
    ),
    Key(
        "queued.max.response.bytes",
        "int",
        256 * MIB,
        "Maximum size of the answers of all connections that were read and have not been sent: beyond it "
        "clients' fetches return less, then wait. -1: no limit.",
        minimum=MIB,
        also=(-1,),
        maximum=MAX_LONG,
        unit="bytes",
        roles=(BROKER,),
        own=True,
    ),
    Key(
        "replica.selector.class",
        "choice",
        None,
        "Which replica consumers read from. Rack-aware: one in sync in `client.rack`, else the leader "
        "(KIP-392).",
        choices=(RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector"),
        roles=(BROKER,),
    ),
    Key(
        "max.incremental.fetch.session.cache.slots",
        "int",
        _REPLICA.max_incremental_fetch_session_cache_slots,
        "Maximum number of fetch sessions (KIP-227).",
        roles=(BROKER,),
    ),
    _ms(
        "producer.id.expiration.ms",
        _REPLICA.producer_id_expiration_ms,
        "A partition forgets a producer that wrote nothing for this long.",
        maximum=MAX_LONG,
    ),
    _count(
        "produce.purgatory.max.requests",
        "int",
        _REPLICA.produce_purgatory_max_requests,
        "Maximum number of waiting produce requests; more are refused as retriable.",
    ),
    _count(
        "fetch.purgatory.max.requests",
        "int",
        _REPLICA.fetch_purgatory_max_requests,
        "Maximum number of waiting fetches; more are answered at once.",
    ),
)
