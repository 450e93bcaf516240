"""The part of the table of keys that is about partition data on brokers: replicas, log directories, bounds.

Owns these rows only; the whole table is `config_keys`. Defaults are those of `ReplicaConfig`, which are
Kafka's where Kafka has the key.
"""

from __future__ import annotations

from functools import partial

from metaquorum.broker.replica.config import ReplicaConfig
from metaquorum.runtime.config.key import BROKER, MAX_LONG, MIB, Key, bytes_key, ms_key

_REPLICA = ReplicaConfig(broker_id=0)
_ms = partial(ms_key, roles=(BROKER,))
_bytes = partial(bytes_key, roles=(BROKER,))
_count = partial(Key, minimum=1, roles=(BROKER,), own=True)

DATA = (
    Key(
        "log.flush.before.ack",
        "choice",
        "true",
        "`true`: a replica counts towards `acks=all`, and a follower says that it has a record, only when it "
        "is on disk (synced); all partitions of a directory are synced together. `false` is what Kafka "
        "does: records that are acknowledged live in the page cache.",
        roles=(BROKER,),
        choices=("false", "true"),
        own=True,
    ),
    _ms(
        "replica.lag.time.max.ms",
        _REPLICA.replica_lag_time_max_ms,
        "A follower that has not been at its leader's end for so long leaves the ISR.",
    ),
    _bytes(
        "log.tail.cache.max.bytes",
        _REPLICA.log_tail_cache_max_bytes,
        "What was just appended to partitions that this broker leads is kept in memory for followers and "
        "readers at the end of the log, up to so much in all; 0: everything is read from the log.",
        minimum=0,
        own=True,
    ),
    _bytes(
        "replica.fetch.max.bytes",
        _REPLICA.replica_fetch_max_bytes,
        "How much a follower asks for of one partition; one whole batch is always sent.",
        minimum=1024,
        maximum=32 * MIB,
    ),
    _bytes(
        "replica.fetch.response.max.bytes",
        _REPLICA.replica_fetch_response_max_bytes,
        "How much a follower asks for in one fetch.",
        minimum=1024,
        maximum=32 * MIB,
    ),
    _bytes(
        "replica.fetch.min.bytes",
        _REPLICA.replica_fetch_min_bytes,
        "A leader holds a follower's fetch until it has so much for it, or the longest wait is over.",
        minimum=1,
    ),
    _ms(
        "replica.fetch.wait.max.ms",
        _REPLICA.replica_fetch_wait_max_ms,
        "How long a leader holds a follower's fetch that finds nothing new; below `replica.lag.time.max.ms`.",
    ),
    _ms(
        "replica.fetch.backoff.ms",
        _REPLICA.replica_fetch_backoff_ms,
        "How long a follower leaves a partition alone whose fetch was refused.",
    ),
    _ms(
        "replica.socket.timeout.ms",
        _REPLICA.replica_request_timeout_ms,
        "How long a fetch from a leader may take; above `replica.fetch.wait.max.ms`.",
    ),
    _ms(
        "replica.high.watermark.checkpoint.interval.ms",
        _REPLICA.replica_high_watermark_checkpoint_interval_ms,
        "How often high watermarks are written down. They only bound reads after a restart.",
    ),
    _ms(
        "log.retention.check.interval.ms",
        _REPLICA.log_retention_check_interval_ms,
        "How often old segments are looked for.",
    ),
    _ms(
        "log.dir.failure.timeout.ms",
        _REPLICA.log_dir_assignment_timeout_ms,
        "A broker stops when it could not tell the controller for so long what a failed log directory means "
        "for its replicas.",
    ),
    _ms(
        "log.dir.hang.timeout.ms",
        30_000,
        "A log directory in which one call to the disk takes longer counts as failed: a disk that hangs "
        "reports no error.",
        minimum=100,
        own=True,
    ),
    _ms(
        "log.dir.probe.interval.ms",
        1_000,
        "How often a file is created, synced, renamed and removed in every log directory: open files do not "
        "feel that a directory was taken away or lost its permissions.",
        minimum=50,
        maximum=60_000,
        own=True,
    ),
    _bytes(
        "fetch.max.bytes",
        _REPLICA.fetch_max_bytes,
        "The most that one fetch is answered with; one whole batch is always sent.",
        minimum=1024,
    ),
    _bytes(
        "socket.request.max.bytes",
        100 * MIB,
        "The largest message that a broker takes or sends over gRPC.",
        minimum=MIB,
    ),
    Key(
        "queued.max.request.bytes",
        "int",
        256 * MIB,
        "Records of producers that a broker holds at once, waiting for disks or followers; a producer that "
        "finds it full is told to come back. -1, Kafka's default: no bound but that of requests at once.",
        minimum=MIB,
        also=(-1,),
        maximum=MAX_LONG,
        unit="bytes",
        roles=(BROKER,),
    ),
    Key(
        "max.incremental.fetch.session.cache.slots",
        "int",
        _REPLICA.max_incremental_fetch_session_cache_slots,
        "How many fetch sessions a broker keeps (KIP-227).",
        roles=(BROKER,),
    ),
    _ms(
        "producer.id.expiration.ms",
        _REPLICA.producer_id_expiration_ms,
        "A producer that wrote nothing to a partition for so long is forgotten there.",
        maximum=MAX_LONG,
    ),
    _count(
        "produce.purgatory.max.requests",
        "int",
        _REPLICA.produce_purgatory_max_requests,
        "Produce requests that wait for followers at once; more are told to come back.",
    ),
    _count(
        "fetch.purgatory.max.requests",
        "int",
        _REPLICA.fetch_purgatory_max_requests,
        "Fetches that wait for records at once; more are answered at once.",
    ),
)
