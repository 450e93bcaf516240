"""The part of the table of keys about a broker's data: replicas, groups, transactions, internal topics.

Rows without a text are `metadata.settings.broker_keys`', which topics and resources share.
"""

from __future__ import annotations

from metaquorum.metadata.node_configs import CoordinatorConfig, GroupConfig, ReplicaConfig, TransactionConfig
from metaquorum.metadata.settings.broker_keys import SHARED_KEYS
from metaquorum.metadata.settings.keys import BROKER, MAX_LONG, MIB, Key, flag, number, rows_of, words
from metaquorum.metadata.settings.resource_keys import GroupBounds
from metaquorum.metadata.settings.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_replicas = rows_of(ReplicaConfig, BROKER)
_groups = rows_of(GroupConfig, BROKER)
_transactions = rows_of(TransactionConfig, BROKER)
_coordinators = rows_of(CoordinatorConfig, BROKER)
_bounds = rows_of(GroupBounds)

DATA = (
    _replicas(
        "log.flush.before.ack",
        "Whether a replica counts towards `acks=all` only with what it has synced. `false`: as in "
        "Kafka, acknowledged records may be only in the page cache.",
        own=True,
    ),
    _replicas("replica.lag.time.max.ms", "A follower that has not caught up for this long leaves the ISR."),
    _replicas(
        "log.tail.cache.max.bytes",
        "Memory for recent appends to partitions that this broker leads. 0: none.",
        minimum=0,
        own=True,
    ),
    _replicas(
        "replica.fetch.max.bytes",
        "Maximum size per partition in a follower's fetch; at least one batch is sent.",
        minimum=1_024,
        maximum=32 * MIB,
    ),
    _replicas(
        "replica.fetch.response.max.bytes",
        "Maximum size of a follower's fetch.",
        minimum=1_024,
        maximum=32 * MIB,
    ),
    _replicas(
        "replica.fetch.min.bytes",
        "A leader holds a follower's fetch until it has this much, or until the maximum wait.",
    ),
    _replicas(
        "replica.fetch.wait.max.ms",
        "Maximum wait of a follower's fetch while there is nothing new; below `replica.lag.time.max.ms`.",
    ),
    _replicas("replica.fetch.backoff.ms", "Wait after a refused fetch of a partition."),
    _replicas(
        "replica.socket.timeout.ms",
        "Timeout of a fetch from a leader; above `replica.fetch.wait.max.ms`.",
        field="replica_request_timeout_ms",
    ),
    _replicas(
        "replica.high.watermark.checkpoint.interval.ms", "Interval between checkpoints of high watermarks."
    ),
    _replicas("log.retention.check.interval.ms", "Interval between searches for old segments."),
    flag(
        "log.cleaner.enable",
        True,
        "Whether logs with `cleanup.policy=compact` are compacted.",
        roles=(BROKER,),
    ),
    SHARED_KEYS["log.cleaner.threads"],
    SHARED_KEYS["log.cleaner.dedupe.buffer.size"],
    SHARED_KEYS["log.cleaner.io.max.bytes.per.second"],
    SHARED_KEYS["log.cleaner.backoff.ms"],
    _replicas(
        "log.dir.failure.timeout.ms",
        "A broker stops when it could not report a failed log directory for this long.",
        field="log_dir_assignment_timeout_ms",
    ),
    number(
        "log.dir.hang.timeout.ms",
        30_000,
        "A log directory fails when a disk call takes longer than this.",
        minimum=100,
        roles=(BROKER,),
        own=True,
    ),
    number(
        "log.dir.probe.interval.ms",
        1_000,
        "How often a probe file is created, synced, renamed and removed in every log directory.",
        minimum=50,
        maximum=60_000,
        roles=(BROKER,),
        own=True,
    ),
    _replicas(
        "fetch.max.bytes", "Maximum size of a fetch answer; at least one batch is sent.", minimum=1_024
    ),
    number(
        "socket.request.max.bytes",
        100 * MIB,
        "Maximum size of a request, and of the answer to a follower's fetch.",
        minimum=MIB,
    ),
    number(
        "connections.max.idle.ms",
        600_000,
        "A client's connection that is idle for this long is closed. -1: never.",
        also=(-1,),
    ),
    number(
        "queued.max.request.bytes",
        256 * MIB,
        "Maximum size of a listener's requests that are being received or under way: further ones are"
        " read when there is room. The same for produced records that wait for disks or followers; "
        "more are refused as retriable. -1, Kafka's default: no limit.",
        minimum=MIB,
        maximum=MAX_LONG,
        also=(-1,),
    ),
    number(
        "queued.max.response.bytes",
        256 * MIB,
        "Maximum size of the answers of all connections that were read and have not been sent: beyond"
        " it clients' fetches return less, then wait. -1: no limit.",
        minimum=MIB,
        maximum=MAX_LONG,
        also=(-1,),
        own=True,
    ),
    words(
        "replica.selector.class",
        None,
        "Which replica consumers read from. Rack-aware: one in sync in `client.rack`, else the leader"
        " (KIP-392).",
        choices=(RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector"),
        roles=(BROKER,),
    ),
    _replicas(
        "max.incremental.fetch.session.cache.slots", "Maximum number of fetch sessions (KIP-227).", minimum=0
    ),
    SHARED_KEYS["producer.id.expiration.ms"],
    _replicas(
        "produce.purgatory.max.requests",
        "Maximum number of waiting produce requests; more are refused as retriable.",
        own=True,
    ),
    _replicas(
        "fetch.purgatory.max.requests",
        "Maximum number of waiting fetches; more are answered at once.",
        own=True,
    ),
)


def _topic(prefix: str, name: str) -> tuple[Key, ...]:
    return (
        number(f"{prefix}.num.partitions", 50, f"Number of partitions of `{name}`.", roles=(BROKER,)),
        number(
            f"{prefix}.replication.factor",
            3,
            f"Replication factor of `{name}`. With fewer brokers there is no coordinator.",
            maximum=32_767,
            roles=(BROKER,),
        ),
        number(
            f"{prefix}.segment.bytes", 100 * MIB, f"Maximum size of a segment of `{name}`.", roles=(BROKER,)
        ),
    )


COORDINATORS = (
    *_topic("offsets.topic", OFFSETS_TOPIC),
    _coordinators("offsets.commit.timeout.ms", "How long a commit waits until every replica in sync has it."),
    _groups(
        "offsets.retention.minutes",
        "How long offsets of a group without members, or of topics that it has left, are kept.",
        field="offsets_retention_ms",
        times=60_000,
    ),
    _groups(
        "offsets.retention.check.interval.ms",
        "Interval between removals of expired offsets and empty groups.",
    ),
    _groups(
        "offset.metadata.max.bytes",
        "Maximum number of characters of the text committed with an offset.",
        minimum=0,
    ),
    _groups(
        "group.initial.rebalance.delay.ms",
        "How long an empty group waits for members before its first rebalance.",
        minimum=0,
    ),
    _groups("group.min.session.timeout.ms", "Minimum `session.timeout.ms` of a consumer."),
    _groups("group.max.session.timeout.ms", "Maximum `session.timeout.ms` of a consumer."),
    _groups("group.max.size", "Maximum number of members of a group."),
    _groups(
        "group.coordinator.max.groups",
        "Maximum number of groups per partition of `__consumer_offsets`; more are refused with "
        "GROUP_MAX_SIZE_REACHED.",
        own=True,
    ),
    _groups(
        "group.consumer.session.timeout.ms", "Session timeout of a consumer of the new protocol (KIP-848)."
    ),
    _groups("group.consumer.heartbeat.interval.ms", "Interval of heartbeats in the new protocol."),
    _groups("group.consumer.max.size", "Maximum number of members of a group of the new protocol."),
    _groups(
        "group.consumer.regex.refresh.interval.ms",
        "How often topics that match patterns of the new protocol are looked up though no topic is "
        "new: members' rights may have changed.",
        minimum=10_000,
    ),
    _groups(
        "group.consumer.migration.policy",
        "Whether a group with members changes its protocol: to the new one when a member of it joins "
        "(`upgrade`), to the classic one when the last such member leaves (`downgrade`), or both.",
    ),
    *_topic("transaction.state.log", TRANSACTIONS_TOPIC),
    number(
        "transaction.state.log.min.isr", 2, "`min.insync.replicas` of `__transaction_state`.", roles=(BROKER,)
    ),
    _transactions(
        "transaction.max.timeout.ms",
        "Maximum `transaction.timeout.ms` of a producer.",
        field="max_timeout_ms",
    ),
    _transactions(
        "transactional.id.expiration.ms",
        "How long an unused transactional id is kept.",
        field="id_expiration_ms",
    ),
    _transactions(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "How often transactions past their timeout are aborted.",
        field="abort_interval_ms",
    ),
    _transactions(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "Interval between removals of expired transactional ids.",
        field="removal_interval_ms",
    ),
)

GROUP_BOUNDS = tuple(
    _bounds(
        f"group.consumer.{end}.{name}.ms",
        f"{most} of `group.consumer.{name}.ms`, and of `consumer.{name}.ms` of a group.",
    )
    for name in ("session.timeout", "heartbeat.interval")
    for end, most in (("min", "Minimum"), ("max", "Maximum"))
)
